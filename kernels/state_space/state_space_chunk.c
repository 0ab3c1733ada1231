/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/kernel.h"
#include "kernels/state_space/state_space.h"
#include "kernels/state_space/state_space_chunk_layout.cuh"

enum {
    MOST_WARPS = 2, /* more leave too few registers for the state */
    FEW_ROWS = 8,   /* that the other kernel takes one by one before a chunk is prepared */
};

/* Reasons name a tunable, since the other kernel may take what this one does not. */
static const char *problem_illegal(const int64_t *params)
{
    const int64_t state_dim = params[STATE_SPACE_STATE_DIM];
    if (params[STATE_SPACE_SCATTERED]) return "CHUNK is for rows of one slot (scattered 0)";
    if (params[STATE_SPACE_X_DTYPE] != DTYPE_BF16) return "CHUNK is for x_dtype BF16";
    if (state_dim % DELTA_RULE_CHUNK_TILE || state_dim > STATE_SPACE_CHUNK_MOST_STATE)
        return "CHUNK is for a state_dim that is a multiple of 16 and at most 128";
    return params[STATE_SPACE_HEAD_DIM] % (DELTA_RULE_CHUNK_TILE * params[STATE_SPACE_CHUNK_COLUMN_WARPS])
               ? "head_dim is not a multiple of 16 * COLUMN_WARPS"
               : NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const int64_t chunk = params[STATE_SPACE_CHUNK_ROWS], warps = params[STATE_SPACE_CHUNK_COLUMN_WARPS];
    const char *why = state_space_device_illegal(params);
    if (why) return why;
    if (chunk != 32 && chunk != 64) return "CHUNK is not 32 or 64";
    if (warps < 1 || warps > MOST_WARPS) return "COLUMN_WARPS is not 1 or 2";
    why = problem_illegal(params);
    if (why) return why;
    const struct state_space_chunk_shared shared =
        state_space_chunk_shared_memory(params[STATE_SPACE_STATE_DIM], chunk, warps);
    if (shared.bytes > (int64_t)gpu->shared_per_block)
        return "CHUNK and COLUMN_WARPS need more shared memory than a block has";
    const int64_t split = params[STATE_SPACE_HEAD_DIM] / (DELTA_RULE_CHUNK_TILE * warps);
    *geometry = (struct device_geometry){{(uint32_t)(split * params[STATE_SPACE_HEADS]), 1, 1},
                                         {(uint32_t)delta_rule_chunk_threads(warps), 1, 1},
                                         {1, 1, 1},
                                         (uint32_t)shared.bytes};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const int64_t own[][2] = {{64, 2}, {64, 1}, {32, 2}, {32, 1}}; /* CHUNK, COLUMN_WARPS */
    int count = 0;
    if (params[STATE_SPACE_ROWS] <= FEW_ROWS) return 0;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        count = device_add_candidate(&device_state_space_chunk, params, own[i], gpu, params_out, count, capacity);
    return count;
}

const struct device_kernel device_state_space_chunk = {
    .name = "state_space_chunk",
    .op = OP_STATE_SPACE,
    .problem = &op_state_space,
    DEVICE_OWN_NAMES(STATE_SPACE_CHUNK_PARAMS - STATE_SPACE_PARAMS, "CHUNK", "COLUMN_WARPS"),
    .launch = launch,
    .candidates = candidates,
    .cost = state_space_device_cost,
};
