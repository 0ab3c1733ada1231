/* SPDX-License-Identifier: Apache-2.0 */
/* The races of problems: what was measured, what of it may serve a whole plan, and all GPUs at once. */
#ifndef TUNER_CUDA_RACES_H
#define TUNER_CUDA_RACES_H

#include "kernels/cpu/team.h"
#include "tuner/cuda/problems.h"

struct races {
    struct tune_context *context;
    const struct tune_problems *problems;
    struct kernel_set kernels;                 /* those that race */
    struct cuda_bench benches[PLAN_MAX_RANKS]; /* one on each GPU: different problems race at once */
    pthread_mutex_t lock;                      /* of kernels, records, cache and progress meanwhile */
    struct team *team;                         /* several GPUs: a member for each */
    bool are_open;                             /* something is measured */
};

/* Benches on all GPUs. races_close also after a failure, and where nothing was opened. */
bool races_open(struct races *races, struct status *status);
void races_close(struct races *races);
/* The bench whose ceilings hold for all; NULL where nothing is measured. */
const struct cuda_bench *races_bench(const struct races *races);
/* Brings the kernels that race to all GPUs. */
bool races_load(struct races *races, struct status *status);
/* Races the problems that are not answered, each GPU taking the next one that is left: their records, context->problems, the
 * cache. */
bool races_run(struct races *races, const bool *answered, struct status *status);

#endif
