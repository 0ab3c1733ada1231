/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering for GPUs: a graph and a row count become a plan of device launches. */
#ifndef BUILDER_LOWER_LOWER_CUDA_H
#define BUILDER_LOWER_LOWER_CUDA_H

#include "builder/lower/lower.h"
#include "kernels/cuda/plan/device_plan.h"

/* Least lowering.scratch_bytes for decode plans of `rows` rows with any tactics. */
uint64_t device_scratch_bytes(const struct graph *graph, const struct lowering *lowering,
                              const struct device_facts *gpu, uint32_t rows);

/* Whether the GPU has kernels for every node, with `rows` token rows; a message that names the op if not. */
bool device_takes_graph(const struct graph *graph, const struct lowering *lowering, const struct device_facts *gpu,
                        uint32_t rows, struct status *status);

/* The plan for `rows` token rows, each launch with the first legal tactic of its op. */
bool lower_device_plan(const struct graph *graph, const struct lowering *lowering, const struct device_facts *gpu,
                       uint32_t rows, struct device_plan *plan, struct status *status);

#endif
