/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars that are put together from parts: texts are allowed or refused, and wrong sources are refused by place. */
#include "formats/grammar/grammar_composed.h"

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/grammar/test_grammar.h"

/* The special tokens of these tests. */
static size_t find_special(const void *context, const char *text, size_t size)
{
    static const char *const names[] = {"<call>x", "<call>", "<end>"};
    (void)context;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t length = strlen(names[i]);
        if (size >= length && memcmp(text, names[i], length) == 0) return length;
    }
    return 0;
}

static struct grammar *open_source(const char *source, struct status *status)
{
    char *text = strdup(source);
    assert_non_null(text);
    test_quote(text);
    struct grammar *grammar =
        grammar_composed_open(text, strlen(text), &(struct grammar_specials){find_special, NULL}, status);
    free(text);
    return grammar;
}

/* As grammars know special tokens. */
#define CALL "\xff<call>\xff"
#define END  "\xff<end>\xff"

TEST(texts_are_allowed_or_refused)
{
    static const struct {
        const char *source, *allowed, *refused;
    } cases[] = {
        {"{'text':'<call>'}", "<call>", CALL "\n<call\n<call>x"},
        {"{'marker':'<call>'}", CALL, "<call>\n\xff\n" CALL "\xff\n\xff<call>"},
        {"{'marker':'a<call><end>b'}", "a" CALL END "b", "a<call><end>b\na" CALL "<end>b"},
        /* The longest special token is meant, and no other one stands for a token and a text. */
        {"{'marker':'<call>x'}", "\xff<call>x\xff", CALL "x\n<call>x"},
        {"{'marker':'<call>y'}", CALL "y", "\xff<call>y\xff\n<call>y"},
        {"{'sequence':[{'marker':'<call>'},{'text':'x'}]}", CALL "x", "\xff<call>x\xff\n<call>x"},
        {"{'sequence':[{'until':'<call>'},{'text':'x'}]}", CALL "x\n<call>x" CALL "x", "\xff<call>x\xff\n<call>x"},
        {"{'sequence':[{'text':'a'},{'any_of':[{'text':'b'},{'text':'c'}]}]}", "ab\nac", "a\nabc\nb"},
        {"{'sequence':[]}", "", "a"},
        {"{'repeat':{'text':'ab'},'least':1,'most':2}", "ab\nabab", "\nababab\na"},
        {"{'repeat':{'text':'ab'}}", "\nab\nabababab", "aba"},
        {"{'regex':'[0-9]{2}'}", "42", "4\n421"},
        {"{'json_schema':{'type':'array','items':{'type':'null'}}}", "[]\n[null,null]", "[ ]\n[1]"},
        {"{'json_schema':{'type':'array','items':{'type':'null'}},'whitespace':1}", "[ ]\n[null, null]", "[  ]\n[1]"},
        {"{'sequence':[{'json_schema':{'$ref':'#/$defs/a','$defs':{'a':{'const':1}}}},"
         "{'json_schema':{'$ref':'#/$defs/a','$defs':{'a':{'const':2}}}}]}",
         "12", "11\n22\n21"},
        {"{'until':'</v>'}", "</v>\na</v>\n<</v>\n</</v>\n\xc3\xa9\xf0\x9f\x98\x80</v>\n</v</v>",
         "</v\na</v>b\na</v></v>\n\xc3</v>\n\xff</v>\n\xed\xa0\x80</v>\n\x01</v>"},
        {"{'until':'aab'}", "aab\naaab\nxaaaab\nabaab", "aabaab\naa\nab"},
        {"{'until':'\xc3\xa9.'}", "\xc3\xa9.\n\xc3\xa9\xc3\xa9.\n\xc3\xa8.\xc3\xa9.",
         "\xc3\xa9\n.\n\xc3\xa9.\xc3\xa9."},
        {"{'until':'<end>'}", END "\n<end>" END "\na<" END, "<end>\n" CALL END "\n" END END},
        {"{'until':'</<end>p'}", "</" END "p\n</</" END "p\n</<end>p</" END "p",
         END "p\n<" END "p\n</" END "q\n</" END},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct grammar *grammar = open_source(cases[i].source, &status);
        if (!grammar) fail_msg("%s: %s", cases[i].source, status.message);
        struct grammar_matcher *matcher = grammar_matcher_open(grammar, NULL, &status);
        test_expect_success(matcher != NULL, &status);
        for (int allowed = 0; allowed < 2; allowed++) {
            char *copy = strdup(allowed ? cases[i].allowed : cases[i].refused), *rest = copy;
            for (char *text; (text = strsep(&rest, "\n"));)
                if (test_accepts(matcher, text, strlen(text)) != allowed)
                    fail_msg("%s: '%s' is %s", cases[i].source, text, allowed ? "refused" : "allowed");
            free(copy);
        }
        grammar_matcher_close(matcher);
        grammar_close(grammar);
    }
}

TEST(wrong_sources_are_refused_by_place)
{
    static const struct {
        const char *source, *words;
    } cases[] = {
        {"[", "not valid JSON"},
        {"[]", "'/'|expected an object with text"},
        {"{'texts':'a'}", "'/'|expected an object with text"},
        {"{'text':1}", "'text'|found integer"},
        {"{'marker':''}", "1 to"},
        {"{'until':5}", "a text of 1 to"},
        {"{'text':'a','least':1}", "'least'|beside 'text'"},
        {"{'any_of':[]}", "'any_of'|a list of parts"},
        {"{'sequence':[{'text':'a'},{'any_of':[{'regex':'('}]}]}", "/sequence/1/any_of/0/regex"},
        {"{'repeat':{'text':'a'},'least':3,'most':2}", "'least'|at most 'most', 2, found 3"},
        {"{'repeat':{'text':'a'},'most':-1}", "'most'|0 to"},
        {"{'json_schema':{'type':'text'}}", "'type'|text"},
        {"{'json_schema':{},'whitespace':65}", "'whitespace'|0 to 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct grammar *grammar = open_source(cases[i].source, &status);
        if (grammar) fail_msg("accepted: %s", cases[i].source);
        test_expect_failure(false, &status, STATUS_BAD_INPUT, cases[i].words);
    }
    char deep[2048];
    size_t size = 0;
    for (int i = 0; i < 40; i++) size += (size_t)sprintf(deep + size, "{'sequence':[");
    size += (size_t)sprintf(deep + size, "{'text':'a'}");
    for (int i = 0; i < 40; i++) size += (size_t)sprintf(deep + size, "]}");
    struct status status = {0};
    assert_null(open_source(deep, &status));
    test_expect_failure(false, &status, STATUS_BAD_INPUT, "within one another");
}

/* Parts that each take about a sixteenth of the steps that a grammar may take. */
TEST(parts_share_a_budget)
{
    char *part = malloc(1 << 14), *source = malloc(1 << 20), *at = stpcpy(part, "{'json_schema':{'allOf':[");
    assert_true(part && source);
    for (int side = 0; side < 2; side++) {
        at = stpcpy(at, side ? ",{'enum':[" : "{'enum':[");
        for (int i = 0; i < 1000; i++) at += sprintf(at, "%s%d", i ? "," : "", i + side);
        at = stpcpy(at, "]}");
    }
    stpcpy(at, "]}}");
    for (int count = 1; count <= 32; count += 31) {
        struct status status = {0};
        at = stpcpy(source, "{'sequence':[");
        for (int i = 0; i < count; i++) at += sprintf(at, "%s%s", i ? "," : "", part);
        stpcpy(at, "]}");
        struct grammar *grammar = open_source(source, &status);
        if (count == 1)
            test_expect_success(grammar != NULL, &status);
        else
            test_expect_failure(grammar != NULL, &status, STATUS_BAD_INPUT, "steps");
        grammar_close(grammar);
    }
    free(part);
    free(source);
}

/* A token that ends outputs is allowed where they may end, and where a marker asks for it. */
TEST(end_tokens_are_markers)
{
    static const struct grammar_token tokens[] = {{"a", 1, GRAMMAR_TOKEN_TEXT},
                                                  {END, sizeof END - 1, GRAMMAR_TOKEN_END},
                                                  {"<end>", 5, GRAMMAR_TOKEN_END},
                                                  {"<end>", 5, GRAMMAR_TOKEN_TEXT}};
    static const uint32_t expected[] = {1 << 0, 1 << 1, 1 << 1 | 1 << 2};
    static const char *const texts[] = {"a", END, ""};
    struct status status = {0};
    struct grammar_state place;
    uint32_t mask;
    struct grammar *grammar = open_source("{'sequence':[{'text':'a'},{'marker':'<end>'}]}", &status);
    struct grammar_vocabulary *vocabulary = grammar_vocabulary_open(tokens, 4, &status);
    assert_true(grammar && vocabulary);
    struct grammar_matcher *matcher = grammar_matcher_open(grammar, vocabulary, &status);
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    for (int i = 0; i < 3; i++) {
        test_expect_success(grammar_fill_mask(matcher, &place, &mask, &status), &status);
        assert_int_equal(mask, expected[i]);
        test_expect_success(grammar_accept_bytes(matcher, &place, texts[i], strlen(texts[i]), &status), &status);
    }
    grammar_matcher_close(matcher);
    grammar_vocabulary_close(vocabulary);
    grammar_close(grammar);
}

int main(void) { return test_run(); }
