/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings: a text ends before the first of them, and no byte of one is released, also where tokens divide it. */
#ifndef RUNTIME_TEXT_STOP_STRINGS_H
#define RUNTIME_TEXT_STOP_STRINGS_H

#include <stdbool.h>
#include <stddef.h>

struct stop_strings {
    const char *const *strings; /* [count], borrowed, none empty */
    size_t count;
    char *held;            /* the end of the text so far, with which a stop string may begin; owned */
    size_t size, capacity; /* of held */
    bool found;            /* the text has ended */
    size_t which;          /* if found: the stop string */
};

/* Makes room for pushes of at most `most` bytes, so that they allocate no memory. False: out of memory. */
bool stop_strings_reserve(struct stop_strings *stop, size_t most);
/* Adds a piece of the text, and sets *released to the bytes at the beginning of `held` that are no part of a stop string; the caller
 * takes them with stop_strings_drop. The stop string that ends first counts, and of those that end together the longest, so that the
 * result does not depend on how the text is divided. After it was found pieces are ignored. False: out of memory. */
bool stop_strings_push(struct stop_strings *stop, const char *text, size_t size, size_t *released);
/* The text ends after the piece that released so many bytes: all of `held` is released, unless a stop string was found. */
void stop_strings_finish(const struct stop_strings *stop, size_t *released);
/* Removes bytes from the beginning of `held`. */
void stop_strings_drop(struct stop_strings *stop, size_t size);
/* A new text begins, with the same strings. */
void stop_strings_begin(struct stop_strings *stop);
void stop_strings_free(struct stop_strings *stop);
/* The stop string before which the text has ended; NULL: none. Borrowed. */
static inline const char *stop_strings_found(const struct stop_strings *stop)
{
    return stop->found ? stop->strings[stop->which] : NULL;
}

#endif
