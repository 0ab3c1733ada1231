/* SPDX-License-Identifier: Apache-2.0 */
/* Times of a step: each launch of a plan by itself, and the whole step as sessions replay it. For the programs of
 * runtime/cli; not part of the public library. */
#ifndef RUNTIME_SESSION_TRACE_H
#define RUNTIME_SESSION_TRACE_H

#include "runtime/session/session.h"

struct trace {
    const struct engine *file; /* borrowed from the session's engine, as the plan is */
    const struct plan *plan;
    uint32_t rows;     /* valid rows */
    double replay_us;  /* the whole step; median of several runs, as the next */
    double *launch_us; /* [plan->header.launch_count], owned: launches run one after the other */
};

/* Traces one decode step of `count` different raw slots with one token each, or one chunk of a prompt of `count` tokens
 * in a raw slot (at most the rows of the largest prefill plan). The slots are unchanged afterwards, but for
 * recurrent state (plan_geometry.recurrent_bytes), which goes on with each run. Requires: arguments
 * that eng_decode and eng_prefill would accept. */
bool trace_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, uint32_t count,
                  struct trace *trace, struct status *status);
bool trace_prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, uint32_t count,
                   struct trace *trace, struct status *status);
void trace_free(struct trace *trace); /* does nothing on zeros */

#endif
