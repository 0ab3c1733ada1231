/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of a person in a conversation: lines that begin with a slash and a word of small letters. */
#ifndef RUNTIME_CLI_CHAT_COMMANDS_H
#define RUNTIME_CLI_CHAT_COMMANDS_H

#include "runtime/cli/chat_conversation.h"
#include "runtime/cli/chat_style.h"

enum chat_command {
    CHAT_NO_COMMAND,   /* the text is a message */
    CHAT_COMMAND_DONE, /* done, or refused with a message */
    CHAT_COMMAND_EXIT,
};

enum chat_command chat_command_run(struct conversation *conversation, const struct chat_style *style, const char *text);

#endif
