/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that a model may call: tools, tool_choice and parallel_tool_calls of OpenAI's API. */
#ifndef RUNTIME_SERVER_SERVER_TOOLS_H
#define RUNTIME_SERVER_SERVER_TOOLS_H

#include <jansson.h>

#include "runtime/server/server_format.h"

enum { SERVER_MOST_TOOLS = 128, SERVER_MOST_TOOL_NAME_BYTES = 128 };

enum server_tool_choice {
    SERVER_TOOLS_AUTO,     /* the model decides */
    SERVER_TOOLS_NONE,     /* no call */
    SERVER_TOOLS_REQUIRED, /* at least one call */
    SERVER_TOOLS_NAMED     /* one call of the function `named` */
};

struct server_tools {
    json_t *list; /* owned: array of {"type": "function", "function": {...}}; NULL: none */
    enum server_tool_choice choice;
    const char *named; /* borrowed from `list` */
    bool one_call;     /* calls after the first are left out */
};

/* Reads the list. Each function has a name of letters, digits, '_', '-' and '.', and no other has it. */
bool server_tools_read(json_t *list, struct server_tools *tools, struct server_error *error);
/* Reads tool_choice; NULL or null: AUTO. Requires: the list was read, if there is one. */
bool server_tools_choose(const json_t *choice, struct server_tools *tools, struct server_error *error);
void server_tools_free(struct server_tools *tools);

/* Whether calls are looked for in an answer; whether its whole text is the arguments or a list of calls. */
bool server_tools_are_active(const struct server_tools *tools);
bool server_tools_are_forced(const struct server_tools *tools);

/* The format of an answer that must be a call. NAMED: the arguments; REQUIRED: an array of {"name": ..., "arguments": ...}. */
bool server_tools_format(const struct server_tools *tools, struct server_format *format, struct server_error *error);

/* Schemas for grammars, owned; NULL: out of memory: the arguments of a function; one of its properties, which may refer to all of
 * its schema; and a call of any of the tools, or a list of them, with the keys of the dialect. */
json_t *server_tools_schema(const json_t *function);
json_t *server_tools_property_schema(const json_t *function, const char *key);
json_t *server_tools_calls_schema(const struct server_tools *tools, const char *dialect, bool is_list);

/* The object "function" of the list; NULL: none has the name. */
const json_t *server_tools_find(const struct server_tools *tools, const char *name, size_t size);

#endif
