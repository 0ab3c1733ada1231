/* SPDX-License-Identifier: Apache-2.0 */
/* How a family of models writes calls of functions, as a pattern, and a text that is matched with it piece by piece. The time is linear
 * in the text. In a pattern
 *   $name       is the name of a function: bytes that are neither white space nor one of <>[](){}":
 *   $id, $key, $type, $value, $skip   are the text up to the literal that follows
 *   $args       is a JSON object: the arguments
 *   $calls      is a JSON object or array: calls with their names
 *   $python     is a list of calls in the syntax of Python, $gemma an object of Gemma's
 *   $(...$)     comes any number of times
 *   $!          a call, or those of $calls, are complete
 *   ~           is optional white space; everything else is itself. */
#ifndef RUNTIME_SERVER_SERVER_PATTERN_H
#define RUNTIME_SERVER_SERVER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

struct server_span {
    size_t begin, size; /* bytes of the text; size 0: nothing was found */
};

enum { SERVER_MOST_ARGUMENTS = 128 }; /* that a pattern writes one by one */

/* Found since the last call: spans of the text that was given. */
struct server_found {
    struct server_span name, id, args, calls, python, gemma;
    struct server_argument {
        struct server_span key, type, value;
    } arguments[SERVER_MOST_ARGUMENTS];
    size_t argument_count;
};

struct server_match {
    const char *pattern; /* borrowed */
    size_t element;      /* of the pattern: what comes next */
    size_t at;           /* of the text: what comes next */
    size_t scanned;      /* the search for a literal goes on here */
    size_t whole;        /* end of the last complete element of a list of calls; 0: there is none yet */
    unsigned depth;      /* of brackets in JSON */
    char quote;          /* the string's in JSON, 0: outside of strings */
    bool is_escaped;
    struct server_found found;
};

enum server_matched {
    SERVER_MATCH_MORE, /* the text ends before the pattern */
    SERVER_MATCH_CALL, /* $!: `found` has the call, and server_match_next must be called */
    SERVER_MATCH_DONE,
    SERVER_MATCH_NONE /* the text from match->at on is something else */
};

void server_match_begin(struct server_match *match, const char *pattern);
/* Goes on with a text that begins with the one of the call before. */
enum server_matched server_match_step(struct server_match *match, const char *text, size_t size);
/* The first `at` bytes of the text are dropped, and what was found in them. */
void server_match_next(struct server_match *match);

/* Where a list of calls belongs in match->found if the text ends in one; NULL: it ends elsewhere. */
struct server_span *server_match_list(struct server_match *match);

/* Length of the literal at the beginning of a pattern. */
size_t server_pattern_literal(const char *pattern);
/* The bracket that belongs to the one at `element`, forwards from "$(" and backwards from "$)". */
size_t server_pattern_other_bracket(const char *pattern, size_t element);

#endif
