/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars while memory runs out: each failure is reported as such, nothing leaks, and a matcher goes on after it with the same
 * answers. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/grammar/grammar.h"
#include "tests/faults/faults.h"

enum { BYTES = 256, TOKENS = BYTES + 4, WORDS = (TOKENS + 31) / 32, MASKS = 24 };

static const char schema[] = "{'$defs':{'n':{'type':'object','properties':{'v':{'type':'integer','minimum':3},'next':{'"
                             "anyOf':[{'$ref':'#/$defs/n'},"
                             "{'type':'null'}]}},'required':['v','next']}},"
                             "'allOf':[{'properties':{'a':{'type':['number','string']},'e':{'enum':['x','y',1.5]}},'"
                             "required':['a'],'type':'object'},"
                             "{'properties':{'a':{'type':['integer','null']},'p':{'type':'string','pattern':'^[a-c]+$'}"
                             ",'l':{'$ref':'#/$defs/n'}},"
                             "'required':['p','l']}],'additionalProperties':true}";
static const char document[] = "{'a':12,'e':'y','p':'abc','l':{'v':7,'next':{'v':34,'next':null}},'more':[1,true]}";

static struct grammar_token tokens[TOKENS];

static struct grammar *open_grammar(struct status *status)
{
    char text[sizeof schema];
    memcpy(text, schema, sizeof text);
    test_quote(text);
    return grammar_schema_open(text, strlen(text), NULL, status);
}

/* The masks along the document; one attempt, or again after a failure in the same matcher if `again` is set. */
static bool follow(struct grammar_matcher *matcher, uint32_t masks[MASKS][WORDS], bool again, struct status *status)
{
    char text[sizeof document];
    struct grammar_state state;
    memcpy(text, document, sizeof text);
    test_quote(text);
    if (!grammar_begin(matcher, &state, status) && !(again && grammar_begin(matcher, &state, status))) return false;
    for (size_t i = 0; text[i]; i++) {
        uint32_t *mask = masks[i % MASKS];
        if (!grammar_fill_mask(matcher, &state, mask, status) &&
            !(again && status->code == STATUS_MACHINE && grammar_fill_mask(matcher, &state, mask, status)))
            return false;
        if (!grammar_accept_bytes(matcher, &state, text + i, 1, status) &&
            !(again && status->code == STATUS_MACHINE && grammar_accept_bytes(matcher, &state, text + i, 1, status)))
            return false;
    }
    return grammar_must_end(matcher, &state);
}

static bool use(uint32_t masks[MASKS][WORDS], bool again, struct status *status)
{
    bool done = false;
    struct grammar *grammar = open_grammar(status);
    struct grammar_vocabulary *vocabulary = grammar ? grammar_vocabulary_open(tokens, TOKENS, status) : NULL;
    struct grammar_matcher *matcher = vocabulary ? grammar_matcher_open(grammar, vocabulary, status) : NULL;
    if (matcher) done = follow(matcher, masks, again, status);
    grammar_matcher_close(matcher);
    grammar_vocabulary_close(vocabulary);
    grammar_close(grammar);
    return done;
}

static void sweep(bool from_there_on)
{
    static uint32_t expected[MASKS][WORDS], found[MASKS][WORDS];
    struct status status = {0};
    unsigned long failures = 0, survived = 0;
    test_expect_success(use(expected, false, &status), &status);
    const long blocks = faults_live_blocks();
    for (unsigned long nth = 1;; nth++) {
        status_clear(&status);
        faults_arm(nth, from_there_on);
        const bool done = use(found, !from_there_on, &status);
        const unsigned long failed = faults_disarm();
        assert_int_equal(faults_live_blocks(), blocks);
        if (!done && status.code != STATUS_MACHINE) fail_msg("call %lu: %s", nth, status.message);
        if (done) assert_memory_equal(expected, found, sizeof found);
        if (failed == 0) break;
        failures++;
        survived += done;
    }
    print_message("%lu failures, %lu of them survived\n", failures, survived);
    assert_true(failures > 200 && (from_there_on || survived > 10));
}

TEST(one_failure) { sweep(false); }

TEST(failures_from_there_on) { sweep(true); }

int main(void)
{
    static char bytes[BYTES];
    static const char *const pieces[] = {"\",\"", "true", "{\"v\":"};
    for (int i = 0; i < TOKENS; i++) {
        if (i < BYTES) bytes[i] = (char)i;
        tokens[i] = i < BYTES        ? (struct grammar_token){&bytes[i], 1, GRAMMAR_TOKEN_TEXT}
                    : i < TOKENS - 1 ? (struct grammar_token){pieces[i - BYTES], (uint32_t)strlen(pieces[i - BYTES]),
                                                              GRAMMAR_TOKEN_TEXT}
                                     : (struct grammar_token){"", 0, GRAMMAR_TOKEN_END};
    }
    return test_run();
}
