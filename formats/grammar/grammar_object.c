/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of a JSON Schema: properties in the order of the schema, then those of patterns, then additional ones. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_schema.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

static uint32_t property_node(struct schema *schema, const char *name, json_t *property, unsigned depth)
{
    json_t *key = json_string_or_null(name);
    if (!key) return schema_fail_memory(schema);
    const uint32_t quoted = schema_literal_node(schema, key);
    json_decref(key);
    const size_t mark = schema_enter(schema, "/properties/%.60s", name);
    const uint32_t value = schema->node(schema, property, depth + 1);
    schema->path[mark] = '\0';
    return TREE_SEQUENCE_OF(schema->tree, quoted, json_colon_node(&schema->parts), value);
}

/* An object with the required names as keys, owned; NULL: failed. */
static json_t *required_names(struct schema *schema, const json_t *required)
{
    json_t *names = json_object();
    if (!names) schema_fail_memory(schema);
    if (required && !json_is_array(required))
        schema_fail(schema, "'required': expected a list of names, found %s", json_type_name(required));
    for (size_t i = 0; i < json_array_size(required) && !schema->tree->failed; i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name)
            schema_fail(schema, "'required': expected names, found %s", json_type_name(json_array_get(required, i)));
        else if (!json_put(names, name, json_true()))
            schema_fail_memory(schema);
    }
    if (!schema->tree->failed) return names;
    json_decref(names);
    return NULL;
}

/* ---- names ---- */

/* What an object says of its properties' names. */
struct object_names {
    json_t *patterns;                            /* of "patternProperties"; borrowed; NULL: none */
    struct string_rule rules[STRING_MOST_RULES]; /* of "propertyNames" [rule_count] */
    size_t rule_count;
    bool has_none; /* no name is valid */
    json_t *own;   /* owned: lists that rules refer to */
};

/* The schema for strings alone, flat; NULL: failed. */
static json_t *strings_of(struct schema *schema, json_t *rule)
{
    if (!json_is_object(rule) || json_object_get(rule, "type")) return schema_flatten(schema, rule);
    json_t *copy = schema_keep(schema, json_copy(rule));
    if (!copy || !json_put(copy, "type", json_string("string"))) {
        schema_fail_memory(schema);
        return NULL;
    }
    return schema_flatten(schema, copy);
}

/* The rules of "propertyNames". */
static bool read_names(struct schema *schema, const json_t *value, struct object_names *names)
{
    static const char *const known[] = {"type", "pattern", "format", "minLength", "maxLength", "not", "enum", "const"};
    json_t *rule = json_object_get(value, "propertyNames"), *flat = rule ? strings_of(schema, rule) : NULL;
    names->patterns = json_object_get(value, "patternProperties");
    if (names->patterns && !json_is_object(names->patterns)) {
        schema_fail(schema, "'patternProperties': expected an object, found %s", json_type_name(names->patterns));
        return false;
    }
    if (!rule) return true;
    if (!flat) return false;
    if (schema_has_assertion(flat, known, COUNT(known))) {
        schema_fail(
            schema,
            "'propertyNames' is not supported with this schema; expected pattern, format, minLength, maxLength, "
            "enum or const in it");
        return false;
    }
    const json_t *type = json_object_get(flat, "type");
    json_t *texts = json_object_get(flat, "enum"), *constant = json_object_get(flat, "const");
    if (texts && !json_is_array(texts)) {
        schema_fail(schema, "'propertyNames': 'enum': expected a list of values, found %s", json_type_name(texts));
        return false;
    }
    names->has_none = json_is_false(flat) || (type && !schema_type_has(type, "string"));
    json_t *lists[] = {texts ? json_incref(texts) : NULL, constant ? json_pack("[O]", constant) : NULL};
    bool ok = (names->own = json_array()) != NULL;
    for (int i = 0; i < 2; i++) {
        if (!lists[i]) continue;
        json_t *strings = json_array(), *one;
        size_t k;
        json_array_foreach (lists[i], k, one)
            if (json_is_string(one)) ok = ok && json_add(strings, json_incref(one));
        names->has_none = names->has_none || json_array_size(strings) == 0;
        ok = ok && json_add(names->own, strings);
        if (!names->has_none)
            names->rules[names->rule_count++] = (struct string_rule){.kind = STRING_TEXTS, .value = strings};
        json_decref(lists[i]);
    }
    if (!ok) return schema_fail_memory(schema);
    if (!schema_string_rules(schema, flat, names->rules, &names->rule_count)) names->has_none = true;
    return !schema->tree->failed;
}

static struct string_rule pattern_rule(json_t *pattern, bool is_excluded)
{
    return (struct string_rule){.kind = STRING_PATTERN, .value = pattern, .is_excluded = is_excluded};
}

/* Strings of all patterns of an object, which rules borrow; owned. */
static json_t *pattern_texts(struct schema *schema, const struct object_names *names)
{
    json_t *list = json_array();
    const char *pattern;
    json_t *value;
    json_object_foreach (names->patterns, pattern, value) {
        if (json_add(list, json_string(pattern))) continue;
        json_decref(list);
        list = NULL;
        break;
    }
    if (!list) schema_fail_memory(schema);
    return list;
}

/* Names that match the pattern at `index` and none of the others, or none of all if `index` is their number, and are not listed: a
 * name comes once. */
static uint32_t names_node(struct schema *schema, const struct object_names *names, const json_t *patterns,
                           json_t *listed, size_t index)
{
    struct string_rule rules[STRING_MOST_RULES];
    size_t count = names->rule_count;
    if (names->has_none) return TREE_NODE_NEVER;
    if (count + json_array_size(patterns) + 1 > STRING_MOST_RULES)
        return schema_fail(schema, "'patternProperties': expected at most %zu patterns", STRING_MOST_RULES - 1 - count);
    memcpy(rules, names->rules, count * sizeof *rules);
    for (size_t i = 0; i < json_array_size(patterns); i++)
        rules[count++] = pattern_rule(json_array_get(patterns, i), i != index);
    if (json_array_size(listed))
        rules[count++] = (struct string_rule){.kind = STRING_TEXTS, .value = listed, .is_excluded = true};
    return schema_strings_node(schema, rules, count);
}

/* The schema of a property, with those of the patterns that its name matches; NULL: failed. */
static json_t *property_schema(struct schema *schema, const struct object_names *names, const char *name,
                               json_t *property, json_t *additional)
{
    json_t *value, *result = property ? property : json_object_size(names->patterns) || !additional ? NULL : additional;
    const char *pattern;
    bool matched = false;
    if (names->has_none) return json_false();
    if (names->rule_count && !schema_strings_have(schema, names->rules, names->rule_count, name))
        return schema->tree->failed ? NULL : json_false();
    json_object_foreach (names->patterns, pattern, value) {
        json_t *text = json_string_or_null(pattern);
        const struct string_rule rule = pattern_rule(text, false);
        const bool has = text && schema_strings_have(schema, &rule, 1, name);
        json_decref(text);
        if (!text) schema_fail_memory(schema);
        if (schema->tree->failed) return NULL;
        if (!has) continue;
        matched = true;
        result = result ? schema_merge(schema, result, value) : value;
        if (!result) return NULL;
    }
    if (!result) result = matched || !additional ? NULL : additional;
    return result ? result : json_true();
}

/* The properties, those that are required and not listed, too, each with all that is said of it; owned. NULL: failed. */
static json_t *all_properties(struct schema *schema, const struct object_names *names, const json_t *properties,
                              const json_t *needed, json_t *additional)
{
    json_t *all = json_object(), *value;
    const char *name;
    bool ok = all;
    json_object_foreach ((json_t *)(uintptr_t)properties, name, value) {
        json_t *property = ok ? property_schema(schema, names, name, value, additional) : NULL;
        ok = property && json_put(all, name, json_incref(property));
    }
    json_object_foreach ((json_t *)(uintptr_t)needed, name, value) {
        if (!ok || json_object_get(all, name)) continue;
        json_t *property = property_schema(schema, names, name, NULL, additional);
        ok = property && json_put(all, name, json_incref(property));
    }
    if (ok) return all;
    json_decref(all);
    schema_fail_memory(schema);
    return NULL;
}

/* ---- members ---- */

/* Members of which one more than those that must be is there: just one, if it is the `only` one, or at least one. */
static uint32_t one_more_node(struct schema *schema, const struct tree_item *items, uint32_t count, bool only,
                              bool may_lack)
{
    struct tree *tree = schema->tree;
    struct tree_nodes choices = {0};
    struct tree_item *copy = malloc(count * sizeof *copy);
    uint32_t node = TREE_NODE_EMPTY;
    if (!copy) schema_fail_memory(schema);
    for (uint32_t one = 0; one < count + may_lack && !tree->failed; one++) {
        if (one < count && (items[one].least || !items[one].most)) continue;
        memcpy(copy, items, count * sizeof *copy);
        for (uint32_t i = 0; i < count; i++)
            if (!items[i].least && i != one && (only || i < one)) copy[i].most = 0;
        if (one < count) copy[one].least = 1;
        if (one < count && only) copy[one].most = 1;
        tree_nodes_add(tree, &choices, json_brackets_node(&schema->parts, "{", copy, count, "}"));
    }
    if (!tree->failed) node = choices.count ? tree_choice(tree, choices.items, choices.count) : TREE_NODE_NEVER;
    free(choices.items);
    free(copy);
    return node;
}

/* Members from the items [count], of which some may come any number of times, with `least` to `most` in all. */
static uint32_t members_node(struct schema *schema, struct tree_item *items, uint32_t count, uint32_t least,
                             uint32_t most)
{
    bool is_open = false;
    uint32_t needed = 0, possible = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].node == TREE_NODE_NEVER && items[i].least == 0) items[i].most = 0;
        needed += items[i].least;
        possible += items[i].most ? 1 : 0;
        is_open = is_open || items[i].most == TREE_UNLIMITED;
    }
    const bool has_most = is_open ? most != TREE_UNLIMITED : most < possible;
    if (needed > most || least > most || (!is_open && possible < least)) return TREE_NODE_NEVER;
    if (is_open && count == 1 && least <= 1) { /* two members of the same name are one */
        items[0].least = least;
        items[0].most = most;
    } else if (has_most && most == needed) {
        for (uint32_t i = 0; i < count; i++)
            if (!items[i].least) items[i].most = 0;
    } else if (has_most && most == needed + 1) {
        return one_more_node(schema, items, count, true, least <= needed);
    } else if (has_most) {
        return schema_fail(schema,
                           "'maxProperties' is not supported beside these properties; expected at most one more "
                           "than those that are required");
    } else if (least > needed && !is_open && least == possible) {
        for (uint32_t i = 0; i < count; i++) items[i].least = items[i].most ? 1 : 0;
    } else if (least == needed + 1) {
        return one_more_node(schema, items, count, false, false);
    } else if (least > needed) {
        return schema_fail(schema,
                           "'minProperties' is not supported beside these properties; expected at most one more "
                           "than those that are required");
    }
    return json_brackets_node(&schema->parts, "{", items, count, "}");
}

/* An item of other members, any number of them. */
static void add_others(struct schema *schema, struct tree_item *items, uint32_t *count, uint32_t key, json_t *value,
                       unsigned depth)
{
    if (key == TREE_NODE_NEVER || schema->tree->failed) return;
    const uint32_t other = value ? schema->node(schema, value, depth + 1) : json_value_node(&schema->parts);
    items[(*count)++] = (struct tree_item){TREE_SEQUENCE_OF(schema->tree, key, json_colon_node(&schema->parts), other),
                                           0, TREE_UNLIMITED, 0};
}

/* Members that are not listed: those of the patterns, and additional ones. */
static void add_unlisted(struct schema *schema, const json_t *value, const struct object_names *names, json_t *all,
                         struct tree_item *items, uint32_t *count, unsigned depth)
{
    json_t *additional = json_object_get(value, "additionalProperties"), *patterns = pattern_texts(schema, names),
           *listed = json_array(), *member;
    const char *name;
    size_t index = 0;
    const bool plain = !names->rule_count && !names->has_none && !json_array_size(patterns),
               is_open = additional ? !json_is_false(additional)
                                    : !json_object_get(value, "properties") && !json_array_size(patterns);
    const char **texts = calloc(json_object_size(all) + 1, sizeof *texts);
    uint32_t text_count = 0;
    bool ok = patterns && listed && texts;
    json_object_foreach (all, name, member) {
        ok = ok && json_add(listed, json_string(name));
        if (ok) texts[text_count++] = name;
    }
    if (!ok) schema_fail_memory(schema);
    json_object_foreach (names->patterns, name, member) {
        const size_t mark = schema_enter(schema, "/patternProperties/%.60s", name);
        if (!schema->tree->failed)
            add_others(schema, items, count, names_node(schema, names, patterns, listed, index++), member, depth);
        schema->path[mark] = '\0';
    }
    if (is_open && !schema->tree->failed) {
        const size_t mark = schema_enter(schema, "/additionalProperties");
        const uint32_t key = !plain       ? names_node(schema, names, patterns, listed, json_array_size(patterns))
                             : text_count ? json_other_name_node(&schema->parts, texts, text_count)
                                          : json_string_node(&schema->parts);
        add_others(schema, items, count, key, additional, depth);
        schema->path[mark] = '\0';
    }
    free(texts);
    json_decref(patterns);
    json_decref(listed);
}

uint32_t schema_object_node(struct schema *schema, const json_t *value, unsigned depth)
{
    struct tree *tree = schema->tree;
    json_t *properties = json_object_get(value, "properties"), *all = NULL, *property;
    struct object_names names = {0};
    struct tree_item *items = NULL;
    const char *name;
    uint32_t count = 0, node = TREE_NODE_EMPTY, least = 0, most = TREE_UNLIMITED;
    if (properties && !json_is_object(properties))
        return schema_fail(schema, "'properties': expected an object, found %s", json_type_name(properties));
    if (!schema_count_of(schema, value, "minProperties", &least) ||
        !schema_count_of(schema, value, "maxProperties", &most))
        return TREE_NODE_EMPTY;
    json_t *needed = required_names(schema, json_object_get(value, "required"));
    if (!needed || !read_names(schema, value, &names) ||
        !(all = all_properties(schema, &names, properties, needed, json_object_get(value, "additionalProperties"))))
        goto done;
    items = calloc(json_object_size(all) + json_object_size(names.patterns) + 1, sizeof *items);
    if (!items) {
        schema_fail_memory(schema);
        goto done;
    }
    json_object_foreach (all, name, property) {
        const uint32_t must = json_object_get(needed, name) ? 1 : 0;
        items[count++] = (struct tree_item){property_node(schema, name, property, depth), must, 1, 0};
        if (tree->failed) goto done;
    }
    add_unlisted(schema, value, &names, all, items, &count, depth);
    if (!tree->failed) node = members_node(schema, items, count, least, most);
done:
    json_decref(needed);
    json_decref(all);
    json_decref(names.own);
    free(items);
    return node;
}
