/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas with few values: enums and constants, which of their values other keywords allow, and arrays of different values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_automaton.h"
#include "formats/grammar/grammar_number.h"
#include "formats/grammar/grammar_schema.h"

enum { MOST_UNIQUE = 6 }; /* values, each subset of which has a rule */

static json_int_t characters(const json_t *text)
{
    json_int_t count = 0;
    for (size_t i = 0; i < json_string_length(text); i++) count += (json_string_value(text)[i] & 0xC0) != 0x80;
    return count;
}

/* Requires: can_judge(). */
static bool number_is_allowed(const char *key, const json_t *rule, const json_t *value)
{
    const int order = schema_compare(value, rule);
    if (strcmp(key, "minimum") == 0) return order >= 0;
    if (strcmp(key, "maximum") == 0) return order <= 0;
    if (strcmp(key, "exclusiveMinimum") == 0) return order > 0;
    if (strcmp(key, "exclusiveMaximum") == 0) return order < 0;
    if (json_is_integer(value) && json_is_integer(rule))
        return json_integer_value(value) % json_integer_value(rule) == 0;
    return fmod(json_number_value(value), json_number_value(rule)) == 0;
}

/* Whether the rule is one for numbers or strings, and exact for the value. */
static bool can_judge(const char *key, const json_t *rule, const json_t *value)
{
    if (json_is_string(value))
        return strcmp(key, "not") == 0 ? json_object_get(rule, "enum") != NULL /* else it is a pattern */
                                       : json_is_integer(rule) && json_integer_value(rule) >= 0;
    if (strcmp(key, "multipleOf") != 0) return json_is_number(rule);
    const json_int_t most = (json_int_t)1 << 53, number = json_integer_value(value);
    return json_number_value(rule) > 0 && (json_is_integer(rule) || (number <= most && number >= -most));
}

static bool string_is_allowed(const char *key, const json_t *rule, const json_t *value)
{
    if (strcmp(key, "minLength") == 0) return characters(value) >= json_integer_value(rule);
    if (strcmp(key, "maxLength") == 0) return characters(value) <= json_integer_value(rule);
    const json_t *list = json_object_get(rule, "enum");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), value)) return false;
    return true;
}

const char *schema_allows_value(const json_t *schema, const json_t *value, bool *allowed)
{
    static const char
        *const numbers[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
               *const strings[] = {"minLength", "maxLength", "not"}, *const texts[] = {"pattern", "format"},
               *const objects[] = {"properties",    "required",          "additionalProperties", "minProperties",
                                   "maxProperties", "patternProperties", "propertyNames"},
               *const arrays[] = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"},
               *const general[] = {"type", "enum", "const"};
    const char *key;
    json_t *rule;
    *allowed = true;
    json_object_foreach ((json_t *)(uintptr_t)schema, key, rule) {
        if (schema_is_annotation(key) || schema_is_one_of(key, general, 3)) continue;
        if (schema_is_one_of(key, numbers, 5)) {
            if (!json_is_number(value)) continue;
            if (!can_judge(key, rule, value)) return key;
            *allowed = *allowed && number_is_allowed(key, rule, value);
        } else if (schema_is_one_of(key, strings, 3)) {
            if (!json_is_string(value)) continue;
            if (!can_judge(key, rule, value)) return key;
            *allowed = *allowed && string_is_allowed(key, rule, value);
        } else if (!(schema_is_one_of(key, texts, 2) && !json_is_string(value)) &&
                   !(schema_is_one_of(key, objects, sizeof objects / sizeof *objects) && !json_is_object(value)) &&
                   !(schema_is_one_of(key, arrays, sizeof arrays / sizeof *arrays) && !json_is_array(value))) {
            return key;
        }
    }
    return NULL;
}

bool schema_type_allows(const json_t *type, const json_t *value)
{
    if (!type) return true;
    if (json_is_integer(value)) return schema_type_has(type, "integer") || schema_type_has(type, "number");
    return schema_type_has(type, json_is_real(value) ? "number" : json_type_name(value));
}

/* Sets the text of a JSON value, owned. Returns TREE_NODE_EMPTY. */
static uint32_t value_text(struct schema *schema, const json_t *value, struct grammar_text *text)
{
    char number[NUMBER_TEXT_BYTES];
    char *copy = json_is_real(value) && number_text(value, number) ? strdup(number)
                                                                   : json_format(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!copy) return tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    *text = (struct grammar_text){copy, strlen(copy)};
    return TREE_NODE_EMPTY;
}

uint32_t schema_literal_node(struct schema *schema, const json_t *value)
{
    struct grammar_text text = {0};
    value_text(schema, value, &text);
    const uint32_t node = text.bytes ? tree_literal(schema->tree, text.bytes, text.size) : TREE_NODE_EMPTY;
    free((char *)(uintptr_t)text.bytes);
    return node;
}

/* Adds the text of a value that the keywords beside enum and const allow. */
static void add_value(struct schema *schema, const json_t *value, const json_t *one, struct grammar_text *texts,
                      uint32_t *count)
{
    bool allowed;
    const char *unjudged = schema_allows_value(value, one, &allowed);
    if (unjudged)
        schema_fail(schema, "'%.80s' together with '%s' is not supported; expected one of them", unjudged,
                    json_object_get(value, "enum") ? "enum" : "const");
    else if (allowed && schema_type_allows(json_object_get(value, "type"), one))
        value_text(schema, one, &texts[(*count)++]);
}

uint32_t schema_enum_node(struct schema *schema, const json_t *value)
{
    struct tree *tree = schema->tree;
    json_t *list = json_object_get(value, "enum"), *constant = json_object_get(value, "const");
    uint32_t count = 0, node = TREE_NODE_EMPTY;
    if (list && (!json_is_array(list) || json_array_size(list) > GRAMMAR_MOST_CHOICES))
        return schema_fail(schema, "'enum': expected a list of at most %d values", GRAMMAR_MOST_CHOICES);
    const size_t capacity = json_array_size(list) + 1;
    struct grammar_text *texts = calloc(capacity, sizeof *texts);
    if (!texts) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    if (constant && !list) add_value(schema, value, constant, texts, &count);
    for (size_t i = 0; i < json_array_size(list) && !tree->failed; i++) {
        const json_t *one = json_array_get(list, i);
        if (!constant || schema_same(one, constant)) add_value(schema, value, one, texts, &count);
    }
    if (!tree->failed) node = tree_texts(tree, texts, count);
    for (uint32_t i = 0; i < count; i++) free((char *)(uintptr_t)texts[i].bytes);
    free(texts);
    return node;
}

/* ---- arrays of different values ---- */

/* The values of a flat schema, each once, owned; NULL: it has others, or too many, or there is no memory. */
static json_t *few_values(const json_t *schema)
{
    static const char *const known[] = {"type", "enum", "const"};
    const json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const"),
                 *values = json_object_get(schema, "enum");
    json_t *list = json_array();
    bool ok =
        list && json_is_object(schema) && !schema_has_assertion(schema, known, 3) && (!values || json_is_array(values));
    if (ok && !constant && !values) {
        const bool is_boolean = json_is_string(type) && strcmp(json_string_value(type), "boolean") == 0;
        ok = is_boolean && json_add(list, json_true()) && json_add(list, json_false());
    } else if (ok && constant) {
        ok = !values && !type && json_add(list, json_incref((json_t *)(uintptr_t)constant));
    }
    for (size_t i = 0; ok && i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i);
        bool found = type && !schema_type_allows(type, value);
        for (size_t k = 0; k < json_array_size(list); k++) found = found || schema_same(json_array_get(list, k), value);
        ok = found || (json_array_size(list) < MOST_UNIQUE && json_add(list, json_incref(value)));
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

struct unique {
    struct schema *schema;
    uint32_t literals[MOST_UNIQUE], count, least, most;
    uint32_t rules[1 << MOST_UNIQUE]; /* of what follows a set of values; 0: none yet */
};

static uint32_t unique_rest(struct unique *unique, uint32_t used);

/* One of the values that are not used, and what follows it. */
static uint32_t unique_next(struct unique *unique, uint32_t used)
{
    struct tree *tree = unique->schema->tree;
    uint32_t choices[MOST_UNIQUE], count = 0;
    for (uint32_t i = 0; i < unique->count && !tree->failed; i++)
        if (!(used >> i & 1))
            choices[count++] = TREE_SEQUENCE_OF(tree, unique->literals[i], unique->schema->parts.space,
                                                unique_rest(unique, used | 1u << i));
    return tree->failed ? TREE_NODE_EMPTY : count ? tree_choice(tree, choices, count) : TREE_NODE_NEVER;
}

static uint32_t unique_rest(struct unique *unique, uint32_t used)
{
    struct tree *tree = unique->schema->tree;
    uint32_t size = 0;
    for (uint32_t bits = used; bits; bits &= bits - 1) size++;
    if (unique->rules[used]) return tree_call(tree, unique->rules[used]);
    const uint32_t rule = tree_rule_add(tree, "different values", size >= unique->least);
    if (tree->failed) return TREE_NODE_EMPTY;
    unique->rules[used] = rule;
    const uint32_t more = size < unique->most ? TREE_SEQUENCE_OF(tree, tree_text(tree, ","),
                                                                 unique->schema->parts.space, unique_next(unique, used))
                                              : TREE_NODE_NEVER;
    const uint32_t node = size >= unique->least ? TREE_CHOICE_OF(tree, TREE_NODE_EMPTY, more) : more;
    if (tree->failed) return TREE_NODE_EMPTY;
    tree->rules[rule].node = node;
    return tree_call(tree, rule);
}

uint32_t schema_unique_node(struct schema *schema, json_t *items, uint32_t least, uint32_t most)
{
    struct tree *tree = schema->tree;
    struct unique unique = {.schema = schema, .least = least, .most = most};
    json_t *flat = items ? schema_flatten(schema, items) : NULL, *values = flat ? few_values(flat) : NULL;
    if (tree->failed) return TREE_NODE_EMPTY;
    if (!values)
        return schema_fail(schema,
                           "'uniqueItems' is not supported for these items; expected an enum of at most %d values, "
                           "or maxItems 1",
                           MOST_UNIQUE);
    for (; unique.count < json_array_size(values); unique.count++)
        unique.literals[unique.count] = schema_literal_node(schema, json_array_get(values, unique.count));
    json_decref(values);
    const uint32_t first = most ? unique_next(&unique, 0) : TREE_NODE_NEVER;
    const uint32_t list = least ? first : TREE_CHOICE_OF(tree, TREE_NODE_EMPTY, first);
    return TREE_SEQUENCE_OF(tree, tree_text(tree, "["), schema->parts.space, list, tree_text(tree, "]"));
}
