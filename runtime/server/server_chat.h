/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a conversation, as the variables of a chat template. */
#ifndef RUNTIME_SERVER_SERVER_CHAT_H
#define RUNTIME_SERVER_SERVER_CHAT_H

#include <jansson.h>

#include "runtime/server/server_error.h"

/* Makes the text of a JSON object from "messages" and "chat_template_kwargs" of a body, owned by the caller. The content
 * of a message is a string or a list of text parts, which are joined by line feeds. Roles become a part of the
 * template's own text, so that they may only have letters, digits, '_' and '-'. */
bool server_chat_variables(json_t *body, bool add_generation_prompt, char **variables, struct server_error *error);

#endif
