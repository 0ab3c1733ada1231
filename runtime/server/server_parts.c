/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_parts.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static struct server_part *add(struct server_parts *parts, enum server_part_kind kind)
{
    if (parts->count == parts->capacity) {
        const size_t capacity = parts->capacity ? 2 * parts->capacity : 4;
        struct server_part *larger = realloc(parts->items, capacity * sizeof *larger);
        if (!larger) return NULL;
        parts->items = larger;
        parts->capacity = capacity;
    }
    parts->items[parts->count] = (struct server_part){.kind = kind};
    return &parts->items[parts->count++];
}

bool server_parts_text(struct server_parts *parts, enum server_part_kind kind, const char *text, size_t size)
{
    if (!parts || !size) return true;
    struct server_part *last = parts->count ? &parts->items[parts->count - 1] : NULL;
    const bool goes_on =
        last && (last->kind == kind || (kind == SERVER_PART_ARGUMENTS && last->kind == SERVER_PART_CALL));
    if (!goes_on) last = add(parts, kind);
    return last && server_buffer_add(&last->text, text, size);
}

/* Nine letters and digits: some templates take no other ids. */
static bool make_id(char *id)
{
    enum { LENGTH = 9 };
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number) return false;
    for (int i = 0; i < LENGTH; i++, number /= sizeof letters - 1) id[i] = letters[number % (sizeof letters - 1)];
    id[LENGTH] = 0;
    return true;
}

bool server_parts_call(struct server_parts *parts, const char *name, const char *id, const char *arguments, size_t size)
{
    struct server_part *part = add(parts, SERVER_PART_CALL);
    if (!part) return false;
    const size_t length = strlen(id);
    part->name = strdup(name);
    if (length && length < sizeof part->id)
        memcpy(part->id, id, length + 1);
    else if (!make_id(part->id))
        return false;
    return part->name && server_buffer_add(&part->text, arguments, size);
}

bool server_parts_begin(struct server_parts *parts, const struct server_part *like)
{
    struct server_part *part = add(parts, like->kind);
    if (!part) return false;
    memcpy(part->id, like->id, sizeof part->id);
    if (like->name) part->name = strdup(like->name);
    return !like->name || part->name;
}

void server_parts_truncate(struct server_parts *parts, size_t count)
{
    for (; parts->count > count; parts->count--) {
        free(parts->items[parts->count - 1].name);
        server_buffer_free(&parts->items[parts->count - 1].text);
    }
}

void server_parts_free(struct server_parts *parts)
{
    server_parts_truncate(parts, 0);
    free(parts->items);
    *parts = (struct server_parts){0};
}
