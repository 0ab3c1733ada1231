/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs on a GPU: the engine's plans run as the runtime will run them, on memory of their own. */
#ifndef BUILDER_GOLDEN_GOLDEN_CUDA_H
#define BUILDER_GOLDEN_GOLDEN_CUDA_H

#include "builder/golden/golden.h"
#include "kernels/cuda/plan/kernel_set.h"
#include "tuner/cuda/memory.h"

/* As compute_golden: the prompt once through the smallest prefill plan and once token by token, which must agree. `kernels`:
 * compiled, of the plans. */
bool compute_golden_cuda(const struct cuda_rig *rig, const struct plan *plans, size_t plan_count,
                         const struct kernel_set *kernels, struct engine_golden *golden, struct status *status);

#endif
