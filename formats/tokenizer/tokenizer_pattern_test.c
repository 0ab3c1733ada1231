/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns: equivalence of the translation, refused syntax, and the end of hostile patterns. */
#include "formats/tokenizer/test_pattern.h"
#include "formats/tokenizer/tokenizer_text.h"

static struct status status;

/* Matches marked in the text: "a[bc]d". */
struct marking {
    const char *text;
    struct text_buffer out;
};

static bool mark_segment(void *context, size_t start, size_t end, bool matched)
{
    struct marking *marking = context;
    return (!matched || tokenizer_text_append(&marking->out, "[", 1, NULL)) &&
           tokenizer_text_append(&marking->out, marking->text + start, end - start, NULL) &&
           (!matched || tokenizer_text_append(&marking->out, "]", 1, NULL));
}

static void check_marks(struct tokenizer_pattern *pattern, const char *text, const char *expected, const char *name)
{
    struct tokenizer_matcher matcher;
    struct marking marking = {.text = text};
    test_expect_success(tokenizer_matcher_open(&matcher, strlen(text), &status), &status);
    test_expect_success(tokenizer_pattern_segments(pattern, &matcher, text, strlen(text), mark_segment, &marking,
                                                   &status),
                        &status);
    assert_true(tokenizer_text_append(&marking.out, "", 1, &status));
    if (strcmp(marking.out.text, expected) != 0)
        fail_msg("%s: found %s, expected %s", name, marking.out.text, expected);
    text_buffer_free(&marking.out);
    tokenizer_matcher_close(&matcher);
}

#define LLAMA3                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| " \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"                             \
    "\\s+(?!\\S)|\\s+"

TEST(test_meaning)
{
    static const struct {
        const char *regex, *text, *expected;
    } cases[] = {
        {"b+", "abba", "a[bb]a"},
        {"x*", "ab", "[]a[]b[]"},
        {"a*", "baa", "[]b[aa]"}, /* the empty match after "aa" is not taken */
        {LLAMA3, "I'LL go12345  \n x", "[I]['LL][ go][123][45][  \n][ x]"},
        {LLAMA3, "a \u00a0b\xC2\x85", "[a][ ][\u00a0b][\xC2\x85]"},
        {"\\s+", "\u180e\u2003\u3000x\xC2\x85", "\u180e[\u2003\u3000]x[\xC2\x85]"}, /* U+180E is no white space */
        {"\\S+", "a\u180e b", "[a\u180e] [b]"},
        {"[^\\S\\n]+", " \n\t", "[ ]\n[\t]"},
        {"[\\S]+", "ab c", "[ab] [c]"},
        {"\\d+", "1\u0661\u00bd", "[1\u0661]\u00bd"},
        {"\\w+", "a\u0301_\u2160\u00b2 \u20ac", "[a\u0301_\u2160\u00b2] \u20ac"},
        {"\\W", "a-b", "a[-]b"},
        {"\\D", "1a2", "1[a]2"},
        {"\\bb", "ab b", "ab [b]"},
        {"b\\b", "ab ba", "a[b] ba"},
        {"\\Bb", "ab b", "a[b] b"},
        {"^.", "ab\ncd\n", "[a]b\n[c]d\n"},
        {".$", "ab\ncd", "a[b]\nc[d]"},
        {"\\Aa|b\\z|c\\Z", "aabcb", "[a]abc[b]"},
        {"c\\Z", "cc\n", "c[c]\n"},
        {"\\p{Han}+", "日本ーか", "[日本]ーか"},
        {"\\P{L}|\\p{^N}", "a1", "[a][1]"},
        {"[\\P{L}]", "a1", "a[1]"},
        {"[^(\\s|[.,!?])]+", "ab.c d(", "[ab].[c] [d]("},
        {"[a\\-z]", "a-bz", "[a][-]b[z]"},
        {"[-a]", "-a", "[-][a]"},
        {"[a-]", "-a", "[-][a]"},
        {"[\\]\\[]", "[]", "[[][]]"},
        {"a{,2}b", "aaab", "a[aab]"},
        {"a{2}|b{1,}?", "aabb", "[aa][b][b]"},
        {"(a|b)c", "acbc", "[ac][bc]"},
        {"(?>a+)b", "aab", "[aab]"},
        {"(?<=a)b|(?<!a)c", "abacc", "a[b]ac[c]"},
        {"a++b", "aab", "[aab]"},
        {"(?i:'s)", "'\u017f'S", "['\u017f]['S]"}, /* the long s folds to s in both engines */
        {"(?i)k", "K\u212a", "[K][\u212a]"},
        {"a(?i:b(?-i:c))", "aBcaBC", "[aBc]aBC"},
        {"\\x41\\x{1F600}\\u00e9", "A\U0001F600\u00e9", "[A\U0001F600\u00e9]"},
        {"\\t\\n\\v\\f\\r\\e\\a", "\t\n\v\f\r\x1b\a", "[\t\n\v\f\r\x1b\a]"},
        {"\\.\\ \\/\\#", ". /#", "[. /#]"},
        {"[一-龥]+", "日本x", "[日本]x"},
        {"é", "aéb", "a[é]b"},
        {"#[^#]", "# x#", "[# ]x#"}, /* no extended mode */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int just_in_time = 0; just_in_time < 2;
             just_in_time++) { /* the interpreter must agree with the compiler */
            struct tokenizer_pattern *pattern =
                tokenizer_pattern_regex(cases[i].regex, strlen(cases[i].regex), just_in_time, &status);
            if (!pattern) fail_msg("%s: %s", cases[i].regex, status.message);
            check_marks(pattern, cases[i].text, cases[i].expected, cases[i].regex);
            tokenizer_pattern_free(pattern);
        }
    }
}

TEST(test_string)
{
    struct tokenizer_pattern *pattern = tokenizer_pattern_string("aa", 2, &status);
    assert_non_null(pattern);
    check_marks(pattern, "aaab.aa", "[aa]ab.[aa]", "string");
    check_marks(pattern, "a", "a", "string longer than the text");
    check_marks(pattern, "", "", "empty text");
    tokenizer_pattern_free(pattern);
    assert_null(tokenizer_pattern_string("", 0, &status));
    test_expect_message(&status, "empty pattern");
}

/* Each with words of its message. */
TEST(test_refusals)
{
    static const char *const patterns[][2] = {
        {"", "0 bytes"},
        {"(", "unfinished group"},
        {"(a", "unfinished group"},
        {"a)", "unmatched ')'"},
        {"[", "unfinished class"},
        {"[a", "unfinished class"},
        {"[]", "empty class"},
        {"[]a]", "empty class"},
        {"[^]", "empty class"},
        {"[a&&b]", "intersection"},
        {"[[:alpha:]]", "POSIX"},
        {"[a[^b]]", "negated class inside a class"},
        {"[\\d-z]", "'-' after a set"},
        {"[[a]-z]", "'-' after a set"},
        {"[a-c-e]", "'-' in the middle"},
        {"[a-\\d]", "this range"},
        {"[a-[b]]", "ends in a class"},
        {"[z-a]", "this range"},
        {"[\\W]", "\\W in a class"},
        {"[\\q]", "this escape in a class"},
        {"\\", "a backslash"},
        {"\\h", "this escape"},
        {"\\R", "this escape"},
        {"\\X", "this escape"},
        {"\\K", "this escape"},
        {"\\G", "this escape"},
        {"\\C", "this escape"},
        {"\\1", "this escape"},
        {"(a)\\1", "this escape"},
        {"\\k<n>", "this escape"},
        {"\\é", "this escape"},
        {"\\x", "unfinished hexadecimal"},
        {"\\x{41", "unfinished hexadecimal"},
        {"\\u41", "unfinished hexadecimal"},
        {"\\xFF", "this hexadecimal"},
        {"\\x{110000}", "this hexadecimal"},
        {"\\x{D800}", "this hexadecimal"},
        {"\\pL", "without braces"},
        {"\\p{", "unfinished property"},
        {"\\p{}", "unfinished property"},
        {"\\p{Klingon}", "property name"},
        {"\\p{L N}", "property name"},
        {"\\p{AVeryLongPropertyNameIndeed}", "property name"},
        {"*", "repeat of nothing"},
        {"a|*", "repeat of nothing"},
        {"(?:+)", "repeat of nothing"},
        {"{2}", "repeat of nothing"},
        {"a**", "repeat of a repeat"},
        {"a{2}{3}", "repeat of a repeat"},
        {"a{2}+", "suffix after"},
        {"a{2}?", "suffix after"},
        {"a{2,1}", "this '{'"},
        {"a{,}", "this '{'"},
        {"a{x", "this '{'"},
        {"a{1001}", "above 1000"},
        {"^*", "without length"},
        {"\\b+", "without length"},
        {"(?=a)*", "without length"},
        {"(?#a)", "this kind of group"},
        {"(?<n>a)", "this kind of group"},
        {"(?m:a)", "this kind of group"},
        {"a(?i)b", "this kind of group"},
        {"(*UCP)a", "'(*'"},
        {"(?i:é)", "beyond ASCII"},
        {"(?i:[à-ý])", "beyond ASCII"},
        {"(?i:\\x{E9})", "beyond ASCII"},
        {"(?i:ss)", "ligature"},
        {"(?i)Fi", "ligature"},
        {"(?i:[^a])", "negated class where case"},
        {"(?i:\\p{L})", "property where case"},
        {"(?i:\\w)", "\\w where case"},
        {"(?i:[\\S])", "\\S in a class where case"},
        {"(?<=a+)b", "without an upper limit"},
        {"(?<=a{1,2})b", "does not compile"},
        {"(?:(?:a{1000}){1000}){1000}", "does not compile"},
        {"\xFF", "not valid UTF-8"},
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct tokenizer_pattern *pattern =
            tokenizer_pattern_regex(patterns[i][0], strlen(patterns[i][0]), true, &status);
        if (pattern) fail_msg("accepted: %s", patterns[i][0]);
        if (status.code != STATUS_BAD_INPUT || !strstr(status.message, patterns[i][1]))
            fail_msg("%s: message: %s", patterns[i][0], status.message);
    }
    char deep[400], *at = deep;
    for (int i = 0; i < 100; i++) *at++ = '(';
    assert_null(tokenizer_pattern_regex(deep, 100, true, &status));
    test_expect_message(&status, "nested this deep");
    for (int i = 0; i < 100; i++) deep[i] = '[';
    assert_null(tokenizer_pattern_regex(deep, 100, true, &status));
    test_expect_message(&status, "nested this deep");
    char *large = calloc(1, PATTERN_BYTES_LIMIT + 1);
    memset(large, 'a', PATTERN_BYTES_LIMIT + 1);
    assert_null(tokenizer_pattern_regex(large, PATTERN_BYTES_LIMIT + 1, true, &status));
    test_expect_message(&status, "4097 bytes|4096");
    free(large);
}

/* Exponential backtracking ends with a message, compiled and interpreted. */
TEST(test_hostile_pattern)
{
    static const char *const patterns[] = {"(a|aa)+$", "(?:a+)+b", "(?:a|b|ab|aa)*b"};
    char text[2002];
    memset(text, 'a', 2000);
    memcpy(text + 2000, "cb", 2); /* prevents an early answer from a missing required letter */
    for (size_t i = 0; i < 2 * sizeof patterns / sizeof *patterns; i++) {
        size_t matches;
        uint64_t work;
        test_expect_failure(count_matches(patterns[i / 2], i % 2, text, sizeof text, &matches, &work, &status), &status,
                            STATUS_BAD_INPUT, "too much");
    }
}

/* Ordinary patterns stay far from the limits, even on long runs. */
TEST(test_long_runs)
{
    size_t size = 200000;
    char *text = malloc(size);
    static const char fillers[] = {' ', 'a', '1', '\n', '-'};
    for (size_t i = 0; i < 2 * sizeof fillers; i++) {
        size_t matches;
        uint64_t work;
        memset(text, fillers[i / 2], size);
        test_expect_success(count_matches(LLAMA3, i % 2, text, size, &matches, &work, &status), &status);
        assert_int_equal(matches, fillers[i / 2] == '1' ? (size + 2) / 3 : 1);
    }
    free(text);
}

int main(void) { return test_run(); }
