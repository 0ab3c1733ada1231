/* SPDX-License-Identifier: Apache-2.0 */
/* Growable buffers of text and tokens, repair of invalid UTF-8. */
#include "formats/tokenizer/tokenizer_text.h"

#include <stdlib.h>

void token_buffer_free(struct token_buffer *buffer)
{
    free(buffer->ids);
    memset(buffer, 0, sizeof *buffer);
}

void text_buffer_free(struct text_buffer *buffer)
{
    free(buffer->text);
    memset(buffer, 0, sizeof *buffer);
}

bool tokenizer_text_reserve(struct text_buffer *buffer, size_t additional, struct status *status)
{
    if (buffer->text && buffer->capacity - buffer->size >= additional) return true;
    size_t need;
    if (__builtin_add_overflow(buffer->size, additional, &need) || need > SIZE_MAX / 4)
        return status_fail(status, STATUS_TOO_LONG, "text of more than %zu bytes", SIZE_MAX / 4);
    size_t capacity = need + buffer->capacity / 2 + 64;
    void *text = realloc(buffer->text, capacity);
    if (!text) return status_fail(status, STATUS_MACHINE, "out of memory for %zu bytes of text", capacity);
    buffer->text = text;
    buffer->capacity = capacity;
    return true;
}

bool tokenizer_text_append(struct text_buffer *buffer, const void *bytes, size_t size, struct status *status)
{
    if (!tokenizer_text_reserve(buffer, size, status)) return false;
    if (size) memcpy(buffer->text + buffer->size, bytes, size);
    buffer->size += size;
    return true;
}

bool tokenizer_token_append(struct token_buffer *buffer, int32_t id, struct status *status)
{
    if (buffer->count == buffer->capacity) {
        size_t capacity = buffer->capacity * 2 + 64;
        void *ids =
            capacity > SIZE_MAX / sizeof *buffer->ids ? NULL : realloc(buffer->ids, capacity * sizeof *buffer->ids);
        if (!ids) return status_fail(status, STATUS_MACHINE, "out of memory for %zu tokens", capacity);
        buffer->ids = ids;
        buffer->capacity = capacity;
    }
    buffer->ids[buffer->count++] = id;
    return true;
}

bool tokenizer_text_repair(struct text_buffer *out, const char *text, size_t size, struct status *status)
{
    const uint8_t *bytes = (const uint8_t *)text;
    out->size = 0;
    for (size_t at = 0; at < size;) {
        size_t length;
        bool whole = text_next(bytes + at, size - at, &length) == TEXT_WHOLE;
        if (whole ? !tokenizer_text_append(out, text + at, length, status)
                  : !tokenizer_text_append(out, TEXT_REPLACEMENT, TEXT_REPLACEMENT_BYTES, status))
            return false;
        at += length;
    }
    return true;
}
