/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_automaton.h"
#include "formats/grammar/grammar_number.h"
#include "formats/grammar/grammar_regex.h"
#include "formats/grammar/grammar_schema.h"

static const char *const object_keywords[] = {"properties",    "required",      "additionalProperties",
                                              "minProperties", "maxProperties", "patternProperties",
                                              "propertyNames"};
static const char *const array_keywords[] = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"};
static const char *const string_keywords[] = {"minLength", "maxLength", "pattern", "format", "not"};
static const char *const number_keywords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                              "multipleOf"};
static const char *const general_keywords[] = {"type",
                                               "enum",
                                               "const",
                                               "anyOf",
                                               "oneOf",
                                               "allOf",
                                               "$ref",
                                               "if",
                                               "then",
                                               "else",
                                               "dependentRequired",
                                               "dependentSchemas",
                                               "dependencies"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

/* The call of a rule for the schema; rules are read later, one after the other. */
static uint32_t target_node(struct schema *schema, const json_t *to, const char *name)
{
    struct tree *tree = schema->tree;
    for (uint32_t i = 0; i < schema->target_count; i++)
        if (schema->targets[i].schema == to) return tree_call(tree, schema->targets[i].rule);
    if (!tree_grow(tree, (void **)&schema->targets, &schema->target_capacity, (uint64_t)schema->target_count + 1,
                   sizeof *schema->targets, GRAMMAR_MOST_RULES))
        return TREE_NODE_EMPTY;
    const uint32_t rule = tree_rule_add(tree, name, false);
    if (tree->failed) return TREE_NODE_EMPTY;
    schema->targets[schema->target_count++] = (struct schema_target){to, rule};
    return tree_call(tree, rule);
}

static uint32_t schema_node(struct schema *schema, json_t *value, unsigned depth);

/* An array with an element of the schema "contains": anywhere, or where the number of elements is bounded the first. */
static uint32_t contains_node(struct schema *schema, const json_t *value, uint32_t least, uint32_t most, unsigned depth)
{
    json_t *rest = json_object_get(value, "items"), *element = json_object_get(value, "contains");
    const char *beside = json_object_get(value, "prefixItems")                             ? "prefixItems"
                         : json_is_true(json_object_get(value, "uniqueItems")) && most > 1 ? "uniqueItems"
                                                                                           : NULL;
    if (beside)
        return schema_fail(schema, "'contains' together with '%s' is not supported; expected one of them", beside);
    json_t *both = rest ? schema_merge(schema, rest, element) : element;
    const size_t mark = schema_enter(schema, "/contains");
    const uint32_t found = both ? schema_node(schema, both, depth + 1) : TREE_NODE_EMPTY,
                   other = rest ? schema_node(schema, rest, depth + 1) : json_value_node(&schema->parts);
    schema->path[mark] = '\0';
    if (schema->tree->failed) return TREE_NODE_EMPTY;
    if (found == TREE_NODE_NEVER || most == 0) return TREE_NODE_NEVER;
    const bool is_bounded = least > 1 || most != TREE_UNLIMITED;
    const struct tree_item items[] = {
        {other, 0, is_bounded ? 0 : TREE_UNLIMITED, 0},
        {found, 1, 1, 0},
        {other, least > 1 ? least - 1 : 0, most == TREE_UNLIMITED ? most : most - 1, 0},
    };
    return json_brackets_node(&schema->parts, "[", items, COUNT(items), "]");
}

static uint32_t array_node(struct schema *schema, const json_t *value, unsigned depth)
{
    struct tree *tree = schema->tree;
    json_t *prefix = json_object_get(value, "prefixItems"), *rest = json_object_get(value, "items");
    uint32_t least = 0, most = TREE_UNLIMITED, node = TREE_NODE_EMPTY, count = 0;
    if (!schema_count_of(schema, value, "minItems", &least) || !schema_count_of(schema, value, "maxItems", &most))
        return TREE_NODE_EMPTY;
    if (prefix && !json_is_array(prefix))
        return schema_fail(schema, "'prefixItems': expected a list of schemas, found %s", json_type_name(prefix));
    if (least > most) return TREE_NODE_NEVER;
    if (json_object_get(value, "contains")) return contains_node(schema, value, least, most, depth);
    if (json_is_true(json_object_get(value, "uniqueItems")) && most > 1) {
        if (!prefix) return schema_unique_node(schema, rest, least, most);
        return schema_fail(schema, "'uniqueItems' together with 'prefixItems' is not supported");
    }
    const uint32_t fixed = (uint32_t)json_array_size(prefix);
    struct tree_item *items = calloc((size_t)fixed + 1, sizeof *items);
    if (!items) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    for (; count < fixed && count < most && !tree->failed; count++) {
        const size_t mark = schema_enter(schema, "/prefixItems/%u", count);
        const uint32_t element = schema_node(schema, json_array_get(prefix, count), depth + 1);
        schema->path[mark] = '\0';
        items[count] = (struct tree_item){element, count < least, 1, 1};
        /* The elements after one that cannot be are at wrong places. */
        if (element == TREE_NODE_NEVER) most = count;
    }
    /* Without "items", elements after the listed ones only come where they must. */
    if (count < most && !tree->failed && (rest || !prefix || least > fixed)) {
        const size_t mark = schema_enter(schema, "/items");
        const uint32_t element = rest ? schema_node(schema, rest, depth + 1) : json_value_node(&schema->parts);
        schema->path[mark] = '\0';
        items[count] = (struct tree_item){element, least > count ? least - count : 0,
                                          most == TREE_UNLIMITED ? most : most - count, 1};
        count++;
    }
    if (least > most) {
        node = TREE_NODE_NEVER;
    } else if (!tree->failed) {
        node = json_brackets_node(&schema->parts, "[", items, count, "]");
    }
    free(items);
    return node;
}

static uint32_t number_node(struct schema *schema, const json_t *value, bool is_integer)
{
    struct number_bounds bounds = {.minimum = json_object_get(value, "minimum"),
                                   .exclusive_minimum = json_object_get(value, "exclusiveMinimum"),
                                   .maximum = json_object_get(value, "maximum"),
                                   .exclusive_maximum = json_object_get(value, "exclusiveMaximum")};
    const json_t *multiple = json_object_get(value, "multipleOf");
    bool any = multiple != NULL;
    for (size_t i = 0; i < COUNT(number_keywords); i++) {
        const json_t *bound = json_object_get(value, number_keywords[i]);
        if (bound && !json_is_number(bound))
            return schema_fail(schema, "'%s': expected a number, found %s", number_keywords[i], json_type_name(bound));
        any = any || bound;
    }
    if (multiple) {
        const double number = json_number_value(multiple);
        if (!(number >= 1 && number <= NUMBER_MOST_MULTIPLE) || number != (double)(uint32_t)number)
            return schema_fail(schema, "'multipleOf' %.17g is not supported; expected an integer from 1 to %d", number,
                               NUMBER_MOST_MULTIPLE);
        bounds.multiple = (uint32_t)number;
    }
    /* Every integer is a number. */
    if (multiple) is_integer = true;
    if (!any) return is_integer ? json_integer_node(&schema->parts) : json_number_node(&schema->parts);
    return is_integer ? number_integer(schema->tree, &bounds, schema->path)
                      : number_decimal(schema->tree, &bounds, schema->path);
}

static const char *const type_names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

static bool check_type(struct schema *schema, const json_t *type)
{
    const size_t count = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
        const char *name = json_string_value(one);
        if (name && schema_is_one_of(name, type_names, COUNT(type_names))) continue;
        schema_fail(schema, "'type': expected the name of a JSON type, found %.60s", name ? name : json_type_name(one));
        return false;
    }
    return true;
}

/* An alternative of oneOf without what others allow, too; NULL: failed. */
static json_t *alone_in(struct schema *schema, const json_t *list, size_t index, json_t *branch)
{
    for (size_t k = 0; branch && k < json_array_size(list); k++) {
        json_t *other = json_array_get(list, k);
        if (k == index || schema_disjoint(schema, other, branch)) continue;
        json_t *others = schema->tree->failed ? NULL : schema_complement(schema, other, "'oneOf'");
        json_t *choice = others ? schema_keep(schema, json_pack("{s:O}", "anyOf", others)) : NULL;
        json_t *merged = choice ? schema_merge(schema, branch, choice) : NULL;
        branch = merged;
    }
    return branch;
}

static uint32_t alternatives_node(struct schema *schema, json_t *value, const char *keyword, unsigned depth)
{
    struct tree *tree = schema->tree;
    json_t *list = json_object_get(value, keyword);
    const bool exclusive = strcmp(keyword, "oneOf") == 0, beside = schema_has_assertion(value, &keyword, 1);
    struct tree_nodes choices = {0};
    uint32_t node = TREE_NODE_EMPTY;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        schema_fail(schema, "'%s': expected a list of schemas", keyword);
        goto done;
    }
    json_t *rest = beside ? schema_without(schema, value, &keyword, 1) : NULL;
    if (beside && !rest) goto done;
    for (size_t i = 0; i < json_array_size(list) && !tree->failed; i++) {
        json_t *branch = json_array_get(list, i);
        const size_t mark = schema_enter(schema, "/%s/%zu", keyword, i);
        if (beside) branch = schema_merge(schema, rest, branch);
        if (branch && exclusive) branch = alone_in(schema, list, i, branch);
        if (branch && !tree->failed) tree_nodes_add(tree, &choices, schema_node(schema, branch, depth + 1));
        schema->path[mark] = '\0';
    }
    if (!tree->failed) node = tree_choice(tree, choices.items, choices.count);
done:
    free(choices.items);
    return node;
}

/* The types of a schema that names none follow from its keywords: values of other types would be valid too. */
static bool wants_type(const json_t *value, const json_t *type, const char *name, const char *const *keywords,
                       size_t count)
{
    if (type) return schema_type_has(type, name);
    for (size_t i = 0; i < count; i++)
        if (json_object_get(value, keywords[i])) return true;
    return false;
}

static uint32_t types_node(struct schema *schema, const json_t *value, unsigned depth)
{
    struct tree *tree = schema->tree;
    const json_t *type = json_object_get(value, "type");
    uint32_t choices[COUNT(type_names)], count = 0;
    if (type && !check_type(schema, type)) return TREE_NODE_EMPTY;
    if (wants_type(value, type, "object", object_keywords, COUNT(object_keywords)))
        choices[count++] = schema_object_node(schema, value, depth);
    if (wants_type(value, type, "array", array_keywords, COUNT(array_keywords)))
        choices[count++] = array_node(schema, value, depth);
    if (wants_type(value, type, "string", string_keywords, COUNT(string_keywords)))
        choices[count++] = schema_string_node(schema, value);
    if (wants_type(value, type, "number", number_keywords, COUNT(number_keywords)))
        choices[count++] = number_node(schema, value, false);
    else if (type && schema_type_has(type, "integer"))
        choices[count++] = number_node(schema, value, true);
    if (type && schema_type_has(type, "boolean"))
        choices[count++] = TREE_CHOICE_OF(tree, tree_text(tree, "true"), tree_text(tree, "false"));
    if (type && schema_type_has(type, "null")) choices[count++] = tree_text(tree, "null");
    if (!type && count == 0) return json_value_node(&schema->parts);
    return tree->failed ? TREE_NODE_EMPTY : tree_choice(tree, choices, count);
}

static bool check_keywords(struct schema *schema, const json_t *value)
{
    json_t *member;
    const char *key;
    json_object_foreach ((json_t *)(uintptr_t)value, key, member) {
        if (schema_is_annotation(key) || schema_is_one_of(key, object_keywords, COUNT(object_keywords)) ||
            schema_is_one_of(key, array_keywords, COUNT(array_keywords)) ||
            schema_is_one_of(key, string_keywords, COUNT(string_keywords)) ||
            schema_is_one_of(key, number_keywords, COUNT(number_keywords)) ||
            schema_is_one_of(key, general_keywords, COUNT(general_keywords)))
            continue;
        schema_fail(schema, "keyword '%.80s' is not supported; remove it, or check it after the output", key);
        return false;
    }
    return true;
}

static uint32_t schema_node(struct schema *schema, json_t *value, unsigned depth)
{
    static const char *const reference[] = {"$ref"};
    if (schema->tree->failed) return TREE_NODE_EMPTY;
    if (depth > SCHEMA_MOST_DEPTH || ++schema->tree->schemas_read > SCHEMA_MOST_READ)
        return schema_fail(schema, "schema is too large: expected at most %d schemas within schemas, and %d in all",
                           SCHEMA_MOST_DEPTH, SCHEMA_MOST_READ);
    if (json_is_true(value)) return json_value_node(&schema->parts);
    if (json_is_false(value)) return TREE_NODE_NEVER;
    if (!json_is_object(value))
        return schema_fail(schema, "expected a schema (an object, true or false), found %s", json_type_name(value));
    if (!check_keywords(schema, value)) return TREE_NODE_EMPTY;
    const json_t *target = json_object_get(value, "$ref");
    if (target && !schema_has_assertion(value, reference, 1)) {
        const json_t *to = schema_resolve(schema, target);
        return to ? target_node(schema, to, json_string_value(target)) : TREE_NODE_EMPTY;
    }
    if (target || json_object_get(value, "allOf") || schema_has_rewrite(value)) {
        json_t *flat = schema_flatten(schema, value);
        return flat ? schema_node(schema, flat, depth + 1) : TREE_NODE_EMPTY;
    }
    if (json_object_get(value, "anyOf")) return alternatives_node(schema, value, "anyOf", depth);
    if (json_object_get(value, "oneOf")) return alternatives_node(schema, value, "oneOf", depth);
    if (json_object_get(value, "enum") || json_object_get(value, "const")) return schema_enum_node(schema, value);
    return types_node(schema, value, depth);
}

void grammar_options_initialize(struct grammar_options *options)
{
    *options = (struct grammar_options){.size = sizeof *options};
}

static bool check_options(struct tree *tree, const struct grammar_options *options, uint32_t *most_whitespace)
{
    *most_whitespace = options ? options->most_whitespace : 0;
    if (!options || options->size == sizeof *options) return true;
    tree_fail(tree, STATUS_USAGE, "grammar: options have size %zu; expected %zu", options->size, sizeof *options);
    return false;
}

uint32_t schema_document_node(struct tree *tree, json_t *root, uint32_t most_whitespace)
{
    struct schema schema = {.tree = tree, .root = root, .made = json_array(), .node = schema_node};
    uint32_t node = TREE_NODE_EMPTY;
    if (!schema.made) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    json_object_del(root, "$id"); /* references are within the document */
    json_parts_open(&schema.parts, tree, most_whitespace);
    node = target_node(&schema, root, "#");
    for (uint32_t i = 0; i < schema.target_count && !tree->failed; i++) {
        const struct schema_target target = schema.targets[i];
        snprintf(schema.path, sizeof schema.path, "%s", tree->rules[target.rule].name);
        const uint32_t content = schema_node(&schema, (json_t *)(uintptr_t)target.schema, 0);
        if (!tree->failed) tree->rules[target.rule].node = content;
    }
    free(schema.targets);
    json_decref(schema.made);
    return tree->failed ? TREE_NODE_EMPTY : node;
}

struct grammar *grammar_schema_open(const char *text, size_t size, const struct grammar_options *options,
                                    struct status *status)
{
    struct tree tree;
    struct grammar *grammar = NULL;
    json_t *root = NULL;
    uint32_t most_whitespace;
    if (!tree_open(&tree, status) || !check_options(&tree, options, &most_whitespace)) goto done;
    if (size > GRAMMAR_MOST_SOURCE_BYTES) {
        tree_fail(&tree, STATUS_BAD_INPUT, "JSON Schema: %zu bytes; expected at most %d", size,
                  GRAMMAR_MOST_SOURCE_BYTES);
        goto done;
    }
    root = json_parse(text, size, "JSON Schema", status);
    if (!root) goto done;
    tree_rule_add(&tree, "#", false);
    const uint32_t node = schema_document_node(&tree, root, most_whitespace);
    if (!tree.failed) {
        tree.rules[0].node = node;
        grammar = automaton_compile(&tree, "JSON Schema");
    }
done:
    json_decref(root);
    tree_close(&tree);
    return grammar;
}

struct grammar *grammar_object_open(const struct grammar_options *options, struct status *status)
{
    struct tree tree;
    struct json_parts parts;
    struct grammar *grammar = NULL;
    uint32_t most_whitespace;
    if (!tree_open(&tree, status) || !check_options(&tree, options, &most_whitespace)) goto done;
    tree_rule_add(&tree, "JSON object", false);
    json_parts_open(&parts, &tree, most_whitespace);
    const struct tree_item members = {TREE_SEQUENCE_OF(&tree, json_string_node(&parts), json_colon_node(&parts),
                                                       json_value_node(&parts)),
                                      0, TREE_UNLIMITED, 0};
    const uint32_t node = json_brackets_node(&parts, "{", &members, 1, "}");
    if (!tree.failed) {
        tree.rules[0].node = node;
        grammar = automaton_compile(&tree, "JSON object");
    }
done:
    tree_close(&tree);
    return grammar;
}
