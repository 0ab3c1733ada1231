/* SPDX-License-Identifier: Apache-2.0 */
/* From expressions to the automaton, and the checks that make every automaton safe to follow: no rule calls itself before a byte, and
 * an end can be reached. All steps take time linear in the number of states, for each of GRAMMAR_MOST_DEPTH heights at most. */
#include <stdlib.h>
#include <string.h>

#include "formats/grammar/grammar_automaton.h"

enum { MOST_NESTING = 600, MOST_SUFFIXES = 64 };
#define NO_STATE UINT32_MAX

struct compiler {
    struct tree *tree;
    struct grammar *grammar;
    int nesting;
};

static uint32_t add_state(struct compiler *c, enum automaton_kind kind, uint32_t a, uint32_t b)
{
    struct grammar *grammar = c->grammar;
    struct tree *tree = c->tree;
    if (grammar->state_count == GRAMMAR_MOST_STATES)
        return tree_fail(
            tree, STATUS_BAD_INPUT,
            "grammar is too large: its automaton has more than %d states; use smaller counts of repetition",
            GRAMMAR_MOST_STATES);
    if (!tree_grow(tree, (void **)&grammar->states, &grammar->state_capacity, (uint64_t)grammar->state_count + 1,
                   sizeof *grammar->states, GRAMMAR_MOST_STATES) ||
        !tree_grow(tree, (void **)&grammar->alias, &grammar->alias_capacity, (uint64_t)grammar->state_count + 1,
                   sizeof *grammar->alias, GRAMMAR_MOST_STATES))
        return 0;
    grammar->states[grammar->state_count] =
        (struct automaton_state){.a = a, .b = b, .kind = (uint8_t)kind, .height = AUTOMATON_NO_HEIGHT};
    grammar->alias[grammar->state_count] = grammar->state_count;
    return grammar->state_count++;
}

static uint32_t add_bytes(struct compiler *c, uint32_t low, uint32_t high, uint32_t next)
{
    const uint32_t state = add_state(c, AUTOMATON_BYTES, next, next);
    if (c->tree->failed) return 0;
    c->grammar->states[state].low = (uint8_t)low;
    c->grammar->states[state].high = (uint8_t)high;
    return state;
}

/* Continues in both; NO_STATE: there is only the other. */
static uint32_t add_split(struct compiler *c, uint32_t a, uint32_t b)
{
    if (a == NO_STATE) return b;
    return b == NO_STATE ? a : add_state(c, AUTOMATON_SPLIT, a, b);
}

static uint32_t emit(struct compiler *c, uint32_t node, uint32_t next);

/* Not inlined: its table is large, and emit() recurses. */
__attribute__((noinline)) static uint32_t emit_class(struct compiler *c, const struct tree_node *node, uint32_t next)
{
    struct {
        uint32_t range, next, state;
    } suffixes[MOST_SUFFIXES]; /* many sequences end with the same ranges */
    uint32_t start = NO_STATE, count = 0, at = node->a;
    for (uint32_t i = 0; i < node->b && !c->tree->failed; i++) {
        const uint32_t length = c->tree->words[at];
        uint32_t state = next;
        for (uint32_t k = length; k > 0; k--) {
            const uint32_t range = c->tree->words[at + k];
            uint32_t found = 0;
            while (found < count && (suffixes[found].range != range || suffixes[found].next != state)) found++;
            if (found < count) {
                state = suffixes[found].state;
                continue;
            }
            const uint32_t made = add_bytes(c, range & 0xFF, range >> 8, state);
            if (k > 1 && count < MOST_SUFFIXES) {
                suffixes[count].range = range;
                suffixes[count].next = state;
                suffixes[count++].state = made;
            }
            state = made;
        }
        at += length + 1;
        start = add_split(c, state, start);
    }
    return start == NO_STATE ? add_state(c, AUTOMATON_DEAD, 0, 0) : start;
}

/* Lets the states of copies of one part that are far from the last copy stand for one another. `ends` [copies + 1] has the number of
 * states before each copy and after the last, from the last copy in the text to the first. */
static void alias_copies(struct grammar *grammar, const uint32_t *ends, uint32_t copies)
{
    if (copies <= AUTOMATON_FAR) return;
    const uint32_t first = ends[AUTOMATON_FAR], size = ends[AUTOMATON_FAR + 1] - first;
    for (uint32_t i = AUTOMATON_FAR + 1; i < copies; i++) {
        if (ends[i + 1] - ends[i] != size) return;
        /* A copy of an inner part stands for others of the same outer copy. */
        for (uint32_t k = 0; k < size; k++) grammar->alias[ends[i] + k] = grammar->alias[first + k];
    }
}

/* Emits `copies` copies before `next`, each of which may be left out with all after it if `optional`. */
static uint32_t emit_copies(struct compiler *c, uint32_t node, uint32_t copies, bool optional, uint32_t next)
{
    uint32_t *ends = malloc(((size_t)copies + 1) * sizeof *ends), state = next;
    if (!ends) return tree_fail(c->tree, STATUS_MACHINE, "grammar: out of memory");
    for (uint32_t i = 0; i < copies && !c->tree->failed; i++) {
        ends[i] = c->grammar->state_count;
        state = emit(c, node, state);
        if (optional) state = add_split(c, state, next);
    }
    ends[copies] = c->grammar->state_count;
    if (!c->tree->failed && !c->tree->nodes[node].nullable) alias_copies(c->grammar, ends, copies);
    free(ends);
    return state;
}

static uint32_t emit_repeat(struct compiler *c, const struct tree_node *node, uint32_t next)
{
    uint32_t state;
    /* Each copy has at least one state. */
    const uint32_t optional = node->c == TREE_UNLIMITED ? 0 : node->c - node->b;
    if (node->b > GRAMMAR_MOST_STATES || optional > GRAMMAR_MOST_STATES)
        return tree_fail(c->tree, STATUS_BAD_INPUT,
                         "grammar is too large: a part of it is repeated %u times; expected at most %d",
                         node->c == TREE_UNLIMITED ? node->b : node->c, GRAMMAR_MOST_STATES);
    if (node->c == TREE_UNLIMITED) {
        state = add_state(c, AUTOMATON_SPLIT, next, next);
        const uint32_t body = emit(c, node->a, state);
        if (c->tree->failed) return 0;
        c->grammar->states[state].a = body;
    } else {
        state = emit_copies(c, node->a, optional, true, next);
    }
    return c->tree->failed ? 0 : emit_copies(c, node->a, node->b, false, state);
}

/* Two ways lead into an item: `more`, if an item came before, with the separator, and `first`. */
static uint32_t emit_list(struct compiler *c, const struct tree_node *node, uint32_t next)
{
    uint32_t more = next, first = next; /* NO_STATE: the list may not be empty here */
    for (uint32_t i = node->b; i-- > 0 && !c->tree->failed;) {
        struct tree_item item;
        memcpy(&item, c->tree->words + node->a + i * (sizeof item / sizeof(uint32_t)), sizeof item);
        uint32_t after = more, start = NO_STATE;
        const uint32_t without = item.is_last ? next : more;
        if (item.most == TREE_UNLIMITED) {
            after = add_state(c, AUTOMATON_SPLIT, without, without);
            start = emit(c, item.node, after);
            const uint32_t again = emit(c, node->c, start);
            if (c->tree->failed) return 0;
            c->grammar->states[after].a = again;
        } else {
            for (uint32_t k = item.most; k > item.least && !c->tree->failed; k--) {
                start = emit(c, item.node, after);
                after = add_split(c, emit(c, node->c, start), without);
            }
        }
        for (uint32_t k = item.least; k > 0 && !c->tree->failed; k--) {
            start = emit(c, item.node, after);
            after = emit(c, node->c, start);
        }
        more = after;
        first = item.least > 0 ? start : add_split(c, start, item.is_last ? next : first);
    }
    return first;
}

static uint32_t emit_graph(struct compiler *c, const struct tree_node *node, uint32_t next)
{
    uint32_t *heads = malloc((size_t)node->c * sizeof *heads), start = 0;
    if (!heads) return tree_fail(c->tree, STATUS_MACHINE, "grammar: out of memory");
    for (uint32_t i = 0; i < node->c; i++) heads[i] = add_state(c, AUTOMATON_DEAD, 0, 0);
    for (uint32_t i = 0; i < node->b && !c->tree->failed; i++) {
        struct tree_edge edge;
        memcpy(&edge, c->tree->words + node->a + i * (sizeof edge / sizeof(uint32_t)), sizeof edge);
        const uint32_t to = edge.to == TREE_ACCEPT ? next : add_bytes(c, edge.low, edge.high, heads[edge.to]);
        if (c->tree->failed) break;
        /* The head becomes a chain of splits over its edges. */
        struct automaton_state *head = &c->grammar->states[heads[edge.from]];
        if (head->kind == AUTOMATON_DEAD) {
            head->kind = AUTOMATON_SPLIT;
            head->a = head->b = to;
        } else {
            const uint32_t rest = add_state(c, AUTOMATON_SPLIT, head->a, head->b);
            if (c->tree->failed) break;
            head = &c->grammar->states[heads[edge.from]];
            head->a = to;
            head->b = rest;
        }
    }
    if (!c->tree->failed) start = heads[0];
    free(heads);
    return start;
}

/* The state from which the node's texts lead to `next`. */
static uint32_t emit(struct compiler *c, uint32_t index, uint32_t next)
{
    if (c->tree->failed) return 0;
    const struct tree_node node = c->tree->nodes[index];
    uint32_t state = next;
    if (++c->nesting > MOST_NESTING)
        return tree_fail(c->tree, STATUS_BAD_INPUT, "grammar is nested too deeply: expected at most %d levels",
                         MOST_NESTING);
    switch ((enum tree_kind)node.kind) {
    case TREE_EMPTY: break;
    case TREE_NEVER: state = add_state(c, AUTOMATON_DEAD, 0, 0); break;
    case TREE_LITERAL:
        for (uint32_t i = node.b; i-- > 0 && !c->tree->failed;)
            state = add_bytes(c, c->tree->bytes[node.a + i], c->tree->bytes[node.a + i], state);
        break;
    case TREE_CLASS: state = emit_class(c, &node, next); break;
    case TREE_SEQUENCE:
        for (uint32_t i = node.b; i-- > 0;) state = emit(c, c->tree->words[node.a + i], state);
        break;
    case TREE_CHOICE:
        state = NO_STATE;
        for (uint32_t i = node.b; i-- > 0 && !c->tree->failed;)
            state = add_split(c, emit(c, c->tree->words[node.a + i], next), state);
        break;
    case TREE_REPEAT: state = emit_repeat(c, &node, next); break;
    case TREE_LIST: state = emit_list(c, &node, next); break;
    case TREE_CALL: state = add_state(c, AUTOMATON_CALL, node.a, next); break;
    case TREE_GRAPH: state = emit_graph(c, &node, next); break;
    }
    c->nesting--;
    return state;
}

/* Kahn's algorithm over the calls that a rule makes before its first byte. */
static void check_left_calls(struct compiler *c)
{
    const struct grammar *grammar = c->grammar;
    struct tree *tree = c->tree;
    const uint32_t rules = grammar->rule_count;
    struct tree_nodes edges = {0}, stack = {0};
    uint32_t *visited = calloc(grammar->state_count, sizeof *visited);
    uint32_t *begin = calloc((size_t)rules + 1, sizeof *begin), *callers = calloc(rules, sizeof *callers);
    if (!visited || !begin || !callers) tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    for (uint32_t rule = 0; rule < rules && !tree->failed; rule++) {
        begin[rule] = edges.count;
        tree_nodes_add(tree, &stack, grammar->rule_starts[rule]);
        while (stack.count > 0 && !tree->failed) {
            const uint32_t index = stack.items[--stack.count];
            const struct automaton_state *state = &grammar->states[index];
            if (visited[index]) continue;
            visited[index] = 1; /* rules share no states */
            if (state->kind == AUTOMATON_SPLIT) {
                tree_nodes_add(tree, &stack, state->b);
                tree_nodes_add(tree, &stack, state->a);
            } else if (state->kind == AUTOMATON_CALL) {
                tree_nodes_add(tree, &edges, state->a);
                callers[state->a]++;
                if (tree->rules[state->a].nullable) tree_nodes_add(tree, &stack, state->b);
            }
        }
    }
    uint32_t done = 0;
    stack.count = 0;
    if (!tree->failed) begin[rules] = edges.count;
    for (uint32_t rule = 0; rule < rules && !tree->failed; rule++)
        if (callers[rule] == 0) tree_nodes_add(tree, &stack, rule);
    while (stack.count > 0 && !tree->failed) {
        const uint32_t rule = stack.items[--stack.count];
        done++;
        for (uint32_t i = begin[rule]; i < begin[rule + 1]; i++)
            if (--callers[edges.items[i]] == 0) tree_nodes_add(tree, &stack, edges.items[i]);
    }
    for (uint32_t rule = 0; rule < rules && done < rules && !tree->failed; rule++)
        if (callers[rule] > 0)
            tree_fail(tree, STATUS_BAD_INPUT,
                      "%.200s: refers to itself without anything between; expected an object or array around the "
                      "reference",
                      tree->rules[rule].name);
    free(visited);
    free(begin);
    free(callers);
    free(edges.items);
    free(stack.items);
}

/* The states that lead to each state, and the calls of each rule. */
struct reverse {
    uint32_t *state_begin, *from, *call_begin, *calls;
};

static bool reverse_open(struct reverse *reverse, const struct grammar *grammar)
{
    const uint32_t states = grammar->state_count, rules = grammar->rule_count;
    *reverse = (struct reverse){.state_begin = calloc((size_t)states + 2, sizeof(uint32_t)),
                                .from = calloc((size_t)states * 2 + 1, sizeof(uint32_t)),
                                .call_begin = calloc((size_t)rules + 2, sizeof(uint32_t)),
                                .calls = calloc((size_t)states + 1, sizeof(uint32_t))};
    if (!reverse->state_begin || !reverse->from || !reverse->call_begin || !reverse->calls) return false;
    /* The first pass counts at index + 2, the second places at index + 1, which then begins the following one. */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < states; i++) {
            const struct automaton_state *state = &grammar->states[i];
            const bool is_call = state->kind == AUTOMATON_CALL, is_split = state->kind == AUTOMATON_SPLIT;
            if (state->kind == AUTOMATON_END || state->kind == AUTOMATON_DEAD) continue;
            const uint32_t next = is_call ? state->b : state->a;
            if (pass == 0) {
                reverse->state_begin[next + 2]++;
                if (is_split) reverse->state_begin[state->b + 2]++;
                if (is_call) reverse->call_begin[state->a + 2]++;
            } else {
                reverse->from[reverse->state_begin[next + 1]++] = i;
                if (is_split) reverse->from[reverse->state_begin[state->b + 1]++] = i;
                if (is_call) reverse->calls[reverse->call_begin[state->a + 1]++] = i;
            }
        }
        for (uint32_t i = 1; pass == 0 && i <= states + 1; i++) reverse->state_begin[i] += reverse->state_begin[i - 1];
        for (uint32_t i = 1; pass == 0 && i <= rules + 1; i++) reverse->call_begin[i] += reverse->call_begin[i - 1];
    }
    return true;
}

static void reverse_close(struct reverse *reverse)
{
    free(reverse->state_begin);
    free(reverse->from);
    free(reverse->call_begin);
    free(reverse->calls);
}

/* Sets the heights in rising order: a state has height h if it leads on to one of height h at most, for a call also through a rule of
 * height below h. */
static void find_heights(struct compiler *c)
{
    struct grammar *grammar = c->grammar;
    struct tree *tree = c->tree;
    struct reverse reverse = {0};
    struct tree_nodes stack = {0}, pending = {0}, later = {0};
    uint8_t *callable = calloc(grammar->rule_count, 1);
    uint32_t *rule_of_start = calloc(grammar->state_count, sizeof *rule_of_start);
    if (!callable || !rule_of_start || !reverse_open(&reverse, grammar))
        tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    for (uint32_t i = 0; i < grammar->rule_count && !tree->failed; i++) rule_of_start[grammar->rule_starts[i]] = i + 1;
    for (uint32_t i = 0; i < grammar->state_count && !tree->failed; i++)
        if (grammar->states[i].kind == AUTOMATON_END) tree_nodes_add(tree, &pending, i);
    for (unsigned height = 0; height <= GRAMMAR_MOST_DEPTH && pending.count && !tree->failed; height++) {
        stack.count = later.count = 0;
        for (uint32_t i = 0; i < pending.count; i++) tree_nodes_add(tree, &stack, pending.items[i]);
        while (stack.count > 0 && !tree->failed) {
            const uint32_t index = stack.items[--stack.count];
            struct automaton_state *state = &grammar->states[index];
            if (state->height != AUTOMATON_NO_HEIGHT) continue;
            state->height = (uint8_t)height;
            if (rule_of_start[index]) tree_nodes_add(tree, &later, rule_of_start[index] - 1);
            for (uint32_t i = reverse.state_begin[index]; i < reverse.state_begin[index + 1]; i++) {
                const struct automaton_state *from = &grammar->states[reverse.from[i]];
                if (from->kind != AUTOMATON_CALL || callable[from->a]) tree_nodes_add(tree, &stack, reverse.from[i]);
            }
        }
        pending.count = 0;
        for (uint32_t i = 0; i < later.count && !tree->failed; i++) {
            const uint32_t rule = later.items[i];
            callable[rule] = 1;
            for (uint32_t k = reverse.call_begin[rule]; k < reverse.call_begin[rule + 1]; k++)
                if (grammar->states[grammar->states[reverse.calls[k]].b].height != AUTOMATON_NO_HEIGHT)
                    tree_nodes_add(tree, &pending, reverse.calls[k]);
        }
    }
    reverse_close(&reverse);
    free(callable);
    free(rule_of_start);
    free(stack.items);
    free(pending.items);
    free(later.items);
}

static void find_byte_classes(struct grammar *grammar)
{
    bool begins[257] = {true};
    for (uint32_t i = 0; i < grammar->state_count; i++)
        if (grammar->states[i].kind == AUTOMATON_BYTES)
            begins[grammar->states[i].low] = begins[grammar->states[i].high + 1] = true;
    uint32_t count = 0;
    for (uint32_t i = 0; i < 256; i++) {
        count += begins[i];
        grammar->byte_class[i] = (uint8_t)(count - 1);
    }
    grammar->class_count = count;
}

struct grammar *automaton_compile(struct tree *tree, const char *source)
{
    struct grammar *grammar = tree->failed ? NULL : calloc(1, sizeof *grammar);
    struct compiler c = {.tree = tree, .grammar = grammar};
    if (!grammar) {
        tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
        return NULL;
    }
    grammar->rule_count = tree->rule_count;
    grammar->rule_starts = calloc(tree->rule_count, sizeof *grammar->rule_starts);
    if (!grammar->rule_starts) tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    for (uint32_t i = 0; i < tree->rule_count && !tree->failed; i++) {
        const uint32_t end = add_state(&c, AUTOMATON_END, 0, 0);
        grammar->rule_starts[i] = emit(&c, tree->rules[i].node, end);
    }
    if (!tree->failed) check_left_calls(&c);
    if (!tree->failed) find_heights(&c);
    if (!tree->failed && grammar->states[grammar->rule_starts[0]].height == AUTOMATON_NO_HEIGHT)
        tree_fail(tree, STATUS_BAD_INPUT,
                  "%s allows no output: its requirements contradict one another, %sor every value nests deeper than %d "
                  "references",
                  source, tree->excludes ? "no value can be told from those that 'not', 'if' or 'oneOf' exclude, " : "",
                  GRAMMAR_MOST_DEPTH);
    if (tree->failed) {
        grammar_close(grammar);
        return NULL;
    }
    find_byte_classes(grammar);
    return grammar;
}

void grammar_close(struct grammar *grammar)
{
    if (!grammar) return;
    free(grammar->states);
    free(grammar->alias);
    free(grammar->rule_starts);
    free(grammar);
}

uint64_t grammar_bytes(const struct grammar *grammar)
{
    return sizeof *grammar + (uint64_t)grammar->state_capacity * sizeof *grammar->states +
           (uint64_t)grammar->alias_capacity * sizeof *grammar->alias +
           (uint64_t)grammar->rule_count * sizeof *grammar->rule_starts;
}
