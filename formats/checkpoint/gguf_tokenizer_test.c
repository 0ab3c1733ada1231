/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers of GGUF files: the tokenizer.json that is made, and the reasons for making none. */
#include "formats/checkpoint/gguf_tokenizer.h"

#include <math.h>
#include <zlib.h>

#include "formats/base/json.h"
#include "formats/base/test_support.h"
#include "formats/checkpoint/test_gguf.h"
#include "formats/tokenizer/tokenizer.h"

static struct status status;
static struct test_gguf writer;
static struct gguf file;
static uint8_t *image;
static size_t image_bytes;

static int close_all(void **state)
{
    gguf_free(&file);
    free(image);
    image = NULL;
    return 0;
}

/* Parses what was written so far. */
static bool parse(void)
{
    close_all(NULL);
    image = test_gguf_end(&writer, &image_bytes);
    return gguf_parse(&file, image, image_bytes, "m.gguf", &status);
}

static char *tokenizer_text, *tokenizer_missing;

static bool read_tokenizer(void)
{
    free(tokenizer_text);
    free(tokenizer_missing);
    tokenizer_text = tokenizer_missing = NULL;
    test_expect_success(parse(), &status);
    return gguf_read_tokenizer(&file, &tokenizer_text, &tokenizer_missing, &status);
}

static void expect_missing(const char *words)
{
    test_expect_success(read_tokenizer(), &status);
    assert_null(tokenizer_text);
    assert_non_null(tokenizer_missing);
    if (!strstr(tokenizer_missing, words)) fail_msg("expected '%s', found '%s'", words, tokenizer_missing);
    assert_non_null(strstr(tokenizer_missing, "'m.gguf'"));
}

/* The part of tokenizer.json with this key, with ' for ". */
static const char *part(const char *key)
{
    static char found[4096];
    test_expect_success(read_tokenizer(), &status);
    assert_non_null(tokenizer_text);
    json_t *root = json_parse(tokenizer_text, strlen(tokenizer_text), "t", &status);
    assert_non_null(root);
    json_t *value = json_object_get(root, key);
    json_t *inner = strcmp(key, "model") == 0 ? json_object_get(value, "merges") : value;
    assert_non_null(inner);
    char *text = json_dumps(inner, JSON_COMPACT | JSON_ENCODE_ANY);
    snprintf(found, sizeof found, "%s", text);
    for (char *c = found; *c; c++)
        if (*c == '"') *c = '\'';
    free(text);
    json_decref(root);
    return found;
}

static void put_tokens(const char *model, const char *const *tokens, const uint32_t *types, size_t count)
{
    test_gguf_begin(&writer);
    test_gguf_string(&writer, "tokenizer.ggml.model", model);
    test_gguf_strings(&writer, "tokenizer.ggml.tokens", tokens, count);
    test_gguf_numbers(&writer, "tokenizer.ggml.token_type", GGUF_I32, types, count);
}

static void put_scores(const float *scores, size_t count)
{
    uint32_t bits[16];
    memcpy(bits, scores, count * sizeof *scores);
    test_gguf_numbers(&writer, "tokenizer.ggml.scores", GGUF_F32, bits, count);
}

TEST(test_pieces)
{
    static const char *const tokens[] = {"<unk>", "<s>", "a", "b", "ab", "ba", "aba", "bab", "x"};
    static const uint32_t types[] = {2, 3, 1, 1, 1, 1, 1, 4, 5};
    static const float scores[] = {0, 0, -9, -8, -2, -1, -1, -3, 0};
    put_tokens("llama", tokens, types, 9);
    put_scores(scores, 9);
    /* By score; of equal ones the longer left part, then the longer right part. */
    assert_string_equal(part("model"), "[['ab','a'],['a','ba'],['b','a'],['a','b'],['ba','b'],['b','ab']]");
    assert_string_equal(part("post_processor"),
                        "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>','type_id':0}},"
                        "{'Sequence':{'id':'A','type_id':0}}],'pair':[{'Sequence':{'id':'A','type_id':0}},"
                        "{'Sequence':{'id':'B','type_id':1}}],'special_tokens':{'<s>':{'id':'<s>','ids':[1],"
                        "'tokens':['<s>']}}}");
    const char *added = part("added_tokens");
    assert_non_null(strstr(added, "{'id':7,'content':'bab','single_word':false,'lstrip':false,'rstrip':false,"
                                  "'normalized':false,'special':false}"));
    assert_null(strstr(added, "'x'"));
    test_gguf_number(&writer, "tokenizer.ggml.add_space_prefix", GGUF_BOOL, 0);
    assert_null(strstr(part("normalizer"), "Prepend"));
    test_gguf_number(&writer, "tokenizer.ggml.remove_extra_whitespaces", GGUF_BOOL, 1);
    expect_missing("remove_extra_whitespaces");

    put_tokens("llama", tokens, types, 9);
    put_scores(scores, 8);
    test_expect_failure(read_tokenizer(), &status, STATUS_BAD_INPUT,
                        "m.gguf|'tokenizer.ggml.scores'|one for each token");
    put_tokens("llama", tokens, types, 9);
    put_scores((const float[]){0, 0, 0, 0, INFINITY, 0, 0, 0, 0}, 9);
    test_expect_failure(read_tokenizer(), &status, STATUS_BAD_INPUT, "'tokenizer.ggml.scores'|finite");
}

TEST(test_byte_level)
{
    static const char *const tokens[] = {"a", "b", "ab"}, *const merges[] = {"a b"};
    static const uint32_t types[] = {1, 1, 1};
    put_tokens("gpt2", tokens, types, 3);
    test_gguf_string(&writer, "tokenizer.ggml.pre", "qwen2");
    test_gguf_strings(&writer, "tokenizer.ggml.merges", merges, 1);
    assert_string_equal(part("model"), "['a b']");
    assert_string_equal(part("normalizer"), "{'type':'NFC'}");
    assert_string_equal(part("post_processor"), "null");
    test_gguf_number(&writer, "tokenizer.ggml.add_bos_token", GGUF_BOOL, 1);
    test_gguf_u32(&writer, "tokenizer.ggml.bos_token_id", 3);
    test_expect_failure(read_tokenizer(), &status, STATUS_BAD_INPUT, "'tokenizer.ggml.bos_token_id': expected a token");

    put_tokens("gpt2", tokens, types, 3);
    test_gguf_string(&writer, "tokenizer.ggml.pre", "qwen2");
    test_expect_failure(read_tokenizer(), &status, STATUS_BAD_INPUT, "'tokenizer.ggml.merges'|found nothing");
    put_tokens("gpt2", tokens, types, 3);
    expect_missing("tokenizer.ggml.pre");
    put_tokens("bert", tokens, types, 3);
    expect_missing("tokenizer.ggml.model");
    test_gguf_begin(&writer);
    expect_missing("no tokenizer");
    put_tokens("gpt2", (const char *const[]){"a", "a"}, types, 2);
    expect_missing("same text");
    put_tokens("gpt2", (const char *const[]){"a", "\xff"}, types, 2);
    expect_missing("not UTF-8");
    put_tokens("gpt2", tokens, (const uint32_t[]){1, 1, 7}, 3);
    test_expect_failure(read_tokenizer(), &status, STATUS_BAD_INPUT, "'tokenizer.ggml.token_type'|1 to 6");
    test_gguf_begin(&writer);
    test_gguf_string(&writer, "tokenizer.ggml.model", "gpt2");
    test_gguf_strings(&writer, "tokenizer.ggml.tokens", tokens, 3);
    test_gguf_numbers(&writer, "tokenizer.ggml.token_type", GGUF_I32, types, 2);
    test_expect_failure(read_tokenizer(), &status, STATUS_BAD_INPUT, "'tokenizer.ggml.token_type': expected 3|found 2");
    read_tokenizer();
    free(tokenizer_missing);
    tokenizer_missing = NULL;
}

/* The trained tokenizers of formats/testdata, whose texts and ids are those of Hugging Face. */
static json_t *trained_pre_tokenizer(const char *name)
{
    static char text[1 << 20];
    gzFile compressed = gzopen(test_text("formats/testdata/tokenizers/%s.json.gz", name), "rb");
    assert_non_null(compressed);
    int size = gzread(compressed, text, sizeof text);
    assert_true(size > 0 && (size_t)size < sizeof text);
    gzclose(compressed);
    json_t *outer = json_loadb(text, (size_t)size, JSON_ALLOW_NUL, NULL);
    const char *inner = json_string_value(json_object_get(outer, "tokenizer"));
    json_t *tokenizer = json_loads(inner, 0, NULL), *part = json_object_get(tokenizer, "pre_tokenizer");
    assert_non_null(part);
    json_incref(part);
    json_decref(tokenizer);
    json_decref(outer);
    return part;
}

/* Names of tokenizer.ggml.pre: each makes a tokenizer.json that is accepted, and some the splits of a trained one. */
TEST(test_names_of_splits)
{
    static const char *const names[][2] =
        {{"deepseek-v3", "deepseek"}, {"gpt-4o", "o200k"},  {"command-r", "digits"}, {"starcoder", "digits"},
         {"refact", "digits"},        {"falcon", "falcon"}, {"tekken", NULL},        {"deepseek-coder", NULL}};
    static const char *const tokens[] = {"a", "b", "ab", "<s>"}, *const merges[] = {"a b"};
    static const uint32_t types[] = {1, 1, 1, 3};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint8_t *made;
        size_t image_size;
        put_tokens("gpt2", tokens, types, 4);
        test_gguf_string(&writer, "tokenizer.ggml.pre", names[i][0]);
        test_gguf_strings(&writer, "tokenizer.ggml.merges", merges, 1);
        test_gguf_u32(&writer, "tokenizer.ggml.bos_token_id", 3);
        test_expect_success(read_tokenizer(), &status);
        if (!tokenizer_text) fail_msg("%s: %s", names[i][0], tokenizer_missing);
        test_expect_success(tokenizer_import(tokenizer_text, strlen(tokenizer_text), names[i][0], &made, &image_size,
                                             &status),
                            &status);
        free(made);
        if (!names[i][1]) continue;
        json_t *root = json_loads(tokenizer_text, 0, NULL), *expected = trained_pre_tokenizer(names[i][1]);
        if (!json_equal(json_object_get(root, "pre_tokenizer"), expected))
            fail_msg("%s: other splits than those of %s", names[i][0], names[i][1]);
        json_decref(root);
        json_decref(expected);
    }
    free(tokenizer_text);
    tokenizer_text = NULL;
}

int main(void) { return test_run_with(NULL, NULL, close_all, NULL); }
