/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/grammar/grammar_composed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_automaton.h"
#include "formats/grammar/grammar_regex.h"
#include "formats/grammar/grammar_schema.h"

enum { MOST_DEPTH = 32, MOST_PARTS = 1 << 16, MOST_TEXT_BYTES = 1 << 12, MOST_COUNT = 1 << 20, PATH_BYTES = 200 };

struct composer {
    struct tree *tree;
    const struct grammar_specials *specials;
    json_t *untils; /* object: the rule of each marker up to which there is any text */
    uint32_t part_count;
    char path[PATH_BYTES]; /* of the part in hand, for messages */
};

static uint32_t fail(struct composer *composer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static uint32_t fail(struct composer *composer, const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tree_fail(composer->tree, STATUS_BAD_INPUT, "composed grammar: '%s': %s",
                     composer->path[0] ? composer->path : "/", text);
}

/* ---- markers ---- */

/* A marker has at most so many bytes. */
enum { MOST_MARKER_BYTES = 3 * MOST_TEXT_BYTES };

/* The bytes of a marker: those of its text, and GRAMMAR_SPECIAL_BYTE before and after each special token. Returns their number, 0: failed. */
static size_t marker_bytes(struct composer *composer, const json_t *value, char bytes[MOST_MARKER_BYTES])
{
    const char *text = json_string_value(value);
    const size_t size = json_string_length(value);
    const struct grammar_specials *specials = composer->specials;
    size_t count = 0;
    if (!json_is_string(value) || size < 1 || size > MOST_TEXT_BYTES) {
        fail(composer, "expected a text of 1 to %d bytes", MOST_TEXT_BYTES);
        return 0;
    }
    for (size_t at = 0; at < size;) {
        const size_t special = specials ? specials->find(specials->context, text + at, size - at) : 0;
        if (special) bytes[count++] = (char)GRAMMAR_SPECIAL_BYTE;
        for (size_t i = 0; i < (special ? special : 1); i++) bytes[count++] = text[at++];
        if (special) bytes[count++] = (char)GRAMMAR_SPECIAL_BYTE;
    }
    return count;
}

static uint32_t marker_node(struct composer *composer, const json_t *value)
{
    char bytes[MOST_MARKER_BYTES];
    const size_t count = marker_bytes(composer, value, bytes);
    return count ? tree_literal(composer->tree, bytes, count) : TREE_NODE_EMPTY;
}

/* ---- any text up to a marker ---- */

/* Places within a character of UTF-8: between two, and what its next byte may be. */
enum { BETWEEN, TAIL_1, TAIL_2, TAIL_3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, UTF8_PLACES, NOWHERE = UTF8_PLACES };

static unsigned next_place(unsigned place, unsigned byte)
{
    static const struct {
        uint8_t low, high, next;
    } inside[UTF8_PLACES] = {
        [TAIL_1] = {0x80, 0xBF, BETWEEN},  [TAIL_2] = {0x80, 0xBF, TAIL_1},   [TAIL_3] = {0x80, 0xBF, TAIL_2},
        [AFTER_E0] = {0xA0, 0xBF, TAIL_1}, [AFTER_ED] = {0x80, 0x9F, TAIL_1}, [AFTER_F0] = {0x90, 0xBF, TAIL_2},
        [AFTER_F4] = {0x80, 0x8F, TAIL_2},
    };
    if (place != BETWEEN) return byte >= inside[place].low && byte <= inside[place].high ? inside[place].next : NOWHERE;
    if (byte < 0x80) return byte >= 0x20 || byte == '\n' || byte == '\t' ? BETWEEN : NOWHERE;
    if (byte < 0xC2 || byte > 0xF4) return NOWHERE;
    if (byte < 0xE0) return TAIL_1;
    if (byte < 0xF0) return byte == 0xE0 ? AFTER_E0 : byte == 0xED ? AFTER_ED : TAIL_2;
    return byte == 0xF0 ? AFTER_F0 : byte == 0xF4 ? AFTER_F4 : TAIL_3;
}

/* How much of the marker a text ends with that ended with its first `matched` bytes, after one byte more. */
static size_t next_match(const char *marker, const size_t *shorter, size_t matched, unsigned byte)
{
    while (matched && (uint8_t)marker[matched] != byte) matched = shorter[matched];
    return matched + ((uint8_t)marker[matched] == byte);
}

/* shorter[i]: the longest beginning of the marker, shorter than i, with which its first i bytes end. */
static void fill_shorter(const char *marker, size_t count, size_t *shorter)
{
    shorter[0] = 0;
    if (count) shorter[1] = 0;
    for (size_t i = 1; i < count; i++) shorter[i + 1] = next_match(marker, shorter, shorter[i], (uint8_t)marker[i]);
}

/* A state is a pair: bytes of the marker that the text ends with, before its first special token, and the place within a character. The
 * bytes from that token on can only follow each other. */
static uint32_t until_graph(struct composer *composer, const json_t *value)
{
    struct tree *tree = composer->tree;
    char marker[MOST_MARKER_BYTES];
    const size_t count = marker_bytes(composer, value, marker);
    if (!count) return TREE_NODE_EMPTY;
    const char *special = memchr(marker, GRAMMAR_SPECIAL_BYTE, count);
    const size_t free_count = special ? (size_t)(special - marker) : count;
    size_t *shorter = calloc(count + 1, sizeof *shorter);
    struct tree_edge *edges = NULL;
    uint32_t edge_count = 0, capacity = 0, node = TREE_NODE_EMPTY;
    if (!shorter) return tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    fill_shorter(marker, free_count, shorter);
    /* The graph ends where the free bytes are complete, and without a special token before the last of them. */
    const size_t rows = special ? free_count + 1 : free_count;
    const uint32_t end = (uint32_t)(rows * UTF8_PLACES);
    for (size_t matched = 0; matched < rows; matched++) {
        for (unsigned place = 0; place < UTF8_PLACES; place++) {
            const uint32_t from = (uint32_t)(matched * UTF8_PLACES + place);
            for (unsigned byte = 0; byte < 256 && !tree->failed; byte++) {
                const unsigned next = next_place(place, byte);
                if (next == NOWHERE) continue;
                const size_t match = next_match(marker, shorter, matched, byte);
                const uint32_t to = !special && match == count ? end : (uint32_t)(match * UTF8_PLACES + next);
                struct tree_edge *last = edge_count ? &edges[edge_count - 1] : NULL;
                if (last && last->from == from && last->to == to && last->high + 1 == byte) {
                    last->high = byte;
                } else if (tree_grow(tree, (void **)&edges, &capacity, (uint64_t)edge_count + 1, sizeof *edges,
                                     TREE_MOST_WORDS / 8)) {
                    edges[edge_count++] = (struct tree_edge){from, byte, byte, to};
                }
            }
        }
    }
    const uint32_t last = special ? (uint32_t)(free_count * UTF8_PLACES) : end;
    if (tree_grow(tree, (void **)&edges, &capacity, (uint64_t)edge_count + 1, sizeof *edges, TREE_MOST_WORDS / 8)) {
        edges[edge_count++] = (struct tree_edge){last, 0, 0, TREE_ACCEPT};
        node = tree_graph(tree, edges, edge_count, end + 1);
        if (special) node = TREE_SEQUENCE_OF(tree, node, tree_literal(tree, special, count - free_count));
    }
    free(edges);
    free(shorter);
    return node;
}

/* Schemas of many functions have the same few markers: each has one rule. */
static uint32_t until_node(struct composer *composer, const json_t *value)
{
    struct tree *tree = composer->tree;
    const char *text = json_string_value(value);
    const json_t *known = text ? json_object_get(composer->untils, text) : NULL;
    if (known) return tree_call(tree, (uint32_t)json_integer_value(known));
    const uint32_t node = until_graph(composer, value), rule = tree_rule_add(tree, "text up to a marker", false);
    if (tree->failed) return TREE_NODE_EMPTY;
    tree->rules[rule].node = node;
    if (!json_put(composer->untils, text, json_integer(rule)))
        return tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    return tree_call(tree, rule);
}

/* ---- parts ---- */

static uint32_t part_node(struct composer *composer, const json_t *part, int depth);

static uint32_t inner_node(struct composer *composer, const json_t *part, const char *key, size_t index, int depth)
{
    const size_t mark = strlen(composer->path);
    snprintf(composer->path + mark, PATH_BYTES - mark, "/%s/%zu", key, index);
    const uint32_t node = part_node(composer, part, depth + 1);
    if (!composer->tree->failed) composer->path[mark] = '\0';
    return node;
}

/* The parts of a list, in sequence or in turn. */
static uint32_t list_node(struct composer *composer, const json_t *list, const char *key, int depth)
{
    struct tree *tree = composer->tree;
    struct tree_nodes nodes = {0};
    uint32_t node = TREE_NODE_EMPTY;
    const bool in_turn = strcmp(key, "any_of") == 0;
    if (!json_is_array(list) || (in_turn && json_array_size(list) == 0))
        return fail(composer, "'%s': expected a list of parts", key);
    for (size_t i = 0; i < json_array_size(list) && !tree->failed; i++)
        tree_nodes_add(tree, &nodes, inner_node(composer, json_array_get(list, i), key, i, depth));
    if (!tree->failed)
        node = in_turn ? tree_choice(tree, nodes.items, nodes.count) : tree_sequence(tree, nodes.items, nodes.count);
    free(nodes.items);
    return node;
}

static bool count_of(struct composer *composer, const json_t *part, const char *key, uint32_t most, uint32_t *out)
{
    const json_t *count = json_object_get(part, key);
    if (!count) return true;
    if (json_is_integer(count) && json_integer_value(count) >= 0 && json_integer_value(count) <= most) {
        *out = (uint32_t)json_integer_value(count);
        return true;
    }
    fail(composer, "'%s': expected an integer from 0 to %u", key, most);
    return false;
}

static uint32_t repeat_node(struct composer *composer, const json_t *part, int depth)
{
    uint32_t least = 0, most = TREE_UNLIMITED;
    if (!count_of(composer, part, "least", MOST_COUNT, &least) || !count_of(composer, part, "most", MOST_COUNT, &most))
        return TREE_NODE_EMPTY;
    if (least > most) return fail(composer, "'least': expected at most 'most', %u, found %u", most, least);
    const uint32_t node = inner_node(composer, json_object_get(part, "repeat"), "repeat", 0, depth);
    return tree_repeat(composer->tree, node, least, most);
}

static uint32_t schema_part_node(struct composer *composer, const json_t *part)
{
    uint32_t most_whitespace = 0;
    if (!count_of(composer, part, "whitespace", GRAMMAR_MOST_WHITESPACE, &most_whitespace)) return TREE_NODE_EMPTY;
    return schema_document_node(composer->tree, json_object_get(part, "json_schema"), most_whitespace);
}

static uint32_t text_node(struct composer *composer, const json_t *value)
{
    if (!json_is_string(value)) return fail(composer, "'text': expected a text, found %s", json_type_name(value));
    return tree_literal(composer->tree, json_string_value(value), json_string_length(value));
}

static uint32_t regex_part_node(struct composer *composer, const json_t *value)
{
    char where[PATH_BYTES + 40];
    if (!json_is_string(value)) return fail(composer, "'regex': expected a text, found %s", json_type_name(value));
    snprintf(where, sizeof where, "composed grammar: '%s/regex'", composer->path);
    return regex_node(composer->tree, json_string_value(value), json_string_length(value), REGEX_WHOLE, where);
}

static bool check_members(struct composer *composer, const json_t *part, const char *kind)
{
    const char *key;
    const json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)part, key, value) {
        const bool of_repeat = strcmp(key, "least") == 0 || strcmp(key, "most") == 0,
                   of_schema = strcmp(key, "whitespace") == 0;
        if (strcmp(key, kind) == 0 || (of_repeat && strcmp(kind, "repeat") == 0) ||
            (of_schema && strcmp(kind, "json_schema") == 0))
            continue;
        fail(composer, "'%.60s' is not expected beside '%s'", key, kind);
        return false;
    }
    return true;
}

static uint32_t part_node(struct composer *composer, const json_t *part, int depth)
{
    static const char *const kinds[] = {"text",  "marker",   "until",  "json_schema",
                                        "regex", "sequence", "any_of", "repeat"};
    const char *kind = NULL;
    if (composer->tree->failed) return TREE_NODE_EMPTY;
    if (depth > MOST_DEPTH || ++composer->part_count > MOST_PARTS)
        return fail(composer, "expected at most %d parts, and %d within one another", MOST_PARTS, MOST_DEPTH);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !kind; i++)
        if (json_object_get(part, kinds[i])) kind = kinds[i];
    if (!kind)
        return fail(composer,
                    "expected an object with text, marker, until, json_schema, regex, sequence, any_of or repeat");
    if (!check_members(composer, part, kind)) return TREE_NODE_EMPTY;
    const json_t *value = json_object_get(part, kind);
    if (strcmp(kind, "text") == 0) return text_node(composer, value);
    if (strcmp(kind, "marker") == 0) return marker_node(composer, value);
    if (strcmp(kind, "until") == 0) return until_node(composer, value);
    if (strcmp(kind, "json_schema") == 0) return schema_part_node(composer, part);
    if (strcmp(kind, "regex") == 0) return regex_part_node(composer, value);
    if (strcmp(kind, "repeat") == 0) return repeat_node(composer, part, depth);
    return list_node(composer, value, kind, depth);
}

struct grammar *grammar_composed_open(const char *text, size_t size, const struct grammar_specials *specials,
                                      struct status *status)
{
    struct tree tree;
    struct composer composer = {.tree = &tree, .specials = specials};
    struct grammar *grammar = NULL;
    json_t *root = NULL;
    if (!tree_open(&tree, status)) goto done;
    if (size > GRAMMAR_MOST_SOURCE_BYTES) {
        tree_fail(&tree, STATUS_BAD_INPUT, "composed grammar: %zu bytes; expected at most %d", size,
                  GRAMMAR_MOST_SOURCE_BYTES);
        goto done;
    }
    root = json_parse(text, size, "composed grammar", status);
    composer.untils = json_object();
    if (!root) goto done;
    tree_rule_add(&tree, "composed grammar", false);
    const uint32_t node = part_node(&composer, root, 0);
    if (!tree.failed) {
        tree.rules[0].node = node;
        grammar = automaton_compile(&tree, "composed grammar");
    }
done:
    json_decref(composer.untils);
    json_decref(root);
    tree_close(&tree);
    return grammar;
}
