/* SPDX-License-Identifier: Apache-2.0 */
/* Small tokenizer.json files for the tokenizer's tests, assembled from parts. */
#ifndef FORMATS_TOKENIZER_TEST_TOKENIZER_H
#define FORMATS_TOKENIZER_TEST_TOKENIZER_H

#include <jansson.h>
#include <zlib.h>

#include "formats/base/test_support.h"
#include "formats/tokenizer/tokenizer_internal.h"
#include "formats/tokenizer/tokenizer_text.h"

#define ADDED(id, content, single_word, lstrip, rstrip, normalized, special)                                      \
    "{'id':" #id ",'content':'" content "','single_word':" #single_word ",'lstrip':" #lstrip ",'rstrip':" #rstrip \
    ",'normalized':" #normalized ",'special':" #special "}"
#define SPECIAL(id, content) ADDED(id, content, false, false, false, false, true)
#define GPT2_SPLIT           "{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':true}"
#define BYTES_ALONE          "{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':true,'use_regex':false}"
#define BYTE_DECODER         "{'type':'ByteLevel','add_prefix_space':true,'trim_offsets':true}"
#define LLAMA_OPTIONS        "'unk_token':'<unk>','fuse_unk':true,'byte_fallback':true,"
#define LLAMA_NORMALIZER                                                    \
    "{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'▁'}," \
    "{'type':'Replace','pattern':{'String':' '},'content':'▁'}]}"
#define LLAMA_DECODER                                                                             \
    "{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'▁'},'content':' '}," \
    "{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' ','start':1,'stop':0}]}"
#define TEMPLATE                                                                        \
    "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}}," \
    "{'Sequence':{'id':'A','type_id':0}},{'SpecialToken':{'id':'</s>','type_id':0}}],"  \
    "'pair':[{'Sequence':{'id':'A','type_id':0}},{'Sequence':{'id':'B','type_id':1}}]," \
    "'special_tokens':{'<s>':{'id':'<s>','ids':[1],'tokens':['<s>']},"                  \
    "'</s>':{'id':'</s>','ids':[2],'tokens':['</s>']}}}"

/* Every part is JSON with ' for "; NULL omits it ("null", an empty list, no options). */
struct fixture {
    /* vocabulary: <unk> <s> </s> <0x00>..<0xFF> and letters; else the byte alphabet and a few more */
    bool sentencepiece;
    const char *added, *normalizer, *pre_tokenizer, *post_processor, *decoder;
    const char *options;        /* of the model, each followed by a comma      */
    const char *vocab, *merges; /* replace the whole list                      */
    const char *top;            /* more top-level fields, each with a comma    */
    const char *model;          /* replaces the whole model                    */
};

static inline char *fixture_vocabulary(bool sentencepiece)
{
    static const char *const pieces[] = {"▁",     "a",      "b",  "c",  "e",    "h",  "l",  "o",
                                         "t",     "1",      "2",  "é",  "▁▁",   "he", "ll", "hell",
                                         "hello", "▁hello", "▁a", "▁t", "▁the", "ab", "▁ab"};
    static const char *const words[] = {"he", "ll", "hell", "hello", "Ġhello", "ĠĠ", "ab", "Ã©", "12"};
    char *text = NULL;
    size_t size = 0;
    uint16_t alphabet[256];
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    tokenizer_byte_alphabet(alphabet);
    int id = 0;
    fprintf(out, "{");
    if (sentencepiece) {
        fprintf(out, "'<unk>':%d,'<s>':%d,'</s>':%d", 0, 1, 2);
        for (id = 3; id < 259; id++) fprintf(out, ",'<0x%02X>':%d", id - 3, id);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) fprintf(out, ",'%s':%d", pieces[i], id++);
    } else {
        for (id = 0; id < 256; id++) fprintf(out, "%s'\\u%04x':%d", id ? "," : "", alphabet[id], id);
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) fprintf(out, ",'%s':%d", words[i], id++);
    }
    fprintf(out, "}");
    assert_int_equal(fclose(out), 0);
    return text;
}

/* The text of the file; the caller frees it. */
static inline char *fixture_json(const struct fixture *fixture)
{
    static const char piece_merges[] = "['▁ ▁','h e','l l','he ll','hell o','▁ hello','▁ a','▁ t',"
                                       "'▁t he','a b','▁a b']";
    static const char word_merges[] = "[['h','e'],['l','l'],['he','ll'],['hell','o'],['Ġ','hello'],"
                                      "['Ġ','Ġ'],['a','b'],['Ã','©'],['1','2']]";
    char *text = NULL, *model = NULL, *vocabulary = fixture_vocabulary(fixture->sentencepiece);
#define PART(part) fixture->part ? fixture->part : "null"
    assert_true(asprintf(&model, "{'type':'BPE',%s'vocab':%s,'merges':%s}", fixture->options ? fixture->options : "",
                         fixture->vocab ? fixture->vocab : vocabulary,
                         fixture->merges          ? fixture->merges
                         : fixture->sentencepiece ? piece_merges
                                                  : word_merges) > 0);
    assert_true(asprintf(&text,
                         "{'version':'1.0','truncation':null,'padding':null,%s'added_tokens':[%s],"
                         "'normalizer':%s,'pre_tokenizer':%s,'post_processor':%s,'decoder':%s,'model':%s}",
                         fixture->top ? fixture->top : "", fixture->added ? fixture->added : "", PART(normalizer),
                         PART(pre_tokenizer), PART(post_processor), PART(decoder),
                         fixture->model ? fixture->model : model) > 0);
#undef PART
    free(vocabulary);
    free(model);
    return test_quote(text);
}

/* An imported and opened fixture. */
struct opened {
    uint8_t *image;
    size_t image_size;
    struct tokenizer *tokenizer;
};

/* Those of the current test; close_fixture() after it. */
static struct opened opened;
static struct token_buffer encoded;
static struct text_buffer decoded;
static struct status status;

static inline int close_fixture(void **state)
{
    tokenizer_close(opened.tokenizer);
    free(opened.image);
    opened = (struct opened){0};
    token_buffer_free(&encoded);
    text_buffer_free(&decoded);
    return 0;
}

static inline void open_json(const char *json, size_t size)
{
    close_fixture(NULL);
    test_expect_success(tokenizer_import(json, size, "tokenizer.json", &opened.image, &opened.image_size, &status),
                        &status);
    opened.tokenizer = tokenizer_open(opened.image, opened.image_size, true, &status);
    test_expect_success(opened.tokenizer != NULL, &status);
}

/* A file that may be compressed; free() it. */
static inline char *read_gzip_path(const char *path, size_t *size)
{
    gzFile file = gzopen(path, "rb");
    const size_t limit = 32 << 20;
    char *text = malloc(limit);
    assert_true(file && text);
    int got = gzread(file, text, (unsigned)limit);
    assert_true(got > 0 && (size_t)got < limit);
    gzclose(file);
    *size = (size_t)got;
    return text;
}

static inline char *read_gzip(const char *folder, const char *name, size_t *size)
{
    return read_gzip_path(test_text("%s/%s/%s", test_shared(), folder, name), size);
}

static inline void open_gzip(const char *folder, const char *name)
{
    size_t size;
    char *json = read_gzip(folder, name, &size);
    open_json(json, size);
    free(json);
}

static inline void open_fixture(const struct fixture *fixture)
{
    char *json = fixture_json(fixture);
    open_json(json, strlen(json));
    free(json);
}

#define OPEN(...) open_fixture(&(const struct fixture){__VA_ARGS__})

static inline void encode(const char *text, size_t size, bool add_special)
{
    test_expect_success(tokenizer_encode(opened.tokenizer, text, size, add_special, &encoded, &status), &status);
}

static inline void decode(const int32_t *ids, size_t count, bool skip_special)
{
    test_expect_success(tokenizer_decode(opened.tokenizer, ids, count, skip_special, &decoded, &status), &status);
}

/* Decodes with a stream; each push gets exactly the room that it may use. The text is NUL-terminated; the caller frees
 * it. */
static inline char *stream_all(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special)
{
    struct decode_stream stream;
    size_t room = decode_stream_max_bytes(tokenizer), used = 0, size;
    char *text = malloc((count + 1) * room + 1), *piece = malloc(room);
    assert_true(text && piece);
    decode_stream_begin(&stream, tokenizer, skip_special);
    for (size_t i = 0; i <= count; i++) {
        bool good = i < count ? decode_stream_push(&stream, ids[i], piece, room, &size, &status)
                              : decode_stream_finish(&stream, piece, room, &size, &status);
        test_expect_success(good, &status);
        assert_true(text_is_valid((const uint8_t *)piece, size)); /* never half a character */
        memcpy(text + used, piece, size);
        used += size;
    }
    text[used] = '\0';
    free(piece);
    return text;
}

/* Reads "1 2 3"; returns how many. */
static inline size_t parse_ids(const char *text, int32_t *ids, size_t limit)
{
    size_t count = 0;
    char *end;
    for (; *text; text = end) {
        assert_true(count < limit);
        ids[count++] = (int32_t)strtol(text, &end, 10);
        assert_true(end != text);
    }
    return count;
}

static inline void check_case(const char *name, const char *text, size_t size, bool add_special, const int32_t *ids,
                              size_t count, bool prefix)
{
    encode(text, size, add_special);
    bool equal = prefix ? encoded.count >= count : encoded.count == count;
    for (size_t i = 0; equal && i < count; i++) equal = encoded.ids[i] == ids[i];
    if (equal) return;
    for (size_t i = 0; i < encoded.count && i < 60; i++) print_error("%d ", encoded.ids[i]);
    fail_msg("%s: other ids than expected (%zu, expected %zu) for: %.*s", name, encoded.count, count, (int)size, text);
}

/* What the tokens after the first add is the end of the text, unless bytes are replaced or the end is stripped. */
static inline void check_token_bytes(const char *name, const int32_t *ids, size_t count)
{
    if (strstr(decoded.text, "\xef\xbf\xbd") || opened.tokenizer->header->strip_stop) return;
    char *bytes = malloc(decode_stream_max_bytes(opened.tokenizer));
    size_t at = decoded.size;
    assert_non_null(bytes);
    for (size_t i = count; i-- > 1;) {
        const size_t size = tokenizer_token_bytes(opened.tokenizer, ids[i], bytes);
        if (size > at || memcmp(decoded.text + at - size, bytes, size) != 0)
            fail_msg("%s: token %d has other bytes than in: %s", name, ids[i], decoded.text);
        at -= size;
    }
    free(bytes);
}

static inline void check_decoded(const char *name, const int32_t *ids, size_t count, const char *expected, size_t size)
{
    decode(ids, count, false);
    if (decoded.size != size || memcmp(decoded.text, expected, size) != 0)
        fail_msg("%s: decoded '%s', expected '%s'", name, decoded.text, expected);
    check_token_bytes(name, ids, count);
    char *streamed = stream_all(opened.tokenizer, ids, count, false);
    if (memcmp(streamed, expected, size) != 0) fail_msg("%s: streamed '%s', expected '%s'", name, streamed, expected);
    free(streamed);
}

static inline size_t json_ids(json_t *list, int32_t **ids)
{
    json_t *id;
    size_t i;
    *ids = calloc(json_array_size(list) + 1, sizeof **ids);
    json_array_foreach (list, i, id) (*ids)[i] = (int32_t)json_integer_value(id);
    return json_array_size(list);
}

/* {"text", "ids", "with_special" (all ids if `whole`, else the first ones), "decoded" (of ids)} from Hugging Face tokenizers
 * 0.23. */
static inline void check_cases(const char *name, json_t *list, bool whole)
{
    size_t index, count;
    json_t *one;
    assert_true(json_array_size(list) > 100);
    json_array_foreach (list, index, one) {
        json_t *input = json_object_get(one, "text"), *output = json_object_get(one, "decoded");
        int32_t *ids;
        count = json_ids(json_object_get(one, "ids"), &ids);
        check_case(name, json_string_value(input), json_string_length(input), false, ids, count, false);
        check_decoded(name, ids, count, json_string_value(output), json_string_length(output));
        free(ids);
        count = json_ids(json_object_get(one, "with_special"), &ids);
        check_case(name, json_string_value(input), json_string_length(input), true, ids, count, !whole);
        free(ids);
    }
}

#endif
