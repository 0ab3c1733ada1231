/* SPDX-License-Identifier: Apache-2.0 */
/* The complement of a schema as alternatives that lie within it. They need not cover it: what they allow is not valid for the schema, and
 * some other values are left out. */
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_schema.h"

enum { MOST_NEGATION_DEPTH = 16 };

static const char *const type_names[] = {"object", "array", "string", "number", "boolean", "null"};
enum { TYPE_COUNT = sizeof type_names / sizeof *type_names };

/* Takes the reference of `alternative`. */
static bool add(struct schema *schema, json_t *list, json_t *alternative)
{
    if (!schema_charge(schema, 64)) {
        json_decref(alternative);
        return false;
    }
    if (json_add(list, alternative)) return true;
    tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    return false;
}

/* ---- complements ---- */

/* Values of the types that are not among `types`. Other numbers than integers are left out. */
static bool add_other_types(struct schema *schema, const json_t *types, json_t *list)
{
    json_t *others = json_array();
    bool ok = others;
    for (size_t i = 0; ok && i < TYPE_COUNT; i++) {
        const bool is_number = strcmp(type_names[i], "number") == 0;
        if (!schema_type_has(types, type_names[i]) && !(is_number && schema_type_has(types, "integer")))
            ok = json_add(others, json_string(type_names[i]));
    }
    ok = ok && (json_array_size(others) == 0 || add(schema, list, json_pack("{s:O}", "type", others)));
    json_decref(others);
    return ok || schema_fail_memory(schema);
}

static const char *type_of(const json_t *value)
{
    return json_is_number(value)    ? "number"
           : json_is_boolean(value) ? "boolean"
           : json_is_null(value)    ? "null"
           : json_is_string(value)  ? "string"
           : json_is_object(value)  ? "object"
                                    : "array";
}

/* Numbers above and below all of the values, which are `least` to `most`. */
static bool add_other_numbers(struct schema *schema, json_t *least, json_t *most, json_t *list)
{
    return add(schema, list, json_pack("{s:s, s:O}", "type", "number", "exclusiveMaximum", least)) &&
           add(schema, list, json_pack("{s:s, s:O}", "type", "number", "exclusiveMinimum", most));
}

/* Values other than these. If an object is among them, or an array, all of that type are left out. */
static bool add_other_values(struct schema *schema, const json_t *values, json_t *list)
{
    json_t *types = json_array(), *strings = json_array(), *least = NULL, *most = NULL;
    bool ok = types && strings, has_true = false, has_false = false;
    for (size_t i = 0; ok && i < json_array_size(values); i++) {
        json_t *value = json_array_get(values, i);
        ok = schema_charge(schema, 1) && json_add(types, json_string(type_of(value)));
        if (ok && json_is_string(value)) ok = json_add(strings, json_incref(value));
        has_true = has_true || json_is_true(value);
        has_false = has_false || json_is_false(value);
        if (!json_is_number(value)) continue;
        if (!least || schema_compare(value, least) < 0) least = value;
        if (!most || schema_compare(value, most) > 0) most = value;
    }
    ok = ok && add_other_types(schema, types, list);
    if (ok && json_array_size(strings))
        ok = add(schema, list, json_pack("{s:s, s:{s:O}}", "type", "string", "not", "enum", strings));
    if (ok && has_true != has_false) ok = add(schema, list, json_pack("{s:b}", "const", has_false));
    if (ok && least) ok = add_other_numbers(schema, least, most, list);
    json_decref(types);
    json_decref(strings);
    return ok || schema_fail_memory(schema);
}

static bool negate(struct schema *schema, json_t *value, json_t *list, int depth);

/* An owned list of alternatives; NULL: failed. */
static json_t *complement(struct schema *schema, json_t *value, int depth)
{
    json_t *list = json_array();
    if (list && negate(schema, value, list, depth)) return list;
    json_decref(list);
    schema_fail_memory(schema);
    return NULL;
}

/* Objects that lack a name, or with a property that is there and not valid. */
static bool add_other_objects(struct schema *schema, const char *key, json_t *rule, json_t *list, int depth)
{
    const char *name;
    json_t *property;
    bool ok = true;
    for (size_t i = 0; ok && strcmp(key, "required") == 0 && i < json_array_size(rule); i++) {
        const char *absent = json_string_value(json_array_get(rule, i));
        if (absent) ok = add(schema, list, json_pack("{s:s, s:{s:b}}", "type", "object", "properties", absent, 0));
    }
    if (strcmp(key, "properties") != 0) return ok;
    json_object_foreach (rule, name, property) {
        json_t *others = ok ? complement(schema, property, depth + 1) : NULL;
        ok = others &&
             (json_array_size(others) == 0 || add(schema, list,
                                                  json_pack("{s:s, s:[s], s:{s:{s:O}}}", "type", "object", "required",
                                                            name, "properties", name, "anyOf", others)));
        json_decref(others);
        if (!ok) return false;
    }
    return ok;
}

/* What lies on the other side of a bound. */
static bool add_beyond(struct schema *schema, const char *key, json_t *bound, json_t *list)
{
    static const struct {
        const char *key, *type, *other;
        int difference; /* of counts */
    } bounds[] = {
        {"minimum", "number", "exclusiveMaximum", 0},
        {"exclusiveMinimum", "number", "maximum", 0},
        {"maximum", "number", "exclusiveMinimum", 0},
        {"exclusiveMaximum", "number", "minimum", 0},
        {"minLength", "string", "maxLength", -1},
        {"maxLength", "string", "minLength", 1},
        {"minItems", "array", "maxItems", -1},
        {"maxItems", "array", "minItems", 1},
        {"minProperties", "object", "maxProperties", -1},
        {"maxProperties", "object", "minProperties", 1},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (strcmp(bounds[i].key, key) != 0) continue;
        if (bounds[i].difference == 0)
            return !json_is_number(bound) ||
                   add(schema, list, json_pack("{s:s, s:O}", "type", bounds[i].type, bounds[i].other, bound));
        const json_int_t count = json_integer_value(bound);
        if (!json_is_integer(bound) || count + bounds[i].difference < 0 || count > INT32_MAX) return true;
        return add(schema, list,
                   json_pack("{s:s, s:I}", "type", bounds[i].type, bounds[i].other, count + bounds[i].difference));
    }
    return true;
}

/* Values that are valid for none of the alternatives. */
static bool add_none_of(struct schema *schema, json_t *alternatives, json_t *list, int depth)
{
    json_t *all = json_array();
    bool ok = all, none = json_array_size(alternatives) == 0;
    for (size_t i = 0; ok && !none && i < json_array_size(alternatives); i++) {
        json_t *others = complement(schema, json_array_get(alternatives, i), depth + 1);
        none = json_array_size(others) == 0;
        ok = others && add(schema, all, json_pack("{s:O}", "anyOf", others));
        json_decref(others);
    }
    ok = ok && (none || add(schema, list, json_pack("{s:O}", "allOf", all)));
    json_decref(all);
    return ok;
}

/* Appends alternatives that are not valid for `value`, each because of one of its keywords. Other keywords add none. */
static bool negate(struct schema *schema, json_t *value, json_t *list, int depth)
{
    const char *key;
    json_t *rule;
    if (depth > MOST_NEGATION_DEPTH || !schema_charge(schema, 4)) return !schema->tree->failed;
    if (json_is_false(value)) return add(schema, list, json_true());
    json_object_foreach (value, key, rule) {
        bool ok = true;
        if (strcmp(key, "type") == 0) {
            ok = add_other_types(schema, rule, list);
        } else if (strcmp(key, "enum") == 0 && json_is_array(rule)) {
            ok = add_other_values(schema, rule, list);
        } else if (strcmp(key, "const") == 0) {
            json_t *one = json_pack("[O]", rule);
            ok = one && add_other_values(schema, one, list);
            json_decref(one);
        } else if (strcmp(key, "required") == 0 || strcmp(key, "properties") == 0) {
            ok = add_other_objects(schema, key, rule, list, depth);
        } else if (strcmp(key, "anyOf") == 0) {
            ok = add_none_of(schema, rule, list, depth);
        } else if (strcmp(key, "allOf") == 0) {
            for (size_t i = 0; ok && i < json_array_size(rule); i++)
                ok = negate(schema, json_array_get(rule, i), list, depth + 1);
        } else if (strcmp(key, "not") == 0) {
            ok = add(schema, list, json_incref(rule));
        } else if (strcmp(key, "pattern") == 0 && json_is_string(rule)) {
            ok = add(schema, list, json_pack("{s:s, s:{s:O}}", "type", "string", "not", "pattern", rule));
        } else if (strcmp(key, "$ref") == 0) {
            json_t *to = schema_resolve(schema, rule);
            ok = to && negate(schema, to, list, depth + 1);
        } else {
            ok = add_beyond(schema, key, rule, list);
        }
        if (!ok) return schema_fail_memory(schema);
    }
    return true;
}

json_t *schema_complement(struct schema *schema, json_t *value, const char *what)
{
    json_t *list = schema_keep(schema, complement(schema, value, 0));
    schema->tree->excludes = true;
    if (!list || json_array_size(list)) return list;
    schema_fail(schema,
                "%s is not supported for this schema; expected one with type, enum, const, required, properties or a "
                "bound in it",
                what);
    return NULL;
}
