/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/tokenizer/tokenizer_added.h"

#include <stdlib.h>
#include <string.h>

struct added_node {
    uint32_t first_child, fail;
    uint32_t token; /* 1 + number of the longest token that ends here (read backwards); 0: none */
    uint16_t child_count;
    uint8_t byte; /* of the edge to this node */
};

/* An element of the sort, since qsort has no context argument. */
struct backwards {
    const char *text;
    uint32_t bytes, number;
};

/* The tokens below a node while the tree is built: a range of the sorted list in which all have the same last `depth`
 * bytes. */
struct range {
    uint32_t begin, end;
};

static uint8_t byte_at(const struct backwards *token, uint32_t depth)
{
    return (uint8_t)token->text[token->bytes - 1 - depth];
}

static int compare_backwards(const void *a, const void *b)
{
    const struct backwards *left = a, *right = b;
    uint32_t shorter = left->bytes < right->bytes ? left->bytes : right->bytes;
    for (uint32_t depth = 0; depth < shorter; depth++)
        if (byte_at(left, depth) != byte_at(right, depth)) return byte_at(left, depth) < byte_at(right, depth) ? -1 : 1;
    return (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

/* 0: none; the root is no child */
static uint32_t child_of(const struct added_index *index, uint32_t node, uint8_t byte)
{
    if (node == 0) return index->root_children[byte];
    uint32_t begin = index->nodes[node].first_child, end = begin + index->nodes[node].child_count;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (index->nodes[middle].byte == byte) return middle;
        if (index->nodes[middle].byte < byte)
            begin = middle + 1;
        else
            end = middle;
    }
    return 0;
}

static uint32_t next_state(const struct added_index *index, uint32_t node, uint8_t byte)
{
    uint32_t child;
    while ((child = child_of(index, node, byte)) == 0 && node != 0) node = index->nodes[node].fail;
    return child;
}

/* Breadth first, so that a node's fallback, which is nearer to the root, is complete before the node. */
static void grow(struct added_index *index, const struct backwards *tokens, uint32_t count, struct range *ranges)
{
    uint32_t depth = 0, level_end = 1;
    ranges[0] = (struct range){0, count};
    index->node_count = 1;
    for (uint32_t at = 0; at < index->node_count; at++) {
        if (at == level_end) {
            depth++;
            level_end = index->node_count;
        }
        struct added_node *node = &index->nodes[at];
        struct range range = ranges[at];
        node->token = index->nodes[node->fail].token;
        if (range.begin < range.end && tokens[range.begin].bytes == depth) /* the shortest sorts first */
            node->token = tokens[range.begin++].number + 1;
        node->first_child = index->node_count;
        while (range.begin < range.end) {
            uint32_t child = index->node_count++, begin = range.begin;
            uint8_t byte = byte_at(&tokens[begin], depth);
            while (range.begin < range.end && byte_at(&tokens[range.begin], depth) == byte) range.begin++;
            ranges[child] = (struct range){begin, range.begin};
            index->nodes[child].byte = byte;
            index->nodes[child].fail = at == 0 ? 0 : next_state(index, node->fail, byte);
            node->child_count++;
            if (at == 0) index->root_children[byte] = child;
        }
    }
}

bool added_index_build(struct added_index *index, const struct image_added *added, uint32_t count, const char *pool,
                       struct status *status)
{
    uint64_t total = 1; /* upper bound of nodes */
    struct backwards *tokens = NULL;
    struct range *ranges = NULL;
    bool done = false;
    for (uint32_t i = 0; i < count; i++) {
        total += added[i].pattern_bytes;
        if (added[i].pattern_bytes > index->longest) index->longest = added[i].pattern_bytes;
    }
    if (count == 0) return true;
    if (total > TOKENIZER_ADDED_TOTAL_LIMIT)
        return status_fail(status, STATUS_CORRUPT,
                           "tokenizer image: added tokens of more than %d bytes together: expected at most %d",
                           TOKENIZER_ADDED_TOTAL_LIMIT, TOKENIZER_ADDED_TOTAL_LIMIT);
    tokens = malloc(count * sizeof *tokens);
    ranges = malloc((size_t)total * sizeof *ranges);
    index->nodes = calloc((size_t)total, sizeof *index->nodes);
    if (!tokens || !ranges || !index->nodes) {
        status_fail(status, STATUS_MACHINE, "out of memory while opening the tokenizer");
        goto done;
    }
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (struct backwards){pool + added[i].pattern_offset, added[i].pattern_bytes, i};
    qsort(tokens, count, sizeof *tokens, compare_backwards);
    grow(index, tokens, count, ranges);
    struct added_node *fewer = realloc(index->nodes, index->node_count * sizeof *fewer);
    if (fewer) index->nodes = fewer;
    done = true;
done:
    free(tokens);
    free(ranges);
    return done;
}

void added_index_free(struct added_index *index)
{
    free(index->nodes);
    memset(index, 0, sizeof *index);
}

void added_index_find(const struct added_index *index, const char *text, size_t size, size_t from, size_t count,
                      uint32_t *found)
{
    uint32_t node = 0;
    /* a token that begins before from + count ends before this */
    size_t at = size - from - count > index->longest ? from + count + index->longest : size;
    while (at-- > from) {
        node = next_state(index, node, (uint8_t)text[at]);
        if (at < from + count) found[at - from] = index->nodes[node].token;
    }
}
