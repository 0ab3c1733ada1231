/* SPDX-License-Identifier: Apache-2.0 */
/* Saved chats: any bytes are either refused with a message, or give a system message at most, and questions that all have
 * answers. */
#include "formats/chat/saved_chat.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

const struct fuzz_cost fuzz_cost = {.base_ms = 100, .us_per_byte = 10, .base_bytes = 64 << 10, .bytes_per_byte = 400};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct saved_chat chat;
    struct status status = {0};
    if (!saved_chat_parse(&chat, (const char *)data, size, "chat", &status)) {
        require(status.code != STATUS_OK && status.message[0] && !chat.messages && !chat.json);
        return 0;
    }
    const size_t first = chat.count && !strcmp(chat.messages[0].role, "system");
    require((chat.count - first) % 2 == 0);
    for (size_t i = first; i < chat.count; i++)
        require(!strcmp(chat.messages[i].role, (i - first) % 2 ? "assistant" : "user") && chat.messages[i].content);
    saved_chat_close(&chat);
    return 0;
}
