/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that grow: bodies of requests, texts of answers, events of a stream. */
#ifndef RUNTIME_SERVER_SERVER_BUFFER_H
#define RUNTIME_SERVER_SERVER_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server_buffer {
    char *data; /* owned; NULL: empty */
    size_t size, capacity;
};

/* Each returns false if memory is lacking; the buffer is then as before. */
bool server_buffer_add(struct server_buffer *buffer, const char *data, size_t size);
bool server_buffer_text(struct server_buffer *buffer, const char *text);
bool server_buffer_format(struct server_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends the text as a JSON string, in which bytes that are not UTF-8 become U+FFFD. On failure part of it is there. */
bool server_buffer_string(struct server_buffer *buffer, const char *text, size_t size);

/* Removes bytes at the beginning. Requires: size is at most the buffer's. */
void server_buffer_drop(struct server_buffer *buffer, size_t size);
void server_buffer_free(struct server_buffer *buffer);

/* A copy of text[size], which has no NUL at its end, with one. The caller frees it. NULL: out of memory. */
char *server_text_copy(const char *text, size_t size);

/* Characters of UTF-8. */
uint64_t server_count_characters(const char *text, size_t size);

#endif
