/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_context.h"

/* ENG_TOO_LONG: the pool has no room for a sequence of so many tokens. No step runs. */
static enum eng_status try_context(struct eng_session *session, uint32_t tokens, struct eng_error *error)
{
    static const int32_t token = 0;
    struct eng_sequence *sequence = NULL;
    struct eng_sequence_options options;
    eng_sequence_options_init(&options);
    options.context_tokens = tokens;
    if (eng_sequence_create(session, &options, &sequence, error)) return (enum eng_status)error->status;
    const enum eng_status status = eng_sequence_submit(sequence, &token, 1, error);
    eng_sequence_destroy(&sequence);
    return status;
}

bool server_context_find(struct eng_session *session, uint32_t context, uint32_t *tokens, struct eng_error *error)
{
    enum { LEAST = 2 }; /* a token of a prompt and one of an answer, which fit in a page */
    uint32_t fits = LEAST, too_many = context + 1, next = context;
    while (fits + 1 < too_many) {
        const enum eng_status status = try_context(session, next, error);
        if (status != ENG_OK && status != ENG_TOO_LONG) return false;
        if (status == ENG_OK)
            fits = next;
        else
            too_many = next;
        next = fits + (too_many - fits) / 2;
    }
    *tokens = fits < context ? fits : context;
    return true;
}
