/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of OpenAI's Responses API. Each function appends to a buffer, and returns false if memory is lacking. */
#ifndef RUNTIME_SERVER_SERVER_RESPONSES_H
#define RUNTIME_SERVER_SERVER_RESPONSES_H

#include "runtime/server/server_model.h"

/* A whole response. engine: for log-probabilities. Requires: the job is done and has not failed. */
bool server_responses_reply(const char *model, const struct eng_engine *engine, const struct server_job *job,
                            struct server_buffer *out);

/* The reply about a prompt that is counted alone. */
bool server_responses_count(uint64_t tokens, struct server_buffer *out);

struct server_token_range {
    size_t first, end;
};

/* The items of a response, and the events of a stream. Log-probabilities are those of the tokens that messages consist of, each in its message:
 * tokens of reasoning, of calls and of markers have none. */
struct server_response_items {
    struct server_parts parts; /* owned: all so far, one for each item */
    bool is_open;              /* the last item is not complete */
    uint64_t sequence;         /* number of the next event */
    /* Where log-probabilities are wanted. */
    const struct eng_engine *engine; /* borrowed */
    struct server_logprobs
        logprobs; /* owned: of messages, and, from `pending` on, of tokens that may become part of one */
    struct server_token_range *ranges; /* owned [parts.count]: of each item; NULL: there are none */
    size_t pending;
    uint64_t characters; /* of the answer, so far */
};
bool server_responses_begin(struct server_response_items *items, const char *model, const struct server_job *job,
                            struct server_buffer *out);
bool server_responses_parts(struct server_response_items *items, const struct server_job *job,
                            const struct server_parts *parts, struct server_buffer *out);
/* The same for the next text of an answer, whose reader is `answer`, with the log-probabilities of those of its tokens that are ready;
 * finish: NONE: the answer goes on. */
bool server_responses_tokens(struct server_response_items *items, const struct server_job *job,
                             struct server_answer *answer, const struct server_buffer *text, enum server_finish finish,
                             const struct server_logprobs *logprobs, struct server_buffer *out);
bool server_responses_end(struct server_response_items *items, const char *model, const struct server_job *job,
                          enum server_finish finish, struct server_buffer *out);
/* The job has failed. */
bool server_responses_fail(struct server_response_items *items, const struct server_job *job,
                           struct server_buffer *out);
void server_responses_free(struct server_response_items *items);

#endif
