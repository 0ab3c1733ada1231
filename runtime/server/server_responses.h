/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of OpenAI's Responses API. Each function appends to a buffer, and returns false if memory is lacking. */
#ifndef RUNTIME_SERVER_SERVER_RESPONSES_H
#define RUNTIME_SERVER_SERVER_RESPONSES_H

#include "runtime/server/server_model.h"

/* A whole response. Requires: the job is done and has not failed. */
bool server_responses_reply(const char *model, const struct server_job *job, struct server_buffer *out);

/* The events of a stream. */
struct server_response_items {
    struct server_parts parts; /* owned: all so far, one for each item */
    bool is_open;              /* the last item is not complete */
    uint64_t sequence;         /* number of the next event */
};
bool server_responses_begin(struct server_response_items *items, const char *model, const struct server_job *job,
                            struct server_buffer *out);
bool server_responses_parts(struct server_response_items *items, const struct server_job *job,
                            const struct server_parts *parts, struct server_buffer *out);
bool server_responses_end(struct server_response_items *items, const char *model, const struct server_job *job,
                          enum server_finish finish, struct server_buffer *out);
/* The job has failed. */
bool server_responses_fail(struct server_response_items *items, const struct server_error *failure,
                           struct server_buffer *out);
void server_responses_free(struct server_response_items *items);

#endif
