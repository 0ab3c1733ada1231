/* SPDX-License-Identifier: Apache-2.0 */
/* Strict JSON reading on top of jansson: duplicate keys are an error, every error names file and path, and keys of an
 * object that no code has read can be found. */
#ifndef FORMATS_BASE_JSON_H
#define FORMATS_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

/* Parses `size` bytes of UTF-8 (NUL inside strings is refused). `name` is the file name for messages.
 * Returns an owned reference (json_decref) or NULL with *status filled. Duplicate keys are refused. */
json_t *json_parse(const char *text, size_t size, const char *name, struct status *status);

/* Like json_dumps, which drops keys of objects if memory runs out. Owned text; NULL: out of memory. */
char *json_format(const json_t *value, size_t flags);

/* The text as a JSON string; JSON null if it is not valid UTF-8. NULL: out of memory. */
json_t *json_string_or_null(const char *text);

/* Each takes the reference of `value`; false if that or the container is NULL: out of memory, or a text that is not UTF-8. */
bool json_put(json_t *object, const char *key, json_t *value);
bool json_add(json_t *array, json_t *value);

/* Fails after values could not be created: STATUS_MACHINE, or STATUS_BAD_INPUT for a text that is not UTF-8. jansson
 * returns NULL in both cases; errno tells which. Requires: errno was 0 before the first of them was created. */
bool json_fail_build(struct status *status, const char *what);

/* Reader of one JSON object that remembers which keys were read. */
struct json_reader {
    json_t *object;     /* borrowed */
    const char *path;   /* for messages: "config.json", "config.json: rope_scaling"; borrowed, or `own_path` */
    char *own_path;     /* owned: set by json_reader_descend, else NULL */
    json_t *consumed;   /* owned: an object with the keys that were read */
    bool out_of_memory; /* a key could not be added: json_reader_all_consumed fails */
};

bool json_reader_open(struct json_reader *reader, json_t *object, const char *path, struct status *status);
void json_reader_close(struct json_reader *reader);

/* Goes on with the object under the key, of which nothing was read, instead of the one around it. On failure the reader is as before. */
bool json_reader_descend(struct json_reader *reader, const char *key, struct status *status);

/* Marks the key as read and returns the borrowed value, NULL if absent. JSON null counts as absent. */
json_t *json_reader_get(struct json_reader *reader, const char *key);

/* Typed getters. A missing key leaves *out unchanged if `required` is false. A wrong type, a number outside [minimum,
 * maximum] or a missing required key fails and names key, expected and found. Strings are borrowed. */
bool json_reader_u64(struct json_reader *reader, const char *key, bool required, uint64_t minimum, uint64_t maximum,
                     uint64_t *out, struct status *status);
bool json_reader_double(struct json_reader *reader, const char *key, bool required, double *out, struct status *status);
bool json_reader_bool(struct json_reader *reader, const char *key, bool required, bool *out, struct status *status);
bool json_reader_string(struct json_reader *reader, const char *key, bool required, const char **out,
                        struct status *status);

/* Whether the object has the key, null or not, and it was not read yet. */
bool json_reader_is_unread(const struct json_reader *reader, const char *key);
/* Whether the object has the key with the value null. */
bool json_reader_is_null(const struct json_reader *reader, const char *key);
/* Fails with "field 'key': expected ..., found ..."; `found` NULL: nothing. */
bool json_reader_fail(const struct json_reader *reader, const char *key, const char *expected, const json_t *found,
                      struct status *status);

/* Fails if keys were not read, and names the first ones ("field 'xyz' is not understood; ..."). A key whose value is null counts
 * as absent. */
bool json_reader_all_consumed(const struct json_reader *reader, struct status *status);

const char *json_type_name(const json_t *value); /* "object", "string", "missing", ... for messages */
/* Writes the value for "found ..." into a text (truncated to fit): scalars as JSON, containers by their size, NULL as
 * "nothing". */
void json_value_text(const json_t *value, char *text, size_t size);

#endif
