/* SPDX-License-Identifier: Apache-2.0 */
/* A message of one or more lines, as a person enters it. A line that ends with a backslash goes on with the next one. A line
 * that begins with three quotes begins a block, which ends with a line that ends with three quotes. A line with line feeds
 * in it was pasted: outside a block it is taken as it is. */
#ifndef RUNTIME_CLI_CHAT_MESSAGE_H
#define RUNTIME_CLI_CHAT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/status.h"

enum { CHAT_MESSAGE_MOST_BYTES = 1 << 20 };

struct chat_message {
    char *text; /* owned, NUL-terminated; NULL: nothing yet */
    size_t size;
    bool is_begun;    /* more lines follow */
    bool is_block;    /* it is, or was, between quotes */
    bool is_complete; /* the next line begins another message */
};

/* Adds a line, without its newline. Fails, and the message is empty again, if it exceeds CHAT_MESSAGE_MOST_BYTES. */
bool chat_message_add(struct chat_message *message, const char *line, struct status *status);
void chat_message_reset(struct chat_message *message);

#endif
