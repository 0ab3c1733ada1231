/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson (2.14: lex_save in load.c) drops a character of a token if the buffer of the token cannot grow: the text
 * changes, and without its closing quote the token is read past the end of the buffer. The document is therefore parsed
 * as the second element of an array, after a string longer than any of its tokens. The buffer grows while that string
 * is read and keeps its size; the string's length shows whether it grew. */
enum { FIRST_BUFFER_BYTES = 16, SOURCE_PARTS = 5 }; /* the same as in jansson */

struct source_part {
    const char *text; /* NULL: the padding */
    size_t size;
};

struct source {
    struct source_part parts[SOURCE_PARTS];
    int part; /* the next one to be read */
};

static size_t read_source(void *buffer, size_t capacity, void *argument)
{
    struct source *source = argument;
    size_t used = 0;
    while (used < capacity && source->part < SOURCE_PARTS) {
        struct source_part *part = &source->parts[source->part];
        size_t count = part->size < capacity - used ? part->size : capacity - used;
        if (part->text) {
            memcpy((char *)buffer + used, part->text, count);
            part->text += count;
        } else {
            memset((char *)buffer + used, 'x', count);
        }
        used += count;
        part->size -= count;
        if (part->size == 0) source->part++;
    }
    return used;
}

/* An upper bound of the longest token: the longest text between two unescaped quotes. */
static size_t longest_token(const char *text, size_t size)
{
    size_t longest = 0, begin = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        if (in_string && text[i] == '\\') i++;
        if (i < size && text[i] != '"') continue;
        in_string = !in_string;
        if (i - begin > longest) longest = i - begin;
        begin = i;
    }
    return (size - begin > longest ? size - begin : longest) + sizeof "\"\"";
}

/* NULL: errno is ENOMEM, or the text is not valid for json_loadb, or one of a few that only json_loadb accepts. */
static json_t *parse_padded(const char *text, size_t size)
{
    /* The string's length is half-way between two sizes of the buffer: if the buffer were full at the closing quote,
     * the quote could be dropped. */
    size_t token = FIRST_BUFFER_BYTES / 2 * 3, least = longest_token(text, size);
    while (token < least) token *= 2;
    size_t padding = token - sizeof "\"\"" + 1;
    struct source source = {.parts = {{"[\"", 2}, {NULL, padding}, {"\",\n", 3}, {text, size}, {"]", 1}}};
    json_error_t error;
    errno = 0;
    json_t *array = json_load_callback(read_source, &source, JSON_REJECT_DUPLICATES, &error), *value = NULL;
    if (array && json_string_length(json_array_get(array, 0)) != padding) errno = ENOMEM;
    if (array && errno != ENOMEM && json_array_size(array) == 2) value = json_incref(json_array_get(array, 1));
    int failure = errno;
    json_decref(array);
    errno = failure;
    if (!value || json_is_object(value) || json_is_array(value)) return value;
    json_decref(value);
    return NULL;
}

json_t *json_parse(const char *text, size_t size, const char *name, struct status *status)
{
    json_error_t error;
    json_t *value = parse_padded(text, size);
    if (value) return value;
    if (errno != ENOMEM) {
        /* Parse the text itself again, for line and column. */
        errno = 0;
        value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
        if (value) snprintf(error.text, sizeof error.text, "nested too deeply");
        json_decref(value);
    }
    if (errno == ENOMEM)
        status_fail(status, STATUS_MACHINE, "%s: out of memory", name);
    else
        status_fail(status, STATUS_BAD_INPUT, "%s: not valid JSON: line %d, column %d: %s", name, error.line,
                    error.column, error.text);
    return NULL;
}

char *json_format(const json_t *value, size_t flags)
{
    char none;
    size_t size = value ? json_dumpb(value, &none, 0, flags) : 0;
    char *text = size ? malloc(size + 1) : NULL;
    if (!text) return NULL;
    if (json_dumpb(value, text, size, flags) != size) {
        free(text);
        return NULL;
    }
    text[size] = '\0';
    return text;
}

json_t *json_string_or_null(const char *text)
{
    errno = 0;
    json_t *string = json_string(text);
    return string || errno == ENOMEM ? string : json_null();
}

bool json_put(json_t *object, const char *key, json_t *value) { return json_object_set_new(object, key, value) == 0; }
bool json_add(json_t *array, json_t *value) { return json_array_append_new(array, value) == 0; }

bool json_fail_build(struct status *status, const char *what)
{
    if (errno == ENOMEM) return status_fail(status, STATUS_MACHINE, "%s: out of memory", what);
    return status_fail(status, STATUS_BAD_INPUT, "%s: a text is not UTF-8", what);
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
    /* Containers are named without content, which may be huge and seldom helps. */
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
    free(reader->own_path);
    *reader = (struct json_reader){0};
}

bool json_reader_descend(struct json_reader *reader, const char *key, struct status *status)
{
    struct json_reader inner;
    const size_t size = strlen(reader->path) + strlen(key) + sizeof ": ";
    char *path = malloc(size);
    if (!path) return status_fail(status, STATUS_MACHINE, "%s: out of memory", reader->path);
    snprintf(path, size, "%s: %s", reader->path, key);
    if (!json_reader_open(&inner, json_object_get(reader->object, key), path, status)) {
        free(path);
        return false;
    }
    json_reader_close(reader);
    inner.own_path = path;
    *reader = inner;
    return true;
}

json_t *json_reader_get(struct json_reader *reader, const char *key)
{
    json_t *value = json_object_get(reader->object, key);
    if (!value) return NULL;
    if (!json_put(reader->consumed, key, json_true())) reader->out_of_memory = true;
    return json_is_null(value) ? NULL : value;
}

bool json_reader_is_unread(const struct json_reader *reader, const char *key)
{
    return json_object_get(reader->object, key) && !json_object_get(reader->consumed, key);
}

bool json_reader_is_null(const struct json_reader *reader, const char *key)
{
    return json_is_null(json_object_get(reader->object, key));
}

bool json_reader_fail(const struct json_reader *reader, const char *key, const char *expected, const json_t *found,
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
    return json_reader_fail(reader, key, expected, value, status);
}

bool json_reader_double(struct json_reader *reader, const char *key, bool required, double *out, struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    if (!json_is_number(value)) return json_reader_fail(reader, key, "a number", value, status);
    *out = json_number_value(value);
    return true;
}

bool json_reader_bool(struct json_reader *reader, const char *key, bool required, bool *out, struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    if (!json_is_boolean(value)) return json_reader_fail(reader, key, "true or false", value, status);
    *out = json_is_true(value);
    return true;
}

bool json_reader_string(struct json_reader *reader, const char *key, bool required, const char **out,
                        struct status *status)
{
    const json_t *value = json_reader_get(reader, key);
    if (!value && !required) return true;
    if (!json_is_string(value)) return json_reader_fail(reader, key, "a string", value, status);
    *out = json_string_value(value);
    return true;
}

bool json_reader_all_consumed(const struct json_reader *reader, struct status *status)
{
    enum { MOST_NAMED = 5 };
    const char *key;
    json_t *value;
    char names[400] = "", text[80] = "";
    size_t used = 0;
    int count = 0;
    if (reader->out_of_memory) return status_fail(status, STATUS_MACHINE, "%s: out of memory", reader->path);
    json_object_foreach (reader->object, key, value) {
        if (json_is_null(value) || json_object_get(reader->consumed, key)) continue;
        if (count == 0) json_value_text(value, text, sizeof text);
        if (count < MOST_NAMED && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s'%.120s'", count ? ", " : "", key);
        count++;
    }
    if (count == 0) return true;
    if (count == 1)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field %s is not understood; it may change the output, so it is refused (found %s)",
                           reader->path, names, text);
    char more[32] = "";
    if (count > MOST_NAMED) snprintf(more, sizeof more, " and %d more", count - MOST_NAMED);
    return status_fail(status, STATUS_BAD_INPUT,
                       "%s: fields %s%s are not understood; they may change the output, so they are refused",
                       reader->path, names, more);
}
