/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of tokens, states as values, and the bounds of vocabularies and caches. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/grammar/grammar_matcher.h"
#include "formats/grammar/test_grammar.h"

static struct test_vocabulary vocabulary;

/* Each mask of each step against the answers of the matcher, token by token. */
TEST(masks_equal_the_answers_for_each_token)
{
    uint64_t random = 9;
    for (size_t i = 0; i < test_schema_count; i++) {
        struct grammar *grammar = test_schema_open(test_schemas[i].schema, NULL);
        struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
        for (int round = 0; round < 8; round++) {
            size_t size;
            free(test_walk(matcher, &vocabulary, &random, round * 8, true, &size));
        }
        grammar_matcher_close(matcher);
        grammar_close(grammar);
    }
}

static bool is_set(const uint32_t *mask, uint32_t id) { return mask[id / 32] >> id % 32 & 1; }

/* Positions in a counted repetition share a mask where no short token reaches its end. */
TEST(counted_repetitions_share_masks)
{
    struct status status = {0};
    struct grammar *grammar = grammar_regex_open("([a-z =]{3}){20,60}[a-z]{0,100}x", 32, &status);
    test_expect_success(grammar != NULL, &status);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    uint64_t random = 10;
    for (int round = 0; round < 4; round++) {
        size_t size;
        free(test_walk(matcher, &vocabulary, &random, 200, true, &size));
    }
    grammar_matcher_close(matcher);
    grammar_close(grammar);

    grammar = test_schema_open("{'type':'string','minLength':400,'maxLength':1000}", NULL);
    matcher = test_matcher_open(grammar, &vocabulary);
    struct grammar_state place;
    uint32_t mask[64];
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    test_expect_success(grammar_accept_bytes(matcher, &place, "\"", 1, &status), &status);
    for (int i = 0; i < 1000; i++) {
        test_expect_success(grammar_fill_mask(matcher, &place, mask, &status), &status);
        assert_int_equal(is_set(mask, '"'), i >= 400);
        test_expect_success(grammar_accept_bytes(matcher, &place, "a", 1, &status), &status);
    }
    test_expect_success(grammar_fill_mask(matcher, &place, mask, &status), &status);
    assert_true(is_set(mask, '"'));
    assert_false(is_set(mask, 'a'));
    assert_in_range(matcher->mask_count, 60, 80);
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

/* Tokens longer than those whose masks are kept. */
TEST(long_tokens_are_judged_to_their_end)
{
    struct status status = {0};
    struct grammar *grammar = grammar_regex_open(" {0,47}|={48}", 13, &status);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    struct grammar_state place;
    uint32_t mask[64], spaces = 0, signs = 0;
    for (uint32_t id = 256; id < vocabulary.count; id++) {
        if (vocabulary.tokens[id].size < 40) continue;
        if (vocabulary.tokens[id].bytes[0] == ' ') spaces = id;
        if (vocabulary.tokens[id].bytes[0] == '=') signs = id;
    }
    assert_true(spaces && signs && vocabulary.tokens[spaces].size == 48 && vocabulary.tokens[signs].size == 48);
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    test_expect_success(grammar_fill_mask(matcher, &place, mask, &status), &status);
    assert_false(is_set(mask, spaces));
    assert_true(is_set(mask, signs) && is_set(mask, ' ') && is_set(mask, vocabulary.end));
    assert_false(is_set(mask, vocabulary.special));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

TEST(states_are_values)
{
    struct status status = {0};
    struct grammar *grammar =
        test_schema_open("{'anyOf':[{'type':'array','items':{'type':'integer'}},{'type':'string'}]}", NULL);
    struct grammar_matcher *first = test_matcher_open(grammar, &vocabulary),
                           *second = test_matcher_open(grammar, &vocabulary);
    struct grammar_state place, fork;
    uint32_t mask[64], other[64];
    test_expect_success(grammar_begin(first, &place, &status), &status);
    fork = place;
    test_expect_success(grammar_accept_bytes(first, &place, "[12", 3, &status), &status);
    test_expect_success(grammar_accept_bytes(first, &fork, "\"x", 2, &status), &status);
    /* A failure leaves the state as it was. */
    const struct grammar_state before = place;
    test_expect_failure(grammar_accept_bytes(first, &place, ",3]]", 4, &status), &status, STATUS_BAD_INPUT,
                        "0x5D|offset 3");
    assert_memory_equal(&before, &place, sizeof place);
    test_expect_success(grammar_accept_bytes(first, &place, "", 0, &status), &status);
    /* A state of one matcher in another, whose sets have other numbers. */
    test_expect_success(grammar_accept_bytes(second, &fork, "\"", 1, &status), &status);
    assert_true(grammar_must_end(second, &fork));
    test_expect_success(grammar_fill_mask(first, &place, mask, &status), &status);
    test_expect_success(grammar_fill_mask(second, &place, other, &status), &status);
    assert_memory_equal(mask, other, (vocabulary.count + 31) / 32 * sizeof *mask);
    grammar_matcher_close(first);
    grammar_matcher_close(second);
    grammar_close(grammar);
}

/* The caches are emptied when they are large, and states go on. */
TEST(states_outlive_the_caches)
{
    struct status status = {0};
    const char *text = "(a|b|\xC3\xA9)*a(a|b|\xC3\xA9){40}";
    struct grammar *grammar = grammar_regex_open(text, strlen(text), &status);
    test_expect_success(grammar != NULL, &status);
    struct grammar_matcher *matcher = test_matcher_open(grammar, &vocabulary);
    struct grammar_state place;
    uint64_t random = 11, most = 0, emptied = 0;
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    for (int i = 0; i < 60000 && emptied < 2; i++) {
        const char *next = test_random(&random) % 2 ? "ab"
                                                    : "\xC3\xA9"
                                                      "b";
        const uint64_t before = matcher->sets.bytes;
        test_expect_success(grammar_accept_bytes(matcher, &place, next, strlen(next), &status), &status);
        emptied += matcher->sets.bytes < before;
        if (matcher->sets.bytes > most) most = matcher->sets.bytes;
    }
    assert_true(emptied >= 1 && most <= GRAMMAR_MOST_CACHE_BYTES);
    assert_false(grammar_may_end(matcher, &place) && grammar_must_end(matcher, &place));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
}

TEST(vocabularies_are_bounded)
{
    struct status status = {0};
    static char text[GRAMMAR_MOST_TOKEN_BYTES + 1];
    struct grammar_token token = {.bytes = text, .size = sizeof text};
    memset(text, 'a', sizeof text);
    test_expect_failure(grammar_vocabulary_open(&token, 1, &status) != NULL, &status, STATUS_BAD_INPUT,
                        "token 0|4097|4096");
    test_expect_failure(grammar_vocabulary_open(&token, 0, &status) != NULL, &status, STATUS_BAD_INPUT, "found 0");
    token.size = GRAMMAR_MOST_TOKEN_BYTES;
    struct grammar_vocabulary *one = grammar_vocabulary_open(&token, 1, &status);
    test_expect_success(one != NULL, &status);
    assert_true(grammar_vocabulary_bytes(one) < 1 << 20);
    struct grammar *grammar = grammar_regex_open("a*|b", 4, &status);
    struct grammar_matcher *matcher = grammar_matcher_open(grammar, one, &status);
    struct grammar_state place;
    uint32_t mask = 0;
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    test_expect_success(grammar_fill_mask(matcher, &place, &mask, &status), &status);
    assert_int_equal(mask, 1);
    /* No token can follow, and none ends. */
    test_expect_success(grammar_accept_bytes(matcher, &place, "b", 1, &status), &status);
    test_expect_failure(grammar_fill_mask(matcher, &place, &mask, &status), &status, STATUS_BAD_INPUT, "no token");
    grammar_matcher_close(matcher);
    matcher = grammar_matcher_open(grammar, NULL, &status);
    test_expect_failure(grammar_fill_mask(matcher, &place, &mask, &status), &status, STATUS_USAGE, "vocabulary");
    grammar_matcher_close(matcher);
    grammar_vocabulary_close(one);
    grammar_close(grammar);
}

/* Tokens with the same bytes, without bytes, and several end tokens. */
TEST(unusual_tokens)
{
    struct status status = {0};
    const struct grammar_token tokens[] = {{"a", 1, GRAMMAR_TOKEN_TEXT},   {"a", 1, GRAMMAR_TOKEN_TEXT},
                                           {"", 0, GRAMMAR_TOKEN_TEXT},    {"", 0, GRAMMAR_TOKEN_END},
                                           {"x", 1, GRAMMAR_TOKEN_END},    {"aa", 2, GRAMMAR_TOKEN_TEXT},
                                           {"a", 1, GRAMMAR_TOKEN_SPECIAL}};
    struct grammar_vocabulary *few = grammar_vocabulary_open(tokens, 7, &status);
    struct grammar *grammar = grammar_regex_open("a{0,2}", 6, &status);
    struct grammar_matcher *matcher = grammar_matcher_open(grammar, few, &status);
    struct grammar_state place;
    uint32_t mask;
    static const uint32_t expected[] = {0x3B, 0x1B, 0x18};
    test_expect_success(grammar_begin(matcher, &place, &status), &status);
    for (int i = 0; i < 3; i++) {
        test_expect_success(grammar_fill_mask(matcher, &place, &mask, &status), &status);
        assert_int_equal(mask, expected[i]);
        if (i < 2) test_expect_success(grammar_accept_bytes(matcher, &place, "a", 1, &status), &status);
    }
    assert_true(grammar_must_end(matcher, &place));
    grammar_matcher_close(matcher);
    grammar_close(grammar);
    grammar_vocabulary_close(few);
}

int main(void)
{
    test_vocabulary_open(&vocabulary);
    const int result = test_run();
    test_vocabulary_close(&vocabulary);
    return result;
}
