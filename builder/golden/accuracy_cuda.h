/* SPDX-License-Identifier: Apache-2.0 */
/* Accuracy of an encoding, measured on the GPUs for which the engine is (accuracy.h). */
#ifndef BUILDER_GOLDEN_ACCURACY_CUDA_H
#define BUILDER_GOLDEN_ACCURACY_CUDA_H

#include "kernels/cpu/team.h"
#include "kernels/cuda/plan/kernel_set.h"
#include "tuner/cuda/memory.h"
#include "tuner/progress.h"

/* A decode plan, its compiled kernels, and GPUs that have its weights. */
struct accuracy_gpu_model {
    const struct cuda_rig *rig;
    const struct plan *plan;
    const struct kernel_set *kernels;
};

/* Bytes of GPU memory beside the weights that a model needs while it is measured with a plan of `rows` rows. */
bool accuracy_cuda_bytes(const struct manifest *manifest, uint32_t rows, uint64_t *bytes);

/* measure_accuracy with as many sequences as the plans have rows, at least 1024 tokens in all, at most 256 of each. Requires: plans of equal rows. */
bool measure_accuracy_cuda(const struct accuracy_gpu_model *unquantised, const struct accuracy_gpu_model *quantised,
                           struct team *team, struct progress *progress, struct manifest_accuracy *accuracy,
                           struct status *status);

#endif
