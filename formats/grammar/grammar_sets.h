/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of automaton states that an output may be in, made on demand and kept: the determinised automaton.
 *
 * An output has a stack of open calls that all alternatives share, the base, and a set of items on top of it. An item is a state and
 * its own calls above the base. Sets do not name the base, so that the same place of a rule is the same set wherever it is called. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_SETS_H
#define FORMATS_GRAMMAR_GRAMMAR_SETS_H

#include "formats/grammar/grammar_automaton.h"

/* An item in words: state << ITEM_DEPTH_BITS | calls, then the calls' return states from the base up. Items are sorted. */
enum { ITEM_DEPTH_BITS = 8, SETS_DEAD = 0 };
#define SETS_NONE UINT32_MAX

struct set {
    uint32_t words, count; /* sets.words[words .. words + count) */
    uint32_t row;          /* transitions, sets.rows[row ..); SETS_NONE: none yet */
    uint32_t factored;     /* this set without the `common` lowest calls, which all items have */
    uint8_t common;
    uint8_t need; /* calls above the base without which an item cannot be finished */
    bool ends;    /* an item returns to the base */
    uint32_t
        plain_next; /* the set that every plain byte (grammar_vocabulary.h) leads to; SETS_DEAD: none; SETS_NONE: not known */
};

/* Open-addressed table of indices. A slot of another generation is free, so that clearing takes no time. */
struct sets_table {
    uint64_t *slots; /* generation << 32 | index */
    uint32_t capacity, count, generation;
};

struct sets_call {
    uint32_t frame, parent; /* return state, and the call around it, 0: the base */
    uint32_t depth;
    uint32_t need; /* calls above the base without which what follows the returns cannot be finished */
};
struct sets_item {
    uint32_t state, call;
};

struct sets {
    const struct grammar *grammar;
    struct set *sets;
    uint32_t *words, *rows;
    struct sets_pop {
        uint32_t set, frame, result;
    } * pops;
    /* What a byte leads to before states that take no byte are followed: most bytes of a text lead to the same. */
    struct sets_kernel {
        uint32_t words, count, result; /* sets.words */
    } * kernels;
    uint32_t kernel_count, kernel_capacity;
    uint32_t set_count, set_capacity, word_count, word_capacity, row_count, row_capacity, pop_count, pop_capacity;
    struct sets_table by_words, by_pop, by_kernel;
    uint64_t bytes; /* of all arrays */
    /* While a set is made: calls, items to expand, items that stay. */
    struct sets_call *calls;
    struct sets_item *visited, *kept;
    uint32_t call_count, call_capacity, visited_count, visited_capacity, kept_count, kept_capacity;
    struct sets_table by_call, by_item;
    uint32_t *scratch;
    uint32_t scratch_capacity;
    uint64_t work; /* items expanded since the call from outside began */
    struct status *status;
    bool failed;
    bool dropped; /* since it was opened: items beyond GRAMMAR_MOST_WORDS or GRAMMAR_MOST_DEPTH were left out */
};

/* Begins a call from outside. */
static inline void sets_enter(struct sets *sets, struct status *status)
{
    sets->status = status;
    sets->failed = false;
    sets->work = 0;
}

bool sets_open(struct sets *sets, const struct grammar *grammar);
void sets_close(struct sets *sets);
bool sets_grow(struct sets *sets, void **array, uint32_t *capacity, uint64_t needed, size_t element);
uint32_t sets_hash(const uint32_t *words, uint32_t count, uint32_t seed);

/* Each returns a set's number; SETS_DEAD: no item is left, or sets->failed. They may move the arrays. */
uint32_t sets_begin(struct sets *sets);
uint32_t sets_intern(struct sets *sets, const uint32_t *words, uint32_t count);
uint32_t sets_step(struct sets *sets, uint32_t set, uint32_t byte_class);
/* The set after the base's topmost call, to `frame`, became part of the items. */
uint32_t sets_pop(struct sets *sets, uint32_t set, uint32_t frame);
/* Without the items that need more than `depth` calls above the base. */
uint32_t sets_within(struct sets *sets, uint32_t set, uint32_t depth);

/* sets_step from the kept transitions. */
static inline uint32_t sets_next(struct sets *sets, uint32_t set, uint32_t byte_class)
{
    const uint32_t row = sets->sets[set].row;
    const uint32_t next = row == SETS_NONE ? SETS_NONE : sets->rows[row + byte_class];
    return next == SETS_NONE ? sets_step(sets, set, byte_class) : next;
}

#endif
