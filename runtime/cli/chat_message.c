/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/chat_message.h"

#include <stdlib.h>
#include <string.h>

static const char quotes[] = "\"\"\"";
enum { QUOTES = sizeof quotes - 1 };

void chat_message_reset(struct chat_message *message)
{
    free(message->text);
    *message = (struct chat_message){0};
}

static bool append(struct chat_message *message, const char *text, size_t size, struct status *status)
{
    if (size > CHAT_MESSAGE_MOST_BYTES - message->size)
        return status_fail(status, STATUS_BAD_INPUT, "the message is too long: expected at most %d bytes",
                           CHAT_MESSAGE_MOST_BYTES);
    char *larger = realloc(message->text, message->size + size + 1);
    if (!larger) return status_fail(status, STATUS_MACHINE, "out of memory");
    memcpy(larger + message->size, text, size);
    message->text = larger;
    message->size += size;
    larger[message->size] = '\0';
    return true;
}

/* Length of a line without quotes at its end; its whole length if there are none. */
static size_t before_quotes(const char *line, size_t size)
{
    size_t end = size;
    while (end > 0 && (line[end - 1] == ' ' || line[end - 1] == '\t')) end--;
    return end >= QUOTES && !memcmp(line + end - QUOTES, quotes, QUOTES) ? end - QUOTES : size;
}

/* A line of a block, which does not begin with the quotes that begin the block. */
static bool add_to_block(struct chat_message *message, const char *line, struct status *status)
{
    const size_t size = strlen(line), end = before_quotes(line, size);
    if (end == size) return append(message, line, size, status) && append(message, "\n", 1, status);
    if (!append(message, line, end, status)) return false;
    /* Quotes on a line of their own: the line before is the last one. */
    if (end == 0 && message->size > 0) message->text[--message->size] = '\0';
    message->is_begun = false;
    return true;
}

static bool add(struct chat_message *message, const char *line, struct status *status)
{
    const size_t size = strlen(line);
    const bool is_pasted = strchr(line, '\n') != NULL;
    if (message->is_block) return add_to_block(message, line, status);
    if (!message->is_begun && !is_pasted && !strncmp(line, quotes, QUOTES)) {
        message->is_begun = message->is_block = true;
        const bool has_text = line[QUOTES + strspn(line + QUOTES, " \t")] != '\0';
        return has_text ? add_to_block(message, line + QUOTES, status) : append(message, "", 0, status);
    }
    message->is_begun = !is_pasted && size > 0 && line[size - 1] == '\\';
    if (!message->is_begun) return append(message, line, size, status);
    return append(message, line, size - 1, status) && append(message, "\n", 1, status);
}

bool chat_message_add(struct chat_message *message, const char *line, struct status *status)
{
    if (message->is_complete) chat_message_reset(message);
    if (!add(message, line, status)) {
        chat_message_reset(message);
        return false;
    }
    message->is_complete = !message->is_begun;
    return true;
}
