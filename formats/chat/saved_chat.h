/* SPDX-License-Identifier: Apache-2.0 */
/* Saved conversations: a JSON object {"format": "eng chat", "version": 1, "messages": [...]}. Each message is an object of
 * "role" and "content": first at most one of role "system", then questions ("user") and answers ("assistant") in turn, an
 * answer last. Files of other versions, and fields that are not named here, are refused. */
#ifndef FORMATS_CHAT_SAVED_CHAT_H
#define FORMATS_CHAT_SAVED_CHAT_H

#include <jansson.h>

#include "formats/base/status.h"

enum { SAVED_CHAT_VERSION = 1, SAVED_CHAT_MOST_MESSAGES = 65536, SAVED_CHAT_MOST_BYTES = 16 << 20 };

struct saved_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8, NUL-terminated */
};

struct saved_chat {
    struct saved_message *messages; /* [count], owned; the texts belong to `json` */
    size_t count;
    json_t *json;
};

/* Reads the text of a file; `name` is its name for messages. */
bool saved_chat_parse(struct saved_chat *chat, const char *text, size_t size, const char *name, struct status *status);
bool saved_chat_read(struct saved_chat *chat, const char *path, struct status *status);
void saved_chat_close(struct saved_chat *chat);

/* Writes a file that saved_chat_read accepts, for its owner alone; it appears completely or not at all. Requires: the
 * messages alternate as stated above. An existing file is replaced if it is a saved chat, else it is refused: STATUS_BAD_INPUT.
 * *replaced (may be NULL): whether there was one. */
bool saved_chat_write(const char *path, const struct saved_message *messages, size_t count, bool *replaced,
                      struct status *status);

#endif
