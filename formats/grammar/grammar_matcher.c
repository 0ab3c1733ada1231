/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/grammar/grammar_matcher.h"

#include <stdlib.h>
#include <string.h>

struct grammar_matcher *grammar_matcher_open(const struct grammar *grammar, const struct grammar_vocabulary *vocabulary,
                                             struct status *status)
{
    struct grammar_matcher *matcher = calloc(1, sizeof *matcher);
    bool done = false;
    if (!matcher) goto done;
    matcher->grammar = grammar;
    matcher->vocabulary = vocabulary;
    sets_enter(&matcher->sets, status);
    if (!sets_open(&matcher->sets, grammar)) goto done;
    done = true;
    if (vocabulary) {
        matcher->path = malloc(((size_t)vocabulary->longest + 1) * sizeof *matcher->path);
        matcher->bits = calloc((vocabulary->token_count + 31) / 32, sizeof *matcher->bits);
        done = matcher->path && matcher->bits;
    }
done:
    if (done) return matcher;
    status_fail(status, STATUS_MACHINE, "grammar: out of memory");
    grammar_matcher_close(matcher);
    return NULL;
}

static void masks_clear(struct grammar_matcher *matcher)
{
    free(matcher->by_key.slots);
    free(matcher->masks);
    free(matcher->keys);
    free(matcher->allowed);
    free(matcher->deferred);
    free(matcher->calls);
    matcher->by_key = (struct sets_table){0};
    matcher->masks = NULL;
    matcher->keys = matcher->allowed = NULL;
    matcher->deferred = NULL;
    matcher->calls = NULL;
    matcher->mask_count = matcher->mask_capacity = matcher->key_count = matcher->key_capacity = 0;
    matcher->allowed_count = matcher->allowed_capacity = matcher->deferred_count = matcher->deferred_capacity = 0;
    matcher->call_count = matcher->call_capacity = 0;
}

void grammar_matcher_close(struct grammar_matcher *matcher)
{
    if (!matcher) return;
    masks_clear(matcher);
    sets_close(&matcher->sets);
    free(matcher->path);
    free(matcher->bits);
    free(matcher);
}

bool matcher_enter(struct grammar_matcher *matcher, struct status *status)
{
    /* A call that failed may have left a set unfinished. */
    const bool keep = !matcher->sets.failed && matcher->sets.bytes <= GRAMMAR_MOST_CACHE_BYTES / 2;
    sets_enter(&matcher->sets, status);
    if (keep) return true;
    masks_clear(matcher);
    sets_close(&matcher->sets);
    sets_enter(&matcher->sets, status);
    return sets_open(&matcher->sets, matcher->grammar);
}

uint32_t matcher_find(struct grammar_matcher *matcher, const struct grammar_state *state)
{
    const struct sets *sets = &matcher->sets;
    if (state->top < sets->set_count && sets->sets[state->top].count == state->count &&
        memcmp(sets->words + sets->sets[state->top].words, state->words, state->count * sizeof *state->words) == 0)
        return state->top;
    return sets_intern(&matcher->sets, state->words, state->count);
}

/* Divides what a step gave into base and items: calls that all items have go to the base, and a set whose items return takes the
 * base's last call back. */
static uint32_t settle(struct sets *sets, uint32_t set, uint32_t *frames, uint32_t *depth)
{
    while (set != SETS_DEAD && !sets->failed) {
        const struct set found = sets->sets[set];
        if (*depth + found.need > GRAMMAR_MOST_DEPTH) {
            set = sets_within(sets, set, GRAMMAR_MOST_DEPTH - *depth);
        } else if (found.common) {
            memcpy(frames + *depth, sets->words + found.words + 1, found.common * sizeof *frames);
            *depth += found.common;
            set = found.factored;
        } else if (found.ends && *depth > 0) {
            set = sets_pop(sets, set, frames[--*depth]);
        } else {
            return set;
        }
    }
    return SETS_DEAD;
}

static void write_state(const struct sets *sets, struct grammar_state *state, uint32_t set, const uint32_t *frames,
                        uint32_t depth)
{
    const struct set *found = &sets->sets[set];
    state->top = set;
    state->depth = (uint16_t)depth;
    state->count = (uint16_t)found->count;
    if (depth) memcpy(state->frames, frames, depth * sizeof *frames);
    memcpy(state->words, sets->words + found->words, found->count * sizeof *state->words);
}

bool grammar_begin(struct grammar_matcher *matcher, struct grammar_state *state, struct status *status)
{
    struct sets *sets = &matcher->sets;
    uint32_t frames[GRAMMAR_MOST_DEPTH], depth = 0;
    if (!matcher_enter(matcher, status)) return false;
    const uint32_t set = settle(sets, sets_begin(sets), frames, &depth);
    if (sets->failed) return false;
    if (set == SETS_DEAD) return status_fail(status, STATUS_INTERNAL, "grammar: no output is possible");
    write_state(sets, state, set, frames, depth);
    return true;
}

bool grammar_accept_bytes(struct grammar_matcher *matcher, struct grammar_state *state, const void *bytes, size_t size,
                          struct status *status)
{
    struct sets *sets = &matcher->sets;
    const uint8_t *text = bytes;
    uint32_t frames[GRAMMAR_MOST_DEPTH], depth = state->depth;
    if (!matcher_enter(matcher, status)) return false;
    if (size == 0) return true;
    memcpy(frames, state->frames, depth * sizeof *frames);
    uint32_t set = matcher_find(matcher, state);
    for (size_t i = 0; i < size && !sets->failed; i++) {
        set = settle(sets, sets_next(sets, set, matcher->grammar->byte_class[text[i]]), frames, &depth);
        if (set == SETS_DEAD && !sets->failed)
            return status_fail(status, STATUS_BAD_INPUT, "grammar: byte 0x%02X at offset %zu is not allowed", text[i],
                               i);
    }
    if (sets->failed) return false;
    write_state(sets, state, set, frames, depth);
    return true;
}

/* Whether an item ends the output, and whether all do. */
static void find_ends(const struct grammar *grammar, const struct grammar_state *state, bool *any, bool *all)
{
    *any = false;
    *all = true;
    uint32_t depth;
    for (uint32_t at = 0; at < state->count; at += depth + 1) {
        depth = state->words[at] & ((1 << ITEM_DEPTH_BITS) - 1);
        const bool end = grammar->states[state->words[at] >> ITEM_DEPTH_BITS].kind == AUTOMATON_END;
        *any = *any || end;
        *all = *all && end;
    }
}

bool grammar_may_end(const struct grammar_matcher *matcher, const struct grammar_state *state)
{
    bool any, all;
    find_ends(matcher->grammar, state, &any, &all);
    return any;
}

bool grammar_must_end(const struct grammar_matcher *matcher, const struct grammar_state *state)
{
    bool any, all;
    find_ends(matcher->grammar, state, &any, &all);
    return any && all;
}
