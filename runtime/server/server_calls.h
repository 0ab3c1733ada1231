/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of functions from the spans that a pattern has found in an answer. */
#ifndef RUNTIME_SERVER_SERVER_CALLS_H
#define RUNTIME_SERVER_SERVER_CALLS_H

#include "runtime/server/server_parts.h"
#include "runtime/server/server_pattern.h"
#include "runtime/server/server_tools.h"

enum server_calls {
    SERVER_CALLS_ADDED,
    SERVER_CALLS_NONE, /* no well-formed call of one of the tools; nothing was added */
    SERVER_CALLS_NO_MEMORY
};

/* `text`: what the spans are of. Arguments that are written one by one become strings where the function's schema says so,
 * else the JSON value that they are, if they are one. */
enum server_calls server_calls_add(const struct server_found *found, const char *text, const struct server_tools *tools,
                                   struct server_parts *parts);

/* Whether a pattern that the end of the text has cut may become a call of one of the tools: it has the name of one, or
 * none so far. `match` is of the text, which has ended within the pattern. */
bool server_calls_may_be(const struct server_match *match, const char *text, size_t size,
                         const struct server_tools *tools);

/* Whether such an argument becomes a string: the function's schema allows strings alone, or strings and null. */
bool server_calls_is_string(const json_t *function, const char *key);

#endif
