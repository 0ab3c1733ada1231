/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas that apply together: references with keywords beside them, allOf, and keywords beside anyOf become one schema; and the test
 * whether two schemas exclude each other, which oneOf needs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_schema.h"

static bool put(struct schema *schema, json_t *object, const char *key, json_t *owned)
{
    if (!schema_charge(schema, 16)) { /* a copy costs more than a comparison */
        json_decref(owned);
        return false;
    }
    if (json_put(object, key, owned)) return true;
    tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    return false;
}

json_t *schema_without(struct schema *schema, json_t *value, const char *const *keys, size_t count)
{
    json_t *copy = schema_keep(schema, json_object()), *member;
    const char *key;
    if (!copy) return NULL;
    json_object_foreach (value, key, member) {
        bool leave = false;
        for (size_t i = 0; i < count; i++) leave = leave || strcmp(key, keys[i]) == 0;
        if (!leave && !put(schema, copy, key, json_incref(member))) return NULL;
    }
    return copy;
}

bool schema_has_assertion(const json_t *value, const char *const *except, size_t count)
{
    json_t *member;
    const char *key;
    json_object_foreach ((json_t *)(uintptr_t)value, key, member) {
        bool leave = schema_is_annotation(key);
        for (size_t i = 0; i < count; i++) leave = leave || strcmp(key, except[i]) == 0;
        if (!leave) return true;
    }
    return false;
}

static json_t *both(struct schema *schema, json_t *left, json_t *right)
{
    json_t *all = json_pack("{s:[O,O]}", "allOf", left, right);
    if (!all) tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    return all;
}

static bool list_has(const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (schema_same(json_array_get(list, i), value)) return true;
    return false;
}

static bool name_is(const json_t *name, const char *text)
{
    return json_is_string(name) && strcmp(json_string_value(name), text) == 0;
}

/* The types that both allow; an owned list. Every integer is a number. */
static json_t *common_types(const json_t *left, const json_t *right)
{
    static const char *const names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
    json_t *list = json_array();
    for (size_t i = 0; list && i < sizeof names / sizeof *names; i++) {
        const bool whole = strcmp(names[i], "integer") == 0;
        if (!(schema_type_has(left, names[i]) || (whole && schema_type_has(left, "number"))) ||
            !(schema_type_has(right, names[i]) || (whole && schema_type_has(right, "number"))))
            continue;
        if (json_add(list, json_string(names[i]))) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

static json_t *common_values(json_t *left, json_t *right)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < json_array_size(left); i++)
        if (list_has(right, json_array_get(left, i)) && !json_add(list, json_incref(json_array_get(left, i)))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *joined(json_t *left, json_t *right)
{
    json_t *list = json_array();
    json_t *const sides[2] = {left, right};
    for (int side = 0; list && side < 2; side++) {
        for (size_t i = 0; i < json_array_size(sides[side]); i++) {
            json_t *value = json_array_get(sides[side], i);
            if ((side == 0 || !list_has(left, value)) && !json_add(list, json_incref(value))) {
                json_decref(list);
                return NULL;
            }
        }
    }
    return list;
}

/* What `owner` says of the properties that only `other` lists: they are its additional ones, and cannot be where it has none. */
static bool restrict_others(struct schema *schema, json_t *merged, json_t *owner, json_t *other)
{
    json_t *additional = json_object_get(owner, "additionalProperties"), *property;
    const char *name;
    if (!additional || json_is_true(additional)) return true;
    json_object_foreach (json_object_get(other, "properties"), name, property) {
        if (json_object_get(json_object_get(owner, "properties"), name)) continue;
        json_t *restricted = json_is_false(additional) ? json_false() : both(schema, property, additional);
        if (!restricted || !put(schema, merged, name, restricted)) return false;
    }
    return true;
}

static bool merge_properties(struct schema *schema, json_t *result, json_t *left, json_t *right)
{
    json_t *first = json_object_get(left, "properties"), *second = json_object_get(right, "properties"), *property;
    const char *name;
    json_t *merged = json_object();
    if (!merged) {
        tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
        return false;
    }
    json_object_foreach (first, name, property) {
        json_t *other = json_object_get(second, name);
        json_t *value = other ? both(schema, property, other) : json_incref(property);
        if (!value || !put(schema, merged, name, value)) goto failed;
    }
    json_object_foreach (second, name, property)
        if (!json_object_get(first, name) && !put(schema, merged, name, json_incref(property))) goto failed;
    if (!restrict_others(schema, merged, left, right) || !restrict_others(schema, merged, right, left)) goto failed;
    if (json_object_size(merged) == 0 && !first && !second) {
        json_decref(merged);
        return true;
    }
    return put(schema, result, "properties", merged);
failed:
    json_decref(merged);
    return false;
}

/* Each alternative of one with each of the other. */
static json_t *crossed(struct schema *schema, json_t *left, json_t *right)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < json_array_size(left); i++) {
        for (size_t k = 0; k < json_array_size(right); k++) {
            if (schema_charge(schema, 64) &&
                json_add(list, both(schema, json_array_get(left, i), json_array_get(right, k))))
                continue;
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The least common multiple of two integers from 1 to INT32_MAX; NULL: they are none. */
static json_t *common_multiple(const json_t *left, const json_t *right)
{
    json_int_t a = json_integer_value(left), b = json_integer_value(right);
    const json_int_t product = a > 0 && b > 0 && a <= INT32_MAX && b <= INT32_MAX ? a * b : 0;
    if (!product) return NULL;
    while (b) {
        const json_int_t rest = a % b;
        a = b;
        b = rest;
    }
    return json_integer(product / a);
}

/* A keyword that both have. */
static bool merge_keyword(struct schema *schema, json_t *result, const char *key, json_t *left, json_t *right)
{
    static const char *const least[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const most[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    json_t *value = NULL;
    if (!schema_charge(schema, (json_array_size(left) + 1) * (json_array_size(right) + 1))) return false;
    if (strcmp(key, "type") == 0) {
        value = common_types(left, right);
    } else if (strcmp(key, "enum") == 0 && json_is_array(left) && json_is_array(right)) {
        value = common_values(left, right);
    } else if (strcmp(key, "required") == 0 && json_is_array(left) && json_is_array(right)) {
        value = joined(left, right);
    } else if (schema_is_one_of(key, least, 5) && json_is_number(left) && json_is_number(right)) {
        value = json_incref(schema_compare(left, right) > 0 ? left : right);
    } else if (schema_is_one_of(key, most, 5) && json_is_number(left) && json_is_number(right)) {
        value = json_incref(schema_compare(left, right) > 0 ? right : left);
    } else if (strcmp(key, "items") == 0 || strcmp(key, "propertyNames") == 0) {
        value = both(schema, left, right);
    } else if (strcmp(key, "anyOf") == 0 && json_is_array(left) && json_is_array(right) && json_array_size(left) &&
               json_array_size(right)) {
        value = crossed(schema, left, right);
    } else if (strcmp(key, "not") == 0 && json_object_get(left, "enum") && json_object_get(right, "enum")) {
        json_t *strings = joined(json_object_get(left, "enum"), json_object_get(right, "enum"));
        value = strings ? json_pack("{s:o}", "enum", strings) : NULL;
    } else if (strcmp(key, "multipleOf") == 0 && json_is_integer(left) && json_is_integer(right) &&
               json_integer_value(left) > 0 && json_integer_value(right) > 0 && json_integer_value(left) <= INT32_MAX &&
               json_integer_value(right) <= INT32_MAX) {
        value = common_multiple(left, right);
    } else if (strcmp(key, "uniqueItems") == 0 && json_is_boolean(left) && json_is_boolean(right)) {
        value = json_boolean(json_is_true(left) || json_is_true(right));
    } else if (strcmp(key, "additionalProperties") == 0) {
        if (json_is_false(left) || json_is_false(right))
            value = json_false();
        else if (json_is_true(left) || json_is_true(right))
            value = json_incref(json_is_true(left) ? right : left);
        else
            value = both(schema, left, right);
    } else if (json_equal(left, right)) {
        value = json_incref(left);
    } else {
        schema_fail(schema, "'%.80s' of schemas that apply together differs; expected it in one of them, or the same",
                    key);
        return false;
    }
    if (!value) {
        tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
        return false;
    }
    return put(schema, result, key, value);
}

/* The schema of element `index`; NULL: any value. */
static json_t *element_of(const json_t *schema, size_t index)
{
    json_t *listed = json_array_get(json_object_get(schema, "prefixItems"), index);
    return listed ? listed : json_object_get(schema, "items");
}

static bool merge_elements(struct schema *schema, json_t *result, json_t *left, json_t *right)
{
    const json_t *first = json_object_get(left, "prefixItems"), *second = json_object_get(right, "prefixItems");
    if (!first && !second) return true;
    if ((first && !json_is_array(first)) || (second && !json_is_array(second))) {
        schema_fail(schema, "'prefixItems': expected a list of schemas");
        return false;
    }
    const size_t a = json_array_size(first), b = json_array_size(second), count = a > b ? a : b;
    json_t *list = json_array();
    bool ok = list;
    for (size_t i = 0; ok && i < count; i++) {
        json_t *one = element_of(left, i), *other = element_of(right, i);
        ok = schema_charge(schema, 16) &&
             json_add(list, one && other ? both(schema, one, other) : json_incref(one ? one : other));
    }
    if (ok) return put(schema, result, "prefixItems", list);
    json_decref(list);
    return schema_fail_memory(schema);
}

/* A name that matches a pattern of one schema may be an additional one of the other, whose rule would be lost. */
static bool check_patterns(struct schema *schema, const json_t *left, const json_t *right)
{
    const json_t *patterns = json_object_get(left, "patternProperties"),
                 *additional = json_object_get(right, "additionalProperties");
    if (!patterns || !additional || json_is_true(additional)) return true;
    if (json_equal(patterns, json_object_get(right, "patternProperties"))) return true;
    schema_fail(schema, "'patternProperties' beside 'additionalProperties' of a schema that applies together is not "
                        "supported");
    return false;
}

/* const as an enum of one value */
static json_t *with_enum(struct schema *schema, json_t *value)
{
    json_t *constant = json_object_get(value, "const");
    if (!constant) return value;
    static const char *const names[] = {"const", "enum"};
    json_t *copy = schema_without(schema, value, names, 2), *list = json_object_get(value, "enum");
    if (!copy || !schema_charge(schema, json_array_size(list))) return NULL;
    json_t *values = list && !list_has(list, constant) ? json_array() : json_pack("[O]", constant);
    return put(schema, copy, "enum", values) ? copy : NULL;
}

json_t *schema_merge(struct schema *schema, json_t *left, json_t *right)
{
    static const char *const apart[] = {"properties", "prefixItems"};
    left = schema_flatten(schema, left);
    right = left ? schema_flatten(schema, right) : NULL;
    if (!right) return NULL;
    if (json_is_true(left) || json_is_false(right)) return right;
    if (json_is_true(right) || json_is_false(left)) return left;
    left = with_enum(schema, left);
    right = left ? with_enum(schema, right) : NULL;
    json_t *result = right ? schema_keep(schema, json_object()) : NULL, *value;
    const char *key;
    if (!result) return NULL;
    json_object_foreach (left, key, value) {
        if (schema_is_annotation(key) || schema_is_one_of(key, apart, 2)) continue;
        json_t *other = json_object_get(right, key);
        if (other ? !merge_keyword(schema, result, key, value, other) : !put(schema, result, key, json_incref(value)))
            return NULL;
    }
    json_object_foreach (right, key, value) {
        if (schema_is_annotation(key) || schema_is_one_of(key, apart, 2) || json_object_get(left, key)) continue;
        if (!put(schema, result, key, json_incref(value))) return NULL;
    }
    if (!check_patterns(schema, left, right) || !check_patterns(schema, right, left) ||
        !merge_elements(schema, result, left, right))
        return NULL;
    return merge_properties(schema, result, left, right) ? result : NULL;
}

/* ---- keywords ---- */

static json_t *any_of(struct schema *schema, json_t *list)
{
    return list ? schema_keep(schema, json_pack("{s:O}", "anyOf", list)) : NULL;
}

static json_t *condition(struct schema *schema, const json_t *value)
{
    json_t *test = json_object_get(value, "if"), *then = json_object_get(value, "then"),
           *otherwise = json_object_get(value, "else");
    json_t *others = schema_complement(schema, test, "'if'");
    if (!others) return NULL;
    json_t *choices =
        json_pack("[{s:[O*, O*]}, {s:[{s:O}, O*]}]", "allOf", test, then, "allOf", "anyOf", others, otherwise);
    json_t *result = choices ? any_of(schema, choices) : NULL;
    json_decref(choices);
    if (!result) schema_fail_memory(schema);
    return result;
}

/* One of the names that others depend on: it is absent, or `rule` holds, too. */
static json_t *dependency(struct schema *schema, const char *name, json_t *rule)
{
    json_t *with = json_is_array(rule) ? json_pack("{s:[{s:[s]}, {s:O}]}", "allOf", "required", name, "required", rule)
                                       : json_pack("{s:[{s:[s]}, O]}", "allOf", "required", name, rule);
    json_t *choices = json_pack("[{s:{s:b}}, o]", "properties", name, 0, with);
    json_t *result = choices ? any_of(schema, choices) : NULL;
    json_decref(choices);
    if (!result) schema_fail_memory(schema);
    return result;
}

static json_t *dependencies(struct schema *schema, json_t *rules, json_t *rest)
{
    const char *name;
    json_t *rule;
    if (!json_is_object(rules)) {
        schema_fail(schema, "'dependentRequired': expected an object of lists of names");
        return NULL;
    }
    json_object_foreach (rules, name, rule) {
        json_t *choice = rest ? dependency(schema, name, rule) : NULL;
        rest = choice ? schema_merge(schema, rest, choice) : NULL;
        if (!rest) return NULL;
    }
    return rest;
}

static bool is_excluded_strings(const json_t *value)
{
    const json_t *excluded = json_object_get(value, "not"), *list = json_object_get(excluded, "enum");
    if (json_object_size(excluded) != 1 ||
        !(json_is_array(list) || json_is_string(json_object_get(excluded, "pattern"))))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i))) return false;
    const json_t *type = json_object_get(value, "type");
    if (!json_is_array(type)) return schema_type_has(type, "string");
    return json_array_size(type) == 0 || (json_array_size(type) == 1 && schema_type_has(type, "string"));
}

static const char *const conditional[] = {"if", "then", "else"}, *const negated[] = {"not"},
                         *const dependent[] = {"dependentRequired", "dependentSchemas", "dependencies"};

bool schema_has_rewrite(const json_t *value)
{
    if (json_object_get(value, "not") && !is_excluded_strings(value)) return true;
    if (json_object_get(value, "if") || json_object_get(value, "then") || json_object_get(value, "else")) return true;
    for (size_t i = 0; i < sizeof dependent / sizeof *dependent; i++)
        if (json_object_get(value, dependent[i])) return true;
    return false;
}

static json_t *rewrite(struct schema *schema, json_t *value)
{
    json_t *rest, *choices;
    if (json_object_get(value, "not") && !is_excluded_strings(value)) {
        rest = schema_without(schema, value, negated, 1);
        choices = rest ? any_of(schema, schema_complement(schema, json_object_get(value, "not"), "'not'")) : NULL;
        return choices ? schema_merge(schema, rest, choices) : NULL;
    }
    if (json_object_get(value, "if") || json_object_get(value, "then") || json_object_get(value, "else")) {
        rest = schema_without(schema, value, conditional, 3);
        /* Without "if" the other two say nothing, and without both it does. */
        if (!rest || !json_object_get(value, "if") ||
            !(json_object_get(value, "then") || json_object_get(value, "else")))
            return rest;
        choices = condition(schema, value);
        return choices ? schema_merge(schema, rest, choices) : NULL;
    }
    for (size_t i = 0; i < sizeof dependent / sizeof *dependent; i++) {
        json_t *rules = json_object_get(value, dependent[i]);
        if (!rules) continue;
        rest = schema_without(schema, value, dependent + i, 1);
        return rest ? dependencies(schema, rules, rest) : NULL;
    }
    return value;
}

/* ---- one schema of several ---- */

/* One step: without the reference, without allOf, or without a keyword that becomes alternatives. */
static json_t *flatten_once(struct schema *schema, json_t *value)
{
    static const char *const reference[] = {"$ref"}, *const all[] = {"allOf"};
    json_t *target = json_object_get(value, "$ref"), *list = json_object_get(value, "allOf");
    if (target) {
        json_t *to = schema_resolve(schema, target), *rest;
        if (!to || !schema_has_assertion(value, reference, 1)) return to;
        rest = schema_without(schema, value, reference, 1);
        return rest ? schema_merge(schema, to, rest) : NULL;
    }
    if (!list) return rewrite(schema, value);
    if (!json_is_array(list) || json_array_size(list) == 0) {
        schema_fail(schema, "'allOf': expected a list of schemas");
        return NULL;
    }
    json_t *merged = schema_without(schema, value, all, 1);
    for (size_t i = 0; merged && i < json_array_size(list); i++)
        merged = schema_merge(schema, merged, json_array_get(list, i));
    return merged;
}

json_t *schema_flatten(struct schema *schema, json_t *value)
{
    schema->flatten_depth++; /* merging flattens both sides */
    while (value && !schema->tree->failed) {
        if (schema->flatten_depth > SCHEMA_MOST_DEPTH || ++schema->tree->schemas_read > SCHEMA_MOST_READ) {
            schema_fail(schema, "references and allOf are nested too deeply, or refer to themselves");
            break;
        }
        if (!json_is_boolean(value) && !json_is_object(value)) {
            schema_fail(schema, "expected a schema (an object, true or false), found %s", json_type_name(value));
            break;
        }
        if (!json_object_get(value, "$ref") && !json_object_get(value, "allOf") && !schema_has_rewrite(value)) break;
        value = flatten_once(schema, value);
    }
    schema->flatten_depth--;
    return schema->tree->failed ? NULL : value;
}

enum {
    TYPE_OBJECT = 1,
    TYPE_ARRAY = 2,
    TYPE_STRING = 4,
    TYPE_NUMBER = 8,
    TYPE_BOOLEAN = 16,
    TYPE_NULL = 32,
    TYPE_ANY = 63,
};

static int type_of_value(const json_t *value)
{
    if (json_is_object(value)) return TYPE_OBJECT;
    if (json_is_array(value)) return TYPE_ARRAY;
    if (json_is_string(value)) return TYPE_STRING;
    if (json_is_number(value)) return TYPE_NUMBER;
    return json_is_boolean(value) ? TYPE_BOOLEAN : TYPE_NULL;
}

static int type_of_name(const json_t *name)
{
    static const char *const names[] = {"object", "array", "string", "number", "boolean", "null"};
    for (int i = 0; i < 6; i++)
        if (name_is(name, names[i])) return 1 << i;
    return name_is(name, "integer") ? TYPE_NUMBER : TYPE_ANY;
}

/* The types that a flat schema may allow. */
static int types_of(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
    int types = TYPE_ANY, found = 0;
    if (json_is_false(schema)) return 0;
    if (json_is_string(type)) types = type_of_name(type);
    if (json_is_array(type)) {
        for (size_t i = 0; i < json_array_size(type); i++) found |= type_of_name(json_array_get(type, i));
        types = found;
    }
    if (json_is_array(list)) {
        found = 0;
        for (size_t i = 0; i < json_array_size(list); i++) found |= type_of_value(json_array_get(list, i));
        types &= found;
    }
    return types;
}

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (name_is(json_array_get(list, i), name)) return true;
    return false;
}

/* Whether two lists of values have none in common. */
static bool no_common_value(const json_t *left, const json_t *right)
{
    if (!json_is_array(left) || !json_is_array(right)) return false;
    for (size_t i = 0; i < json_array_size(left); i++)
        if (list_has(right, json_array_get(left, i))) return false;
    return true;
}

/* Whether objects of `left` must have a property that `right` forbids. */
static bool has_forbidden(const json_t *left, const json_t *right)
{
    const json_t *required = json_object_get(left, "required");
    if (!json_is_false(json_object_get(right, "additionalProperties")) || json_object_get(right, "patternProperties"))
        return false;
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (name && !json_object_get(json_object_get(right, "properties"), name)) return true;
    }
    return false;
}

/* Before lists are compared: each member of an enum with each, names with the names of both. */
static bool charge_lists(struct schema *schema, const json_t *left, const json_t *right, const char *key)
{
    const uint64_t a = json_array_size(json_object_get(left, key)), b = json_array_size(json_object_get(right, key));
    return schema_charge(schema, 1 + (strcmp(key, "enum") == 0 ? a * b : a + b));
}

bool schema_disjoint(struct schema *schema, json_t *left, json_t *right)
{
    left = schema_flatten(schema, left);
    right = left ? schema_flatten(schema, right) : NULL;
    left = right && json_is_object(left) ? with_enum(schema, left) : left;
    right = left && json_is_object(right) ? with_enum(schema, right) : right;
    if (!left || !right || !charge_lists(schema, left, right, "enum")) return false;
    const int common = types_of(left) & types_of(right);
    if (common == 0 || no_common_value(json_object_get(left, "enum"), json_object_get(right, "enum"))) return true;
    if (common != TYPE_OBJECT) return false;
    if (has_forbidden(left, right) || has_forbidden(right, left)) return true;
    json_t *property;
    const char *name;
    json_object_foreach (json_object_get(left, "properties"), name, property) {
        json_t *other = json_object_get(json_object_get(right, "properties"), name);
        if (!charge_lists(schema, left, right, "required")) return false;
        if (!other || !is_required(left, name) || !is_required(right, name)) continue;
        json_t *first = schema_flatten(schema, property), *second = first ? schema_flatten(schema, other) : NULL;
        first = second && json_is_object(first) ? with_enum(schema, first) : first;
        second = first && json_is_object(second) ? with_enum(schema, second) : second;
        if (!first || !second || !charge_lists(schema, first, second, "enum")) return false;
        if ((types_of(first) & types_of(second)) == 0 ||
            no_common_value(json_object_get(first, "enum"), json_object_get(second, "enum")))
            return true;
    }
    return false;
}
