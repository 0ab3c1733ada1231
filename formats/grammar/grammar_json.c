/* SPDX-License-Identifier: Apache-2.0 */
/* JSON itself: strings, numbers, any value, members with other names. */
#include <stdlib.h>
#include <string.h>

#include "formats/grammar/grammar_automaton.h"
#include "formats/grammar/grammar_regex.h"
#include "formats/grammar/grammar_schema.h"
#include "formats/tokenizer/tokenizer_text.h"

static uint32_t regex(struct tree *tree, const char *text)
{
    return regex_node(tree, text, strlen(text), REGEX_WHOLE, "JSON");
}

void json_parts_open(struct json_parts *parts, struct tree *tree, uint32_t most_whitespace)
{
    *parts = (struct json_parts){.tree = tree};
    if (most_whitespace > GRAMMAR_MOST_WHITESPACE)
        tree_fail(tree, STATUS_USAGE, "grammar: most_whitespace is %u; expected at most %d", most_whitespace,
                  GRAMMAR_MOST_WHITESPACE);
    parts->space = tree_repeat(tree, regex(tree, "[ \\t\\n\\r]"), 0, most_whitespace);
}

uint32_t json_string_node(struct json_parts *parts)
{
    struct tree *tree = parts->tree;
    /* One rule for all strings, so that they all are the same set of states and share their masks. No \u0000, and surrogates in
     * pairs only. */
    if (!parts->has_string) {
        parts->string_rule = tree_rule_add(tree, "string", false);
        const uint32_t node =
            regex(tree,
                  "([^\\x00-\\x1f\"\\\\]|\\\\([\"\\\\/bfnrt]|u([1-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
                  "0[1-9a-fA-F][0-9a-fA-F]{2}|00[1-9a-fA-F][0-9a-fA-F]|000[1-9a-fA-F]|"
                  "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})))*\"");
        if (!tree->failed) tree->rules[parts->string_rule].node = node;
        parts->has_string = true;
    }
    return TREE_SEQUENCE_OF(tree, tree_text(tree, "\""), tree_call(tree, parts->string_rule));
}

uint32_t json_character_node(struct json_parts *parts)
{
    return regex(parts->tree, "[^\\x00-\\x1f\"\\\\]|\\\\[\"\\\\/bfnrt]");
}

uint32_t json_number_node(struct json_parts *parts)
{
    return regex(parts->tree, "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?");
}

uint32_t json_integer_node(struct json_parts *parts) { return regex(parts->tree, "0|-?[1-9][0-9]{0,17}"); }

uint32_t json_colon_node(struct json_parts *parts)
{
    return TREE_SEQUENCE_OF(parts->tree, parts->space, tree_text(parts->tree, ":"), parts->space);
}

uint32_t json_brackets_node(struct json_parts *parts, const char *open, const struct tree_item *items, uint32_t count,
                            const char *close)
{
    struct tree *tree = parts->tree;
    struct tree_item *spaced = calloc((size_t)count + 1, sizeof *spaced);
    if (!spaced) return tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    for (uint32_t i = 0; i < count; i++) {
        spaced[i] = items[i];
        spaced[i].node = TREE_SEQUENCE_OF(tree, items[i].node, parts->space);
    }
    const uint32_t separator = TREE_SEQUENCE_OF(tree, tree_text(tree, ","), parts->space);
    const uint32_t list = tree_separated(tree, spaced, count, separator);
    free(spaced);
    return TREE_SEQUENCE_OF(tree, tree_text(tree, open), parts->space, list, tree_text(tree, close));
}

uint32_t json_value_node(struct json_parts *parts)
{
    struct tree *tree = parts->tree;
    if (!parts->has_value) {
        parts->has_value = true;
        parts->value_rule = tree_rule_add(tree, "any value", false);
        const uint32_t value = tree_call(tree, parts->value_rule);
        const uint32_t member = TREE_SEQUENCE_OF(tree, json_string_node(parts), json_colon_node(parts), value);
        const struct tree_item members = {member, 0, TREE_UNLIMITED, 0}, elements = {value, 0, TREE_UNLIMITED, 0};
        const uint32_t node = TREE_CHOICE_OF(tree, json_brackets_node(parts, "{", &members, 1, "}"),
                                             json_brackets_node(parts, "[", &elements, 1, "]"), json_string_node(parts),
                                             json_number_node(parts), tree_text(tree, "true"), tree_text(tree, "false"),
                                             tree_text(tree, "null"));
        if (!tree->failed) tree->rules[parts->value_rule].node = node;
    }
    return tree_call(tree, parts->value_rule);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Names, sorted and equal in their first `at` bytes, that the rest of a string must differ from; up to the closing quote. */
static uint32_t other_from(struct json_parts *parts, const char *const *names, uint32_t count, size_t at,
                           const struct tree_set *plain, uint32_t tail, int depth)
{
    struct tree *tree = parts->tree;
    struct tree_set *rest = malloc(sizeof *rest);
    struct tree_nodes choices = {0};
    uint32_t node = TREE_NODE_EMPTY;
    if (!rest) return tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    if (depth > SCHEMA_MOST_DEPTH) {
        tree_fail(tree, STATUS_BAD_INPUT,
                  "grammar: property names of more than %d characters beside additionalProperties are not supported",
                  SCHEMA_MOST_DEPTH);
        goto done;
    }
    *rest = *plain;
    bool is_name = false;
    for (uint32_t i = 0, end; i < count && !tree->failed; i = end) {
        uint32_t character, other;
        end = i + 1;
        if (names[i][at] == '\0') {
            is_name = true;
            continue;
        }
        const size_t length = text_read(names[i] + at, &character);
        while (end < count && names[end][at] && text_read(names[end] + at, &other) == length && other == character)
            end++;
        /* Names that need an escape cannot be written: no name here has one. */
        if (!tree_set_has(plain, character)) continue;
        tree_set_remove(tree, rest, character, character);
        const uint32_t further = other_from(parts, names + i, end - i, at + length, plain, tail, depth + 1);
        tree_nodes_add(tree, &choices, TREE_SEQUENCE_OF(tree, tree_literal(tree, names[i] + at, length), further));
    }
    tree_nodes_add(tree, &choices, TREE_SEQUENCE_OF(tree, tree_class(tree, rest), tail));
    if (!is_name) tree_nodes_add(tree, &choices, tree_text(tree, "\""));
    if (!tree->failed) node = tree_choice(tree, choices.items, choices.count);
done:
    free(choices.items);
    free(rest);
    return node;
}

uint32_t json_other_name_node(struct json_parts *parts, const char *const *names, uint32_t count)
{
    struct tree *tree = parts->tree;
    struct tree_set *plain = calloc(1, sizeof *plain);
    const char **sorted = calloc((size_t)count + 1, sizeof *sorted);
    uint32_t node = TREE_NODE_EMPTY;
    if (!plain || !sorted) {
        tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
        goto done;
    }
    memcpy(sorted, names, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_names);
    tree_set_add(tree, plain, 0, 0x1F);
    tree_set_add(tree, plain, '"', '"');
    tree_set_add(tree, plain, '\\', '\\');
    tree_set_complement(tree, plain);
    /* The tail is a rule: it follows each character of each name. */
    const uint32_t rule = tree_rule_add(tree, "name of another property", false);
    const uint32_t tail = regex(tree, "[^\\x00-\\x1f\"\\\\]*\"");
    if (tree->failed) goto done;
    tree->rules[rule].node = tail;
    node = TREE_SEQUENCE_OF(tree, tree_text(tree, "\""),
                            other_from(parts, sorted, count, 0, plain, tree_call(tree, rule), 0));
done:
    free(sorted);
    free(plain);
    return node;
}
