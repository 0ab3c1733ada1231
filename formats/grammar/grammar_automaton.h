/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled form of a grammar: a nondeterministic pushdown automaton over bytes. A rule is a finite automaton whose states may call
 * rules; grammar_sets.c follows it with sets of states, each with the calls that are open.
 *
 * The height of a state is the least number of calls within calls that lead from there to the end of its rule. A matcher drops a
 * state whose height exceeds the depth that is left, and so a path that stays can always be finished. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_AUTOMATON_H
#define FORMATS_GRAMMAR_GRAMMAR_AUTOMATON_H

#include "formats/grammar/grammar.h"
#include "formats/grammar/grammar_tree.h"

enum automaton_kind {
    AUTOMATON_END,   /* of a rule: returns to the caller */
    AUTOMATON_BYTES, /* a byte from low to high leads to a */
    AUTOMATON_SPLIT, /* continues in a and in b */
    AUTOMATON_CALL,  /* calls rule a, returns to b */
    AUTOMATON_DEAD,  /* no continuation */
};

enum {
    AUTOMATON_NO_HEIGHT = 255, /* no end within GRAMMAR_MOST_DEPTH calls */
    /* Copies of a repeated part that are further from the last one than a token of this size can reach allow the same tokens. */
    AUTOMATON_FAR = 32,
};

struct automaton_state {
    uint32_t a, b;
    uint8_t kind, low, high, height;
};

struct grammar {
    struct automaton_state *states;
    uint32_t *alias; /* [state_count]: the state with the same texts up to AUTOMATON_FAR bytes that stands for it */
    uint32_t *rule_starts;
    uint32_t state_count, state_capacity, alias_capacity, rule_count;
    uint32_t class_count; /* bytes of one class lead to the same states everywhere */
    uint8_t byte_class[256];
};

/* Makes the automaton of the tree's rule 0. NULL: the tree has failed. `source` is the name for messages. */
struct grammar *automaton_compile(struct tree *tree, const char *source);

#endif
