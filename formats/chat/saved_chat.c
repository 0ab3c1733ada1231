/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/chat/saved_chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/json.h"

static const char format_name[] = "eng chat";

/* The role that a message must have; NULL: either of "system" and "user". */
static const char *expected_role(const struct saved_chat *chat)
{
    if (chat->count == 0) return NULL;
    return strcmp(chat->messages[chat->count - 1].role, "user") == 0 ? "assistant" : "user";
}

static bool check_role(const struct saved_chat *chat, const char *role, const char *path, struct status *status)
{
    const char *expected = expected_role(chat);
    if (expected ? !strcmp(role, expected) : !strcmp(role, "system") || !strcmp(role, "user")) return true;
    return status_fail(status, STATUS_BAD_INPUT, "%s: field 'role': expected \"%s\", found \"%.80s\"", path,
                       expected ? expected : "system\" or \"user", role);
}

static bool parse_message(struct saved_chat *chat, json_t *value, const char *name, struct status *status)
{
    struct json_reader reader;
    struct saved_message message = {0};
    char path[STATUS_MESSAGE_BYTES];
    snprintf(path, sizeof path, "%.200s: message %zu", name, chat->count + 1);
    if (!json_reader_open(&reader, value, path, status)) return false;
    const bool ok = json_reader_string(&reader, "role", true, &message.role, status) &&
                    json_reader_string(&reader, "content", true, &message.content, status) &&
                    json_reader_all_consumed(&reader, status) && check_role(chat, message.role, path, status);
    json_reader_close(&reader);
    if (ok) chat->messages[chat->count++] = message;
    return ok;
}

static bool parse_messages(struct saved_chat *chat, const json_t *messages, const char *name, struct status *status)
{
    const size_t count = json_array_size(messages);
    if (!json_is_array(messages) || count > SAVED_CHAT_MOST_MESSAGES)
        return status_fail(status, STATUS_BAD_INPUT, "%s: field 'messages': expected an array of at most %d, found %s",
                           name, SAVED_CHAT_MOST_MESSAGES, json_is_array(messages) ? "more" : json_type_name(messages));
    chat->messages = malloc((count + 1) * sizeof *chat->messages);
    if (!chat->messages) return status_fail(status, STATUS_MACHINE, "%s: out of memory", name);
    for (size_t i = 0; i < count; i++)
        if (!parse_message(chat, json_array_get(messages, i), name, status)) return false;
    if (count && !strcmp(chat->messages[count - 1].role, "user"))
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: message %zu: expected an answer after the last question, found none", name, count);
    return true;
}

static bool parse_fields(struct saved_chat *chat, const char *name, struct status *status)
{
    struct json_reader reader;
    const char *format = NULL;
    uint64_t version = 0;
    if (!json_reader_open(&reader, chat->json, name, status)) return false;
    bool ok = json_reader_string(&reader, "format", true, &format, status);
    if (ok && strcmp(format, format_name) != 0)
        ok = status_fail(status, STATUS_BAD_INPUT, "%s: field 'format': expected \"%s\", found \"%.80s\"", name,
                         format_name, format);
    ok = ok && json_reader_u64(&reader, "version", true, 1, INT64_MAX, &version, status);
    if (ok && version != SAVED_CHAT_VERSION)
        ok = status_fail(status, STATUS_VERSION, "%s: expected version %d, found %llu: a later release has saved it",
                         name, SAVED_CHAT_VERSION, (unsigned long long)version);
    ok = ok && parse_messages(chat, json_reader_get(&reader, "messages"), name, status) &&
         json_reader_all_consumed(&reader, status);
    json_reader_close(&reader);
    return ok;
}

bool saved_chat_parse(struct saved_chat *chat, const char *text, size_t size, const char *name, struct status *status)
{
    *chat = (struct saved_chat){.json = json_parse(text, size, name, status)};
    if (chat->json && parse_fields(chat, name, status)) return true;
    saved_chat_close(chat);
    return false;
}

bool saved_chat_read(struct saved_chat *chat, const char *path, struct status *status)
{
    char *text;
    size_t size;
    *chat = (struct saved_chat){0};
    if (!file_read(path, SAVED_CHAT_MOST_BYTES, &text, &size, status)) return false;
    const bool ok = saved_chat_parse(chat, text, size, path, status);
    free(text);
    return ok;
}

void saved_chat_close(struct saved_chat *chat)
{
    free(chat->messages);
    json_decref(chat->json);
    *chat = (struct saved_chat){0};
}

/* The text of the file, owned. */
static char *format_chat(const struct saved_message *messages, size_t count, struct status *status)
{
    errno = 0;
    json_t *chat = json_object(), *list = json_array();
    bool ok = chat && list;
    for (size_t i = 0; ok && i < count; i++) {
        json_t *message = json_object();
        ok = message && json_put(message, "role", json_string(messages[i].role)) &&
             json_put(message, "content", json_string(messages[i].content));
        if (ok)
            ok = json_add(list, message);
        else
            json_decref(message);
    }
    ok = ok && json_put(chat, "format", json_string(format_name)) &&
         json_put(chat, "version", json_integer(SAVED_CHAT_VERSION)) && json_put(chat, "messages", json_incref(list));
    char *text = ok ? json_format(chat, JSON_INDENT(2)) : NULL;
    if (!ok) json_fail_build(status, "the conversation");
    if (ok && !text) status_fail(status, STATUS_MACHINE, "out of memory for the conversation");
    json_decref(list);
    json_decref(chat);
    return text;
}

/* A file that a user has named by mistake is not lost. */
static bool may_replace(const char *path, bool *present, struct status *status)
{
    struct saved_chat old;
    if (!file_find(path, present, status)) return false;
    if (!*present) return true;
    if (!saved_chat_read(&old, path, status)) {
        if (status->code != STATUS_BAD_INPUT) return false;
        return status_fail(status, STATUS_BAD_INPUT,
                           "'%s' exists and is no saved chat, so it is not replaced: choose another name", path);
    }
    saved_chat_close(&old);
    return true;
}

bool saved_chat_write(const char *path, const struct saved_message *messages, size_t count, bool *replaced,
                      struct status *status)
{
    struct file_output output;
    bool present;
    if (!may_replace(path, &present, status)) return false;
    char *text = format_chat(messages, count, status);
    if (!text) return false;
    const size_t size = strlen(text);
    bool ok = count <= SAVED_CHAT_MOST_MESSAGES && size < SAVED_CHAT_MOST_BYTES;
    if (!ok)
        status_fail(status, STATUS_BAD_INPUT,
                    "the conversation has %zu messages in %zu bytes; expected at most %d in %d", count, size,
                    SAVED_CHAT_MOST_MESSAGES, SAVED_CHAT_MOST_BYTES - 1);
    ok = ok && file_output_open(&output, path, status);
    if (ok) {
        ok = file_output_restrict(&output, status) && file_output_write(&output, text, size, status) &&
             file_output_write(&output, "\n", 1, status) && file_output_commit(&output, status);
        file_output_abandon(&output);
    }
    free(text);
    if (ok && replaced) *replaced = present;
    return ok;
}
