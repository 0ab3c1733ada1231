/* SPDX-License-Identifier: Apache-2.0 */
/* Lines that are edited on a terminal, with a history, by libedit. A block that is pasted (bracketed paste) is inserted whole;
 * its line feeds end nothing. There is at most one editor. */
#ifndef RUNTIME_CLI_CHAT_EDITOR_H
#define RUNTIME_CLI_CHAT_EDITOR_H

#include "runtime/cli/chat_style.h"

struct chat_editor;

enum chat_line {
    CHAT_LINE_TEXT,        /* a line, which may hold pasted line feeds */
    CHAT_LINE_END,         /* Ctrl-D in an empty line, or the terminal is gone */
    CHAT_LINE_INTERRUPTED, /* a signal was caught */
};

/* Sets *editor to NULL if this machine has no UTF-8 locale, or libedit cannot use the terminal. Requires: style->can_edit. */
bool chat_editor_open(struct chat_editor **editor, const struct chat_style *style, struct status *status);
void chat_editor_close(struct chat_editor *editor);

/* Reads a line after a prompt, which is the sign and a space. *line: without its newline, borrowed until the next call. *had_text: after
 * CHAT_LINE_INTERRUPTED, whether something had been entered. */
enum chat_line chat_editor_read(struct chat_editor *editor, char sign, const char **line, bool *had_text);
/* Makes a text the latest entry of the history. */
void chat_editor_remember(struct chat_editor *editor, const char *text);

#endif
