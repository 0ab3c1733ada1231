/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_stop.h"

#include <string.h>

/* False: the held text has no stop string. */
static bool find_stop(struct server_stop *stop, size_t *begin)
{
    const struct server_buffer *held = &stop->held;
    size_t end = 0;
    bool found = false;
    for (size_t i = 0; i < stop->count; i++) {
        const size_t length = strlen(stop->strings[i]);
        const char *at = memmem(held->data, held->size, stop->strings[i], length);
        if (!at) continue;
        const size_t first = (size_t)(at - held->data);
        if (found && (first + length > end || (first + length == end && first > *begin))) continue;
        *begin = first;
        end = first + length;
        stop->matched = stop->strings[i];
        found = true;
    }
    return found;
}

/* Length of the longest end of the held text with which a stop string begins. */
static size_t possible_beginning(const struct server_stop *stop)
{
    const struct server_buffer *held = &stop->held;
    size_t longest = 0;
    for (size_t i = 0; i < stop->count; i++) {
        size_t length = strlen(stop->strings[i]) - 1;
        if (length > held->size) length = held->size;
        while (length > longest && memcmp(held->data + held->size - length, stop->strings[i], length) != 0) length--;
        if (length > longest) longest = length;
    }
    return longest;
}

bool server_stop_push(struct server_stop *stop, const char *text, size_t size, struct server_buffer *out)
{
    size_t send = 0;
    if (stop->found) return true;
    if (!stop->count) return server_buffer_add(out, text, size);
    if (!server_buffer_add(&stop->held, text, size)) return false;
    stop->found = find_stop(stop, &send);
    if (!stop->found) send = stop->held.size - possible_beginning(stop);
    if (!server_buffer_add(out, stop->held.data, send)) return false;
    server_buffer_drop(&stop->held, send);
    return true;
}

bool server_stop_finish(struct server_stop *stop, struct server_buffer *out)
{
    if (stop->found) return true;
    bool ok = server_buffer_add(out, stop->held.data, stop->held.size);
    server_buffer_drop(&stop->held, stop->held.size);
    return ok;
}

void server_stop_free(struct server_stop *stop) { server_buffer_free(&stop->held); }
