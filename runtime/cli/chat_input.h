/* SPDX-License-Identifier: Apache-2.0 */
/* Where the messages of a conversation come from: lines that a person edits, lines that a person types on a terminal without
 * an editor, or the lines of a file or pipe, each of which is a message. */
#ifndef RUNTIME_CLI_CHAT_INPUT_H
#define RUNTIME_CLI_CHAT_INPUT_H

#include "runtime/cli/chat_editor.h"
#include "runtime/cli/chat_history.h"
#include "runtime/cli/chat_message.h"

struct chat_input {
    const struct chat_style *style;
    struct chat_editor *editor; /* NULL: none */
    struct chat_history history;
    bool keeps_history;
    struct chat_message message;
    char *line; /* of getline */
    size_t capacity;
    bool was_interrupted; /* by Ctrl-C in an empty line, the last time */
};

/* Failures of the history are notes. */
bool chat_input_open(struct chat_input *input, const struct chat_style *style, bool keeps_history,
                     struct status *status);
void chat_input_close(struct chat_input *input);

/* Reads the next message that is not empty; borrowed until the next call. NULL: there are no more, or a signal
 * asks to leave (cli_caught_signal): SIGTERM, or a second Ctrl-C in an empty line. A Ctrl-C before discards what was entered.
 * *is_block: the message stood between quotes, and is no command. */
const char *chat_input_read(struct chat_input *input, bool *is_block);

#endif
