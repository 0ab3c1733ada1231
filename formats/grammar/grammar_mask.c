/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: a walk over the prefix tree of the vocabulary that leaves out every subtree whose first byte is not allowed. What a set allows
 * whatever its base is kept; the few subtrees where an output returns into the base are walked again for each mask. */
#include <stdlib.h>
#include <string.h>

#include "formats/grammar/grammar_matcher.h"

/* A call above `parent`; 0 is the end of the base, or of its known part. */
static uint32_t push(struct grammar_matcher *matcher, uint32_t frame, uint32_t parent)
{
    if (!sets_grow(&matcher->sets, (void **)&matcher->calls, &matcher->call_capacity, (uint64_t)matcher->call_count + 1,
                   sizeof *matcher->calls))
        return 0;
    matcher->calls[matcher->call_count] =
        (struct sets_call){.frame = frame, .parent = parent, .depth = matcher->calls[parent].depth + 1};
    return matcher->call_count++;
}

/* Like settle() of grammar_matcher.c. `base`: the whole base is known; else *deferred tells that the set returns into it. */
static uint32_t settle(struct grammar_matcher *matcher, uint32_t set, uint32_t *call, bool base, bool *deferred)
{
    struct sets *sets = &matcher->sets;
    *deferred = false;
    while (set != SETS_DEAD && !sets->failed) {
        const struct set found = sets->sets[set];
        const uint32_t need = matcher->calls[*call].depth + found.need;
        if (base && need > GRAMMAR_MOST_DEPTH) {
            set = sets_within(sets, set, GRAMMAR_MOST_DEPTH - matcher->calls[*call].depth);
            continue;
        }
        if (need > matcher->need) matcher->need = need;
        if (found.common) {
            for (uint32_t i = 0; i < found.common && !sets->failed; i++)
                *call = push(matcher, sets->words[found.words + 1 + i], *call);
            set = found.factored;
        } else if (found.ends && *call != 0) {
            const uint32_t frame = matcher->calls[*call].frame;
            *call = matcher->calls[*call].parent;
            set = sets_pop(sets, set, frame);
        } else {
            *deferred = found.ends && !base;
            return set;
        }
    }
    return SETS_DEAD;
}

static void defer(struct grammar_matcher *matcher, uint32_t node, uint32_t set)
{
    if (sets_grow(&matcher->sets, (void **)&matcher->deferred, &matcher->deferred_capacity,
                  (uint64_t)matcher->deferred_count + 1, sizeof *matcher->deferred))
        matcher->deferred[matcher->deferred_count++] = (struct mask_deferred){node, set};
}

/* The set that every plain byte leads to; SETS_DEAD: there is not one, or it has to be settled. */
static uint32_t plain_next(struct grammar_matcher *matcher, uint32_t set)
{
    struct sets *sets = &matcher->sets;
    uint32_t next = SETS_NONE;
    if (sets->sets[set].plain_next != SETS_NONE) return sets->sets[set].plain_next;
    for (uint32_t byte = 0; byte < 256 && next != SETS_DEAD; byte++) {
        if (!vocabulary_is_plain((uint8_t)byte)) continue;
        const uint32_t one = sets_next(sets, set, matcher->grammar->byte_class[byte]);
        next = next == SETS_NONE || next == one ? one : SETS_DEAD;
    }
    const struct set *found = &sets->sets[next];
    /* With the same need, the walk's answer to the depth of calls stays the same. */
    if (found->common || found->ends || found->need != sets->sets[set].need) next = next == set ? set : SETS_DEAD;
    if (!sets->failed) sets->sets[set].plain_next = next;
    return sets->failed ? SETS_DEAD : next;
}

/* Whether all texts of so many plain bytes are allowed from the set on. */
static bool allows_plain(struct grammar_matcher *matcher, uint32_t set, uint32_t bytes)
{
    if (bytes == 0 || bytes == VOCABULARY_NOT_PLAIN) return false;
    uint32_t next = plain_next(matcher, set);
    if (next == set) return true;
    if (bytes > AUTOMATON_FAR) return false;
    for (; bytes > 1 && next != SETS_DEAD; bytes--) next = plain_next(matcher, next);
    return next != SETS_DEAD;
}

static uint32_t allow(const struct vocabulary_tree *tree, uint32_t first, uint32_t end, uint32_t *bits)
{
    for (uint32_t i = tree->first_token[first]; i < tree->first_token[end]; i++)
        bits[tree->tokens[i] / 32] |= UINT32_C(1) << tree->tokens[i] % 32;
    return tree->first_token[end] - tree->first_token[first];
}

/* Allows all tokens below a node at once if they are plain and the node's set allows every plain text. Returns the next node. */
static uint32_t pass_plain(struct grammar_matcher *matcher, const struct vocabulary_tree *tree, uint32_t node,
                           uint32_t set, uint32_t *allowed, uint32_t *bits)
{
    if (!allows_plain(matcher, set, tree->plain[node])) return node + 1;
    *allowed += allow(tree, node + 1, tree->end[node], bits);
    return tree->end[node];
}

/* Sets the bits of the allowed tokens below a node that `set` reached, and returns their number. */
static uint32_t walk(struct grammar_matcher *matcher, const struct vocabulary_tree *tree, uint32_t start, uint32_t set,
                     uint32_t call, bool base, uint32_t *bits)
{
    struct sets *sets = &matcher->sets;
    struct walk_step *path = matcher->path;
    const uint8_t *byte_class = matcher->grammar->byte_class;
    const uint32_t end = tree->end[start];
    uint32_t allowed = 0, i = start + 1;
    bool deferred;
    set = settle(matcher, set, &call, base, &deferred);
    if (set == SETS_DEAD) return 0;
    if (deferred) {
        defer(matcher, start, set);
        return 0;
    }
    path[tree->depth[start]] = (struct walk_step){set, call, matcher->call_count};
    while (i < end && !sets->failed) {
        const uint32_t depth = tree->depth[i];
        const struct walk_step from = path[depth - 1];
        uint32_t next = sets_next(sets, from.set, byte_class[tree->byte[i]]);
        if (next == SETS_DEAD) {
            i = tree->end[i];
            continue;
        }
        if (next == from.set) { /* it was settled */
            allowed += allow(tree, i, i + 1, bits);
            path[depth] = from;
            i = pass_plain(matcher, tree, i, next, &allowed, bits);
            continue;
        }
        matcher->call_count = from.call_count; /* the calls of the nodes before are not needed any more */
        call = from.call;
        next = settle(matcher, next, &call, base, &deferred);
        if (next == SETS_DEAD) {
            i = tree->end[i];
            continue;
        }
        allowed += allow(tree, i, i + 1, bits);
        if (tree->end[i] == i + 1) {
            i++;
            continue;
        }
        if (deferred) {
            defer(matcher, i, next);
            i = tree->end[i];
            continue;
        }
        path[depth] = (struct walk_step){next, call, matcher->call_count};
        i = pass_plain(matcher, tree, i, next, &allowed, bits);
    }
    return allowed;
}

static void begin_calls(struct grammar_matcher *matcher)
{
    matcher->call_count = 0;
    if (sets_grow(&matcher->sets, (void **)&matcher->calls, &matcher->call_capacity, 1, sizeof *matcher->calls))
        matcher->calls[matcher->call_count++] = (struct sets_call){0};
}

enum { MOST_KEY_WORDS = GRAMMAR_MOST_WORDS + 1 };

/* The words with the states that stand for theirs, and whether the base is known to be empty. */
static uint32_t make_key(struct grammar_matcher *matcher, uint32_t set, bool base, uint32_t key[MOST_KEY_WORDS])
{
    const struct set *found = &matcher->sets.sets[set];
    const uint32_t *words = matcher->sets.words + found->words, *alias = matcher->grammar->alias;
    uint32_t depth;
    for (uint32_t at = 0; at < found->count; at += depth + 1) {
        depth = words[at] & ((1 << ITEM_DEPTH_BITS) - 1);
        key[at] = alias[words[at] >> ITEM_DEPTH_BITS] << ITEM_DEPTH_BITS | depth;
        for (uint32_t k = 1; k <= depth; k++) key[at + k] = alias[words[at + k]];
    }
    key[found->count] = base;
    return found->count + 1;
}

static bool reserve_key(struct grammar_matcher *matcher)
{
    struct sets_table *table = &matcher->by_key, larger = {.generation = 1};
    if ((uint64_t)table->count * 2 < table->capacity) return true;
    if (!sets_grow(&matcher->sets, (void **)&larger.slots, &larger.capacity,
                   table->capacity ? table->capacity * 2 : 256, sizeof *larger.slots))
        return false;
    memset(larger.slots, 0, larger.capacity * sizeof *larger.slots);
    for (uint32_t i = 0; i < matcher->mask_count; i++) {
        const struct mask *mask = &matcher->masks[i];
        uint32_t at = sets_hash(matcher->keys + mask->key, mask->key_count, 0) & (larger.capacity - 1);
        while (larger.slots[at]) at = (at + 1) & (larger.capacity - 1);
        larger.slots[at] = i + 1;
    }
    larger.count = matcher->mask_count;
    matcher->sets.bytes -= table->capacity * sizeof *table->slots;
    free(table->slots);
    *table = larger;
    return true;
}

/* Keeps the bits of the mask as words or, if they are few, as ids. */
static bool keep_allowed(struct grammar_matcher *matcher, struct mask *mask, uint32_t allowed)
{
    const uint32_t words = (matcher->vocabulary->token_count + 31) / 32;
    uint32_t count = 0;
    mask->dense = allowed > words;
    mask->allowed = matcher->allowed_count;
    mask->allowed_count = mask->dense ? words : allowed;
    if (!sets_grow(&matcher->sets, (void **)&matcher->allowed, &matcher->allowed_capacity,
                   (uint64_t)matcher->allowed_count + mask->allowed_count + 1, sizeof *matcher->allowed))
        return false;
    uint32_t *to = matcher->allowed + matcher->allowed_count; /* one more was reserved: there is an array */
    if (mask->dense) memcpy(to, matcher->bits, words * sizeof *to);
    for (uint32_t i = 0; i < words && !mask->dense; i++)
        for (uint32_t left = matcher->bits[i]; left; left &= left - 1)
            to[count++] = i * 32 + (uint32_t)__builtin_ctz(left);
    matcher->allowed_count += mask->allowed_count;
    return true;
}

/* The index of the set's mask, made if needed. `base`: the base is empty; else it is not known. */
static bool find_mask(struct grammar_matcher *matcher, uint32_t set, bool base, uint32_t *index)
{
    uint32_t key[MOST_KEY_WORDS];
    const uint32_t count = make_key(matcher, set, base, key);
    struct sets *sets = &matcher->sets;
    if (!reserve_key(matcher)) return false;
    const uint32_t slots = matcher->by_key.capacity - 1;
    uint32_t at = sets_hash(key, count, 0) & slots;
    for (; matcher->by_key.slots[at]; at = (at + 1) & slots) {
        *index = (uint32_t)matcher->by_key.slots[at] - 1;
        const struct mask *found = &matcher->masks[*index];
        if (found->key_count == count && memcmp(matcher->keys + found->key, key, count * sizeof *key) == 0) return true;
    }
    if (!sets_grow(sets, (void **)&matcher->masks, &matcher->mask_capacity, (uint64_t)matcher->mask_count + 1,
                   sizeof *matcher->masks) ||
        !sets_grow(sets, (void **)&matcher->keys, &matcher->key_capacity, (uint64_t)matcher->key_count + count,
                   sizeof *matcher->keys))
        return false;
    struct mask mask = {.key = matcher->key_count, .key_count = count, .deferred = matcher->deferred_count};
    memset(matcher->bits, 0, (matcher->vocabulary->token_count + 31) / 32 * sizeof *matcher->bits);
    begin_calls(matcher);
    if (sets->failed) return false;
    matcher->need = 0;
    const uint32_t allowed = walk(matcher, &matcher->vocabulary->shorts, 0, set, 0, base, matcher->bits);
    mask.need = matcher->need;
    mask.deferred_count = matcher->deferred_count - mask.deferred;
    if (sets->failed || !keep_allowed(matcher, &mask, allowed)) return false;
    memcpy(matcher->keys + matcher->key_count, key, count * sizeof *key);
    matcher->key_count += count;
    *index = matcher->mask_count;
    matcher->masks[matcher->mask_count++] = mask;
    matcher->by_key.slots[at] = *index + 1;
    matcher->by_key.count++;
    return true;
}

bool grammar_fill_mask(struct grammar_matcher *matcher, const struct grammar_state *state, uint32_t *bits,
                       struct status *status)
{
    struct sets *sets = &matcher->sets;
    const struct grammar_vocabulary *vocabulary = matcher->vocabulary;
    uint32_t index, call = 0, any = 0;
    if (!vocabulary) return status_fail(status, STATUS_USAGE, "grammar: a mask needs a matcher with a vocabulary");
    if (!matcher_enter(matcher, status)) return false;
    const uint32_t words = (vocabulary->token_count + 31) / 32, set = matcher_find(matcher, state);
    if (sets->failed || !find_mask(matcher, set, state->depth == 0, &index)) return false;
    const struct mask mask = matcher->masks[index];
    begin_calls(matcher);
    for (uint32_t i = 0; i < state->depth && !sets->failed; i++) call = push(matcher, state->frames[i], call);
    if (sets->failed) return false;
    if (mask.dense)
        memcpy(bits, matcher->allowed + mask.allowed, words * sizeof *bits);
    else
        memset(bits, 0, words * sizeof *bits);
    if (state->depth + mask.need > GRAMMAR_MOST_DEPTH) {
        /* Some of the kept tokens may nest too deeply here. */
        memset(bits, 0, words * sizeof *bits);
        walk(matcher, &vocabulary->shorts, 0, set, call, true, bits);
    } else {
        for (uint32_t i = 0; i < mask.allowed_count && !mask.dense; i++) {
            const uint32_t id = matcher->allowed[mask.allowed + i];
            bits[id / 32] |= UINT32_C(1) << id % 32;
        }
        for (uint32_t i = 0; i < mask.deferred_count && !sets->failed; i++) {
            const struct mask_deferred deferred = matcher->deferred[mask.deferred + i];
            walk(matcher, &vocabulary->shorts, deferred.node, deferred.set, call, true, bits);
        }
    }
    if (!sets->failed) walk(matcher, &vocabulary->longs, 0, set, call, true, bits);
    if (sets->failed) return false;
    if (grammar_may_end(matcher, state))
        for (uint32_t i = 0; i < vocabulary->end_count; i++)
            bits[vocabulary->ends[i] / 32] |= UINT32_C(1) << vocabulary->ends[i] % 32;
    for (uint32_t i = 0; i < words && !any; i++) any = bits[i];
    if (!any)
        return status_fail(status, STATUS_BAD_INPUT,
                           "grammar: no token of the vocabulary can follow the output; expected a token for each byte, "
                           "and an end token");
    return true;
}
