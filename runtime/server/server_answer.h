/* SPDX-License-Identifier: Apache-2.0 */
/* Divides the text of an answer, as it comes, into content, reasoning and calls. A text that is no well-formed call of one of the
 * tools stays content; white space around calls and reasoning, and the markers of both, are no part of the answer. */
#ifndef RUNTIME_SERVER_SERVER_ANSWER_H
#define RUNTIME_SERVER_SERVER_ANSWER_H

#include "runtime/server/server_calls.h"
#include "runtime/server/server_dialects.h"
#include "runtime/server/server_partial.h"

enum server_answer_state {
    SERVER_ANSWER_PLAIN,   /* all is content */
    SERVER_ANSWER_TEXT,    /* content, in which reasoning and calls are looked for */
    SERVER_ANSWER_THOUGHT, /* reasoning */
    SERVER_ANSWER_PATTERN, /* what may be a call */
    SERVER_ANSWER_NAMED    /* all is the arguments of one function */
};

struct server_answer {
    const struct server_dialect *dialect; /* borrowed; NULL: PLAIN */
    const struct server_tools *tools;     /* borrowed; NULL: no calls */
    enum server_answer_state state;
    struct server_buffer held;  /* not decided yet */
    size_t used;                /* bytes of `held` that are */
    struct server_buffer space; /* of the kind of text that came last: dropped if something else follows */
    struct server_match match;
    struct server_partial named; /* NAMED: the arguments so far */
    bool is_required;            /* all is an array of calls */
    bool is_bound;               /* all is either calls or content, as the first bytes tell */
    bool is_json;                /* is_bound: the content is JSON */
    bool start_is_past;          /* patterns of beginnings do not match any more */
    size_t next_start;           /* index of the first one that was not tried */
    bool is_start;               /* `match` is one of them */
    bool has_content;
    bool skip_space;  /* white space that comes next is dropped */
    bool after_call;  /* nothing but white space has come since a call */
    bool in_message;  /* the marker that came last ends a header of gpt-oss */
    bool has_dropped; /* the end of the answer, which was cut */
    size_t calls;
};

/* in_thought: the prompt ends with the beginning of reasoning. */
void server_answer_begin(struct server_answer *answer, const struct server_dialect *dialect,
                         const struct server_tools *tools, bool in_thought);
/* A grammar makes the answer, which has just begun, either calls or content, which is_json tells to be JSON. */
void server_answer_bind(struct server_answer *answer, bool is_json);
/* Both append the decided parts. False: out of memory. */
bool server_answer_push(struct server_answer *answer, const char *text, size_t size, struct server_parts *parts);
/* is_cut: the limit of tokens or a stop string has ended the answer. A marker or a call of one of the tools that it has cut is left out, but for
 * the arguments of a NAMED one. What may be text stays content: the beginning of a marker without a special token, a call of something else. */
bool server_answer_finish(struct server_answer *answer, bool is_cut, struct server_parts *parts);
/* Calls that can be made: the arguments of a NAMED one may not be whole. */
size_t server_answer_calls(const struct server_answer *answer);
/* Reads the text of one token, without its parts. *is_thought: it is of reasoning or of a marker of that. Once no reasoning can begin any
 * more, the answer is PLAIN and has no memory. False: out of memory. */
bool server_answer_follow(struct server_answer *answer, const char *text, size_t size, bool *is_thought);
void server_answer_free(struct server_answer *answer);

#endif
