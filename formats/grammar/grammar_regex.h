/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions as expressions of a grammar: texts themselves, or the inside of a JSON string with the text. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_REGEX_H
#define FORMATS_GRAMMAR_GRAMMAR_REGEX_H

#include "formats/grammar/grammar_tree.h"

enum regex_use {
    REGEX_WHOLE, /* matches the whole text */
    REGEX_JSON,  /* matches some part of a text, unless ^ or $ bind it; the text is written inside a JSON string */
};

/* `where` begins messages. */
uint32_t regex_node(struct tree *tree, const char *text, size_t size, enum regex_use use, const char *where);

/* How a character other than U+0000 is written inside a JSON string: the one way for all that is made here. Returns the size. */
enum { REGEX_SPELLING_BYTES = 8 };
size_t regex_json_spelling(uint32_t character, char text[REGEX_SPELLING_BYTES]);
/* One character of the set in a JSON string: itself, or escaped where JSON demands it. */
uint32_t regex_json_class(struct tree *tree, const struct tree_set *set);

#endif
