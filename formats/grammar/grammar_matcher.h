/* SPDX-License-Identifier: Apache-2.0 */
/* A matcher: the sets of a grammar's states, and masks of tokens for them. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_MATCHER_H
#define FORMATS_GRAMMAR_GRAMMAR_MATCHER_H

#include "formats/grammar/grammar_sets.h"
#include "formats/grammar/grammar_vocabulary.h"

/* The allowed short tokens of a set whose base is not known. */
struct mask {
    uint32_t key, key_count;           /* matcher.keys[key ..): the set's words with the states that stand for them */
    uint32_t allowed, allowed_count;   /* matcher.allowed[allowed ..): ids, or the mask's words if `dense` */
    uint32_t deferred, deferred_count; /* matcher.deferred[deferred ..) */
    uint32_t need;                     /* calls above the base that the walk needs, so that nothing is too deep */
    bool dense;
};

/* Tokens below a node of the tree, which the set reaches, depend on the base. */
struct mask_deferred {
    uint32_t node, set;
};

struct walk_step {
    uint32_t set, call, call_count;
};

struct grammar_matcher {
    const struct grammar *grammar;
    const struct grammar_vocabulary *vocabulary;
    struct sets sets;
    struct sets_table by_key;
    struct mask *masks;
    uint32_t *keys, *allowed;
    struct mask_deferred *deferred;
    uint32_t mask_count, mask_capacity, key_count, key_capacity, allowed_count, allowed_capacity, deferred_count,
        deferred_capacity;
    /* While the tree is walked: */
    struct walk_step *path; /* [longest token + 1] */
    struct sets_call *calls;
    uint32_t call_count, call_capacity;
    uint32_t *bits; /* [mask words] */
    uint32_t need;
};

/* Begins a call from outside: empties caches that have grown large. */
bool matcher_enter(struct grammar_matcher *matcher, struct status *status);
/* The state's set. */
uint32_t matcher_find(struct grammar_matcher *matcher, const struct grammar_state *state);

#endif
