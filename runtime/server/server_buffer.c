/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/printable.h"

static bool reserve(struct server_buffer *buffer, size_t more)
{
    enum { LEAST_BYTES = 256 };
    if (more <= buffer->capacity - buffer->size) return true;
    if (more > SIZE_MAX / 4 || buffer->size > SIZE_MAX / 4) return false;
    size_t capacity = buffer->size + more + buffer->size / 2 + LEAST_BYTES;
    char *data = realloc(buffer->data, capacity);
    if (!data) return false;
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

bool server_buffer_add(struct server_buffer *buffer, const char *data, size_t size)
{
    if (!size) return true;
    if (!reserve(buffer, size)) return false;
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return true;
}

bool server_buffer_text(struct server_buffer *buffer, const char *text)
{
    return server_buffer_add(buffer, text, strlen(text));
}

bool server_buffer_format(struct server_buffer *buffer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (size < 0 || !reserve(buffer, (size_t)size + 1)) return false;
    va_start(arguments, format);
    vsnprintf(buffer->data + buffer->size, (size_t)size + 1, format, arguments);
    va_end(arguments);
    buffer->size += (size_t)size;
    return true;
}

bool server_buffer_string(struct server_buffer *buffer, const char *text, size_t size)
{
    bool ok = server_buffer_text(buffer, "\"");
    for (size_t at = 0, length; ok && at < size; at += length ? length : 1) {
        const unsigned char byte = (unsigned char)text[at];
        length = printable_utf8(text + at, size - at);
        if (byte < ' ')
            ok = server_buffer_format(buffer, "\\u%04x", (unsigned)byte);
        else if (byte == '"' || byte == '\\')
            ok = server_buffer_format(buffer, "\\%c", byte);
        else
            ok = length ? server_buffer_add(buffer, text + at, length) : server_buffer_text(buffer, "\xef\xbf\xbd");
    }
    return ok && server_buffer_text(buffer, "\"");
}

void server_buffer_drop(struct server_buffer *buffer, size_t size)
{
    if (!size) return;
    buffer->size -= size;
    memmove(buffer->data, buffer->data + size, buffer->size);
}

void server_buffer_free(struct server_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct server_buffer){0};
}

char *server_text_copy(const char *text, size_t size)
{
    char *copy = malloc(size + 1);
    if (!copy) return NULL;
    memcpy(copy, text, size);
    copy[size] = 0;
    return copy;
}

uint64_t server_count_characters(const char *text, size_t size)
{
    uint64_t count = 0;
    for (size_t i = 0; i < size; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}
