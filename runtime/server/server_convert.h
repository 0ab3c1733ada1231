/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of other APIs as bodies of /v1/chat/completions: a table has a row for each field. */
#ifndef RUNTIME_SERVER_SERVER_CONVERT_H
#define RUNTIME_SERVER_SERVER_CONVERT_H

#include <jansson.h>

#include "runtime/server/server_error.h"

enum { SERVER_MOST_NEUTRAL_VALUES = 3 };

struct server_conversion {
    const char *field;
    /* Adds what the field means to `chat`; NULL: only the values below are taken. */
    bool (*convert)(const struct server_conversion *row, const json_t *value, json_t *chat, struct server_error *error);
    const char *name; /* in `chat`, for server_convert_copy and for failures that are found there; NULL: the same */
    const char *neutral[SERVER_MOST_NEUTRAL_VALUES]; /* JSON: values that change nothing */
};

/* Converts all fields of a body but those that are null. A field without a row is refused. */
bool server_convert(const json_t *body, const struct server_conversion *rows, size_t count, json_t *chat,
                    struct server_error *error);

/* The field of which the field `name` of a chat is made; NULL: there is none. */
const char *server_convert_field(const struct server_conversion *rows, size_t count, const char *name);

bool server_convert_copy(const struct server_conversion *row, const json_t *value, json_t *chat,
                         struct server_error *error);
/* Takes any string, which changes nothing. */
bool server_convert_label(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error);

/* "PARAM: expected EXPECTED, found FOUND", 400. Returns false. */
bool server_convert_wrong(struct server_error *error, const char *param, const char *expected, const json_t *found);
/* Fails if the object has a member that is neither null nor among names[count]. */
bool server_convert_members(const char *param, const json_t *object, const char *const *names, size_t count,
                            struct server_error *error);
/* Adds to `chat` what `add` makes of each of the tools of an array: element `index`, as a tool of a chat, to `tools`. */
bool server_convert_tools(const struct server_conversion *row, const json_t *value,
                          bool (*add)(size_t index, const json_t *tool, json_t *tools, struct server_error *error),
                          json_t *chat, struct server_error *error);
/* The member if it is there and not null. */
json_t *server_convert_get(const json_t *object, const char *name);
/* Takes the reference of `value`; NULL, or no memory for it: 503. */
bool server_convert_put(json_t *object, const char *name, json_t *value, struct server_error *error);
bool server_convert_add(json_t *array, json_t *value, struct server_error *error);
/* The strings of an array, with line feeds between them. Owned; NULL: out of memory. */
json_t *server_convert_join(const json_t *strings, struct server_error *error);

#endif
