/* SPDX-License-Identifier: Apache-2.0 */
/* What was entered in earlier conversations: a file of JSON strings, one a line, for its owner alone. Its size is bounded.
 * Several programs may use it at the same time: each entry is one write to its end. */
#ifndef RUNTIME_CLI_CHAT_HISTORY_H
#define RUNTIME_CLI_CHAT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/status.h"

enum {
    CHAT_HISTORY_MOST_ENTRIES = 1000,     /* that are kept when the file is shortened */
    CHAT_HISTORY_MOST_BYTES = 1 << 20,    /* of the file */
    CHAT_HISTORY_ENTRY_BYTES = 16 * 1024, /* longer messages are left out */
};

struct chat_history {
    char *path;     /* owned */
    char **entries; /* [count], owned: what the file had when it was opened, the oldest first */
    size_t count;
};

/* $XDG_STATE_HOME/eng/chat_history, else ~/.local/state/eng/chat_history, as the XDG base directory specification places
 * state. Owned; NULL: there is no home, or no memory. */
char *chat_history_path(void);

/* Reads the file and creates it, with its folders, where it is missing. Lines that are no entries are removed from it. Takes
 * `path`. After a failure the history must be closed, too. */
bool chat_history_open(struct chat_history *history, char *path, struct status *status);
/* Adds an entry to the file. */
bool chat_history_add(struct chat_history *history, const char *text, struct status *status);
void chat_history_close(struct chat_history *history);

#endif
