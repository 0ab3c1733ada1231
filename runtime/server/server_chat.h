/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a conversation, as the variables of a chat template. */
#ifndef RUNTIME_SERVER_SERVER_CHAT_H
#define RUNTIME_SERVER_SERVER_CHAT_H

#include <jansson.h>

#include "runtime/server/server_tools.h"

/* Makes the text of a JSON object from "messages" and "chat_template_kwargs" of a body, and from tools unless none may be called, owned
 * by the caller. The content of a message is a string or a list of text parts, which are joined
 * by line feeds. Roles become a part of the template's own text, so that they may only have letters, digits, '_' and '-'.
 * Arguments of calls become objects. */
bool server_chat_variables(json_t *body, bool add_generation_prompt, const struct server_tools *tools, char **variables,
                           struct server_error *error);

/* Arguments of calls become JSON texts, as a few templates want them. False: there are none, or memory is lacking. */
bool server_chat_text_arguments(char **variables);

#endif
