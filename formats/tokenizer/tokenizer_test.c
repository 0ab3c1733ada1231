/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming, odd input, limits; and, if ENG_SHARED names the shared folder, five real tokenizers against Hugging Face
 * tokenizers 0.23. */
#include "formats/tokenizer/test_tokenizer.h"

static const struct fixture llama = {
    .sentencepiece = true,
    .added = ADDED(0, "<unk>", false, false, false, true, true) "," ADDED(1, "<s>", false, false, false, true,
                                                                          true) "," SPECIAL(2, "</s>"),
    .normalizer = LLAMA_NORMALIZER,
    .post_processor = TEMPLATE,
    .decoder = LLAMA_DECODER,
    .options = LLAMA_OPTIONS,
};
static const struct fixture gpt2 = {.pre_tokenizer = GPT2_SPLIT,
                                    .decoder = BYTE_DECODER,
                                    .added = SPECIAL(265, "<end>")};

/* Tokens and lookups. */
TEST(test_vocabulary)
{
    open_fixture(&gpt2);
    const char *text;
    size_t size;
    assert_int_equal(tokenizer_vocab_size(opened.tokenizer), 266);
    assert_int_equal(tokenizer_find(opened.tokenizer, "<end>", 5), 265);
    assert_int_equal(tokenizer_find(opened.tokenizer, "hello", 5), 259);
    assert_int_equal(tokenizer_find(opened.tokenizer, "hellp", 5), -1);
    assert_int_equal(tokenizer_find(opened.tokenizer, "", 0), -1);
    assert_true(tokenizer_token_text(opened.tokenizer, 260, &text, &size));
    assert_int_equal(size, strlen("Ġhello"));
    assert_memory_equal(text, "Ġhello", size);
    assert_false(tokenizer_token_text(opened.tokenizer, 266, &text, &size));
    assert_false(tokenizer_token_text(opened.tokenizer, -1, &text, &size));
    assert_true(tokenizer_is_special(opened.tokenizer, 265));
    assert_false(tokenizer_is_special(opened.tokenizer, 264));
    assert_false(tokenizer_is_special(opened.tokenizer, -5));
}

/* An id without a token decodes to nothing; one outside the vocabulary is an error. */
TEST(test_holes)
{
    OPEN(.vocab = "{'a':0,'b':5}", .merges = "[]", .decoder = "{'type':'Fuse'}");
    const char *raw;
    size_t size;
    assert_int_equal(tokenizer_vocab_size(opened.tokenizer), 6);
    assert_false(tokenizer_token_text(opened.tokenizer, 3, &raw, &size));
    check_decoded("hole", (const int32_t[]){0, 3, 5}, 3, "ab", 2);
    test_expect_failure(tokenizer_decode(opened.tokenizer, (const int32_t[]){0, 6}, 2, false, &decoded, &status),
                        &status, STATUS_BAD_INPUT, "token id 6|0 to 5");
    test_expect_failure(tokenizer_decode(opened.tokenizer, (const int32_t[]){-1}, 1, false, &decoded, &status), &status,
                        STATUS_BAD_INPUT, "token id -1");
}

/* The texts of the batch and of the stream. */
static void check_texts(const int32_t *ids, size_t count, bool skip_special, const char *batch, const char *streamed)
{
    decode(ids, count, skip_special);
    assert_string_equal(decoded.text, batch);
    char *stream = stream_all(opened.tokenizer, ids, count, skip_special);
    assert_string_equal(stream, streamed);
    free(stream);
}

static void check_skipped(const char *ids_text, const char *expected)
{
    int32_t ids[64];
    size_t count = parse_ids(ids_text, ids, 64);
    check_texts(ids, count, true, expected, expected);
}

TEST(test_skip_special)
{
    open_fixture(&gpt2);
    check_skipped("259 265 260 265", "hello hello");
    check_skipped("195 265 169", "é"); /* inside a character, too */
    open_fixture(&llama);
    check_skipped("1 276 1 279 2", "hello the");
    check_skipped("198 1 172", "é"); /* inside a run of bytes */
}

/* Text that is not UTF-8 is encoded in its repaired form. */
TEST(test_invalid_text)
{
    static const struct {
        const char *invalid, *repaired;
    } texts[] = {
        {"a\377b", "a\uFFFDb"},
        {"\xE2\x96", "\uFFFD"},
        {"\xE2\x96\xE2\x96\x81", "\uFFFD▁"},
        {"\xC0\xAF", "\uFFFD\uFFFD"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xF0\x9F\x98", "\uFFFD"},
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\x80", "\uFFFD"},
    };
    open_fixture(&gpt2);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct token_buffer expected = {0};
        test_expect_success(tokenizer_encode(opened.tokenizer, texts[i].repaired, strlen(texts[i].repaired), false,
                                             &expected, &status),
                            &status);
        check_case("repair", texts[i].invalid, strlen(texts[i].invalid), false, expected.ids, expected.count, false);
        token_buffer_free(&expected);
    }
    check_case("NUL", "a\0b", 3, false, (const int32_t[]){97, 0, 98}, 3, false);
}

/* The push with which bytes become text. Ids 195 169 are the bytes of é, 240 159 152 129 those of an emoji. */
TEST(test_stream_byte_level)
{
    open_fixture(&gpt2);
    struct decode_stream stream;
    char out[256];
    size_t size, room = decode_stream_max_bytes(opened.tokenizer);
    assert_true(room <= sizeof out);
    static const struct {
        int32_t id;
        const char *text;
    } steps[] = {{104, "h"},      {195, ""},           {169, "é"},      {240, ""},         {159, ""},
                 {152, ""},       {129, "\U0001F601"}, {240, ""},       {159, ""},         {104, "\uFFFDh"},
                 {255, "\uFFFD"}, {195, ""},           {195, "\uFFFD"}, {261, "\uFFFD  "}, {226, ""}};
    decode_stream_begin(&stream, opened.tokenizer, false);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        test_expect_success(decode_stream_push(&stream, steps[i].id, out, room, &size, &status), &status);
        assert_int_equal(size, strlen(steps[i].text));
        assert_memory_equal(out, steps[i].text, size);
    }
    test_expect_failure(decode_stream_push(&stream, 999, out, room, &size, &status), &status, STATUS_BAD_INPUT, "999");
    test_expect_failure(decode_stream_push(&stream, 104, out, room - 1, &size, &status), &status, STATUS_USAGE,
                        "decode_stream_max_bytes");
    test_expect_success(decode_stream_finish(&stream, out, room, &size, &status), &status);
    assert_int_equal(size, 3);
    assert_memory_equal(out, "\uFFFD", 3);
}

/* <0xNN> is id NN + 3. */
#define BYTE(value) ((value) + 3)

/* Runs of byte tokens: valid ones are equal in both; for an ill-formed one the stream keeps the characters before the
 * fault, the exception stated in tokenizer.h. */
TEST(test_byte_runs)
{
    open_fixture(&llama);
#define RUN(batch, streamed, ...) \
    check_texts((const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4, false, batch, streamed)
    RUN("éa", "éa", BYTE(0xC3), BYTE(0xA9), 260);
    RUN("日本", "日本", BYTE(0xE6), BYTE(0x97), BYTE(0xA5), BYTE(0xE6), BYTE(0x9C), BYTE(0xAC));
    RUN("\uFFFD\uFFFDa", "\uFFFD\uFFFDa", BYTE(0xE6), BYTE(0x97), 260);
    RUN("\uFFFD\uFFFD", "\uFFFD\uFFFD", BYTE(0xE6), BYTE(0x97));
    RUN("a\uFFFDéb", "a\uFFFDéb", 260, BYTE(0xFF), 261 - 1 + 10, 261);
    RUN("\uFFFD\uFFFD\uFFFD", "é\uFFFD", BYTE(0xC3), BYTE(0xA9), BYTE(0xFF));
    RUN("\uFFFD\uFFFD\uFFFD\uFFFD", "é\uFFFD\uFFFD", BYTE(0xC3), BYTE(0xA9), BYTE(0xC3), BYTE('a'));
    RUN("\uFFFD\uFFFD\uFFFDbé", "\uFFFD\uFFFD\uFFFDbé", BYTE(0xFF), BYTE(0xC3), BYTE(0xA9), 261, BYTE(0xC3),
        BYTE(0xA9));
    RUN("x", "x", 259, BYTE('x')); /* the leading space is stripped */
    RUN("x", "x", BYTE(' '), BYTE('x'));
#undef RUN
    /* a long ill-formed run: nothing is lost, nothing overflows */
    int32_t ids[3000];
    char expected[9001];
    for (size_t i = 0; i < 3000; i++) ids[i] = BYTE(0x80);
    for (size_t i = 0; i < 3000; i++) memcpy(expected + 3 * i, "\uFFFD", 4);
    check_texts(ids, 3000, false, expected, expected);
}

/* Strip at the end of the text: characters are held back until more text follows. */
TEST(test_strip_stop)
{
    const struct fixture fixture =
        {.sentencepiece = true,
         .decoder =
             "{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Strip','content':'▁','start':1,'stop':2}]}"};
    open_fixture(&fixture);
    static const struct {
        const char *ids, *text;
    } texts[] = {{"260 259", "a"}, {"260 271", "a"},       {"260 271 259", "a▁"}, {"260 271 271 271 260", "a▁▁▁▁▁▁a"},
                 {"271 259", ""},  {"259 271 260", "▁▁a"}, {"259", ""},           {"260 271 271 271", "a▁▁▁▁"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t ids[16];
        size_t count = parse_ids(texts[i].ids, ids, 16);
        check_decoded(texts[i].ids, ids, count, texts[i].text, strlen(texts[i].text));
    }
}

/* Random ids: stream and batch give the same text (byte-level), for every skip setting. */
TEST(test_stream_random)
{
    open_fixture(&gpt2);
    uint32_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        int32_t ids[24];
        for (size_t i = 0; i < 24; i++) {
            seed = seed * 1664525u + 1013904223u;
            ids[i] = (int32_t)((seed >> 8) % 266);
        }
        decode(ids, 24, round % 2);
        char *streamed = stream_all(opened.tokenizer, ids, 24, round % 2);
        assert_memory_equal(streamed, decoded.text, decoded.size);
        free(streamed);
    }
}

/* Long texts of one word must not take quadratic time: a quarter of a million characters with the heap and with word
 * starts. */
TEST(test_long_words)
{
    static const struct {
        const struct fixture *fixture;
        const char *unit;
        size_t tokens_per_unit;
    } texts[] = {{&llama, "hello ", 1}, {&llama, "hell", 1}, {&gpt2, "hell", 1}, {&gpt2, "  ", 1}, {&llama, "é", 1}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        open_fixture(texts[i].fixture);
        size_t unit = strlen(texts[i].unit), count = (1 << 18) / unit, size = count * unit;
        char *text = malloc(size);
        for (size_t k = 0; k < count; k++) memcpy(text + k * unit, texts[i].unit, unit);
        encode(text, size, false);
        assert_in_range(encoded.count, count * texts[i].tokens_per_unit, count * texts[i].tokens_per_unit + 2);
        decode(encoded.ids, encoded.count, false);
        assert_int_equal(decoded.size, size);
        assert_memory_equal(decoded.text, text, size);
        free(text);
    }
}

/* The two ways of merging must agree: random words of few letters, around the length at which they change. */
TEST(test_merge_orders)
{
    const struct fixture fixture =
        {.vocab = "{'a':0,'b':1,'ab':2,'ba':3,'aba':4,'bb':5,'abab':6,'aa':7,'baa':8,'bab':9,'abb':10}",
         .merges = "['a b','b a','b b','ab a','ab ab','a a','b aa','ba b','ab b','a bb','ba a','a ba']"};
    static const int16_t results[12][3] = {{0, 1, 2}, {1, 0, 3}, {1, 1, 5},  {2, 0, 4},  {2, 2, 6}, {0, 0, 7},
                                           {1, 7, 8}, {3, 1, 9}, {2, 1, 10}, {0, 5, 10}, {3, 0, 8}, {0, 3, 4}};
    open_fixture(&fixture);
    uint32_t seed = 7;
    for (int round = 0; round < 3000; round++) {
        char text[80];
        int32_t ids[80];
        size_t count = 1 + (size_t)round % 79;
        for (size_t i = 0; i < count; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = (seed >> 20) & 1 ? 'b' : 'a';
            ids[i] = text[i] == 'b';
        }
        size_t left = count;
        for (;;) { /* by the definition: the lowest rank, the leftmost among equals */
            size_t best_rank = 12, best = 0;
            for (size_t i = 0; i + 1 < left; i++)
                for (size_t rank = 0; rank < best_rank; rank++)
                    if (results[rank][0] == ids[i] && results[rank][1] == ids[i + 1]) {
                        best_rank = rank;
                        best = i;
                    }
            if (best_rank == 12) break;
            ids[best] = results[best_rank][2];
            memmove(&ids[best + 1], &ids[best + 2], (left - best - 2) * sizeof *ids);
            left--;
        }
        check_case("merge order", text, count, false, ids, left, false);
    }
}

/* The last of repeated merges counts, as in Hugging Face. */
TEST(test_repeated_merges)
{
    OPEN(.vocab = "{'a':0,'b':1,'ab':2,'ba':3}", .merges = "['a b','b a','a b']");
    check_case("repeated", "aba", 3, false, (const int32_t[]){0, 3}, 2, false);
}

/* A text that needs the unknown token while the vocabulary lacks it is refused; any other text encodes. */
TEST(test_missing_unknown)
{
    OPEN(.vocab = "{'a':0}", .merges = "[]", .options = "'unk_token':'<unk>',");
    check_case("known", "aa", 2, false, (const int32_t[]){0, 0}, 2, false);
    test_expect_failure(tokenizer_encode(opened.tokenizer, "ax", 2, false, &encoded, &status), &status,
                        STATUS_BAD_INPUT, "U+0078|unknown token");
}

/* A step that multiplies text ends in an error instead of using all memory. */
TEST(test_growth)
{
    char *steps = NULL, *normalizer = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&steps, &size);
    for (int i = 0; i < 30; i++)
        fprintf(out, "%s{'type':'Replace','pattern':{'Regex':'a'},'content':'aaaaaaaaaaaaaaaa'}", i ? "," : "");
    assert_int_equal(fclose(out), 0);
    assert_true(asprintf(&normalizer, "{'type':'Sequence','normalizers':[%s]}", steps) > 0);
    OPEN(.normalizer = normalizer);
    test_expect_failure(tokenizer_encode(opened.tokenizer, "aaaa", 4, false, &encoded, &status), &status,
                        STATUS_BAD_INPUT, "grow");
    free(normalizer);
    free(steps);
}

/* A long run of combining marks, quadratic for a simple sort, is sorted by class. */
TEST(test_many_marks)
{
    OPEN(.normalizer = "{'type':'NFD'}", .pre_tokenizer = BYTES_ALONE, .decoder = BYTE_DECODER);
    size_t pairs = 100000;
    char *marks = malloc(1 + 4 * pairs);
    marks[0] = 'a';
    for (size_t i = 0; i < pairs; i++) memcpy(marks + 1 + 4 * i, "\u0301\u0323", 4); /* class 230, class 220 */
    encode(marks, 1 + 4 * pairs, false);
    decode(encoded.ids, encoded.count, false);
    assert_int_equal(decoded.size, 1 + 4 * pairs);
    for (size_t i = 0; i < 2 * pairs; i++)
        assert_memory_equal(decoded.text + 1 + 2 * i, i < pairs ? "\u0323" : "\u0301", 2);
    free(marks);
}

static void check_real(const char *folder, const char *tokenizer_name, const char *cases_name)
{
    size_t cases_size;
    json_error_t error;
    open_gzip(folder, tokenizer_name);
    char *cases_text = read_gzip(folder, cases_name, &cases_size);
    json_t *list = json_loadb(cases_text, cases_size, JSON_ALLOW_NUL, &error);
    check_cases(folder, list, false);
    json_decref(list);
    free(cases_text);
}

TEST(test_real_tokenizers)
{
    if (!test_shared()) skip();
    check_real("tokenizers/gpt2", "tokenizer.json", "cases.json");
    check_real("tokenizers/llama2", "tokenizer.json", "cases.json");
    check_real("tokenizers/llama3", "tokenizer.json.gz", "cases.json");
    check_real("tokenizers/qwen2.5", "tokenizer.json.gz", "cases.json");
    check_real("models/stories260K", "tokenizer.json", "tokenizer_cases.json");
}

int main(void) { return test_run_with(NULL, NULL, close_fixture, NULL); }
