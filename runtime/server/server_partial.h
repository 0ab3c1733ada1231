/* SPDX-License-Identifier: Apache-2.0 */
/* JSON that comes piece by piece and may be cut: whether it is whole, and an object of its complete values. */
#ifndef RUNTIME_SERVER_SERVER_PARTIAL_H
#define RUNTIME_SERVER_SERVER_PARTIAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* What has come so far. Brackets and quotes alone are looked at: a grammar makes the text, or a reader of JSON judges it. */
struct server_partial {
    size_t depth; /* of brackets */
    bool in_string, is_escaped;
    bool is_whole; /* an object or array has come to its end */
};

void server_partial_push(struct server_partial *partial, const char *text, size_t size);

/* An owned object: of a text that was cut, all values that are complete, with the brackets around them; an empty one if the text
 * begins no object. NULL: out of memory. */
json_t *server_partial_object(const char *text, size_t size);

#endif
