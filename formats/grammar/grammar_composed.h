/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars that are put together from parts: texts, markers with special tokens, schemas and expressions, in sequence, in turn or
 * repeated. README (Sampling) describes the source. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_COMPOSED_H
#define FORMATS_GRAMMAR_GRAMMAR_COMPOSED_H

#include "formats/grammar/grammar.h"

/* The special tokens of a vocabulary, whose bytes stand between two GRAMMAR_SPECIAL_BYTE. */
struct grammar_specials {
    /* Bytes of the longest special token with which the text begins; 0: it begins with none. */
    size_t (*find)(const void *context, const char *text, size_t size);
    const void *context;
};

/* `specials` NULL: there are none. A source that is none is an error that names the place in it. */
struct grammar *grammar_composed_open(const char *text, size_t size, const struct grammar_specials *specials,
                                      struct status *status);

#endif
