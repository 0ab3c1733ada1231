/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory in which a build runs plans, for golden outputs and measurements. */
#ifndef TUNER_CUDA_MEMORY_H
#define TUNER_CUDA_MEMORY_H

#include "kernels/cuda/executor.h"
#include "tuner/cuda/gpus.h"

/* The GPUs of a build and the sizes of their memory spaces. */
struct cuda_rig {
    const struct gpus *gpus;
    const struct manifest *manifest;
    uint64_t arena_bytes;   /* not the manifest's: unfinished plans may need more */
    uint32_t longest_chunk; /* rows of the largest prefill plan; 0: there is none */
};

/* Allocates and clears, on the GPU of a rank, arena, KV pool, step and state as the manifest says; the weights belong
 * to the build. Slot 0 has pages 0, 1, 2, ...; the first pages of the other slots are as far apart as kv_pages allows,
 * modulo kv_pages. All samplers are greedy. With several ranks, each exchanges with itself only (kernels/cuda/comm.h)
 * until cuda_memory_connect. Requires, for all functions: the device's context is current; to close, that of any
 * device. */
bool cuda_memory_open(struct cuda_memory *memory, const struct cuda_rig *rig, uint32_t rank, uint64_t kv_pages,
                      struct status *status);
void cuda_memory_close(struct cuda_memory *memory, const struct cuda_rig *rig, const struct device *device);

/* Connects the memories of all ranks, [ranks]: from now on they exchange data. Enters the contexts itself. */
bool cuda_memory_connect(struct cuda_memory *const *memories, const struct cuda_rig *rig, struct status *status);
/* Requires: all streams are idle. Fails and names the ranks if a collective timed out since the last call; its results
 * are invalid. */
bool cuda_memory_check(struct cuda_memory *const *memories, const struct cuda_rig *rig, struct status *status);

/* Fills a space with random 16-bit values, half of them negative, which are of moderate size as F32, F16 and BF16. */
bool cuda_memory_randomise(const struct cuda_memory *memory, const struct device *device, enum plan_space space,
                           struct status *status);

/* Input fields of the step of a plan, filled by the caller and then written to the device. */
struct cuda_inputs {
    uint8_t *bytes; /* owned */
    size_t size;
    struct plan_field fields[STEP_FIELD_COUNT];
    int32_t *counts, *tokens, *slots, *positions, *out_rows, *seeds;
    int32_t *following; /* NULL: the engine does not draft */
};
bool cuda_inputs_open(struct cuda_inputs *inputs, const struct cuda_rig *rig, const struct plan_header *header,
                      struct status *status);
/* Inputs for all rows. Decode: each row is the token at `position` of its own sequence. Prefill: one prompt, of few rows its last ones
 * of 2048 tokens. */
void cuda_inputs_fill(struct cuda_inputs *inputs, const struct cuda_rig *rig, const struct plan_header *header,
                      uint64_t position);
/* How many out rows these inputs have: the header's are the most that a step may have. */
uint32_t cuda_inputs_out_rows(const struct plan_header *header);
void cuda_inputs_close(struct cuda_inputs *inputs);
bool cuda_inputs_write(const struct cuda_inputs *inputs, const struct cuda_memory *memory, const struct device *device,
                       struct status *status);

#endif
