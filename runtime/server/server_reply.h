/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of replies, in the shapes of OpenAI's API. Each function appends to a buffer, and returns false if memory is
 * lacking. */
#ifndef RUNTIME_SERVER_SERVER_REPLY_H
#define RUNTIME_SERVER_SERVER_REPLY_H

#include "runtime/server/server_model.h"

/* SERVER_RESPONSES has OpenAI's errors, too. */
bool server_reply_error(const struct server_error *error, enum server_shape shape, struct server_buffer *out);

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

/* Chunks of a stream, as server-sent events. A choice has one that begins it, any number with parts of it, and one that ends it;
 * after all choices comes one of usage alone, if the request wants it. `calls`: those that came before. logprobs NULL:
 * none. */
bool server_reply_begin(const struct server_model *model, const struct server_job *job, size_t index,
                        struct server_buffer *out);
bool server_reply_parts(const struct server_model *model, const struct server_job *job, size_t index, size_t calls,
                        const struct server_parts *parts, const struct server_logprobs *logprobs,
                        struct server_buffer *out);
bool server_reply_end(const struct server_model *model, const struct server_job *job, size_t index, size_t calls,
                      enum server_finish finish, struct server_buffer *out);
bool server_reply_usage(const struct server_model *model, const struct server_job *job, struct server_buffer *out);

#endif
