/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/grammar/grammar_sets.h"

#include <stdlib.h>
#include <string.h>

enum {
    BASE = 0,
    MOST_VISITED = 1 << 16, /* items that one byte may reach */
    MOST_WORK = 1 << 24,    /* items expanded in one call from outside: about a second */
};

bool sets_grow(struct sets *sets, void **array, uint32_t *capacity, uint64_t needed, size_t element)
{
    if (sets->failed) return false;
    if (needed <= *capacity) return true;
    uint64_t larger = *capacity ? (uint64_t)*capacity * 2 : 256;
    if (larger < needed) larger = needed;
    if (sets->bytes + (larger - *capacity) * element > GRAMMAR_MOST_CACHE_BYTES || larger > UINT32_MAX) {
        status_fail(sets->status, STATUS_FULL,
                    "grammar: the caches would need more than %d MiB; simplify the alternatives of the schema or "
                    "expression",
                    GRAMMAR_MOST_CACHE_BYTES >> 20);
        sets->failed = true;
        return false;
    }
    void *memory = realloc(*array, larger * element);
    if (!memory) {
        status_fail(sets->status, STATUS_MACHINE, "grammar: out of memory");
        sets->failed = true;
        return false;
    }
    sets->bytes += (larger - *capacity) * element;
    *array = memory;
    *capacity = (uint32_t)larger;
    return true;
}

static void fail_ambiguous(struct sets *sets)
{
    if (sets->failed) return;
    status_fail(
        sets->status, STATUS_FULL,
        "grammar: too many alternatives have to be followed at the same time; simplify the schema or expression");
    sets->failed = true;
}

uint32_t sets_hash(const uint32_t *words, uint32_t count, uint32_t seed)
{
    uint64_t hash = UINT64_C(0x9E3779B97F4A7C15) ^ seed;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ words[i]) * UINT64_C(0xFF51AFD7ED558CCD);
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

static bool table_used(const struct sets_table *table, uint32_t at)
{
    return table->slots[at] >> 32 == table->generation;
}

static void table_put(struct sets_table *table, uint32_t at, uint32_t index)
{
    table->slots[at] = (uint64_t)table->generation << 32 | index;
    table->count++;
}

/* Makes room for one more. */
static bool table_reserve(struct sets *sets, struct sets_table *table,
                          uint32_t (*hash_of)(const struct sets *sets, uint32_t index))
{
    if ((uint64_t)table->count * 2 < table->capacity) return !sets->failed;
    struct sets_table larger = {.generation = 1};
    const uint32_t capacity = table->capacity ? table->capacity * 2 : 1024;
    if (!sets_grow(sets, (void **)&larger.slots, &larger.capacity, capacity, sizeof *larger.slots)) return false;
    memset(larger.slots, 0, larger.capacity * sizeof *larger.slots);
    for (uint32_t i = 0; i < table->capacity; i++) {
        if (!table_used(table, i)) continue;
        const uint32_t index = (uint32_t)table->slots[i];
        uint32_t at = hash_of(sets, index) & (larger.capacity - 1);
        while (table_used(&larger, at)) at = (at + 1) & (larger.capacity - 1);
        table_put(&larger, at, index);
    }
    sets->bytes -= (uint64_t)table->capacity * sizeof *table->slots;
    free(table->slots);
    *table = larger;
    return true;
}

static void table_clear(struct sets_table *table)
{
    table->count = 0;
    if (++table->generation != 0) return;
    if (table->capacity) memset(table->slots, 0, table->capacity * sizeof *table->slots);
    table->generation = 1;
}

static uint32_t hash_pair(uint32_t a, uint32_t b) { return sets_hash((uint32_t[]){a, b}, 2, 0); }

static uint32_t hash_call(const struct sets *sets, uint32_t index)
{
    return hash_pair(sets->calls[index].frame, sets->calls[index].parent);
}

static uint32_t hash_item(const struct sets *sets, uint32_t index)
{
    return hash_pair(sets->visited[index].state, sets->visited[index].call);
}

static uint32_t hash_pop(const struct sets *sets, uint32_t index)
{
    return hash_pair(sets->pops[index].set, sets->pops[index].frame);
}

static uint32_t hash_set(const struct sets *sets, uint32_t index)
{
    return sets_hash(sets->words + sets->sets[index].words, sets->sets[index].count, 0);
}

static uint32_t hash_kernel(const struct sets *sets, uint32_t index)
{
    return sets_hash(sets->words + sets->kernels[index].words, sets->kernels[index].count, 0);
}

/* The call of `frame` above `parent`, each once; BASE if it cannot be made. */
static uint32_t add_call(struct sets *sets, uint32_t frame, uint32_t parent)
{
    if (!table_reserve(sets, &sets->by_call, hash_call)) return BASE;
    const uint32_t mask = sets->by_call.capacity - 1;
    uint32_t at = hash_pair(frame, parent) & mask;
    for (; table_used(&sets->by_call, at); at = (at + 1) & mask) {
        const uint32_t found = (uint32_t)sets->by_call.slots[at];
        if (sets->calls[found].frame == frame && sets->calls[found].parent == parent) return found;
    }
    if (!sets_grow(sets, (void **)&sets->calls, &sets->call_capacity, (uint64_t)sets->call_count + 1,
                   sizeof *sets->calls))
        return BASE;
    const struct sets_call around = sets->calls[parent];
    const uint32_t need = around.depth + sets->grammar->states[frame].height;
    sets->calls[sets->call_count] = (struct sets_call){.frame = frame,
                                                       .parent = parent,
                                                       .depth = around.depth + 1,
                                                       .need = need > around.need ? need : around.need};
    table_put(&sets->by_call, at, sets->call_count);
    return sets->call_count++;
}

/* Notes an item to be expanded, unless it was noted before. */
static void visit(struct sets *sets, uint32_t state, uint32_t call)
{
    if (sets->grammar->states[state].height + sets->calls[call].depth > GRAMMAR_MOST_DEPTH) {
        sets->dropped = true;
        return;
    }
    if (sets->visited_count == MOST_VISITED) fail_ambiguous(sets);
    if (!table_reserve(sets, &sets->by_item, hash_item)) return;
    const uint32_t mask = sets->by_item.capacity - 1;
    uint32_t at = hash_pair(state, call) & mask;
    for (; table_used(&sets->by_item, at); at = (at + 1) & mask) {
        const uint32_t found = (uint32_t)sets->by_item.slots[at];
        if (sets->visited[found].state == state && sets->visited[found].call == call) return;
    }
    if (!sets_grow(sets, (void **)&sets->visited, &sets->visited_capacity, (uint64_t)sets->visited_count + 1,
                   sizeof *sets->visited))
        return;
    table_put(&sets->by_item, at, sets->visited_count);
    sets->visited[sets->visited_count++] = (struct sets_item){state, call};
}

static void begin_set(struct sets *sets)
{
    table_clear(&sets->by_call);
    table_clear(&sets->by_item);
    sets->visited_count = sets->kept_count = sets->call_count = 0;
    if (sets_grow(sets, (void **)&sets->calls, &sets->call_capacity, 1, sizeof *sets->calls))
        sets->calls[sets->call_count++] = (struct sets_call){0};
}

/* Follows the states that take no byte. */
static void expand(struct sets *sets)
{
    for (uint32_t i = 0; i < sets->visited_count && !sets->failed; i++) {
        const struct sets_item item = sets->visited[i];
        const struct automaton_state *state = &sets->grammar->states[item.state];
        switch ((enum automaton_kind)state->kind) {
        case AUTOMATON_DEAD: continue;
        case AUTOMATON_SPLIT:
            visit(sets, state->a, item.call);
            visit(sets, state->b, item.call);
            continue;
        case AUTOMATON_CALL:
            visit(sets, sets->grammar->rule_starts[state->a], add_call(sets, state->b, item.call));
            continue; /* visit() judged the heights of rule and return state: they are part of the call's */
        case AUTOMATON_END:
            if (item.call != BASE) {
                visit(sets, sets->calls[item.call].frame, sets->calls[item.call].parent);
                continue;
            }
            break;
        case AUTOMATON_BYTES: break;
        }
        if (sets_grow(sets, (void **)&sets->kept, &sets->kept_capacity, (uint64_t)sets->kept_count + 1,
                      sizeof *sets->kept))
            sets->kept[sets->kept_count++] = item;
    }
}

static int compare_items(const void *left, const void *right, void *argument)
{
    const struct sets *sets = argument;
    const struct sets_item *a = left, *b = right;
    if (a->state != b->state) return a->state < b->state ? -1 : 1;
    const uint32_t a_depth = sets->calls[a->call].depth, b_depth = sets->calls[b->call].depth;
    if (a_depth != b_depth) return a_depth < b_depth ? -1 : 1;
    uint32_t first = a->call, second = b->call;
    int order = 0; /* the lowest difference decides */
    for (; first != second; first = sets->calls[first].parent, second = sets->calls[second].parent) {
        const uint32_t x = sets->calls[first].frame, y = sets->calls[second].frame;
        if (x != y) order = x < y ? -1 : 1;
    }
    return order;
}

static uint32_t kept_need(const struct sets *sets, const struct sets_item *item)
{
    const struct sets_call *call = &sets->calls[item->call];
    const uint32_t need = call->depth + sets->grammar->states[item->state].height;
    return need > call->need ? need : call->need;
}

static int compare_needs(const void *left, const void *right, void *argument)
{
    const uint32_t a = kept_need(argument, left), b = kept_need(argument, right);
    return a != b ? (a > b) - (a < b) : compare_items(left, right, argument);
}

/* Drops items that exceed GRAMMAR_MOST_WORDS. Those that can be finished with the fewest calls stay, so that one is left wherever
 * GRAMMAR_MOST_DEPTH leaves any. */
static void drop_items(struct sets *sets)
{
    uint64_t words = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < sets->kept_count; i++) words += sets->calls[sets->kept[i].call].depth + 1;
    if (words <= GRAMMAR_MOST_WORDS) return;
    sets->dropped = true;
    qsort_r(sets->kept, sets->kept_count, sizeof *sets->kept, compare_needs, sets);
    for (words = 0; count < sets->kept_count; count++) {
        words += sets->calls[sets->kept[count].call].depth + 1;
        if (words > GRAMMAR_MOST_WORDS) break;
    }
    sets->kept_count = count;
}

static uint32_t finish_set(struct sets *sets)
{
    uint32_t used = 0;
    sets->work += sets->visited_count;
    if (sets->work > MOST_WORK) fail_ambiguous(sets);
    if (sets->failed || sets->kept_count == 0) return SETS_DEAD;
    drop_items(sets);
    qsort_r(sets->kept, sets->kept_count, sizeof *sets->kept, compare_items, sets);
    if (!sets_grow(sets, (void **)&sets->scratch, &sets->scratch_capacity, GRAMMAR_MOST_WORDS, sizeof *sets->scratch))
        return SETS_DEAD;
    for (uint32_t i = 0; i < sets->kept_count; i++) {
        const uint32_t depth = sets->calls[sets->kept[i].call].depth;
        sets->scratch[used] = sets->kept[i].state << ITEM_DEPTH_BITS | depth;
        uint32_t call = sets->kept[i].call;
        for (uint32_t k = depth; k > 0; k--, call = sets->calls[call].parent)
            sets->scratch[used + k] = sets->calls[call].frame;
        used += 1 + depth;
    }
    return sets_intern(sets, sets->scratch, used);
}

/* The calls above the base without which the item cannot be finished. */
static uint32_t item_need(const struct sets *sets, const uint32_t *item)
{
    const struct automaton_state *states = sets->grammar->states;
    const uint32_t depth = item[0] & ((1 << ITEM_DEPTH_BITS) - 1);
    uint32_t need = depth + states[item[0] >> ITEM_DEPTH_BITS].height;
    for (uint32_t k = 0; k < depth; k++)
        if (k + states[item[k + 1]].height > need) need = k + states[item[k + 1]].height;
    return need;
}

/* Fills what a set says of its items. */
static void describe(const struct sets *sets, struct set *set)
{
    const uint32_t *words = sets->words + set->words, *first = words;
    uint32_t need = 0, common = words[0] & ((1 << ITEM_DEPTH_BITS) - 1), depth;
    for (uint32_t at = 0; at < set->count; at += depth + 1) {
        depth = words[at] & ((1 << ITEM_DEPTH_BITS) - 1);
        const bool end = sets->grammar->states[words[at] >> ITEM_DEPTH_BITS].kind == AUTOMATON_END;
        set->ends = set->ends || end;
        if (item_need(sets, words + at) > need) need = item_need(sets, words + at);
        if (depth < common) common = depth;
        for (uint32_t k = 0; k < common; k++)
            if (words[at + k + 1] != first[k + 1]) common = k;
    }
    set->common = (uint8_t)common;
    set->need = (uint8_t)(need > UINT8_MAX ? UINT8_MAX : need);
}

uint32_t sets_intern(struct sets *sets, const uint32_t *words, uint32_t count)
{
    if (count == 0 || !table_reserve(sets, &sets->by_words, hash_set)) return SETS_DEAD;
    const uint32_t mask = sets->by_words.capacity - 1;
    uint32_t at = sets_hash(words, count, 0) & mask;
    for (; table_used(&sets->by_words, at); at = (at + 1) & mask) {
        const uint32_t index = (uint32_t)sets->by_words.slots[at];
        const struct set *found = &sets->sets[index];
        if (found->count == count && memcmp(sets->words + found->words, words, count * sizeof *words) == 0)
            return index;
    }
    if (!sets_grow(sets, (void **)&sets->sets, &sets->set_capacity, (uint64_t)sets->set_count + 1,
                   sizeof *sets->sets) ||
        !sets_grow(sets, (void **)&sets->words, &sets->word_capacity, (uint64_t)sets->word_count + count,
                   sizeof *sets->words))
        return SETS_DEAD;
    const uint32_t index = sets->set_count;
    struct set set = {.words = sets->word_count,
                      .count = count,
                      .row = SETS_NONE,
                      .factored = index,
                      .plain_next = SETS_NONE};
    memcpy(sets->words + sets->word_count, words, count * sizeof *words);
    sets->word_count += count;
    describe(sets, &set);
    sets->sets[sets->set_count++] = set;
    table_put(&sets->by_words, at, index);
    if (set.common == 0) return index;
    uint32_t factored[GRAMMAR_MOST_WORDS], used = 0, depth;
    for (uint32_t i = 0; i < count; i += depth + 1) {
        const uint32_t *item = sets->words + set.words + i;
        depth = item[0] & ((1 << ITEM_DEPTH_BITS) - 1);
        factored[used++] = item[0] - set.common;
        for (uint32_t k = set.common; k < depth; k++) factored[used++] = item[k + 1];
    }
    const uint32_t other = sets_intern(sets, factored, used);
    sets->sets[index].factored = other;
    return sets->failed ? SETS_DEAD : index;
}

uint32_t sets_begin(struct sets *sets)
{
    begin_set(sets);
    if (!sets->failed) visit(sets, sets->grammar->rule_starts[0], BASE);
    expand(sets);
    return finish_set(sets);
}

/* The set of the items, and of those that they lead to without a byte. */
static uint32_t close_kernel(struct sets *sets, const uint32_t *kernel, uint32_t count)
{
    uint32_t depth;
    if (!table_reserve(sets, &sets->by_kernel, hash_kernel)) return SETS_DEAD;
    const uint32_t mask = sets->by_kernel.capacity - 1;
    uint32_t at = sets_hash(kernel, count, 0) & mask;
    for (; table_used(&sets->by_kernel, at); at = (at + 1) & mask) {
        const struct sets_kernel *found = &sets->kernels[(uint32_t)sets->by_kernel.slots[at]];
        if (found->count == count && memcmp(sets->words + found->words, kernel, count * sizeof *kernel) == 0)
            return found->result;
    }
    begin_set(sets);
    for (uint32_t i = 0; i < count && !sets->failed; i += depth + 1) {
        uint32_t call = BASE;
        depth = kernel[i] & ((1 << ITEM_DEPTH_BITS) - 1);
        for (uint32_t k = 0; k < depth && !sets->failed; k++) call = add_call(sets, kernel[i + k + 1], call);
        if (!sets->failed) visit(sets, kernel[i] >> ITEM_DEPTH_BITS, call);
    }
    expand(sets);
    const uint32_t result = finish_set(sets);
    if (sets->failed ||
        !sets_grow(sets, (void **)&sets->kernels, &sets->kernel_capacity, (uint64_t)sets->kernel_count + 1,
                   sizeof *sets->kernels) ||
        !sets_grow(sets, (void **)&sets->words, &sets->word_capacity, (uint64_t)sets->word_count + count,
                   sizeof *sets->words))
        return SETS_DEAD;
    memcpy(sets->words + sets->word_count, kernel, count * sizeof *kernel);
    table_put(&sets->by_kernel, at, sets->kernel_count);
    sets->kernels[sets->kernel_count++] = (struct sets_kernel){sets->word_count, count, result};
    sets->word_count += count;
    return result;
}

uint32_t sets_step(struct sets *sets, uint32_t set, uint32_t byte_class)
{
    const struct grammar *grammar = sets->grammar;
    uint32_t depth;
    if (set == SETS_DEAD || sets->failed) return SETS_DEAD;
    if (sets->sets[set].row == SETS_NONE) {
        if (!sets_grow(sets, (void **)&sets->rows, &sets->row_capacity,
                       (uint64_t)sets->row_count + grammar->class_count, sizeof *sets->rows))
            return SETS_DEAD;
        sets->sets[set].row = sets->row_count;
        memset(sets->rows + sets->row_count, 0xFF, grammar->class_count * sizeof *sets->rows);
        sets->row_count += grammar->class_count;
    }
    const struct set from = sets->sets[set];
    uint32_t kernel[GRAMMAR_MOST_WORDS], used = 0;
    sets->work += from.count;
    for (uint32_t i = 0; i < from.count; i += depth + 1) {
        const uint32_t *item = sets->words + from.words + i;
        const struct automaton_state *state = &grammar->states[item[0] >> ITEM_DEPTH_BITS];
        depth = item[0] & ((1 << ITEM_DEPTH_BITS) - 1);
        if (state->kind != AUTOMATON_BYTES || byte_class < grammar->byte_class[state->low] ||
            byte_class > grammar->byte_class[state->high])
            continue;
        kernel[used] = state->a << ITEM_DEPTH_BITS | depth;
        if (depth) memcpy(kernel + used + 1, item + 1, depth * sizeof *item);
        used += depth + 1;
    }
    const uint32_t next = used ? close_kernel(sets, kernel, used) : SETS_DEAD;
    if (!sets->failed) sets->rows[sets->sets[set].row + byte_class] = next;
    return next;
}

uint32_t sets_pop(struct sets *sets, uint32_t set, uint32_t frame)
{
    uint32_t depth;
    if (!table_reserve(sets, &sets->by_pop, hash_pop)) return SETS_DEAD;
    const uint32_t mask = sets->by_pop.capacity - 1;
    uint32_t at = hash_pair(set, frame) & mask;
    for (; table_used(&sets->by_pop, at); at = (at + 1) & mask) {
        const struct sets_pop *found = &sets->pops[(uint32_t)sets->by_pop.slots[at]];
        if (found->set == set && found->frame == frame) return found->result;
    }
    begin_set(sets);
    const struct set from = sets->sets[set];
    for (uint32_t i = 0; i < from.count && !sets->failed; i += depth + 1) {
        const uint32_t *item = sets->words + from.words + i;
        depth = item[0] & ((1 << ITEM_DEPTH_BITS) - 1);
        uint32_t call = add_call(sets, frame, BASE);
        for (uint32_t k = 0; k < depth && !sets->failed; k++) call = add_call(sets, item[k + 1], call);
        if (!sets->failed) visit(sets, item[0] >> ITEM_DEPTH_BITS, call);
    }
    expand(sets);
    const uint32_t result = finish_set(sets);
    if (sets->failed ||
        !sets_grow(sets, (void **)&sets->pops, &sets->pop_capacity, (uint64_t)sets->pop_count + 1, sizeof *sets->pops))
        return SETS_DEAD;
    table_put(&sets->by_pop, at, sets->pop_count);
    sets->pops[sets->pop_count++] = (struct sets_pop){set, frame, result};
    return result;
}

uint32_t sets_within(struct sets *sets, uint32_t set, uint32_t most)
{
    uint32_t kept[GRAMMAR_MOST_WORDS], used = 0, depth;
    const struct set from = sets->sets[set];
    for (uint32_t i = 0; i < from.count; i += depth + 1) {
        const uint32_t *item = sets->words + from.words + i;
        depth = item[0] & ((1 << ITEM_DEPTH_BITS) - 1);
        if (item_need(sets, item) > most) continue;
        memcpy(kept + used, item, (depth + 1) * sizeof *item);
        used += depth + 1;
    }
    return sets_intern(sets, kept, used);
}

bool sets_open(struct sets *sets, const struct grammar *grammar)
{
    sets->grammar = grammar;
    /* The dead set is the first. */
    if (!sets_grow(sets, (void **)&sets->sets, &sets->set_capacity, 1, sizeof *sets->sets)) return false;
    sets->sets[sets->set_count++] = (struct set){.row = SETS_NONE, .plain_next = SETS_DEAD};
    return true;
}

void sets_close(struct sets *sets)
{
    free(sets->sets);
    free(sets->words);
    free(sets->rows);
    free(sets->pops);
    free(sets->kernels);
    free(sets->by_kernel.slots);
    free(sets->by_words.slots);
    free(sets->by_pop.slots);
    free(sets->calls);
    free(sets->visited);
    free(sets->kept);
    free(sets->by_call.slots);
    free(sets->by_item.slots);
    free(sets->scratch);
    *sets = (struct sets){0};
}
