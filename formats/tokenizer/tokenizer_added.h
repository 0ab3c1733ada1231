/* SPDX-License-Identifier: Apache-2.0 */
/* Which added token begins at each place of a text, in time that is proportional to the text: an automaton after Aho and
 * Corasick (1975) over the tokens read backwards. Read from the end of the text to its start, its state at a place tells the
 * longest token that begins there; forwards it would tell the tokens that end there, and a text could make the search for
 * the longest start again and again. Private to formats/tokenizer*.c. */
#ifndef FORMATS_TOKENIZER_TOKENIZER_ADDED_H
#define FORMATS_TOKENIZER_TOKENIZER_ADDED_H

#include <stddef.h>

#include "formats/base/status.h"
#include "formats/tokenizer/tokenizer_image.h"

struct added_node;

/* Zero-initialised it knows no token. */
struct added_index {
    struct added_node *nodes; /* owned; the root first, children behind each other */
    uint32_t node_count;
    uint32_t longest;            /* token, in bytes */
    uint32_t root_children[256]; /* 0: none */
};

/* `added`: [count] patterns in `pool`, each of 1 to TOKENIZER_ADDED_BYTES_LIMIT bytes, without duplicates. */
bool added_index_build(struct added_index *index, const struct image_added *added, uint32_t count, const char *pool,
                       struct status *status);
void added_index_free(struct added_index *index);

/* found[i]: 1 + the number in `added` of the longest token that begins at text[from + i], 0: none; for i < count. */
void added_index_find(const struct added_index *index, const char *text, size_t size, size_t from, size_t count,
                      uint32_t *found);

#endif
