/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs on GPUs: the engine's plans run as the runtime will run them, on memory of their own. */
#ifndef BUILDER_GOLDEN_GOLDEN_CUDA_H
#define BUILDER_GOLDEN_GOLDEN_CUDA_H

#include "builder/golden/task.h"
#include "kernels/cuda/plan/kernel_set.h"
#include "tuner/cuda/plan_timer.h"

/* As compute_golden, but the expected logits come from the decode plan of one row: contexts token by token as far as that is quick,
 * then by prefill plans, which were compared with it. `library_plans`: the variants that call libraries, launch_count 0 where there
 * is none. `kernels`: compiled, of all plans. The arena of `rig` must be large enough for all. */
bool compute_golden_cuda(const struct cuda_rig *rig, const struct plan *plans, const struct plan *library_plans,
                         size_t plan_count, const struct kernel_set *kernels, struct progress *progress,
                         struct golden_outputs *outputs, struct status *status);

/* A replay of a bound plan with the step's rows. */
bool golden_cuda_replay(struct plan_timer *timer, const struct plan *plan, const struct cuda_plan *bound,
                        const struct golden_step *step, struct status *status);

/* By how much logits of the plan may differ from those of another with the same arithmetic, relative to a row's largest. */
float golden_cuda_tolerance(const struct manifest *manifest, const struct plan *plan);

#endif
