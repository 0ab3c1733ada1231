/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of Anthropic's Messages API. Each function appends to a buffer, and returns false if memory is lacking. */
#ifndef RUNTIME_SERVER_SERVER_MESSAGES_H
#define RUNTIME_SERVER_SERVER_MESSAGES_H

#include "runtime/server/server_model.h"

bool server_messages_count(uint64_t tokens, struct server_buffer *out);

/* A whole reply. Requires: the job is done and has not failed. */
bool server_messages_reply(const char *model, const struct server_job *job, struct server_buffer *out);

/* The events of a stream. */
struct server_message_blocks {
    size_t index; /* of the block that is open, or of the next one */
    bool is_open;
    enum server_part_kind kind; /* of the open one */
};
bool server_messages_begin(const char *model, const struct server_job *job, struct server_buffer *out);
bool server_messages_ping(struct server_buffer *out);
bool server_messages_parts(struct server_message_blocks *blocks, const struct server_parts *parts,
                           struct server_buffer *out);
/* calls: those of the whole answer; stop: the stop string before which it has ended, which calls make no reason; NULL: none. */
bool server_messages_end(struct server_message_blocks *blocks, const struct server_job *job, enum server_finish finish,
                         size_t calls, const char *stop, struct server_buffer *out);

#endif
