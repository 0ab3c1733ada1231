/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars of regular expressions and of choices. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/grammar/test_grammar.h"
#include "formats/tokenizer/tokenizer_text.h"

static struct test_vocabulary vocabulary;

static struct grammar_matcher *open_regex(const char *text, struct grammar **grammar)
{
    struct status status = {0};
    *grammar = grammar_regex_open(text, strlen(text), &status);
    if (!*grammar) fail_msg("%s: %s", text, status.message);
    struct grammar_matcher *matcher = grammar_matcher_open(*grammar, vocabulary.vocabulary, &status);
    test_expect_success(matcher != NULL, &status);
    return matcher;
}

static bool accepts(struct grammar_matcher *matcher, const char *text)
{
    return test_accepts(matcher, text, strlen(text));
}

/* The whole text, as PCRE2 has it. */
static bool matches(const char *pattern, const char *text, size_t size)
{
    int code;
    size_t offset;
    char whole[300];
    snprintf(whole, sizeof whole, "^(?:%s)$", pattern);
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &offset, NULL);
    assert_non_null(compiled);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(compiled, NULL);
    const int result = pcre2_match(compiled, (PCRE2_SPTR)text, size, 0, 0, data, NULL);
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    return result >= 0;
}

/* Expressions that mean the same in PCRE2. */
static const char *const expressions[] = {
    "abc",
    "a|bc|",
    "[a-c]*d",
    "(ab|a)(bc|c)?",
    "(a|b)*abb",
    "a{2,4}b{3}",
    "(ab?){2,}",
    "[^a-y\\n]+",
    "x[\\]\\-a]y",
    "\\d+\\.\\d{2}",
    "\\w+@\\w+",
    "(a?){5}a{5}",
    "((a|b)c?)*",
    "[é-ü日]+",
    "a.c",
    ".{0,3}",
    "\\x41\\x42[\\x43-\\x45]",
    "(?:a|(?<name>b))+?c*?",
    "\\(\\[\\{\\}\\)\\\\\\^\\$",
    "[0-9]{1,3}(,[0-9]{3})*",
    "(((a*)*)*)*b",
    "[^b]",
};

TEST(random_outputs_match)
{
    uint64_t random = 5;
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        struct grammar *grammar;
        struct grammar_matcher *matcher = open_regex(expressions[i], &grammar);
        for (int round = 0; round < 40; round++) {
            size_t size;
            char *output = test_walk(matcher, &vocabulary, &random, round / 2, round % 10 == 0, &size);
            if (!text_is_valid((const uint8_t *)output, size)) fail_msg("%s: not UTF-8", expressions[i]);
            if (!matches(expressions[i], output, size)) fail_msg("%s: does not match: %s", expressions[i], output);
            free(output);
        }
        grammar_matcher_close(matcher);
        grammar_close(grammar);
    }
}

/* Random texts over a few characters are accepted exactly where PCRE2 matches them. */
TEST(random_texts_have_the_same_answer)
{
    static const char *const characters[] = {"a", "b", "c",  "d", "é", "日", "0", "1", ".",
                                             ",", "@", "\n", "A", "B", "C",  "x", "y"};
    uint64_t random = 6;
    size_t accepted = 0;
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        struct grammar *grammar;
        struct grammar_matcher *matcher = open_regex(expressions[i], &grammar);
        for (int round = 0; round < 400; round++) {
            char text[64] = "";
            const uint64_t length = test_random(&random) % 7,
                           kinds = round % 2 ? 3 : sizeof characters / sizeof *characters;
            for (uint64_t k = 0; k < length; k++) strcat(text, characters[test_random(&random) % kinds]);
            const bool expected = matches(expressions[i], text, strlen(text));
            if (accepts(matcher, text) != expected)
                fail_msg("%s: '%s' is %s", expressions[i], text, expected ? "refused" : "accepted");
            accepted += expected;
        }
        grammar_matcher_close(matcher);
        grammar_close(grammar);
    }
    assert_true(accepted > 500);
}

TEST(only_utf8_is_accepted)
{
    struct grammar *grammar;
    struct grammar_matcher *matcher = open_regex("[^a]*", &grammar);
    static const char *const wrong[] = {"\x80",
                                        "\xC0\xAF",
                                        "\xC1\x81",
                                        "\xE0\x80\x80",
                                        "\xED\xA0\x80",
                                        "\xED\xBF\xBF",
                                        "\xF0\x80\x80\x80",
                                        "\xF4\x90\x80\x80",
                                        "\xF5\x80",
                                        "\xFF",
                                        "\xC3",
                                        "\xE6\x97",
                                        "\xC3("};
    static const char *const right[] = {"\x7F",         "\xC2\x80",         "\xDF\xBF",
                                        "\xE0\xA0\x80", "\xED\x9F\xBF",     "\xEE\x80\x80",
                                        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (accepts(matcher, wrong[i])) fail_msg("sequence %zu is accepted", i);
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        if (!accepts(matcher, right[i])) fail_msg("sequence %zu is refused", i);
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

/* What takes exponential time by backtracking, or exponential space if it is determinised as a whole. */
TEST(nothing_is_exponential)
{
    struct grammar *grammar;
    struct grammar_matcher *matcher = open_regex("(a?){30}a{30}", &grammar);
    char text[2000];
    memset(text, 'a', sizeof text);
    for (size_t size = 25; size < 65; size++)
        assert_int_equal(test_accepts(matcher, text, size), size >= 30 && size <= 60);
    grammar_matcher_close(matcher);
    grammar_close(grammar);

    matcher = open_regex("[0-9]{1,1000}", &grammar);
    memset(text, '7', sizeof text);
    assert_false(test_accepts(matcher, text, 0));
    assert_true(test_accepts(matcher, text, 1) && test_accepts(matcher, text, 1000));
    assert_false(test_accepts(matcher, text, 1001));
    grammar_matcher_close(matcher);
    grammar_close(grammar);

    uint64_t random = 7;
    matcher = open_regex("(a|b)*a(a|b){30}", &grammar);
    for (int round = 0; round < 3; round++) {
        size_t size;
        char *output = test_walk(matcher, &vocabulary, &random, 300, false, &size);
        assert_int_equal(output[size - 31], 'a');
        free(output);
    }
    grammar_matcher_close(matcher);
    grammar_close(grammar);

    matcher = open_regex("((((a?){20}){20}){20})b", &grammar);
    assert_true(accepts(matcher, "aaab"));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

static void expect_refusal(const char *text, size_t size, const char *words)
{
    struct status status = {0};
    test_expect_failure(grammar_regex_open(text, size, &status) != NULL, &status, STATUS_BAD_INPUT, words);
}

TEST(unsupported_and_wrong_expressions_are_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"a(?=b)", "look-around|byte 3"},
        {"(?<!a)b", "look-around"},
        {"(a)\\1", "back reference"},
        {"\\k<a>", "back reference"},
        {"a\\b", "word boundary"},
        {"\\p{L}", "Unicode property"},
        {"(?i)a", "kind of group"},
        {"a**", "repetition of a repetition"},
        {"a*+", "possessive"},
        {"*a", "repetition of nothing"},
        {"(a", "closing parenthesis"},
        {"a)", "without a group"},
        {"[a", "closing bracket"},
        {"[b-a]", "range"},
        {"[a-\\d]", "range"},
        {"[[:alpha:]]", "POSIX"},
        {"a{3,2}", "count"},
        {"a{2", "closing brace"},
        {"a{x}", "brace"},
        {"a{9999999}", "repetition"},
        {"\\", "backslash"},
        {"\\xZ1", "hexadecimal"},
        {"\\uD800", "surrogate"},
        {"a^b", "anchor"},
        {"(a$)", "anchor"},
        {"\\q", "escape"},
        {"[]", "no output"},
        {"a{1000000}b{1000000}", "too large|states"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].text, strlen(cases[i].text), cases[i].words);
    expect_refusal("\xFF", 1, "UTF-8");
    char *deep = malloc(1 << 17);
    assert_non_null(deep);
    memset(deep, '(', 1 << 17);
    expect_refusal(deep, 60000, "nested");
    expect_refusal(deep, 1 << 17, "65536");
    memset(deep, '[', 1 << 17);
    expect_refusal(deep, 60000, "bracket");
    free(deep);
}

TEST(anchors_at_the_ends_are_implied)
{
    struct grammar *grammar;
    struct grammar_matcher *matcher = open_regex("^ab$|^c|d$", &grammar);
    assert_true(accepts(matcher, "ab") && accepts(matcher, "c") && accepts(matcher, "d"));
    assert_false(accepts(matcher, "xab") || accepts(matcher, "cc") || accepts(matcher, "ad"));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

TEST(escapes_of_characters)
{
    struct grammar *grammar;
    struct grammar_matcher *matcher = open_regex("\\u65e5[\\u00e0-\\u00ff]\\0\\t\\v[\\b]", &grammar);
    assert_true(test_accepts(matcher, "日é\0\t\v\b", 9));
    assert_false(test_accepts(matcher, "日e\0\t\v\b", 8));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

TEST(choices)
{
    static const struct grammar_text texts[] = {{"yes", 3},     {"no", 2},   {"not sure", 8},
                                                {"nothing", 7}, {"日本", 6}, {"yes", 3}};
    const size_t count = sizeof texts / sizeof *texts;
    struct status status = {0};
    struct grammar *grammar = grammar_choices_open(texts, count, &status);
    test_expect_success(grammar != NULL, &status);
    struct grammar_matcher *matcher = grammar_matcher_open(grammar, vocabulary.vocabulary, &status);
    struct grammar_state place;
    uint64_t random = 8;
    for (size_t i = 0; i < count; i++) assert_true(test_accepts(matcher, texts[i].bytes, texts[i].size));
    assert_false(accepts(matcher, "") || accepts(matcher, "n") || accepts(matcher, "yes "));
    for (int round = 0; round < 30; round++) {
        size_t size;
        char *output = test_walk(matcher, &vocabulary, &random, 20, true, &size);
        assert_true(test_accepts(matcher, output, size));
        free(output);
    }
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    test_expect_success(grammar_accept_bytes(matcher, &place, "no", 2, &status), &status);
    assert_true(grammar_may_end(matcher, &place));
    assert_false(grammar_must_end(matcher, &place));
    test_expect_success(grammar_accept_bytes(matcher, &place, "thing", 5, &status), &status);
    assert_true(grammar_must_end(matcher, &place));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

TEST(wrong_choices_are_refused)
{
    struct status status = {0};
    const struct grammar_text broken[] = {{"a", 1}, {"\xC3", 1}};
    test_expect_failure(grammar_choices_open(broken, 2, &status) != NULL, &status, STATUS_BAD_INPUT, "choice 1|UTF-8");
    test_expect_failure(grammar_choices_open(broken, 0, &status) != NULL, &status, STATUS_BAD_INPUT, "found 0");
    test_expect_failure(grammar_choices_open(broken, GRAMMAR_MOST_CHOICES + 1, &status) != NULL, &status,
                        STATUS_BAD_INPUT, "16385");
    /* 1000 texts, each of which begins with the one before. */
    static char letters[1000];
    static struct grammar_text nested[1000];
    memset(letters, 'a', sizeof letters);
    for (size_t i = 0; i < 1000; i++) nested[i] = (struct grammar_text){letters, i + 1};
    test_expect_failure(grammar_choices_open(nested, 1000, &status) != NULL, &status, STATUS_BAD_INPUT, "prefixes");
    struct grammar *grammar = grammar_choices_open(nested, 150, &status);
    test_expect_success(grammar != NULL, &status);
    grammar_close(grammar);
}

int main(void)
{
    test_vocabulary_open(&vocabulary);
    const int result = test_run();
    test_vocabulary_close(&vocabulary);
    return result;
}
