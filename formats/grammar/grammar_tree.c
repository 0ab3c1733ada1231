/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/grammar/grammar_tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/grammar/grammar.h"
#include "formats/tokenizer/tokenizer_text.h"

/* A repeated part that would have more states is given a rule, so that each of its copies is one state. */
enum { MOST_COPIED_STATES = 200, MOST_TRIE_DEPTH = 200 };

uint32_t tree_fail(struct tree *tree, enum status_code code, const char *format, ...)
{
    if (tree->failed) return TREE_NODE_EMPTY;
    char text[STATUS_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    status_fail(tree->status, code, "%s", text);
    tree->failed = true;
    return TREE_NODE_EMPTY;
}

bool tree_grow(struct tree *tree, void **array, uint32_t *capacity, uint64_t needed, size_t element, uint32_t most)
{
    if (tree->failed) return false;
    if (needed <= *capacity) return true;
    if (needed > most) {
        tree_fail(tree, STATUS_BAD_INPUT, "grammar is too large: a part of it has more than %u elements; simplify it",
                  most);
        return false;
    }
    uint64_t larger = *capacity ? (uint64_t)*capacity * 2 : 64;
    if (larger < needed) larger = needed;
    if (larger > most) larger = most;
    void *memory = realloc(*array, larger * element);
    if (!memory) {
        tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
        return false;
    }
    *array = memory;
    *capacity = (uint32_t)larger;
    return true;
}

static uint32_t add_node(struct tree *tree, struct tree_node node)
{
    if (!tree_grow(tree, (void **)&tree->nodes, &tree->node_capacity, (uint64_t)tree->node_count + 1,
                   sizeof *tree->nodes, TREE_MOST_NODES))
        return TREE_NODE_EMPTY;
    tree->nodes[tree->node_count] = node;
    return tree->node_count++;
}

static uint32_t *add_words(struct tree *tree, uint64_t count)
{
    /* One more than needed, so that there is an array even for no words. */
    if (!tree_grow(tree, (void **)&tree->words, &tree->word_capacity, tree->word_count + count + 1, sizeof *tree->words,
                   TREE_MOST_WORDS))
        return NULL;
    uint32_t *words = tree->words + tree->word_count;
    tree->word_count += (uint32_t)count;
    return words;
}

bool tree_open(struct tree *tree, struct status *status)
{
    *tree = (struct tree){.status = status};
    add_node(tree, (struct tree_node){.kind = TREE_EMPTY, .nullable = true});
    add_node(tree, (struct tree_node){.kind = TREE_NEVER, .states = 1});
    return !tree->failed;
}

void tree_close(struct tree *tree)
{
    for (uint32_t i = 0; i < tree->rule_count; i++) free(tree->rules[i].name);
    free(tree->nodes);
    free(tree->words);
    free(tree->bytes);
    free(tree->rules);
    *tree = (struct tree){0};
}

uint32_t tree_literal(struct tree *tree, const char *bytes, size_t size)
{
    if (size == 0) return TREE_NODE_EMPTY;
    if (size > TREE_MOST_WORDS || !tree_grow(tree, (void **)&tree->bytes, &tree->byte_capacity,
                                             (uint64_t)tree->byte_count + size, 1, TREE_MOST_WORDS))
        return TREE_NODE_EMPTY;
    memcpy(tree->bytes + tree->byte_count, bytes, size);
    const uint32_t at = tree->byte_count;
    tree->byte_count += (uint32_t)size;
    return add_node(tree,
                    (struct tree_node){.kind = TREE_LITERAL, .a = at, .b = (uint32_t)size, .states = (uint32_t)size});
}

uint32_t tree_text(struct tree *tree, const char *text) { return tree_literal(tree, text, strlen(text)); }

static uint32_t add_saturated(uint32_t a, uint64_t b)
{
    const uint64_t sum = a + (b > UINT32_MAX ? UINT32_MAX : b);
    return sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
}

/* A sequence or a choice of nodes that are not neutral. */
static uint32_t add_group(struct tree *tree, enum tree_kind kind, const uint32_t *nodes, uint32_t count,
                          uint32_t neutral)
{
    uint32_t kept = 0, only = neutral, states = 0;
    bool all = true, any = false;
    uint32_t *words = add_words(tree, count);
    if (!words) return TREE_NODE_EMPTY;
    for (uint32_t i = 0; i < count; i++) {
        if (nodes[i] == neutral) continue;
        words[kept++] = only = nodes[i];
        states = add_saturated(states, (uint64_t)tree->nodes[only].states + (kind == TREE_CHOICE));
        all = all && tree->nodes[only].nullable;
        any = any || tree->nodes[only].nullable;
    }
    const uint32_t at = (uint32_t)(words - tree->words);
    tree->word_count = at + kept;
    if (kept <= 1) return only;
    return add_node(tree, (struct tree_node){.kind = (uint8_t)kind,
                                             .a = at,
                                             .b = kept,
                                             .states = states,
                                             .nullable = kind == TREE_SEQUENCE ? all : any});
}

uint32_t tree_sequence(struct tree *tree, const uint32_t *nodes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (nodes[i] == TREE_NODE_NEVER) return TREE_NODE_NEVER;
    return add_group(tree, TREE_SEQUENCE, nodes, count, TREE_NODE_EMPTY);
}


/* The node itself, or a call of a rule with it if copies of it are expensive. */
static uint32_t share(struct tree *tree, uint32_t node, uint64_t copies)
{
    if (tree->failed || copies < 2 || tree->nodes[node].states <= MOST_COPIED_STATES) return node;
    const uint32_t rule = tree_rule_add(tree, "a repeated part", tree->nodes[node].nullable);
    if (tree->failed) return node;
    tree->rules[rule].node = node;
    return tree_call(tree, rule);
}

uint32_t tree_repeat(struct tree *tree, uint32_t node, uint32_t least, uint32_t most)
{
    if (tree->failed || most == 0 || node == TREE_NODE_EMPTY) return TREE_NODE_EMPTY;
    if (node == TREE_NODE_NEVER) return least ? TREE_NODE_NEVER : TREE_NODE_EMPTY;
    if (least == 1 && most == 1) return node;
    const uint64_t copies = most == TREE_UNLIMITED ? (uint64_t)least + 1 : most;
    node = share(tree, node, copies);
    if (tree->failed) return TREE_NODE_EMPTY;
    return add_node(tree, (struct tree_node){.kind = TREE_REPEAT,
                                             .a = node,
                                             .b = least,
                                             .c = most,
                                             .states = add_saturated(0, copies * (tree->nodes[node].states + 1)),
                                             .nullable = least == 0 || tree->nodes[node].nullable});
}

uint32_t tree_separated(struct tree *tree, const struct tree_item *items, uint32_t count, uint32_t separator)
{
    enum { ITEM_WORDS = sizeof(struct tree_item) / sizeof(uint32_t) };
    bool nullable = true;
    uint32_t states = 1, kept = 0;
    if (tree->failed) return TREE_NODE_EMPTY;
    const uint32_t at = tree->word_count;
    for (uint32_t i = 0; i < count; i++) {
        struct tree_item item = items[i];
        if (item.node == TREE_NODE_NEVER && item.least > 0) return TREE_NODE_NEVER;
        if (item.node == TREE_NODE_NEVER || item.most == 0) continue;
        const uint64_t copies = item.most == TREE_UNLIMITED ? (uint64_t)item.least + 1 : item.most;
        item.node = share(tree, item.node, copies);
        if (tree->failed) return TREE_NODE_EMPTY;
        nullable = nullable && item.least == 0;
        states = add_saturated(states,
                               copies * (tree->nodes[item.node].states + UINT64_C(3) + tree->nodes[separator].states));
        uint32_t *words = add_words(tree, ITEM_WORDS);
        if (!words) return TREE_NODE_EMPTY;
        memcpy(words, &item, sizeof item);
        kept++;
    }
    if (kept == 0) return TREE_NODE_EMPTY;
    return add_node(tree, (struct tree_node){.kind = TREE_LIST,
                                             .a = at,
                                             .b = kept,
                                             .c = separator,
                                             .states = states,
                                             .nullable = nullable});
}

uint32_t tree_graph(struct tree *tree, const struct tree_edge *edges, uint32_t count, uint32_t states)
{
    uint32_t *words = add_words(tree, (uint64_t)count * (sizeof *edges / sizeof *words));
    if (!words) return TREE_NODE_EMPTY;
    if (count) memcpy(words, edges, count * sizeof *edges);
    return add_node(tree, (struct tree_node){.kind = TREE_GRAPH,
                                             .a = (uint32_t)(words - tree->words),
                                             .b = count,
                                             .c = states,
                                             .states = add_saturated(states, (uint64_t)count * 2)});
}

static int compare_texts(const void *left, const void *right)
{
    const struct grammar_text *a = left, *b = right;
    const size_t size = a->size < b->size ? a->size : b->size;
    const int order = size ? memcmp(a->bytes, b->bytes, size) : 0;
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

/* The texts, which are sorted and equal in their first `at` bytes, from there on. */
static uint32_t texts_from(struct tree *tree, const struct grammar_text *texts, uint32_t count, size_t at, int depth)
{
    const struct grammar_text *first = texts, *last = texts + count - 1;
    size_t common = at;
    while (common < first->size && common < last->size && first->bytes[common] == last->bytes[common]) common++;
    const uint32_t prefix = tree_literal(tree, first->bytes + at, common - at);
    if (tree->failed || count == 1) return prefix;
    if (depth > MOST_TRIE_DEPTH)
        return tree_fail(tree, STATUS_BAD_INPUT,
                         "choices: more than %d of them are prefixes of one another; expected less", MOST_TRIE_DEPTH);
    struct tree_nodes branches = {0};
    for (uint32_t i = 0, end; i < count && !tree->failed; i = end) {
        end = i + 1;
        if (texts[i].size == common) {
            while (end < count && texts[end].size == common) end++;
            tree_nodes_add(tree, &branches, TREE_NODE_EMPTY);
            continue;
        }
        while (end < count && texts[end].bytes[common] == texts[i].bytes[common]) end++;
        tree_nodes_add(tree, &branches, texts_from(tree, texts + i, end - i, common, depth + 1));
    }
    const uint32_t rest =
        tree->failed ? TREE_NODE_EMPTY : add_group(tree, TREE_CHOICE, branches.items, branches.count, TREE_NODE_NEVER);
    free(branches.items);
    return TREE_SEQUENCE_OF(tree, prefix, rest);
}

uint32_t tree_texts(struct tree *tree, struct grammar_text *texts, uint32_t count)
{
    if (count == 0) return TREE_NODE_NEVER;
    qsort(texts, count, sizeof *texts, compare_texts);
    return texts_from(tree, texts, count, 0, 0);
}

/* Literals among the nodes are joined by their common prefixes, so that a set of states holds few of them at a time. */
uint32_t tree_choice(struct tree *tree, const uint32_t *nodes, uint32_t count)
{
    uint32_t literals = 0, others = 0, node = TREE_NODE_EMPTY;
    uint64_t size = 0;
    if (tree->failed) return TREE_NODE_EMPTY;
    for (uint32_t i = 0; i < count; i++) {
        if (tree->nodes[nodes[i]].kind != TREE_LITERAL) continue;
        literals++;
        size += tree->nodes[nodes[i]].b;
    }
    if (literals < 2) return add_group(tree, TREE_CHOICE, nodes, count, TREE_NODE_NEVER);
    struct grammar_text *texts = malloc(literals * sizeof *texts);
    uint32_t *rest = malloc(((size_t)count + 1) * sizeof *rest);
    char *bytes = malloc(size), *at = bytes; /* those of the tree move */
    if (!texts || !rest || !bytes) {
        tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
        goto done;
    }
    literals = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct tree_node *literal = &tree->nodes[nodes[i]];
        if (literal->kind != TREE_LITERAL) {
            rest[others++] = nodes[i];
            continue;
        }
        memcpy(at, tree->bytes + literal->a, literal->b);
        texts[literals++] = (struct grammar_text){at, literal->b};
        at += literal->b;
    }
    rest[others++] = tree_texts(tree, texts, literals);
    if (!tree->failed) node = add_group(tree, TREE_CHOICE, rest, others, TREE_NODE_NEVER);
done:
    free(texts);
    free(rest);
    free(bytes);
    return node;
}

uint32_t tree_rule_add(struct tree *tree, const char *name, bool nullable)
{
    if (tree->rule_count == GRAMMAR_MOST_RULES)
        return tree_fail(tree, STATUS_BAD_INPUT,
                         "grammar is too large: it needs more than %d rules for references and large repeated parts",
                         GRAMMAR_MOST_RULES);
    if (!tree_grow(tree, (void **)&tree->rules, &tree->rule_capacity, (uint64_t)tree->rule_count + 1,
                   sizeof *tree->rules, GRAMMAR_MOST_RULES))
        return 0;
    char *copy = strdup(name);
    if (!copy) return tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    tree->rules[tree->rule_count] = (struct tree_rule){.node = TREE_NODE_NEVER, .name = copy, .nullable = nullable};
    return tree->rule_count++;
}

uint32_t tree_call(struct tree *tree, uint32_t rule)
{
    if (tree->failed) return TREE_NODE_EMPTY;
    return add_node(tree, (struct tree_node){.kind = TREE_CALL,
                                             .a = rule,
                                             .states = 1,
                                             .nullable = tree->rules[rule].nullable});
}

void tree_nodes_add(struct tree *tree, struct tree_nodes *nodes, uint32_t node)
{
    if (tree_grow(tree, (void **)&nodes->items, &nodes->capacity, (uint64_t)nodes->count + 1, sizeof *nodes->items,
                  TREE_MOST_NODES))
        nodes->items[nodes->count++] = node;
}

void tree_set_add(struct tree *tree, struct tree_set *set, uint32_t low, uint32_t high)
{
    if (set->count == TREE_MOST_RANGES) {
        tree_set_normalize(set);
        if (set->count == TREE_MOST_RANGES) {
            tree_fail(tree, STATUS_BAD_INPUT, "class of characters: more than %d ranges; expected fewer",
                      TREE_MOST_RANGES);
            return;
        }
    }
    set->ranges[set->count++] = (struct tree_range){low, high};
}

static int compare_ranges(const void *left, const void *right)
{
    const struct tree_range *a = left, *b = right;
    return (a->low > b->low) - (a->low < b->low);
}

void tree_set_normalize(struct tree_set *set)
{
    uint32_t kept = 0;
    qsort(set->ranges, set->count, sizeof *set->ranges, compare_ranges);
    for (uint32_t i = 0; i < set->count; i++) {
        const struct tree_range range = set->ranges[i];
        if (kept && range.low <= set->ranges[kept - 1].high + 1) {
            if (range.high > set->ranges[kept - 1].high) set->ranges[kept - 1].high = range.high;
        } else {
            set->ranges[kept++] = range;
        }
    }
    set->count = kept;
}

void tree_set_copy(struct tree_set *to, const struct tree_set *from)
{
    to->count = from->count;
    memcpy(to->ranges, from->ranges, from->count * sizeof *from->ranges);
}

void tree_set_complement(struct tree *tree, struct tree_set *set)
{
    struct tree_set inverse;
    uint32_t next = 0;
    inverse.count = 0;
    tree_set_normalize(set);
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->ranges[i].low > next) tree_set_add(tree, &inverse, next, set->ranges[i].low - 1);
        next = set->ranges[i].high + 1;
    }
    if (next <= TREE_LAST_CHARACTER) tree_set_add(tree, &inverse, next, TREE_LAST_CHARACTER);
    tree_set_copy(set, &inverse);
}

void tree_set_remove(struct tree *tree, struct tree_set *set, uint32_t low, uint32_t high)
{
    tree_set_complement(tree, set);
    tree_set_add(tree, set, low, high);
    tree_set_complement(tree, set);
}

bool tree_set_has(const struct tree_set *set, uint32_t character)
{
    for (uint32_t i = 0; i < set->count && set->ranges[i].low <= character; i++)
        if (character <= set->ranges[i].high) return true;
    return false;
}

/* Writes the byte ranges of characters that are all encoded in the same number of bytes. A sequence is the number of its ranges and
 * then low | high << 8 of each. */
static uint32_t class_sequences(struct tree *tree, uint32_t low, uint32_t high)
{
    char first[TEXT_CHARACTER_BYTES], last[TEXT_CHARACTER_BYTES];
    for (unsigned i = 1; i < TEXT_CHARACTER_BYTES; i++) {
        /* Every byte after one that differs must span all of 80 to BF. */
        const uint32_t mask = (UINT32_C(1) << 6 * i) - 1;
        if ((low & ~mask) == (high & ~mask) || high < 0x80) continue;
        if (low & mask) return class_sequences(tree, low, low | mask) + class_sequences(tree, (low | mask) + 1, high);
        if ((high & mask) != mask)
            return class_sequences(tree, low, (high & ~mask) - 1) + class_sequences(tree, high & ~mask, high);
    }
    const size_t size = text_write(low, first);
    text_write(high, last);
    uint32_t *words = add_words(tree, size + 1);
    if (!words) return 0;
    words[0] = (uint32_t)size;
    for (size_t i = 0; i < size; i++) words[i + 1] = (uint32_t)(uint8_t)first[i] | (uint32_t)(uint8_t)last[i] << 8;
    return 1;
}

uint32_t tree_class(struct tree *tree, const struct tree_set *set)
{
    static const struct tree_range parts[] = {{0, 0x7F},
                                              {0x80, 0x7FF},
                                              {0x800, 0xD7FF},
                                              {0xE000, 0xFFFF},
                                              {0x10000, TREE_LAST_CHARACTER}};
    struct tree_set sorted;
    uint32_t count = 0;
    if (tree->failed) return TREE_NODE_EMPTY;
    const uint32_t at = tree->word_count;
    tree_set_copy(&sorted, set);
    tree_set_normalize(&sorted);
    for (uint32_t i = 0; i < sorted.count; i++) {
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            const uint32_t low = sorted.ranges[i].low > parts[k].low ? sorted.ranges[i].low : parts[k].low;
            const uint32_t high = sorted.ranges[i].high < parts[k].high ? sorted.ranges[i].high : parts[k].high;
            if (low <= high) count += class_sequences(tree, low, high);
        }
    }
    if (tree->failed) return TREE_NODE_EMPTY;
    if (count == 0) return TREE_NODE_NEVER;
    return add_node(tree, (struct tree_node){.kind = TREE_CLASS,
                                             .a = at,
                                             .b = count,
                                             .states = add_saturated(0, (uint64_t)count * 3)});
}
