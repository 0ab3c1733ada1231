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

enum { MOST_COUNT = 1 << 20 }; /* of lengths and numbers of elements */

static const char *const object_keywords[] = {"properties", "required", "additionalProperties"};
static const char *const array_keywords[] = {"items", "prefixItems", "minItems", "maxItems"};
static const char *const string_keywords[] = {"minLength", "maxLength", "pattern", "format"};
static const char *const number_keywords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                              "multipleOf"};
static const char *const general_keywords[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool is_one_of(const char *key, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, list[i]) == 0) return true;
    return false;
}

/* Appends a segment to the path (truncated to fit) and returns where it began. */
static size_t enter(struct schema *schema, const char *format, ...) __attribute__((format(printf, 2, 3)));
static size_t enter(struct schema *schema, const char *format, ...)
{
    const size_t size = strlen(schema->path);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(schema->path + size, SCHEMA_PATH_BYTES - size, format, arguments);
    va_end(arguments);
    return size;
}

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

/* A literal of a JSON value. */
static uint32_t value_node(struct schema *schema, const json_t *value, struct grammar_text *text)
{
    char number[NUMBER_TEXT_BYTES];
    char *copy = json_is_real(value) && number_text(value, number) ? strdup(number)
                                                                   : json_format(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!copy) return tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    *text = (struct grammar_text){copy, strlen(copy)};
    return TREE_NODE_EMPTY;
}

static bool count_of(struct schema *schema, const json_t *value, const char *key, uint32_t *out)
{
    const json_t *count = json_object_get(value, key);
    if (!count) return true;
    if (json_is_integer(count) && json_integer_value(count) >= 0 && json_integer_value(count) <= MOST_COUNT) {
        *out = (uint32_t)json_integer_value(count);
        return true;
    }
    char found[40];
    json_value_text(count, found, sizeof found);
    schema_fail(schema, "'%s': expected an integer from 0 to %d, found %s", key, MOST_COUNT, found);
    return false;
}

static uint32_t property_node(struct schema *schema, const char *name, json_t *property, unsigned depth)
{
    struct grammar_text text = {0};
    json_t *key = json_string_or_null(name);
    if (!key) return tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    value_node(schema, key, &text);
    json_decref(key);
    const size_t mark = enter(schema, "/properties/%.60s", name);
    const uint32_t quoted = text.bytes ? tree_literal(schema->tree, text.bytes, text.size) : TREE_NODE_EMPTY;
    free((char *)(uintptr_t)text.bytes);
    const uint32_t value = schema_node(schema, property, depth + 1);
    schema->path[mark] = '\0';
    return TREE_SEQUENCE_OF(schema->tree, quoted, json_colon_node(&schema->parts), value);
}

/* An object with the required names as keys, owned; NULL: failed. */
static json_t *required_names(struct schema *schema, const json_t *required, const json_t *properties)
{
    json_t *names = json_object();
    if (!names) tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    if (required && !json_is_array(required))
        schema_fail(schema, "'required': expected a list of names, found %s", json_type_name(required));
    for (size_t i = 0; i < json_array_size(required) && !schema->tree->failed; i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name || !json_object_get(properties, name))
            schema_fail(schema, "'required' names '%.80s'; expected a name that 'properties' lists",
                        name ? name : "(no text)");
        else if (!json_put(names, name, json_true()))
            tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    }
    if (!schema->tree->failed) return names;
    json_decref(names);
    return NULL;
}

static uint32_t object_node(struct schema *schema, const json_t *value, unsigned depth)
{
    struct tree *tree = schema->tree;
    json_t *properties = json_object_get(value, "properties"), *required = json_object_get(value, "required"),
           *additional = json_object_get(value, "additionalProperties"), *property;
    const char *name;
    uint32_t count = 0, node = TREE_NODE_EMPTY;
    if (properties && !json_is_object(properties))
        return schema_fail(schema, "'properties': expected an object, found %s", json_type_name(properties));
    json_t *needed = required_names(schema, required, properties);
    if (!needed) return TREE_NODE_EMPTY;
    const size_t capacity = json_object_size(properties) + 1;
    struct tree_item *items = calloc(capacity, sizeof *items);
    const char **names = calloc(capacity, sizeof *names);
    if (!items || !names) {
        tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
        goto done;
    }
    json_object_foreach (properties, name, property) {
        const uint32_t least = json_object_get(needed, name) ? 1 : 0;
        names[count] = name;
        items[count++] = (struct tree_item){property_node(schema, name, property, depth), least, 1, 0};
        if (tree->failed) goto done;
    }
    if (additional ? !json_is_false(additional) : !properties) {
        const size_t mark = enter(schema, "/additionalProperties");
        const uint32_t other =
            additional ? schema_node(schema, additional, depth + 1) : json_value_node(&schema->parts);
        schema->path[mark] = '\0';
        const uint32_t key =
            count ? json_other_name_node(&schema->parts, names, count) : json_string_node(&schema->parts);
        items[count] = (struct tree_item){TREE_SEQUENCE_OF(tree, key, json_colon_node(&schema->parts), other), 0,
                                          TREE_UNLIMITED, 0};
        count++;
    }
    node = json_brackets_node(&schema->parts, "{", items, count, "}");
done:
    json_decref(needed);
    free(items);
    free(names);
    return node;
}

static uint32_t array_node(struct schema *schema, const json_t *value, unsigned depth)
{
    struct tree *tree = schema->tree;
    json_t *prefix = json_object_get(value, "prefixItems"), *rest = json_object_get(value, "items");
    uint32_t least = 0, most = TREE_UNLIMITED, node = TREE_NODE_EMPTY, count = 0;
    if (!count_of(schema, value, "minItems", &least) || !count_of(schema, value, "maxItems", &most))
        return TREE_NODE_EMPTY;
    if (prefix && !json_is_array(prefix))
        return schema_fail(schema, "'prefixItems': expected a list of schemas, found %s", json_type_name(prefix));
    if (least > most) return TREE_NODE_NEVER;
    const uint32_t fixed = (uint32_t)json_array_size(prefix);
    struct tree_item *items = calloc((size_t)fixed + 1, sizeof *items);
    if (!items) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    for (; count < fixed && count < most && !tree->failed; count++) {
        const size_t mark = enter(schema, "/prefixItems/%u", count);
        const uint32_t element = schema_node(schema, json_array_get(prefix, count), depth + 1);
        schema->path[mark] = '\0';
        items[count] = (struct tree_item){element, count < least, 1, 1};
        /* The elements after one that cannot be are at wrong places. */
        if (element == TREE_NODE_NEVER) most = count;
    }
    /* Without "items", elements after the listed ones only come where they must. */
    if (count < most && !tree->failed && (rest || !prefix || least > fixed)) {
        const size_t mark = enter(schema, "/items");
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

/* Formats whose texts need no escape in JSON. */
static const struct {
    const char *name, *regex;
} formats[] = {
/* RFC 3339 has a year 0000, but many readers do not. */
#define YEAR      "(0{3}[1-9]|0{2}[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])" \
    ")"                                                                                                                \
    "|" LEAP_YEAR "-02-29)"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    /* At most 62 bytes before the sign (RFC 5321: 64), and labels of at most 20. */
    {"email", ATOM "(\\." ATOM "){0,2}@([A-Za-z0-9]([A-Za-z0-9-]{0,18}[A-Za-z0-9])?\\.){1,4}[A-Za-z]{2,20}"},
    {"ipv4", BYTE "(\\." BYTE "){3}"},
    {"hostname", LABEL "(\\." LABEL "){0,2}"},
};

static uint32_t format_node(struct schema *schema, const json_t *format)
{
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < COUNT(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            return regex_node(schema->tree, formats[i].regex, strlen(formats[i].regex), REGEX_WHOLE, name);
    return schema_fail(schema,
                       "'format' %.60s is not supported; expected date, time, date-time, uuid, email, ipv4 or hostname",
                       name ? name : json_type_name(format));
}

static uint32_t string_node(struct schema *schema, const json_t *value)
{
    struct tree *tree = schema->tree;
    const json_t *pattern = json_object_get(value, "pattern"), *format = json_object_get(value, "format");
    uint32_t least = 0, most = TREE_UNLIMITED, inside;
    if (!count_of(schema, value, "minLength", &least) || !count_of(schema, value, "maxLength", &most))
        return TREE_NODE_EMPTY;
    const bool bounded = least > 0 || most != TREE_UNLIMITED;
    if ((pattern != NULL) + (format != NULL) + bounded > 1)
        return schema_fail(schema, "'%s' together with '%s' is not supported; expected one of them",
                           pattern ? "pattern" : "format",
                           pattern && format ? "format"
                           : least > 0       ? "minLength"
                                             : "maxLength");
    if (least > most) return TREE_NODE_NEVER;
    if (pattern) {
        if (!json_is_string(pattern))
            return schema_fail(schema, "'pattern': expected a text, found %s", json_type_name(pattern));
        char where[STATUS_MESSAGE_BYTES];
        snprintf(where, sizeof where, "JSON Schema: '%s/pattern'", schema->path);
        inside = regex_node(tree, json_string_value(pattern), json_string_length(pattern), REGEX_JSON, where);
    } else if (format) {
        inside = format_node(schema, format);
    } else if (bounded) {
        inside = tree_repeat(tree, json_character_node(&schema->parts), least, most);
    } else {
        return json_string_node(&schema->parts);
    }
    return TREE_SEQUENCE_OF(tree, tree_text(tree, "\""), inside, tree_text(tree, "\""));
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

static bool type_has(const json_t *type, const char *name)
{
    const char *text = json_string_value(type);
    if (text) return strcmp(text, name) == 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        text = json_string_value(json_array_get(type, i));
        if (text && strcmp(text, name) == 0) return true;
    }
    return false;
}

static const char *const type_names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

static bool check_type(struct schema *schema, const json_t *type)
{
    const size_t count = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
        const char *name = json_string_value(one);
        if (name && is_one_of(name, type_names, COUNT(type_names))) continue;
        schema_fail(schema, "'type': expected the name of a JSON type, found %.60s", name ? name : json_type_name(one));
        return false;
    }
    return true;
}

static bool type_allows(const json_t *type, const json_t *value)
{
    if (!type) return true;
    if (json_is_integer(value)) return type_has(type, "integer") || type_has(type, "number");
    return type_has(type, json_is_real(value) ? "number" : json_type_name(value));
}

static uint32_t enum_node(struct schema *schema, const json_t *value)
{
    static const char *const beside[] = {"type", "enum", "const"};
    struct tree *tree = schema->tree;
    json_t *list = json_object_get(value, "enum"), *constant = json_object_get(value, "const"), *member;
    const json_t *type = json_object_get(value, "type");
    const char *key;
    uint32_t count = 0, node = TREE_NODE_EMPTY;
    json_object_foreach ((json_t *)(uintptr_t)value, key, member)
        if (!schema_is_annotation(key) && !is_one_of(key, beside, COUNT(beside)))
            return schema_fail(schema, "'%.80s' together with '%s' is not supported; expected one of them", key,
                               constant ? "const" : "enum");
    if (list && (!json_is_array(list) || json_array_size(list) > GRAMMAR_MOST_CHOICES))
        return schema_fail(schema, "'enum': expected a list of at most %d values", GRAMMAR_MOST_CHOICES);
    const size_t capacity = json_array_size(list) + 1;
    struct grammar_text *texts = calloc(capacity, sizeof *texts);
    if (!texts) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    if (constant && !list) {
        if (type_allows(type, constant)) value_node(schema, constant, &texts[count++]);
    }
    for (size_t i = 0; i < json_array_size(list) && !tree->failed; i++) {
        const json_t *one = json_array_get(list, i);
        if (type_allows(type, one) && (!constant || json_equal(one, constant)))
            value_node(schema, one, &texts[count++]);
    }
    if (!tree->failed) node = tree_texts(tree, texts, count);
    for (uint32_t i = 0; i < count; i++) free((char *)(uintptr_t)texts[i].bytes);
    free(texts);
    return node;
}

static uint32_t alternatives_node(struct schema *schema, json_t *value, const char *keyword, unsigned depth)
{
    struct tree *tree = schema->tree;
    json_t *list = json_object_get(value, keyword), *branches = json_array();
    const bool exclusive = strcmp(keyword, "oneOf") == 0, beside = schema_has_assertion(value, &keyword, 1);
    struct tree_nodes choices = {0};
    uint32_t node = TREE_NODE_EMPTY;
    if (!branches) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    if (!json_is_array(list) || json_array_size(list) == 0) {
        schema_fail(schema, "'%s': expected a list of schemas", keyword);
        goto done;
    }
    json_t *rest = beside ? schema_without(schema, value, &keyword, 1) : NULL;
    if (beside && !rest) goto done;
    for (size_t i = 0; i < json_array_size(list) && !tree->failed; i++) {
        json_t *branch = json_array_get(list, i);
        const size_t mark = enter(schema, "/%s/%zu", keyword, i);
        if (beside) branch = schema_merge(schema, rest, branch);
        for (size_t k = 0; exclusive && branch && k < i && !tree->failed; k++)
            if (!schema_disjoint(schema, json_array_get(branches, k), branch))
                schema_fail(schema,
                            "this alternative of oneOf may be valid together with alternative %zu; expected a required "
                            "property with different constants in each, or anyOf",
                            k);
        if (branch && !tree->failed) tree_nodes_add(tree, &choices, schema_node(schema, branch, depth + 1));
        schema->path[mark] = '\0';
        if (!branch || !json_add(branches, json_incref(branch)))
            tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    }
    if (!tree->failed) node = tree_choice(tree, choices.items, choices.count);
done:
    free(choices.items);
    json_decref(branches);
    return node;
}

/* The types of a schema that names none follow from its keywords: values of other types would be valid too. */
static bool wants_type(const json_t *value, const json_t *type, const char *name, const char *const *keywords,
                       size_t count)
{
    if (type) return type_has(type, name);
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
        choices[count++] = object_node(schema, value, depth);
    if (wants_type(value, type, "array", array_keywords, COUNT(array_keywords)))
        choices[count++] = array_node(schema, value, depth);
    if (wants_type(value, type, "string", string_keywords, COUNT(string_keywords)))
        choices[count++] = string_node(schema, value);
    if (wants_type(value, type, "number", number_keywords, COUNT(number_keywords)))
        choices[count++] = number_node(schema, value, false);
    else if (type && type_has(type, "integer"))
        choices[count++] = number_node(schema, value, true);
    if (type && type_has(type, "boolean"))
        choices[count++] = TREE_CHOICE_OF(tree, tree_text(tree, "true"), tree_text(tree, "false"));
    if (type && type_has(type, "null")) choices[count++] = tree_text(tree, "null");
    if (!type && count == 0) return json_value_node(&schema->parts);
    return tree->failed ? TREE_NODE_EMPTY : tree_choice(tree, choices, count);
}

static bool check_keywords(struct schema *schema, const json_t *value)
{
    json_t *member;
    const char *key;
    json_object_foreach ((json_t *)(uintptr_t)value, key, member) {
        if (schema_is_annotation(key) || is_one_of(key, object_keywords, COUNT(object_keywords)) ||
            is_one_of(key, array_keywords, COUNT(array_keywords)) ||
            is_one_of(key, string_keywords, COUNT(string_keywords)) ||
            is_one_of(key, number_keywords, COUNT(number_keywords)) ||
            is_one_of(key, general_keywords, COUNT(general_keywords)))
            continue;
        if (strcmp(key, "uniqueItems") == 0 && json_is_false(member)) continue;
        schema_fail(schema, "keyword '%.80s' is not supported; remove it, or check it after the output", key);
        return false;
    }
    return true;
}

static uint32_t schema_node(struct schema *schema, json_t *value, unsigned depth)
{
    static const char *const reference[] = {"$ref"};
    if (schema->tree->failed) return TREE_NODE_EMPTY;
    if (depth > SCHEMA_MOST_DEPTH || ++schema->read_count > SCHEMA_MOST_READ)
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
    if (target || json_object_get(value, "allOf")) {
        json_t *flat = schema_flatten(schema, value);
        return flat ? schema_node(schema, flat, depth + 1) : TREE_NODE_EMPTY;
    }
    if (json_object_get(value, "anyOf")) return alternatives_node(schema, value, "anyOf", depth);
    if (json_object_get(value, "oneOf")) return alternatives_node(schema, value, "oneOf", depth);
    if (json_object_get(value, "enum") || json_object_get(value, "const")) return enum_node(schema, value);
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
    struct schema schema = {.tree = tree, .root = root, .made = json_array()};
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
