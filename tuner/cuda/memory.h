/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory in which a build runs plans: to compute golden outputs and to measure. */
#ifndef TUNER_CUDA_MEMORY_H
#define TUNER_CUDA_MEMORY_H

#include "kernels/cuda/executor.h"
#include "tuner/cuda/gpus.h"

/* On what plans of a build run: its GPUs, and the sizes of their spaces. */
struct cuda_rig {
    const struct gpus *gpus;
    const struct manifest *manifest;
    uint64_t arena_bytes;   /* not the manifest's: plans in the making may need more */
    uint32_t longest_chunk; /* rows of the largest prefill plan; 0: there is none */
};

/* Allocates and clears, on the GPU of a rank, arena, KV pool, step and state as the manifest says; the weights are the
 * build's. The pages of slot 0 are 0, 1, 2, ..., those of the others begin as far apart as kv_pages allows, modulo kv_pages;
 * all samplers are greedy. With several ranks, this one stands alone (kernels/cuda/comm.h) until cuda_memory_connect. The
 * device's context must be current for all of these; to close, that of any. */
bool cuda_memory_open(struct cuda_memory *memory, const struct cuda_rig *rig, uint32_t rank, uint64_t kv_pages,
                      struct status *status);
void cuda_memory_close(struct cuda_memory *memory, const struct cuda_rig *rig, const struct device *device);

/* Joins the memories of all ranks, [ranks]: what they exchange goes from one to the other from now on. Enters the contexts
 * itself. */
bool cuda_memory_connect(struct cuda_memory *const *memories, const struct cuda_rig *rig, struct status *status);
/* Fails, naming the ranks, where one has waited for another in vain since: what they computed is worth nothing. Nothing may
 * run. */
bool cuda_memory_check(struct cuda_memory *const *memories, const struct cuda_rig *rig, struct status *status);

/* Fills a space with random 16-bit values, half of them negative, that are moderate numbers as F32, F16 and BF16. */
bool cuda_memory_randomise(const struct cuda_memory *memory, const struct device *device, enum plan_space space,
                           struct status *status);

/* Input fields of the step of a plan, filled by the caller and then written to the device. */
struct cuda_inputs {
    uint8_t *bytes; /* owned */
    size_t size;
    struct plan_field fields[STEP_FIELD_COUNT];
    int32_t *counts, *tokens, *slots, *positions, *out_rows;
};
bool cuda_inputs_open(struct cuda_inputs *inputs, const struct cuda_rig *rig, const struct plan_header *header,
                      struct status *status);
/* All rows: for decode each the token at `position` of a sequence of its own, else one prompt from its first token on. */
void cuda_inputs_fill(struct cuda_inputs *inputs, const struct cuda_rig *rig, const struct plan_header *header,
                      uint64_t position);
void cuda_inputs_close(struct cuda_inputs *inputs);
bool cuda_inputs_write(const struct cuda_inputs *inputs, const struct cuda_memory *memory, const struct device *device,
                       struct status *status);

#endif
