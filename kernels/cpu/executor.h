/* SPDX-License-Identifier: Apache-2.0 */
/* Binds plans to memory and replays them on a team, as an instantiated graph does on a GPU. */
#ifndef KERNELS_CPU_EXECUTOR_H
#define KERNELS_CPU_EXECUTOR_H

#include "kernels/op/op.h"

/* Base addresses of the spaces, aligned to PLAN_ALIGNMENT; sizes are those with which the plan was verified. */
struct cpu_memory {
    void *base[SPACE_COUNT]; /* [SPACE_WEIGHTS] is never written */
};

struct cpu_plan {
    int64_t *params;                  /* owned: those of the calls */
    struct op_call *calls;            /* owned */
    op_run **runners;                 /* owned */
    const struct op_descriptor **ops; /* owned */
    uint32_t launch_count;
};

/* Verifies the plan (plan_verify, and op_verify for every launch) and resolves operands. `plan` and memory are
 * borrowed. */
bool cpu_plan_bind(struct cpu_plan *bound, const struct plan *plan, const struct plan_geometry *geometry,
                   const struct plan_space_sizes *sizes, const struct cpu_memory *memory, enum cpu_isa isa,
                   const char *name, struct status *status);
void cpu_plan_free(struct cpu_plan *bound);

/* Replays all launches in order, with a barrier after each. No allocation. */
void cpu_plan_run(const struct cpu_plan *bound, struct team *team);

/* Runs the same launches with the reference functions, one after the other. Only matmul, which is too slow on one
 * thread, is divided among the team by rows of the weight matrix. */
void cpu_plan_run_reference(const struct cpu_plan *bound, struct team *team);

/* Like cpu_plan_run; every member of the team calls `observe` before its part of each launch, whose inputs are there then. */
typedef void cpu_plan_observer(void *context, const struct op_descriptor *op, const struct op_call *call,
                               const struct team_member *member);
void cpu_plan_run_observed(const struct cpu_plan *bound, struct team *team, cpu_plan_observer *observe, void *context);

/* Like cpu_plan_run; adds the time of launch i to launch_us[i] (for traces). */
void cpu_plan_run_timed(const struct cpu_plan *bound, struct team *team, double *launch_us);

#endif
