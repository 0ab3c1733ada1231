/* SPDX-License-Identifier: Apache-2.0 */
/* JSON numbers within bounds, as automata over their digits. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_NUMBER_H
#define FORMATS_GRAMMAR_GRAMMAR_NUMBER_H

#include <jansson.h>

#include "formats/grammar/grammar_tree.h"

enum { NUMBER_MOST_MULTIPLE = 1000 };

struct number_bounds {
    const json_t *minimum, *exclusive_minimum, *maximum, *exclusive_maximum; /* borrowed; NULL: none */
    uint32_t multiple; /* integers that are multiples of it; 0: any */
};

/* Integers in plain digits, at most 18. */
uint32_t number_integer(struct tree *tree, const struct number_bounds *bounds, const char *where);
/* Numbers without exponent, of 15 digits at most, so that comparing them as doubles gives what comparing their digits gives. */
uint32_t number_decimal(struct tree *tree, const struct number_bounds *bounds, const char *where);
/* The shortest text of a finite real number that reads back as the same. */
enum { NUMBER_TEXT_BYTES = 40 };
bool number_text(const json_t *value, char text[NUMBER_TEXT_BYTES]);

#endif
