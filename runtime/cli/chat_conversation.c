/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_conversation.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "formats/chat/saved_chat.h"

static const char system_role[] = "system", user_role[] = "user", assistant_role[] = "assistant";

static void free_content(const struct eng_message *message) { free((char *)(uintptr_t)message->content); }

static bool fail_memory(struct status *status) { return status_fail(status, STATUS_MACHINE, "out of memory"); }

void conversation_free(struct conversation *conversation)
{
    for (size_t i = 0; i < conversation->count; i++) free_content(&conversation->messages[i]);
    free(conversation->messages);
    *conversation = (struct conversation){0};
}

size_t conversation_turns(const struct conversation *conversation)
{
    return (conversation->count - conversation->first + 1) / 2;
}

const char *conversation_system(const struct conversation *conversation)
{
    return conversation->first ? conversation->messages[0].content : NULL;
}

/* Inserts a message before message `at`. Takes ownership of `content`, which may be NULL: out of memory. */
static bool insert(struct conversation *conversation, size_t at, const char *role, char *content, struct status *status)
{
    struct eng_message *messages =
        content ? realloc(conversation->messages, (conversation->count + 1) * sizeof *messages) : NULL;
    if (!messages) {
        free(content);
        return fail_memory(status);
    }
    memmove(messages + at + 1, messages + at, (conversation->count++ - at) * sizeof *messages);
    messages[at] = (struct eng_message){role, content};
    conversation->messages = messages;
    return true;
}

static void remove_messages(struct conversation *conversation, size_t at, size_t count)
{
    struct eng_message *messages = conversation->messages;
    for (size_t i = at; i < at + count; i++) free_content(&messages[i]);
    conversation->count -= count;
    for (size_t i = at; i < conversation->count; i++) messages[i] = messages[i + count];
}

bool conversation_set_system(struct conversation *conversation, const char *text, struct status *status)
{
    const size_t had = conversation->first;
    if (text && !insert(conversation, 0, system_role, strdup(text), status)) return false;
    if (had) remove_messages(conversation, text ? 1 : 0, 1);
    conversation->first = text != NULL;
    return true;
}

bool conversation_ask(struct conversation *conversation, const char *question, struct status *status)
{
    return insert(conversation, conversation->count, user_role, strdup(question), status);
}

bool conversation_answer(struct conversation *conversation, char *answer, struct status *status)
{
    return insert(conversation, conversation->count, assistant_role, answer, status);
}

void conversation_take_back(struct conversation *conversation)
{
    remove_messages(conversation, conversation->count - 1, 1);
}

void conversation_drop(struct conversation *conversation, size_t turns)
{
    remove_messages(conversation, conversation->first, 2 * turns);
}

bool conversation_save(const struct conversation *conversation, const char *path, bool *replaced, struct status *status)
{
    struct saved_message *messages = malloc((conversation->count + 1) * sizeof *messages);
    if (!messages) return fail_memory(status);
    for (size_t i = 0; i < conversation->count; i++)
        messages[i] = (struct saved_message){conversation->messages[i].role, conversation->messages[i].content};
    const bool ok = saved_chat_write(path, messages, conversation->count, replaced, status);
    free(messages);
    return ok;
}

bool conversation_load(struct conversation *conversation, const char *path, struct status *status)
{
    struct saved_chat chat;
    struct conversation loaded = {0};
    if (!saved_chat_read(&chat, path, status)) return false;
    bool ok = true;
    for (size_t i = 0; ok && i < chat.count; i++) {
        const struct saved_message *message = &chat.messages[i];
        if (!strcmp(message->role, system_role))
            ok = conversation_set_system(&loaded, message->content, status);
        else if (!strcmp(message->role, user_role))
            ok = conversation_ask(&loaded, message->content, status);
        else
            ok = conversation_answer(&loaded, strdup(message->content), status);
    }
    saved_chat_close(&chat);
    if (!ok) {
        conversation_free(&loaded);
        return false;
    }
    conversation_free(conversation);
    *conversation = loaded;
    return true;
}
