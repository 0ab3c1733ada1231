/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/tokenizer/tokenizer_trie.h"

#include <string.h>

#include "formats/base/test_support.h"

enum { MOST_TOKENS = 300, MOST_BYTES = 6 };

static struct status status;
static struct token_trie trie;

static int close_trie(void **state)
{
    token_trie_free(&trie);
    return 0;
}

/* Tokens of the words in `text`, which spaces separate. */
static uint32_t place_words(const char *text, struct image_token *tokens)
{
    uint32_t count = 0;
    for (size_t at = 0; text[at] != '\0';) {
        const size_t size = strcspn(text + at, " ");
        tokens[count++] = (struct image_token){.text_offset = (uint32_t)at, .text_bytes = (uint32_t)size};
        at += size + (text[at + size] == ' ');
    }
    return count;
}

static bool build(const char *text, const uint32_t *order, uint32_t pool_bytes)
{
    struct image_token tokens[MOST_TOKENS];
    const uint32_t count = place_words(text, tokens);
    close_trie(NULL);
    return token_trie_build(&trie, tokens, order, count, text, pool_bytes, &status);
}

/* Id of the token with exactly this text, -1: none; *depth: bytes that the trie has of it. */
static int32_t find(const char *text, size_t *depth)
{
    uint32_t node = 0;
    for (*depth = 0; text[*depth] != '\0'; ++*depth)
        if ((node = token_trie_child(&trie, node, (uint8_t)text[*depth])) == 0) return -1;
    return trie.nodes[node].id;
}

TEST(test_words)
{
    size_t depth;
    test_expect_success(build("b ab a abc \xff", (const uint32_t[]){2, 1, 3, 0, 4}, 100), &status);
    assert_int_equal(trie.node_count, 6);
    assert_int_equal(find("", &depth), -1);
    assert_int_equal(find("a", &depth), 2);
    assert_int_equal(find("ab", &depth), 1);
    assert_int_equal(find("abc", &depth), 3);
    assert_int_equal(find("\xff", &depth), 4);
    assert_int_equal(find("abd", &depth), -1);
    assert_int_equal(depth, 2);
    assert_int_equal(find("ac", &depth), -1);
    assert_int_equal(depth, 1);
}

TEST(test_no_words)
{
    size_t depth;
    test_expect_success(build("", NULL, 0), &status);
    assert_int_equal(trie.node_count, 1);
    assert_int_equal(find("a", &depth), -1);
}

TEST(test_refusals)
{
    test_expect_failure(build("b a", (const uint32_t[]){0, 1}, 100), &status, STATUS_CORRUPT, "order of their texts");
    test_expect_failure(build("a a", (const uint32_t[]){0, 1}, 100), &status, STATUS_CORRUPT, "order of their texts");
    test_expect_failure(build("ab a", (const uint32_t[]){0, 1}, 100), &status, STATUS_CORRUPT, "order of their texts");
    test_expect_failure(build("a \xff", (const uint32_t[]){1, 0}, 100), &status, STATUS_CORRUPT,
                        "order of their texts");
    test_expect_success(build("ab b", (const uint32_t[]){0, 1}, 3), &status);
    test_expect_failure(build("ab b", (const uint32_t[]){0, 1}, 2), &status, STATUS_CORRUPT, "overlap");
}

/* All words of up to six letters a and b, in a random order in the pool: each is found, and only those. */
TEST(test_all_words)
{
    char text[MOST_TOKENS * (MOST_BYTES + 1)] = "", words[MOST_TOKENS][MOST_BYTES + 1];
    uint32_t order[MOST_TOKENS], count = 0, seed = 3;
    for (uint32_t length = 1; length <= MOST_BYTES; length++)
        for (uint32_t bits = 0; bits < 1u << length; bits++) {
            seed = seed * 1664525u + 1013904223u;
            if (seed >> 30 == 0) continue; /* a quarter is missing */
            for (uint32_t i = 0; i < length; i++) words[count][i] = bits >> i & 1 ? 'b' : 'a';
            words[count][length] = '\0';
            strcat(strcat(text, count ? " " : ""), words[count]);
            order[count] = count;
            count++;
        }
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k + 1 < count; k++)
            if (strcmp(words[order[k]], words[order[k + 1]]) > 0) {
                const uint32_t moved = order[k];
                order[k] = order[k + 1];
                order[k + 1] = moved;
            }
    test_expect_success(build(text, order, sizeof text), &status);
    for (uint32_t length = 1; length <= MOST_BYTES; length++)
        for (uint32_t bits = 0; bits < 1u << length; bits++) {
            char word[MOST_BYTES + 1] = "";
            int32_t expected = -1;
            size_t depth;
            for (uint32_t i = 0; i < length; i++) word[i] = bits >> i & 1 ? 'b' : 'a';
            for (uint32_t i = 0; i < count; i++)
                if (strcmp(words[i], word) == 0) expected = (int32_t)i;
            assert_int_equal(find(word, &depth), expected);
        }
}

int main(void) { return test_run_with(NULL, NULL, close_trie, NULL); }
