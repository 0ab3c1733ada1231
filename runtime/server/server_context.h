/* SPDX-License-Identifier: Apache-2.0 */
/* The context that a session can serve: the engine's or, where its KV pool is smaller than that, as much as one sequence has room for. */
#ifndef RUNTIME_SERVER_SERVER_CONTEXT_H
#define RUNTIME_SERVER_SERVER_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/eng.h"

/* `context`: the engine's. Requires: the session has no sequences. */
bool server_context_find(struct eng_session *session, uint32_t context, uint32_t *tokens, struct eng_error *error);

#endif
