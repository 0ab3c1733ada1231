/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/text/stop_strings.h"

#include <stdlib.h>
#include <string.h>

/* False: the held text has no stop string. */
static bool find_stop(struct stop_strings *stop, size_t *begin)
{
    size_t end = 0;
    bool found = false;
    for (size_t i = 0; i < stop->count; i++) {
        const size_t length = strlen(stop->strings[i]);
        const char *at = memmem(stop->held, stop->size, stop->strings[i], length);
        if (!at) continue;
        const size_t first = (size_t)(at - stop->held);
        if (found && (first + length > end || (first + length == end && first > *begin))) continue;
        *begin = first;
        end = first + length;
        found = true;
        stop->which = i;
    }
    return found;
}

/* Length of the longest end of the held text with which a stop string begins. */
static size_t possible_beginning(const struct stop_strings *stop)
{
    size_t longest = 0;
    for (size_t i = 0; i < stop->count; i++) {
        size_t length = strlen(stop->strings[i]) - 1;
        if (length > stop->size) length = stop->size;
        while (length > longest && memcmp(stop->held + stop->size - length, stop->strings[i], length) != 0) length--;
        if (length > longest) longest = length;
    }
    return longest;
}

static bool make_room(struct stop_strings *stop, size_t capacity)
{
    if (capacity <= stop->capacity) return true;
    char *held = realloc(stop->held, capacity);
    if (!held) return false;
    stop->held = held;
    stop->capacity = capacity;
    return true;
}

bool stop_strings_reserve(struct stop_strings *stop, size_t most)
{
    size_t longest = 0;
    for (size_t i = 0; i < stop->count; i++) {
        const size_t length = strlen(stop->strings[i]);
        if (length > longest) longest = length;
    }
    return make_room(stop, longest + most);
}

bool stop_strings_push(struct stop_strings *stop, const char *text, size_t size, size_t *released)
{
    *released = 0;
    if (stop->found || !size) return true;
    if (stop->size + size > stop->capacity && !make_room(stop, 2 * (stop->size + size))) return false;
    memcpy(stop->held + stop->size, text, size);
    stop->size += size;
    stop->found = find_stop(stop, released);
    if (!stop->found) *released = stop->size - possible_beginning(stop);
    return true;
}

void stop_strings_finish(const struct stop_strings *stop, size_t *released)
{
    if (!stop->found) *released = stop->size;
}

void stop_strings_drop(struct stop_strings *stop, size_t size)
{
    stop->size -= size;
    if (stop->size) memmove(stop->held, stop->held + size, stop->size);
}

void stop_strings_begin(struct stop_strings *stop)
{
    stop->size = 0;
    stop->found = false;
}

void stop_strings_free(struct stop_strings *stop)
{
    free(stop->held);
    *stop = (struct stop_strings){0};
}
