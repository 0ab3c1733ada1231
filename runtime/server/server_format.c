/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_format.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

static bool wrong(struct server_error *error, const char *field, const char *place, const char *expected,
                  const json_t *found)
{
    char text[160];
    json_value_text(found, text, sizeof text);
    return server_fail(error, 400, "invalid_value", field, "%s%s: expected %s, found %s", field, place, expected, text);
}

static bool set_format(struct server_format *format, const char *field, enum eng_grammar_kind kind,
                       struct server_error *error)
{
    if (format->field)
        return server_fail(error, 400, "invalid_value", field, "expected one of %s and %s, found both", format->field,
                           field);
    *format = (struct server_format){.field = field, .kind = kind};
    return true;
}

static bool set_json(struct server_format *format, const json_t *value, struct server_error *error)
{
    format->text = json_format(value, JSON_COMPACT);
    if (!format->text) return server_fail_memory(error);
    format->size = strlen(format->text);
    return true;
}

static bool set_string(struct server_format *format, const json_t *value, struct server_error *error)
{
    const size_t size = json_string_length(value);
    format->text = malloc(size + 1);
    if (!format->text) return server_fail_memory(error);
    memcpy(format->text, json_string_value(value), size + 1);
    format->size = size;
    return true;
}

/* Fails if the object has a member that is not among names[count]. */
static bool check_members(const char *field, const char *place, const json_t *object, const char *const *names,
                          size_t count, struct server_error *error)
{
    const char *key;
    const json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)object, key, value) {
        bool known = json_is_null(value);
        for (size_t i = 0; !known && i < count; i++) known = strcmp(names[i], key) == 0;
        if (!known)
            return server_fail(error, 400, "unknown_parameter", field,
                               "%s%s: field '%.64s' is not known to this server", field, place, key);
    }
    return true;
}

/* The object json_schema of a response format. The form is enforced whether or not `strict` is true. */
static bool read_json_schema(const char *field, const json_t *object, struct server_format *format,
                             struct server_error *error)
{
    static const char *const members[] = {"name", "description", "schema", "strict"};
    static const char place[] = ".json_schema";
    if (!json_is_object(object)) return wrong(error, field, place, "an object", object);
    if (!check_members(field, place, object, members, sizeof members / sizeof *members, error)) return false;
    for (int i = 0; i < 2; i++) {
        const json_t *text = json_object_get(object, members[i]);
        if (text && !json_is_null(text) && !json_is_string(text))
            return wrong(error, field, i ? ".json_schema.description" : ".json_schema.name", "a string", text);
    }
    const json_t *strict = json_object_get(object, "strict"), *schema = json_object_get(object, "schema");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return wrong(error, field, ".json_schema.strict", "true or false", strict);
    if (!json_is_object(schema)) return wrong(error, field, ".json_schema.schema", "a JSON Schema, an object", schema);
    return set_format(format, field, ENG_GRAMMAR_JSON_SCHEMA, error) && set_json(format, schema, error);
}

static bool read_response_format(const char *field, const json_t *value, struct server_format *format,
                                 struct server_error *error)
{
    static const char *const members[] = {"type", "json_schema"};
    if (!json_is_object(value)) return wrong(error, field, "", "an object", value);
    const char *type = json_string_value(json_object_get(value, "type"));
    const bool has_schema = type && strcmp(type, "json_schema") == 0;
    if (!check_members(field, "", value, members, has_schema ? 2 : 1, error)) return false;
    if (has_schema) return read_json_schema(field, json_object_get(value, "json_schema"), format, error);
    if (type && strcmp(type, "json_object") == 0) return set_format(format, field, ENG_GRAMMAR_JSON_OBJECT, error);
    return (type && strcmp(type, "text") == 0) ||
           wrong(error, field, ".type", "\"text\", \"json_object\" or \"json_schema\"", json_object_get(value, "type"));
}

static bool read_choices(const char *field, const json_t *value, struct server_format *format,
                         struct server_error *error)
{
    if (!json_is_array(value)) return wrong(error, field, "", "an array of strings", value);
    return set_format(format, field, ENG_GRAMMAR_CHOICES, error) && set_json(format, value, error);
}

static bool read_regex(const char *field, const json_t *value, struct server_format *format, struct server_error *error)
{
    if (!json_is_string(value)) return wrong(error, field, "", "a regular expression, a string", value);
    return set_format(format, field, ENG_GRAMMAR_REGEX, error) && set_string(format, value, error);
}

static bool read_schema(const char *field, const json_t *value, struct server_format *format,
                        struct server_error *error)
{
    if (!json_is_object(value) && !json_is_string(value))
        return wrong(error, field, "", "a JSON Schema, an object or its text", value);
    return set_format(format, field, ENG_GRAMMAR_JSON_SCHEMA, error) &&
           (json_is_string(value) ? set_string(format, value, error) : set_json(format, value, error));
}

/* Where newer releases of vLLM have what the guided_ fields are. */
static bool read_structured(const char *field, const json_t *value, struct server_format *format,
                            struct server_error *error)
{
    static const struct {
        const char *name;
        bool (*read)(const char *field, const json_t *value, struct server_format *format, struct server_error *error);
    } kinds[] = {{"json", read_schema}, {"regex", read_regex}, {"choice", read_choices}};
    static const char *const members[] = {"json", "regex", "choice"};
    if (!json_is_object(value)) return wrong(error, field, "", "an object", value);
    if (!check_members(field, "", value, members, sizeof members / sizeof *members, error)) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const json_t *own = json_object_get(value, kinds[i].name);
        if (own && !json_is_null(own) && !kinds[i].read(field, own, format, error)) return false;
    }
    return format->field || wrong(error, field, "", "one of json, regex and choice", value);
}

bool server_format_read(const char *field, const json_t *value, struct server_format *format,
                        struct server_error *error)
{
    if (strcmp(field, "response_format") == 0) return read_response_format(field, value, format, error);
    if (strcmp(field, "structured_outputs") == 0) return read_structured(field, value, format, error);
    if (strcmp(field, "guided_regex") == 0) return read_regex(field, value, format, error);
    if (strcmp(field, "guided_choice") == 0) return read_choices(field, value, format, error);
    return read_schema(field, value, format, error);
}

void server_format_free(struct server_format *format)
{
    free(format->text);
    *format = (struct server_format){0};
}
