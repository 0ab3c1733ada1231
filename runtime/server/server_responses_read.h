/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of OpenAI's Responses API as bodies of /v1/chat/completions. */
#ifndef RUNTIME_SERVER_SERVER_RESPONSES_READ_H
#define RUNTIME_SERVER_SERVER_RESPONSES_READ_H

#include <jansson.h>

#include "runtime/server/server_error.h"

/* *chat, and *echo with the fields of a response that repeat the request, are owned by the caller, NULL after a failure. */
bool server_responses_read(const json_t *body, json_t **chat, json_t **echo, struct server_error *error);
/* The field of a body of which the field `name` of a chat is made; NULL: there is none. */
const char *server_responses_field(const char *name);

#endif
