/* SPDX-License-Identifier: Apache-2.0 */
/* Races of problems on all GPUs at once, their records, and the shortlists for whole plans. */
#ifndef TUNER_CUDA_RACES_H
#define TUNER_CUDA_RACES_H

#include "kernels/cpu/team.h"
#include "tuner/cuda/problems.h"

struct races {
    struct tune_context *context;
    const struct tune_problems *problems;
    struct kernel_set kernels;                 /* of the tactics that race */
    struct cuda_bench benches[PLAN_MAX_RANKS]; /* one on each GPU; GPUs race different problems at the same time */
    pthread_mutex_t lock;                      /* guards kernels, records, cache and progress during the races */
    struct team *team;                         /* several GPUs: one member for each */
    bool are_open;                             /* something is measured */
};

/* Opens benches on all GPUs. races_close must be called even after a failure or if nothing was opened. */
bool races_open(struct races *races, struct status *status);
void races_close(struct races *races);
/* The bench whose ceilings apply to all; NULL if nothing is measured. */
const struct cuda_bench *races_bench(const struct races *races);
/* Loads the kernels that race on all GPUs. */
bool races_load(struct races *races, struct status *status);
/* Races the problems without a cached answer; each GPU takes the next one. Fills their records, context->problems and
 * the cache. */
bool races_run(struct races *races, const bool *answered, struct status *status);

#endif
