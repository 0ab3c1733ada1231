/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/session/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TRACE_REPETITIONS = 5 };

/* A step that can be repeated. */
struct traced_step {
    struct eng_session *session;
    const uint32_t *slots;
    uint32_t slot_count;
    uint32_t appended; /* tokens that it appends to each slot */
    struct session_plan *plan;
    struct sampler_state *samplers; /* [slot_count], owned: their initial values */
};

/* Undoes the changes of the backend to the slots: rewrites sampler and SEEN, releases KV pages. */
static void restore(const struct traced_step *step)
{
    struct eng_session *session = step->session;
    for (uint32_t i = 0; i < step->slot_count; i++) {
        int32_t slot = (int32_t)step->slots[i];
        slots_truncate(session, slot, session->slots[slot].position);
        slots_set_sampler(session, slot, &step->samplers[i]);
        slot_options_recount(session, slot);
    }
}

static bool reserve(const struct traced_step *step, struct status *status)
{
    struct eng_session *session = step->session;
    for (uint32_t i = 0; i < step->slot_count; i++) {
        const struct session_slot *slot = &session->slots[step->slots[i]];
        uint64_t tokens = (uint64_t)slot->position + step->appended;
        if (tokens <= session->geometry->max_context && slots_reserve(session, (int32_t)step->slots[i], tokens))
            continue;
        return status_fail(status, STATUS_FULL, "trace: no room for %" PRIu32 " more tokens in slot %" PRIu32,
                           step->appended, step->slots[i]);
    }
    return true;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static double median(double values[TRACE_REPETITIONS])
{
    qsort(values, TRACE_REPETITIONS, sizeof *values, compare_times);
    return values[TRACE_REPETITIONS / 2];
}

/* times: [TRACE_REPETITIONS, launches], replays: [TRACE_REPETITIONS]. The first run is discarded: caches, page
 * faults. */
static bool measure(const struct traced_step *step, uint32_t launches, double *times, double *replays,
                    struct status *status)
{
    struct eng_session *session = step->session;
    struct backend *backend = session->backend;
    size_t index = (size_t)(step->plan - session->plans);
    for (int r = -1; r < TRACE_REPETITIONS; r++) {
        size_t at = r < 0 ? 0 : (size_t)r;
        restore(step);
        if (!reserve(step, status)) return false;
        if (!backend->type->trace(backend, index, &replays[at], times + at * launches, status)) {
            session->failure = *status;
            return false;
        }
        session->steps++;
    }
    return true;
}

static bool run(struct traced_step *step, struct trace *trace, struct status *status)
{
    struct eng_session *session = step->session;
    double replays[TRACE_REPETITIONS], values[TRACE_REPETITIONS];
    trace->file = &session->engine->file;
    const struct backend_type *type = session->backend->type;
    size_t index = (size_t)(step->plan - session->plans);
    trace->plan = type->source ? type->source(session->backend, index) : &trace->file->plans[index];
    trace->rows = (uint32_t)step->plan->counts[0];
    uint32_t launches = trace->plan->header.launch_count;
    double *times = calloc((size_t)launches * TRACE_REPETITIONS, sizeof *times);
    trace->launch_us = calloc(launches, sizeof *trace->launch_us);
    step->samplers = calloc(step->slot_count, sizeof *step->samplers);
    bool ok = times && trace->launch_us && step->samplers;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint32_t i = 0; ok && i < step->slot_count; i++) step->samplers[i] = session->samplers[step->slots[i]];
    if (ok) {
        ok = measure(step, launches, times, replays, status);
        restore(step);
    }
    for (uint32_t i = 0; ok && i < launches; i++) {
        for (int r = 0; r < TRACE_REPETITIONS; r++) values[r] = times[(size_t)r * launches + i];
        trace->launch_us[i] = median(values);
    }
    if (ok) trace->replay_us = median(replays);
    free(step->samplers);
    free(times);
    if (!ok) trace_free(trace);
    return ok;
}

bool trace_decode(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, uint32_t count,
                  struct trace *trace, struct status *status)
{
    memset(trace, 0, sizeof *trace);
    if (!session_usable(session, status) || !scheduler_drain(session, status)) return false;
    struct traced_step step = {.session = session, .slots = slots, .slot_count = count, .appended = 1};
    step.plan = replay_decode_plan(session, count);
    for (uint32_t i = 0; i < count; i++) {
        step.plan->slots[i] = (int32_t)slots[i];
        step.plan->tokens[i] = tokens[i];
    }
    replay_fill_decode(session, step.plan, count);
    return run(&step, trace, status);
}

bool trace_prefill(struct eng_session *session, uint32_t slot, const int32_t *tokens, uint32_t count,
                   struct trace *trace, struct status *status)
{
    size_t plan;
    memset(trace, 0, sizeof *trace);
    if (!session_usable(session, status) || !scheduler_drain(session, status)) return false;
    uint32_t chunk = replay_chunk(session, count, &plan);
    struct traced_step step = {.session = session, .slots = &slot, .slot_count = 1, .appended = chunk};
    const struct replay_part part = {.slot = (int32_t)slot, .tokens = tokens, .count = chunk, .draws = true};
    step.plan = replay_fill_prefill(session, &part, plan);
    return run(&step, trace, status);
}

void trace_free(struct trace *trace)
{
    free(trace->launch_us);
    memset(trace, 0, sizeof *trace);
}
