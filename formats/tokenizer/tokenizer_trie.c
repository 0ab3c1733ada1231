/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/tokenizer/tokenizer_trie.h"

#include <stdlib.h>
#include <string.h>

/* The tokens below a node while the trie is built: a range of `order` in which all have the same first bytes. */
struct trie_range {
    uint32_t begin, end;
};

struct trie_builder {
    struct token_trie *trie;
    const struct image_token *tokens;
    const uint32_t *order;
    const char *pool;
    struct trie_range *ranges; /* [nodes] */
};

static uint32_t common_bytes(const char *left, uint32_t left_bytes, const char *right, uint32_t right_bytes)
{
    uint32_t shorter = left_bytes < right_bytes ? left_bytes : right_bytes, at = 0;
    while (at < shorter && left[at] == right[at]) at++;
    return at;
}

/* Checks the order and counts the nodes: each token adds those of its bytes that the token before it does not share. */
static bool count_nodes(const struct trie_builder *builder, uint32_t count, uint32_t pool_bytes, uint64_t *nodes,
                        struct status *status)
{
    const char *previous = "";
    uint32_t previous_bytes = 0;
    *nodes = 1;
    for (uint32_t i = 0; i < count; i++) {
        const struct image_token *token = &builder->tokens[builder->order[i]];
        const char *text = builder->pool + token->text_offset;
        uint32_t common = common_bytes(previous, previous_bytes, text, token->text_bytes);
        if (common == token->text_bytes ||
            (common < previous_bytes && (uint8_t)previous[common] > (uint8_t)text[common]))
            return status_fail(status, STATUS_CORRUPT, "tokenizer image: tokens are not in the order of their texts");
        *nodes += token->text_bytes - common;
        previous = text;
        previous_bytes = token->text_bytes;
    }
    if (*nodes - 1 > pool_bytes) return status_fail(status, STATUS_CORRUPT, "tokenizer image: texts of tokens overlap");
    if (*nodes > TOKENIZER_TRIE_LIMIT)
        return status_fail(status, STATUS_BAD_INPUT,
                           "the vocabulary's tokens take %llu nodes of a trie: expected at most %d",
                           (unsigned long long)*nodes, TOKENIZER_TRIE_LIMIT);
    return true;
}

/* Breadth first, so that the children of a node are contiguous. */
static void grow(const struct trie_builder *builder, uint32_t count)
{
    struct token_trie *trie = builder->trie;
    uint32_t depth = 0, level_end = 1;
    builder->ranges[0] = (struct trie_range){0, count};
    trie->node_count = 1;
    for (uint32_t at = 0; at < trie->node_count; at++) {
        if (at == level_end) {
            depth++;
            level_end = trie->node_count;
        }
        struct trie_node *node = &trie->nodes[at];
        struct trie_range range = builder->ranges[at];
        node->id = -1;
        /* the shortest sorts first */
        if (range.begin < range.end && builder->tokens[builder->order[range.begin]].text_bytes == depth)
            node->id = (int32_t)builder->order[range.begin++];
        node->first_child = trie->node_count;
        while (range.begin < range.end) {
            uint32_t child = trie->node_count++, begin = range.begin;
            uint8_t byte = (uint8_t)builder->pool[builder->tokens[builder->order[begin]].text_offset + depth];
            while (range.begin < range.end &&
                   (uint8_t)builder->pool[builder->tokens[builder->order[range.begin]].text_offset + depth] == byte)
                range.begin++;
            builder->ranges[child] = (struct trie_range){begin, range.begin};
            trie->nodes[child].byte = byte;
            node->child_count++;
            if (at == 0) trie->root_children[byte] = child;
        }
    }
}

bool token_trie_build(struct token_trie *trie, const struct image_token *tokens, const uint32_t *order, uint32_t count,
                      const char *pool, uint32_t pool_bytes, struct status *status)
{
    struct trie_builder builder = {trie, tokens, order, pool, NULL};
    uint64_t nodes;
    if (!count_nodes(&builder, count, pool_bytes, &nodes, status)) return false;
    trie->nodes = calloc((size_t)nodes, sizeof *trie->nodes);
    builder.ranges = malloc((size_t)nodes * sizeof *builder.ranges);
    bool good = trie->nodes && builder.ranges;
    if (good)
        grow(&builder, count);
    else
        status_fail(status, STATUS_MACHINE, "out of memory while opening the tokenizer");
    free(builder.ranges);
    return good;
}

void token_trie_free(struct token_trie *trie)
{
    free(trie->nodes);
    memset(trie, 0, sizeof *trie);
}
