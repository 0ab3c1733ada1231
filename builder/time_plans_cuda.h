/* Measures whole plans on the GPU, as the engine will replay them. Private to build*.c. */
#ifndef BUILDER_TIME_PLANS_CUDA_H
#define BUILDER_TIME_PLANS_CUDA_H

#include "builder/cuda_memory.h"

struct plan_timer {
    const struct build *build;
    struct cuda_memory memory;
    struct cuda_kernels kernels;
    struct cuda_calls calls;
    cu_event events[2];
    bool entered;
};

/* `kernels`: compiled, those that the plans to be timed refer to. Weights must be on the device. The device's context
 * is current until the timer is closed. */
bool plan_timer_open(struct plan_timer *timer, const struct build *build, const struct kernel_set *kernels,
                     struct status *status);
void plan_timer_close(struct plan_timer *timer); /* harmless after a failed open */
/* Median microseconds of a replay: decode with every row at a context of 200 tokens, prefill of a full chunk. */
bool plan_timer_run(struct plan_timer *timer, const struct plan *plan, double *us, struct status *status);
/* Decode at contexts from 200 tokens up to 32768: the geometric mean of what a replay takes. */
bool plan_timer_run_contexts(struct plan_timer *timer, const struct plan *plan, double *us, struct status *status);
/* The logits of the last replay, which was of this plan: [out_rows, vocab_size]. */
bool plan_timer_logits(const struct plan_timer *timer, const struct plan *plan, float *logits, struct status *status);

#endif
