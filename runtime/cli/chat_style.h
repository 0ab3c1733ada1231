/* SPDX-License-Identifier: Apache-2.0 */
/* How a conversation looks: whether lines can be edited and have colours, and the lines of the program itself, on stderr. */
#ifndef RUNTIME_CLI_CHAT_STYLE_H
#define RUNTIME_CLI_CHAT_STYLE_H

#include <stdbool.h>

#include "formats/base/status.h"

struct chat_style {
    bool is_interactive; /* stdin is a terminal: a person types the messages */
    bool can_edit;       /* so is stdout, and TERM names one that is not "dumb" */
    bool is_quiet;       /* no notes */
    bool has_colours;    /* can_edit, stderr is a terminal, and NO_COLOR is not set (no-color.org) */
};

void chat_style_choose(struct chat_style *style, bool is_quiet);

/* Codes that begin and end a colour; "" without colours. */
enum chat_colour { CHAT_PROMPT_COLOUR, CHAT_NOTE_COLOUR, CHAT_COLOUR_END };
const char *chat_style_colour(const struct chat_style *style, enum chat_colour colour);

/* A line that the user need not act on; nothing if is_quiet. */
void chat_note(const struct chat_style *style, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line that answers a command; several if the text has several. */
void chat_reply(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The message of a failure after which the conversation goes on. */
void chat_complain(const struct status *status);

#endif
