/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of replies, in the shapes of OpenAI's API. Each function appends to a buffer, and returns false if memory is
 * lacking. */
#ifndef RUNTIME_SERVER_SERVER_REPLY_H
#define RUNTIME_SERVER_SERVER_REPLY_H

#include "runtime/server/server_model.h"

bool server_reply_error(const struct server_error *error, struct server_buffer *out);

/* An entry of the list of models; the list. `created`: seconds since 1970. */
bool server_reply_model(const struct server_model *model, int64_t created, struct server_buffer *out);
bool server_reply_models(struct server_model *const *models, size_t count, int64_t created, struct server_buffer *out);
/* What each sequence of each model does. */
bool server_reply_slots(struct server_model *const *models, size_t count, struct server_buffer *out);

bool server_reply_tokens(const struct server_prompt *prompt, uint32_t max_context, struct server_buffer *out);
bool server_reply_text(const char *text, size_t size, struct server_buffer *out);

/* engine: for log-probabilities, else not used. Requires: the job is done and has not failed. */
bool server_reply_job(const char *model, const struct eng_engine *engine, const struct server_job *job,
                      struct server_buffer *out);

/* Server-sent events of one job. */
struct server_stream {
    bool *begun, *ended; /* owned [choice_count]: the first event, the finish reason were sent */
    size_t ended_count;
    bool finished; /* nothing will follow */
};
bool server_stream_open(struct server_stream *stream, const struct server_job *job);
/* Appends the events for everything that is new; nothing if nothing is. Takes the lock of the model. */
bool server_stream_next(struct server_stream *stream, struct server_model *model, struct server_job *job,
                        struct server_buffer *out);
/* Whether there is something new, so that server_stream_next would append to its buffer. Requires: the lock is held. */
bool server_stream_has_news(const struct server_stream *stream, const struct server_job *job);
void server_stream_close(struct server_stream *stream);

#endif
