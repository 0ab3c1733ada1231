/* SPDX-License-Identifier: Apache-2.0 */
/* Times whole plans on the GPU, replayed as the engine will replay them. */
#ifndef TUNER_CUDA_PLAN_TIMER_H
#define TUNER_CUDA_PLAN_TIMER_H

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/memory.h"

struct plan_timer {
    const struct cuda_rig *rig;
    cu_event events[2];
    bool entered;
    struct team *team; /* several ranks: a member for each */
    uint32_t count;    /* ranks that replay together: all, once the timer is open */
    struct timer_rank {
        struct cuda_memory memory;
        struct cuda_kernels kernels;
        struct cuda_calls calls;
    } ranks[PLAN_MAX_RANKS];
};

/* `kernels`: the compiled kernels that the plans refer to. Requires: the weights are on the device. The device's
 * context is current until the timer is closed. Several ranks replay together, each on its GPU; the first is timed. */
bool plan_timer_open(struct plan_timer *timer, const struct cuda_rig *rig, const struct kernel_set *kernels,
                     struct status *status);
/* The same with so many KV pages, or fewer where the memory is small: then *pages is what there is. */
bool plan_timer_open_pages(struct plan_timer *timer, const struct cuda_rig *rig, const struct kernel_set *kernels,
                           uint64_t *pages, struct status *status);
void plan_timer_close(struct plan_timer *timer); /* harmless after a failed open */
/* Time of a replay: the median of several, and half the distance between their quartiles. */
struct plan_time {
    double us; /* INFINITY: the plan could not be bound */
    double spread_us;
};
/* Times plans of one kind and size in turn: decode with every row at a context of 200 tokens, prefill of a full chunk.
 * With `long_contexts`: decode at several contexts up to 32768 tokens, and the geometric mean of the times. Fails if
 * plans[0] cannot be bound. */
bool plan_timer_compare(struct plan_timer *timer, const struct plan *plans, int count, bool long_contexts,
                        struct plan_time *times, struct status *status);
bool plan_timer_run(struct plan_timer *timer, const struct plan *plan, double *us, struct status *status); /* of one */

/* Single replays with inputs of the caller's, whose outputs count. plan_timer_bind makes the plan's graph on every rank; *bound
 * must be zero before, and be unbound afterwards, also after a failure. */
bool plan_timer_bind(struct plan_timer *timer, const struct plan *plan, struct cuda_plan bound[PLAN_MAX_RANKS],
                     struct status *status);
void plan_timer_unbind(const struct plan_timer *timer, struct cuda_plan bound[PLAN_MAX_RANKS]);
bool plan_timer_write_pages(struct plan_timer *timer, const int32_t *table, struct status *status); /* of all slots */
bool plan_timer_randomise_kv(struct plan_timer *timer, struct status *status);
bool plan_timer_replay(struct plan_timer *timer, const struct cuda_plan bound[PLAN_MAX_RANKS],
                       const struct cuda_inputs *inputs, struct status *status);
/* Reads the last replay, which was of this plan: logits [out_rows, vocab_size] and tokens drawn [out_rows], unless NULL. */
bool plan_timer_outputs(const struct plan_timer *timer, const struct plan *plan, uint32_t out_rows, float *logits,
                        int32_t *drawn, struct status *status);
/* Reads bytes of the first rank's memory after the last replay; `what` is for messages. */
bool plan_timer_read(const struct plan_timer *timer, enum plan_space space, uint64_t offset, void *to, uint64_t bytes,
                     const char *what, struct status *status);

/* Called while the timer is open, after the plans were timed. */
typedef bool plan_timer_look(struct plan_timer *timer, const struct plan *plans, const struct plan_time *times,
                             void *context, struct status *status);
/* plan_timer_compare for unfinished plans, with kernels compiled for this call. `look` may be NULL. */
bool plan_timer_race(const struct cuda_rig *rig, struct kernel_compiler *compiler, const struct device_plan *plans,
                     int count, bool long_contexts, struct plan_time *times, plan_timer_look *look, void *context,
                     struct status *status);

#endif
