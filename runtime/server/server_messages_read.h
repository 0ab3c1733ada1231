/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of Anthropic's Messages API as bodies of /v1/chat/completions. */
#ifndef RUNTIME_SERVER_SERVER_MESSAGES_READ_H
#define RUNTIME_SERVER_SERVER_MESSAGES_READ_H

#include <jansson.h>

#include "runtime/server/server_request.h"

/* *chat is owned by the caller, NULL after a failure. counts: the body is one of /v1/messages/count_tokens. */
bool server_messages_read(const json_t *body, bool counts, json_t **chat, struct server_error *error);
/* Requires: the body was read. */
enum server_thinking server_messages_thinking(const json_t *body);
/* The field of a body of which the field `name` of a chat is made; NULL: there is none. */
const char *server_messages_field(const char *name);

#endif
