/* SPDX-License-Identifier: Apache-2.0 */
/* A trie of the texts of a vocabulary, for the tokens that begin at a place of a text. Built when an image is opened,
 * from tokens sorted by text, in time proportional to their bytes. Private to formats/tokenizer. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_TRIE_H
#define FORMATS_TOKENIZER_TOKENIZER_TRIE_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "formats/tokenizer/tokenizer_image.h"

struct trie_node {
    uint32_t first_child; /* children of a node are contiguous, in the order of their bytes */
    int32_t id;           /* of the token that ends here, -1: none */
    uint16_t child_count;
    uint8_t byte; /* of the edge to this node */
};

/* Zero-initialised: no nodes. The root is node 0. */
struct token_trie {
    struct trie_node *nodes; /* owned */
    uint32_t node_count;
    uint32_t root_children[256]; /* 0: none */
};

/* `order`: [count] ids of tokens that are not empty, in strictly increasing order of their bytes; fails if they are
 * not, and if they have more bytes together than the pool: texts that overlap would make a large trie of a small image.
 * Requires: ids and texts were checked. */
bool token_trie_build(struct token_trie *trie, const struct image_token *tokens, const uint32_t *order, uint32_t count,
                      const char *pool, uint32_t pool_bytes, struct status *status);
void token_trie_free(struct token_trie *trie);

/* 0: none; the root is no child. */
static inline uint32_t token_trie_child(const struct token_trie *trie, uint32_t node, uint8_t byte)
{
    if (node == 0) return trie->root_children[byte];
    uint32_t begin = trie->nodes[node].first_child, end = begin + trie->nodes[node].child_count;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (trie->nodes[middle].byte == byte) return middle;
        if (trie->nodes[middle].byte < byte)
            begin = middle + 1;
        else
            end = middle;
    }
    return 0;
}

#endif
