/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a vocabulary as a prefix tree in arrays: nodes in the order of their texts, each before its descendants. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_VOCABULARY_H
#define FORMATS_GRAMMAR_GRAMMAR_VOCABULARY_H

#include "formats/grammar/grammar.h"

enum { VOCABULARY_NOT_PLAIN = UINT16_MAX };

struct vocabulary_tree {
    uint32_t count;        /* of nodes; node 0 is the empty text */
    uint32_t *end;         /* [count]: the first node after the descendants */
    uint32_t *first_token; /* [count + 1]: tokens[first_token[i] .. first_token[i + 1]) end in node i */
    uint32_t *tokens;      /* ids */
    uint16_t *depth;       /* [count]: bytes from the start */
    uint8_t *byte;         /* [count]: the last byte */
    uint16_t
        *plain; /* [count]: bytes of the longest descendant after the node's; VOCABULARY_NOT_PLAIN: not all are plain */
};

/* Printable ASCII that a JSON string holds as it is: most of a vocabulary. */
static inline bool vocabulary_is_plain(uint8_t byte)
{
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
}

struct grammar_vocabulary {
    uint32_t token_count, end_count;
    uint32_t *ends; /* ids of the end tokens */
    /* Tokens of at most AUTOMATON_FAR bytes, and the others, of which there are few. */
    struct vocabulary_tree shorts, longs;
    uint32_t longest;
};

#endif
