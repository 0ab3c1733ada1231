/* SPDX-License-Identifier: Apache-2.0 */
/* The server-sent events of one job: what its choices have gained, in the shape of the API that the request came through. */
#ifndef RUNTIME_SERVER_SERVER_STREAM_H
#define RUNTIME_SERVER_SERVER_STREAM_H

#include "runtime/server/server_messages.h"
#include "runtime/server/server_responses.h"

struct server_stream {
    bool has_begun;                /* the first events of all choices were sent: they wait for nothing */
    bool *ended;                   /* owned [choice_count]: the finish reason was sent */
    struct server_answer *answers; /* owned [choice_count] */
    size_t choice_count, ended_count;
    struct server_message_blocks blocks; /* used by SERVER_MESSAGES, as the next one is by SERVER_RESPONSES */
    struct server_response_items items;
    bool finished; /* nothing will follow */
};

bool server_stream_open(struct server_stream *stream, const struct server_job *job);
/* Appends the events for everything that is new; nothing if nothing is. Takes the lock of the model. */
bool server_stream_next(struct server_stream *stream, struct server_model *model, struct server_job *job,
                        struct server_buffer *out);
/* Appends what clients skip. */
bool server_stream_ping(enum server_shape shape, struct server_buffer *out);
/* Whether there is something new, so that server_stream_next would look at it. Requires: the lock is held. */
bool server_stream_has_news(const struct server_stream *stream, const struct server_job *job);
void server_stream_close(struct server_stream *stream);

#endif
