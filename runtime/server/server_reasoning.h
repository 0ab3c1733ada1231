/* SPDX-License-Identifier: Apache-2.0 */
/* How much a model reasons: "reasoning_effort" of chats and "thinking" of Anthropic's messages, as variables of its chat template. What a template
 * has no variable for is refused, unless the model can do nothing else. */
#ifndef RUNTIME_SERVER_SERVER_REASONING_H
#define RUNTIME_SERVER_SERVER_REASONING_H

#include "runtime/server/server_dialects.h"
#include "runtime/server/server_request.h"

/* The names that templates have for the switch, in an object that the caller owns; those that a template does not know change nothing. mode:
 * "enabled", "disabled" or "adaptive". budget: tokens, one of the variables; NULL: none. NULL: out of memory. */
json_t *server_reasoning_switch(const char *mode, json_t *budget);

/* Adds the variables to those of a chat; a variable that chat_template_kwargs has stays as it is. Requires: the request has its body. */
bool server_reasoning_apply(const struct server_dialect *dialect, struct server_request *request,
                            struct server_error *error);

#endif
