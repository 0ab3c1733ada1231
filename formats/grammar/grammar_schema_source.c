/* SPDX-License-Identifier: Apache-2.0 */
/* What reading schemas and merging them both need: messages with the place in the document, references, keywords that say nothing
 * about values, types, and the order of numbers. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_schema.h"
#include "formats/tokenizer/tokenizer_text.h"

enum { MOST_COUNT = 1 << 20 }; /* of lengths and numbers of elements */

static const char *const annotations[] = {"title",    "description", "default", "examples",      "example",
                                          "$schema",  "$comment",    "$defs",   "definitions",   "deprecated",
                                          "readOnly", "writeOnly",   "$anchor", "discriminator", "$vocabulary"};

bool schema_is_one_of(const char *key, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, list[i]) == 0) return true;
    return false;
}

bool schema_is_annotation(const char *key)
{
    return schema_is_one_of(key, annotations, sizeof annotations / sizeof *annotations);
}

uint32_t schema_fail(struct schema *schema, const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tree_fail(schema->tree, STATUS_BAD_INPUT, "JSON Schema: '%.250s': %s", schema->path[0] ? schema->path : "/",
                     text);
}

bool schema_fail_memory(struct schema *schema)
{
    tree_fail(schema->tree, STATUS_MACHINE, "JSON Schema: out of memory");
    return false;
}

json_t *schema_keep(struct schema *schema, json_t *value)
{
    if (value && json_add(schema->made, value)) return value;
    schema_fail_memory(schema);
    return NULL;
}

bool schema_charge(struct schema *schema, uint64_t steps)
{
    schema->tree->schema_steps += steps;
    if (schema->tree->schema_steps <= SCHEMA_MOST_MERGED) return true;
    schema_fail(schema, "schemas that apply together are too large: comparing them takes more than %d steps",
                SCHEMA_MOST_MERGED);
    return false;
}

bool schema_type_has(const json_t *type, const char *name)
{
    const char *text = json_string_value(type);
    if (text) return strcmp(text, name) == 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        text = json_string_value(json_array_get(type, i));
        if (text && strcmp(text, name) == 0) return true;
    }
    return false;
}

static int compare_integer(json_int_t integer, double real)
{
    if (real >= 0x1p63) return -1;
    if (real < -0x1p63) return 1;
    const json_int_t whole = (json_int_t)real;
    if (integer != whole) return integer < whole ? -1 : 1;
    const double rest = real - (double)whole;
    return (rest < 0) - (rest > 0);
}

int schema_compare(const json_t *left, const json_t *right)
{
    if (json_is_integer(left) && json_is_integer(right)) {
        const json_int_t a = json_integer_value(left), b = json_integer_value(right);
        return (a > b) - (a < b);
    }
    if (json_is_integer(left)) return compare_integer(json_integer_value(left), json_real_value(right));
    if (json_is_integer(right)) return -compare_integer(json_integer_value(right), json_real_value(left));
    const double a = json_real_value(left), b = json_real_value(right);
    return (a > b) - (a < b);
}

bool schema_same(const json_t *left, const json_t *right)
{
    const char *key;
    json_t *member;
    if (json_is_number(left) && json_is_number(right)) return schema_compare(left, right) == 0;
    if (json_is_array(left) && json_is_array(right)) {
        bool same = json_array_size(left) == json_array_size(right);
        for (size_t i = 0; same && i < json_array_size(left); i++)
            same = schema_same(json_array_get(left, i), json_array_get(right, i));
        return same;
    }
    if (!json_is_object(left) || !json_is_object(right)) return json_equal(left, right);
    if (json_object_size(left) != json_object_size(right)) return false;
    json_object_foreach ((json_t *)(uintptr_t)left, key, member) {
        const json_t *other = json_object_get(right, key);
        if (!other || !schema_same(member, other)) return false;
    }
    return true;
}

size_t schema_enter(struct schema *schema, const char *format, ...)
{
    const size_t size = strlen(schema->path);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(schema->path + size, SCHEMA_PATH_BYTES - size, format, arguments);
    va_end(arguments);
    return size;
}

bool schema_count_of(struct schema *schema, const json_t *value, const char *key, uint32_t *out)
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

/* The schema with an anchor of this name; NULL: there is none, or the search has taken too many steps. */
static json_t *find_anchor(struct schema *schema, json_t *value, const char *name, int depth)
{
    const char *key, *anchor = json_string_value(json_object_get(value, "$anchor"));
    json_t *member, *found = NULL;
    size_t i;
    if (depth > SCHEMA_MOST_DEPTH || !schema_charge(schema, 1)) return NULL;
    if (anchor && strcmp(anchor, name) == 0) return value;
    json_array_foreach (value, i, member)
        if ((found = find_anchor(schema, member, name, depth + 1))) return found;
    json_object_foreach (value, key, member) {
        const bool is_value = strcmp(key, "enum") == 0 || strcmp(key, "const") == 0 || strcmp(key, "default") == 0 ||
                              strcmp(key, "examples") == 0;
        if (!is_value && (found = find_anchor(schema, member, name, depth + 1))) return found;
    }
    return NULL;
}

json_t *schema_resolve(struct schema *schema, const json_t *reference)
{
    const char *text = json_string_value(reference);
    json_t *at = schema->root;
    /* Some clients leave the '#' out. */
    const bool is_short = text && text[0] == '/';
    if (!text || (text[0] != '#' && !is_short)) {
        schema_fail(schema,
                    "$ref: expected \"#\", \"#/...\" or \"#NAME\", a place in the same document, found \"%.80s\"",
                    text ? text : json_type_name(reference));
        return NULL;
    }
    if (!is_short && text[1] && text[1] != '/') {
        at = find_anchor(schema, schema->root, text + 1, 0);
        if (!at) schema_fail(schema, "$ref \"%.120s\" names no $anchor of the document", text);
        return at;
    }
    for (const char *part = text + !is_short; *part == '/' && at;) {
        char name[256];
        size_t size = 0;
        for (part++; *part && *part != '/' && size + 1 < sizeof name; part++) {
            char c = *part;
            if (c == '~' && (part[1] == '0' || part[1] == '1')) {
                c = part[1] == '0' ? '~' : '/';
                part++;
            } else if (c == '%' && text_hex_digit(part[1]) >= 0 && text_hex_digit(part[2]) >= 0) {
                c = (char)(text_hex_digit(part[1]) * 16 + text_hex_digit(part[2]));
                part += 2;
            }
            name[size++] = c;
        }
        name[size] = '\0';
        if (*part && *part != '/') at = NULL; /* longer than any name here */
        if (json_is_array(at)) {
            char *end;
            const unsigned long index = strtoul(name, &end, 10);
            at = size > 0 && *end == '\0' && name[0] >= '0' && name[0] <= '9' ? json_array_get(at, index) : NULL;
        } else {
            at = json_object_get(at, name);
        }
    }
    if (!at) schema_fail(schema, "$ref \"%.120s\" names nothing in the document", text);
    return at;
}
