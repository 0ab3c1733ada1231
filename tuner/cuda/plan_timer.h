/* SPDX-License-Identifier: Apache-2.0 */
/* Measures whole plans on the GPU, as the engine will replay them. */
#ifndef TUNER_CUDA_PLAN_TIMER_H
#define TUNER_CUDA_PLAN_TIMER_H

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/memory.h"

struct plan_timer {
    const struct cuda_rig *rig;
    struct cuda_memory memory;
    struct cuda_kernels kernels;
    struct cuda_calls calls;
    cu_event events[2];
    bool entered;
    struct team *team; /* several ranks: a member for each */
    uint32_t ranks;    /* that replay together: all, once the timer is open */
    struct timer_rank {
        struct cuda_memory memory;
        struct cuda_kernels kernels;
        struct cuda_calls calls;
    } others[PLAN_MAX_RANKS - 1];
};

/* `kernels`: compiled, those that the plans to be timed refer to. Weights must be on the device. The device's context
 * is current until the timer is closed. With several ranks, all replay together, each on its GPU; the first is timed. */
bool plan_timer_open(struct plan_timer *timer, const struct cuda_rig *rig, const struct kernel_set *kernels,
                     struct status *status);
void plan_timer_close(struct plan_timer *timer); /* harmless after a failed open */
/* What a replay takes: the median of some, and half the distance between their quartiles. */
struct plan_time {
    double us; /* INFINITY: the plan could not be bound */
    double spread_us;
};
/* Times plans of one kind and size in turn: decode with every row at a context of 200 tokens, prefill of a full chunk. With
 * `long_contexts` decode at several contexts up to 32768 tokens: the geometric mean. Fails where plans[0] cannot be
 * bound. */
bool plan_timer_compare(struct plan_timer *timer, const struct plan *plans, int count, bool long_contexts,
                        struct plan_time *times, struct status *status);
bool plan_timer_run(struct plan_timer *timer, const struct plan *plan, double *us, struct status *status); /* of one */
/* The logits of the last replay, which was of this plan: [out_rows, vocab_size]. */
bool plan_timer_logits(const struct plan_timer *timer, const struct plan *plan, float *logits, struct status *status);

/* Called while the timer is open, after the plans were timed. */
typedef bool plan_timer_look(struct plan_timer *timer, const struct plan *plans, const struct plan_time *times,
                             void *context, struct status *status);
/* plan_timer_compare of plans that are not finished yet, with kernels compiled for the occasion. `look` may be NULL. */
bool plan_timer_race(const struct cuda_rig *rig, struct kernel_compiler *compiler, const struct device_plan *plans,
                     int count, bool long_contexts, struct plan_time *times, plan_timer_look *look, void *context,
                     struct status *status);

#endif
