/* SPDX-License-Identifier: Apache-2.0 */
/* What a router would have left for a matmul over experts that races without one. */
#ifndef TUNER_CUDA_BENCH_CHOICES_H
#define TUNER_CUDA_BENCH_CHOICES_H

#include "kernels/cuda/plan/device_plan.h"
#include "tuner/cuda/memory.h"

/* Writes routes and lists for all launches, which compute the same problem, by choose_experts; launches whose routes lie in the same
 * memory have those that were written last. As in a model, some experts have several rows and others none, which decides how
 * many rows a tile should take. Shared experts, which all rows have, are not known here. Does nothing for other launches. Requires: the GPU's context is current. */
bool bench_write_choices(const struct cuda_memory *memory, const struct device *device,
                         const struct device_launch *const *launches, int count, struct status *status);

#endif
