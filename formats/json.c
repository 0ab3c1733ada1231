/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *json_parse(const char *text, size_t size, const char *name, struct status *status)
{
    json_error_t error;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!value)
        status_fail(status, STATUS_BAD_INPUT, "%s: not valid JSON: line %d, column %d: %s", name, error.line,
                    error.column, error.text);
    return value;
}

const char *json_type_name(const json_t *value)
{
    if (!value) return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "object";
    case JSON_ARRAY: return "array";
    case JSON_STRING: return "string";
    case JSON_INTEGER: return "integer";
    case JSON_REAL: return "number";
    case JSON_TRUE:
    case JSON_FALSE: return "boolean";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

void json_value_text(const json_t *value, char *text, size_t size)
{
    /* Containers are only named: a hostile one may be huge, and its content seldom helps. */
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_STRING: snprintf(text, size, "\"%s\"", json_string_value(value)); break;
    case JSON_INTEGER: snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL: snprintf(text, size, "%.17g", json_real_value(value)); break;
    case JSON_TRUE: snprintf(text, size, "true"); break;
    case JSON_FALSE: snprintf(text, size, "false"); break;
    case JSON_OBJECT: snprintf(text, size, "an object with %zu keys", json_object_size(value)); break;
    case JSON_ARRAY: snprintf(text, size, "an array of %zu", json_array_size(value)); break;
    default: snprintf(text, size, "%s", value ? "null" : "nothing"); break;
    }
}

bool json_reader_open(struct json_reader *reader, json_t *object, const char *path, struct status *status)
{
    *reader = (struct json_reader){.path = path};
    if (!json_is_object(object))
        return status_fail(status, STATUS_BAD_INPUT, "%s: expected an object, found %s", path, json_type_name(object));
    reader->consumed = json_object();
    if (!reader->consumed) return status_fail(status, STATUS_MACHINE, "%s: out of memory", path);
    reader->object = object;
    return true;
}

void json_reader_close(struct json_reader *reader)
{
    json_decref(reader->consumed);
    *reader = (struct json_reader){0};
}

json_t *json_reader_get(struct json_reader *reader, const char *key)
{
    json_t *value = json_object_get(reader->object, key);
    if (!value) return NULL;
    /* Should this run out of memory, the key is later reported as not understood: the safe direction. */
    json_object_set_new(reader->consumed, key, json_true());
    return json_is_null(value) ? NULL : value;
}

/* Fails with "expected X, found Y"; for a missing required key Y is "nothing". */
static bool wrong_value(const struct json_reader *reader, const char *key, const char *expected, const json_t *found,
                        struct status *status)
{
    char text[80];
    json_value_text(found, text, sizeof text);
    return status_fail(status, STATUS_BAD_INPUT, "%s: field '%s': expected %s, found %s", reader->path, key, expected,
                       text);
}

bool json_reader_u64(struct json_reader *reader, const char *key, bool required, uint64_t minimum, uint64_t maximum,
                     uint64_t *out, struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    bool fits = false;
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        uint64_t number = (uint64_t)json_integer_value(value);
        fits = number >= minimum && number <= maximum;
        if (fits) *out = number;
    }
    if (fits) return true;
    char expected[80];
    snprintf(expected, sizeof expected, "an integer from %" PRIu64 " to %" PRIu64, minimum, maximum);
    return wrong_value(reader, key, expected, value, status);
}

bool json_reader_double(struct json_reader *reader, const char *key, bool required, double *out, struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    if (!json_is_number(value)) return wrong_value(reader, key, "a number", value, status);
    *out = json_number_value(value);
    return true;
}

bool json_reader_bool(struct json_reader *reader, const char *key, bool required, bool *out, struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    if (!json_is_boolean(value)) return wrong_value(reader, key, "true or false", value, status);
    *out = json_is_true(value);
    return true;
}

bool json_reader_string(struct json_reader *reader, const char *key, bool required, const char **out,
                        struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    if (!json_is_string(value)) return wrong_value(reader, key, "a string", value, status);
    *out = json_string_value(value);
    return true;
}

bool json_reader_all_consumed(const struct json_reader *reader, struct status *status)
{
    const char *key;
    json_t *value;
    json_object_foreach (reader->object, key, value) {
        if (json_is_null(value) || json_object_get(reader->consumed, key)) continue;
        char text[80];
        json_value_text(value, text, sizeof text);
        return status_fail(
            status, STATUS_BAD_INPUT,
            "%s: field '%.120s' is not understood; it may change the output, so it is refused (found %s)", reader->path,
            key, text);
    }
    return true;
}
