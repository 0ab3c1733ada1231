/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a conversation: the system message if there is one, then turns, each a question and its answer. */
#ifndef RUNTIME_CLI_CHAT_CONVERSATION_H
#define RUNTIME_CLI_CHAT_CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

struct conversation {
    struct eng_message *messages; /* [count], owned, with their contents; roles are constants */
    size_t count;
    size_t first; /* the first question: 1 if there is a system message, else 0 */
};

void conversation_free(struct conversation *conversation);

/* Turns, with the one whose question has no answer yet. */
size_t conversation_turns(const struct conversation *conversation);
/* The text of the system message; NULL: none. */
const char *conversation_system(const struct conversation *conversation);

/* Each fails only if memory is lacking, and then changes nothing. `text` is copied; NULL: no system message. */
bool conversation_set_system(struct conversation *conversation, const char *text, struct status *status);
bool conversation_ask(struct conversation *conversation, const char *question, struct status *status);
/* Takes ownership of `answer`, also on failure; NULL is a failure. */
bool conversation_answer(struct conversation *conversation, char *answer, struct status *status);

/* Takes the last question, which has no answer, back. */
void conversation_take_back(struct conversation *conversation);
/* Removes the oldest turns. */
void conversation_drop(struct conversation *conversation, size_t turns);

/* A file in the form of formats/chat/saved_chat.h. A failed load changes nothing. */
bool conversation_save(const struct conversation *conversation, const char *path, bool *replaced,
                       struct status *status);
bool conversation_load(struct conversation *conversation, const char *path, struct status *status);

#endif
