/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/embeddings: an input's embedding is the hidden state of its last token or the mean of all, cut to `dimensions` numbers and scaled to length 1. A
 * job has a choice for each input, whose text is the embedding: the bytes of its float32 numbers. */
#ifndef RUNTIME_SERVER_SERVER_EMBEDDINGS_H
#define RUNTIME_SERVER_SERVER_EMBEDDINGS_H

#include "runtime/server/server_job.h"

/* Makes the embedding from the input's hidden state [hidden_size]. False: error->status is set. */
bool server_embeddings_add(const struct server_job *job, struct server_choice *choice, const float *hidden,
                           uint32_t hidden_size, struct eng_error *error);
/* Requires: the job is done and has not failed. False: out of memory. */
bool server_embeddings_reply(const char *model, const struct server_job *job, struct server_buffer *out);

#endif
