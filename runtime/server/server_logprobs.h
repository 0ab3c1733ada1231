/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of the tokens of one answer, with echo of its prompt, too, and their JSON in the two shapes of OpenAI's API. */
#ifndef RUNTIME_SERVER_SERVER_LOGPROBS_H
#define RUNTIME_SERVER_SERVER_LOGPROBS_H

#include <stdint.h>

#include "runtime/eng.h"
#include "runtime/server/server_buffer.h"

struct server_logprob {
    struct eng_logprob drawn; /* NaN: the first token of an echoed prompt */
    uint64_t begin, end;      /* characters of the answer before and after the token's text */
};

struct server_logprobs {
    size_t top_count;              /* likeliest tokens of each, at most ENG_MAX_LOGPROBS */
    struct server_logprob *tokens; /* owned [count] */
    struct eng_logprob *top;       /* owned [count, top_count] */
    size_t count, capacity;
    size_t ready; /* the first ones, whose text has left the search for stop strings */
};

/* Adds a token whose text begins after `begin` characters. top: [top_count]. False: out of memory. */
bool server_logprobs_add(struct server_logprobs *logprobs, const struct eng_logprob *drawn,
                         const struct eng_logprob *top, uint64_t begin);
/* The text of the last token ends after `end` characters, if there is one, and the first `released` characters may be
 * sent. */
void server_logprobs_text(struct server_logprobs *logprobs, uint64_t end, uint64_t released);
/* The answer has ended after `released` characters: all of its tokens are ready, and those after it are dropped. */
void server_logprobs_finish(struct server_logprobs *logprobs, uint64_t released);

/* Moves those that are ready to *taken, which is empty before. False: out of memory, nothing has changed. */
bool server_logprobs_take(struct server_logprobs *logprobs, struct server_logprobs *taken);
void server_logprobs_free(struct server_logprobs *logprobs);

/* Appends the value of a choice's "logprobs" for those that are ready. False: out of memory. */
bool server_logprobs_print(const struct server_logprobs *logprobs, const struct eng_engine *engine, bool is_chat,
                           struct server_buffer *out);
/* Appends an array of tokens [first, end), as chats have it. */
bool server_logprobs_print_list(const struct server_logprobs *logprobs, size_t first, size_t end,
                                const struct eng_engine *engine, struct server_buffer *out);

#endif
