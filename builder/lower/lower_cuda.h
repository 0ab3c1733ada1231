/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering for GPUs: a graph and a row count become a plan of device launches. */
#ifndef BUILDER_LOWER_LOWER_CUDA_H
#define BUILDER_LOWER_LOWER_CUDA_H

#include "builder/lower/lower.h"
#include "kernels/cuda/plan/device_plan.h"

/* What lowering.scratch_bytes must be at least for decode plans of `rows` rows, whatever tactics are chosen. */
uint64_t device_scratch_bytes(const struct graph *graph, const struct lowering *lowering,
                              const struct device_facts *gpu, uint32_t rows);

/* The plan for `rows` token rows, each launch with the first legal tactic of its op. */
bool lower_device_plan(const struct graph *graph, const struct lowering *lowering, const struct device_facts *gpu,
                       uint32_t rows, struct device_plan *plan, struct status *status);

#endif
