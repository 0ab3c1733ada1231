/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that an answer consists of, in their order: text for the reader, reasoning, and calls of functions. */
#ifndef RUNTIME_SERVER_SERVER_PARTS_H
#define RUNTIME_SERVER_SERVER_PARTS_H

#include "runtime/server/server_buffer.h"

enum { SERVER_CALL_ID_BYTES = 64 };

enum server_part_kind {
    SERVER_PART_CONTENT,
    SERVER_PART_REASONING,
    SERVER_PART_CALL,     /* a call begins: the text is its arguments, or their beginning */
    SERVER_PART_ARGUMENTS /* more of the arguments of the last call; in a list that begins with it, of a call before */
};

struct server_part {
    enum server_part_kind kind;
    char *name; /* owned: of the function; NULL: no call */
    char id[SERVER_CALL_ID_BYTES];
    struct server_buffer text;
};

struct server_parts {
    struct server_part *items; /* owned [count] */
    size_t count, capacity;
};

/* Appends text to the last part if that has the same kind, else as a part of its own. An empty text adds nothing; parts NULL: nor does any
 * other. Each returns false if memory is lacking. */
bool server_parts_text(struct server_parts *parts, enum server_part_kind kind, const char *text, size_t size);
/* `id` "" or longer than fits: a random one is made. */
bool server_parts_call(struct server_parts *parts, const char *name, const char *id, const char *arguments,
                       size_t size);
/* Appends a part with the kind, name and id of another one, and no text. */
bool server_parts_begin(struct server_parts *parts, const struct server_part *like);
/* Drops all parts from index `count` on. Requires: there are as many. */
void server_parts_truncate(struct server_parts *parts, size_t count);
void server_parts_free(struct server_parts *parts);

#endif
