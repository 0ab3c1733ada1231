/* SPDX-License-Identifier: Apache-2.0 */
/* The longest added token that begins at each place of a text, in time proportional to the text: an automaton after Aho
 * and Corasick (1975) over the reversed tokens. The text is read from its end to its start, so that the state at a
 * place gives the longest token that begins there. Reading forwards would give the tokens that end there, and hostile
 * text could make the search for the longest one quadratic. Private to formats/tokenizer. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_ADDED_H
#define FORMATS_TOKENIZER_TOKENIZER_ADDED_H

#include <stddef.h>

#include "formats/base/status.h"
#include "formats/tokenizer/tokenizer_image.h"

struct added_node;

/* Zero-initialised: no tokens. */
struct added_index {
    struct added_node *nodes; /* owned; root first, children of a node contiguous */
    uint32_t node_count;
    uint32_t longest;            /* token, in bytes */
    uint32_t root_children[256]; /* 0: none */
};

/* `added`: [count] patterns in `pool`, of 1 to TOKENIZER_ADDED_BYTES_LIMIT bytes each, without duplicates. */
bool added_index_build(struct added_index *index, const struct image_added *added, uint32_t count, const char *pool,
                       struct status *status);
void added_index_free(struct added_index *index);

/* found[i], i < count: 1 + the number in `added` of the longest token that begins at text[from + i]; 0: none. */
void added_index_find(const struct added_index *index, const char *text, size_t size, size_t from, size_t count,
                      uint32_t *found);

#endif
