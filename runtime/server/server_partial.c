/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_partial.h"

#include "runtime/server/server_buffer.h"

static void push(struct server_partial *partial, char byte)
{
    if (partial->is_escaped) {
        partial->is_escaped = false;
    } else if (partial->in_string) {
        partial->is_escaped = byte == '\\';
        partial->in_string = byte != '"';
    } else if (byte == '"') {
        partial->in_string = true;
    } else if (byte == '{' || byte == '[') {
        partial->depth++;
    } else if ((byte == '}' || byte == ']') && partial->depth) {
        partial->is_whole = --partial->depth == 0;
    }
}

void server_partial_push(struct server_partial *partial, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) push(partial, text[i]);
}

/* The longest beginning of a text that brackets make whole. */
struct beginning {
    size_t size;                   /* bytes of the text */
    struct server_buffer brackets; /* that are open after them */
};

/* Whether the text may be cut after its byte at `at`. A string that a colon follows is a key: it is not complete without a value. A number
 * may go on, so that it is complete before what follows it alone. */
static bool ends_value(const char *text, size_t at, bool is_value)
{
    const char byte = text[at];
    return byte == '{' || byte == '[' || byte == '}' || byte == ']' || (byte == '"' && is_value);
}

static bool find_beginning(const char *text, size_t size, struct beginning *found)
{
    struct server_partial partial = {0};
    struct server_buffer *brackets = &found->brackets;
    bool is_value = false, ok = true;
    for (size_t i = 0; ok && i < size && !partial.is_whole; i++) {
        const size_t depth = partial.depth;
        push(&partial, text[i]);
        if (partial.in_string) continue;
        if (partial.depth > depth) ok = server_buffer_add(brackets, text + i, 1);
        if (partial.depth < depth) brackets->size = partial.depth;
        const bool in_array = partial.depth && ok && brackets->data[partial.depth - 1] == '[';
        if (ends_value(text, i, is_value || in_array)) found->size = i + 1;
        if (text[i] == ',') found->size = i;
        if (text[i] == ':' || text[i] == ',' || text[i] == '{') is_value = text[i] == ':';
    }
    return ok;
}

json_t *server_partial_object(const char *text, size_t size)
{
    struct beginning beginning = {0};
    struct server_buffer whole = {0};
    bool ok = find_beginning(text, size, &beginning) && server_buffer_add(&whole, text, beginning.size);
    for (size_t i = beginning.brackets.size; ok && i-- > 0;)
        ok = server_buffer_text(&whole, beginning.brackets.data[i] == '{' ? "}" : "]");
    json_t *object = ok && whole.size ? json_loadb(whole.data, whole.size, 0, NULL) : NULL;
    if (ok && !json_is_object(object)) {
        json_decref(object);
        object = json_object();
    }
    server_buffer_free(&beginning.brackets);
    server_buffer_free(&whole);
    return object;
}
