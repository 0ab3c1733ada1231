/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a step goes: each launch of a plan by itself, and the whole step as sessions replay it. For the
 * programs of runtime/cli; not part of the public library. */
#ifndef RUNTIME_SESSION_TRACE_H
#define RUNTIME_SESSION_TRACE_H

#include "runtime/session/session.h"

struct trace {
    const struct engine *file; /* borrowed from the session's engine, as the plan is */
    const struct plan *plan;
    uint32_t rows;     /* valid ones */
    double replay_us;  /* the whole step; median of several, likewise below */
    double *launch_us; /* [plan->header.launch_count], owned: one launch after the other */
};

/* One decode step of `count` raw slots that are different, each with its token; one chunk of a prompt of `count` tokens
 * in a raw slot, at most as many of them as the largest prefill plan takes. Arguments are those that eng_decode and
 * eng_prefill would accept. The slots are afterwards as they were. */
bool trace_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, uint32_t count,
                  struct trace *trace, struct status *status);
bool trace_prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, uint32_t count,
                   struct trace *trace, struct status *status);
void trace_free(struct trace *trace); /* harmless on zeros */

#endif
