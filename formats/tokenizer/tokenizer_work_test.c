/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a tokenizer is bounded by the length of the text for all patterns and added tokens; patterns of published
 * tokenizers stay far below the bound. */
#include <time.h>

#include "formats/tokenizer/test_pattern.h"
#include "formats/tokenizer/test_tokenizer.h"

enum { LONG_TEXT = 100 * 1000 };

/* Processor time of this thread: other programs do not count. */
static double thread_seconds(void)
{
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What takes this long on a slow machine is linear; quadratic work takes minutes. */
static double most_seconds(void) { return test_sanitized() ? 30 : 6; }

/* A repeat without an upper limit inside a lookaround takes time that no position consumes. */
TEST(test_refused)
{
    static const char *const patterns[][2] = {
        {"(?=[^x]*+[yz])a", "pattern '(?=[^x]*+[yz])a'|repeat without an upper limit|lookahead|byte 7"},
        {"(?!a+b)c", "repeat without an upper limit"},
        {"(?=(?:[^x]*)[yz])a", "repeat without an upper limit"},
        {"(?<=a+)b", "repeat without an upper limit"},
        {"(?<!a{2,})b", "repeat without an upper limit"},
        {"a|(?=(\\d{3})+(?!\\d))", "repeat without an upper limit"},
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct tokenizer_pattern *pattern =
            tokenizer_pattern_regex(patterns[i][0], strlen(patterns[i][0]), true, &status);
        test_expect_failure(pattern != NULL, &status, STATUS_BAD_INPUT, patterns[i][1]);
    }
}

/* Each of these scans the rest of the text from every position. */
TEST(test_quadratic_patterns_end)
{
    static const char *const patterns[] = {
        "[^x]*+[yz]",
        "(?>[^x]*)[yz]",
        "[^x]*[yz]",
        "(?:[^x]*+[yz]|a)*[cd]",
        "(?:a{1,1000}){1,1000}[yz]",
        "a*[^x]*+[yz]",
        "(?:a+)+[yz]",
        "(?:a|a)*[yz]",
        "[^x]{1000}[yz]",
        "(?=(?>[^x]{0,1000})[yz])a",
        "(?:a|a|a){30}[yz]",
        "a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?[yz]",
    };
    char *text = malloc(LONG_TEXT), *hundred = NULL; /* alternatives, each of which scans to the end */
    size_t hundred_size = 0, count = sizeof patterns / sizeof *patterns;
    FILE *out = open_memstream(&hundred, &hundred_size);
    assert_true(text && out);
    for (int i = 0; i < 100; i++)
        fprintf(out, "%s[^x]*+[\\u%04x\\u%04x]", i ? "|" : "", 0x4e00 + 2 * i, 0x4e01 + 2 * i);
    assert_int_equal(fclose(out), 0);
    memset(text, 'a', LONG_TEXT);
    for (size_t i = 0; i < 2 * (count + 1); i++) {
        size_t matches;
        uint64_t work;
        const char *regex = i / 2 < count ? patterns[i / 2] : hundred;
        double start = thread_seconds();
        bool good = count_matches(regex, i % 2, text, LONG_TEXT, &matches, &work, &status);
        double seconds = thread_seconds() - start;
        print_message("%-40.40s %s: %.2f s\n", regex, i % 2 ? "compiled" : "interpreted", seconds);
        test_expect_failure(good, &status, STATUS_BAD_INPUT, "too much work");
        if (i / 2 < count) assert_non_null(strstr(status.message, regex));
    }
    free(hundred);
    free(text);
}

#define UPPER   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CLITICS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

/* As published, with the families that use them. */
static const char *const published[] = {
    /* gpt2, and with ByteLevel many others */
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    /* llama3, glm4 */
    CLITICS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    /* qwen2, qwen2.5, qwen3 */
    CLITICS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    /* o200k: gpt-oss */
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CLITICS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CLITICS
    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    /* tekken: mistral nemo and later */
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    /* deepseek v3: three splits */
    "\\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    /* deepseek llm and coder */
    "[\\r\\n]",
    "\\s?\\p{L}+",
    "\\s?\\p{P}+",
    /* falcon */
    "[0-9][0-9][0-9]",
    /* bloom */
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
};

/* Published patterns stay below a third of the budget for a byte, interpreted and compiled, on prose and on long
 * runs. */
TEST(test_published)
{
    enum { MOST_PER_BYTE = 100 };
    static const char prose[] =
        "The CAT's 12345 \u00c9tudes -- DON'T `stop`;  \n\n\tint x = f(a[10], \"\u65e5\u672c\u8a9e\");\r\n";
    static const char *const units[] = {prose,    "a",      "A",  "1",  " ",   "\n", "-",
                                        "\u0e01", "\u65e5", "Ab", "a ", " \n", "'s"};
    enum { SIZE = 20 * 1000 };
    char *text = malloc(SIZE);
    double most = 0;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t size = 0, unit = strlen(units[u]);
        for (; size + unit <= SIZE; size += unit) memcpy(text + size, units[u], unit);
        for (size_t i = 0; i < 2 * sizeof published / sizeof *published; i++) {
            size_t matches;
            uint64_t work;
            test_expect_success(count_matches(published[i / 2], i % 2, text, size, &matches, &work, &status), &status);
            double per_byte = (double)work / (double)size;
            if (per_byte > most) most = per_byte;
            if (per_byte > MOST_PER_BYTE)
                fail_msg("%s: %.1f units of work for a byte of '%s'", published[i / 2], per_byte, units[u]);
        }
    }
    print_message("at most %.1f units of work for a byte\n", most);
    assert_true(most > 1); /* work is counted */
    free(text);
}

/* Tokens with the same beginning, on a text that begins like them everywhere. */
TEST(test_added_tokens_of_one_prefix)
{
    enum { TOKENS = 1000 };
    char *added = NULL, *text = malloc(LONG_TEXT);
    size_t size = 0;
    FILE *out = open_memstream(&added, &size);
    assert_true(out && text);
    for (int i = 1; i <= TOKENS; i++) {
        fprintf(out, "%s{\"id\":%d,\"content\":\"", i > 1 ? "," : "", 264 + i);
        for (int k = 0; k <= i; k++) fputc('a', out);
        fprintf(out, "b\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                     "\"special\":false}");
    }
    assert_int_equal(fclose(out), 0);
    OPEN(.added = added, .pre_tokenizer = BYTES_ALONE);
    memset(text, 'a', LONG_TEXT);
    double start = thread_seconds();
    encode(text, LONG_TEXT, false);
    double seconds = thread_seconds() - start;
    print_message("added tokens of one prefix: %.2f s\n", seconds);
    assert_int_equal(encoded.count, LONG_TEXT);
    text[LONG_TEXT - 1] = 'b';
    encode(text, LONG_TEXT, false);
    assert_int_equal(encoded.ids[encoded.count - 1], 264 + TOKENS); /* the longest one */
    if (seconds > most_seconds()) fail_msg("%d bytes took %.2f s", LONG_TEXT, seconds);
    free(added);
    free(text);
}

/* Normalizers that each make the text eight times as long: two of them make 64 bytes, and their tokens, from each
 * byte. The character map has one text, a, and its replacement. */
TEST(test_text_that_grows)
{
    static const char *const steps[] = {
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaa\"}",
        "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"DAAAAACAAQBhDQAAAAAAgGFhYWFhYWFh\"}",
    };
    char *text = malloc(LONG_TEXT), two[300];
    assert_non_null(text);
    memset(text, 'a', LONG_TEXT);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        OPEN(.normalizer = steps[i], .pre_tokenizer = BYTES_ALONE);
        encode(text, LONG_TEXT, false);
        assert_int_equal(encoded.count, 8 * LONG_TEXT);
        snprintf(two, sizeof two, "{\"type\":\"Sequence\",\"normalizers\":[%s,%s]}", steps[i], steps[i]);
        OPEN(.normalizer = two, .pre_tokenizer = BYTES_ALONE);
        test_expect_failure(tokenizer_encode(opened.tokenizer, text, LONG_TEXT, false, &encoded, &status), &status,
                            STATUS_BAD_INPUT, "make the text grow");
    }
    free(text);
}

/* A vocabulary of runs of one letter up to `longest`, each with a score for Unigram. */
static char *runs_model(const char *format, int longest, bool scores)
{
    char *vocabulary = NULL, *model;
    size_t size = 0;
    FILE *out = open_memstream(&vocabulary, &size);
    assert_non_null(out);
    fprintf(out, scores ? "[['<unk>',0]" : "{'<unk>':0");
    for (int i = 1; i <= longest; i++) {
        fprintf(out, scores ? ",['" : ",'");
        for (int k = 0; k < i; k++) fputc('a', out);
        if (scores)
            fprintf(out, "',%d]", -2 * i);
        else
            fprintf(out, "':%d", i);
    }
    fprintf(out, scores ? "]" : "}");
    assert_int_equal(fclose(out), 0);
    assert_true(asprintf(&model, format, vocabulary) > 0);
    free(vocabulary);
    return model;
}

static void check_runs(char *model, int longest, bool encodes, size_t tokens)
{
    char *text = malloc(LONG_TEXT);
    assert_non_null(text);
    memset(text, 'a', LONG_TEXT);
    OPEN(.model = model);
    double start = thread_seconds();
    bool good = tokenizer_encode(opened.tokenizer, text, LONG_TEXT, false, &encoded, &status);
    double seconds = thread_seconds() - start;
    print_message("runs of 1 to %d letters: %.2f s\n", longest, seconds);
    if (seconds > most_seconds()) fail_msg("%d bytes took %.2f s", LONG_TEXT, seconds);
    if (encodes)
        test_expect_success(good, &status);
    else
        test_expect_failure(good, &status, STATUS_BAD_INPUT, "vocabulary takes too much work");
    if (encodes) assert_int_equal(encoded.count, tokens);
    free(text);
    free(model);
}

/* Each position of the text begins a token of every length: tokens of 128 bytes, longer than those of real vocabularies,
 * are well below the bound; tokens of 4000 end in an error. */
TEST(test_long_tokens)
{
    static const char unigram[] = "{'type':'Unigram','unk_id':0,'vocab':%s}";
    static const char pieces[] = "{'type':'WordPiece','unk_token':'<unk>','continuing_subword_prefix':'',"
                                 "'max_input_chars_per_word':1000000,'vocab':%s}";
    check_runs(runs_model(unigram, 128, true), 128, true, LONG_TEXT / 128 + 1);
    if (!test_sanitized()) check_runs(runs_model(unigram, 4000, true), 4000, false, 0);
    check_runs(runs_model(pieces, 128, false), 128, true, LONG_TEXT / 128 + 1);
    check_runs(runs_model(pieces, 4000, false), 4000, true, LONG_TEXT / 4000);
}

/* WordPiece looks far ahead for a long token that the text does not have to its end, and takes one letter. */
TEST(test_word_piece_lookahead)
{
    enum { LONGEST = 8000 };
    char *model, *run = malloc(LONGEST + 1), *text = malloc(LONG_TEXT);
    assert_true(run && text);
    memset(run, 'a', LONGEST);
    run[LONGEST] = '\0';
    memset(text, 'a', LONG_TEXT);
    assert_true(asprintf(&model,
                         "{'type':'WordPiece','unk_token':'<unk>','continuing_subword_prefix':'',"
                         "'max_input_chars_per_word':1000000,'vocab':{'<unk>':0,'a':1,'%sb':2}}",
                         run) > 0);
    OPEN(.model = model);
    test_expect_failure(tokenizer_encode(opened.tokenizer, text, LONG_TEXT, false, &encoded, &status), &status,
                        STATUS_BAD_INPUT, "vocabulary takes too much work");
    encode(text, 1000, false);
    assert_int_equal(encoded.count, 1000);
    free(model);
    free(run);
    free(text);
}

int main(void) { return test_run_with(NULL, NULL, close_fixture, NULL); }
