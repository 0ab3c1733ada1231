/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/kernel.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/delta_rule/delta_rule_chunk_layout.cuh"

enum {
    MOST_WARPS = 2, /* more leave too few registers for the state */
    MOST_SPLIT = 8, /* blocks of a cluster */
    FEW_ROWS = 8,   /* that the other kernel takes one by one before a chunk is prepared */
};

/* Reasons name a tunable, since the other kernel may take what this one does not. */
static const char *problem_illegal(const int64_t *params, const struct device_facts *gpu)
{
    const int64_t columns = DELTA_RULE_CHUNK_TILE * params[DELTA_RULE_CHUNK_COLUMN_WARPS];
    const int64_t value_dim = params[DELTA_RULE_VALUE_DIM], key_dim = params[DELTA_RULE_KEY_DIM];
    if (params[DELTA_RULE_SCATTERED]) return "CHUNK is for rows of one slot (scattered 0)";
    if (params[DELTA_RULE_X_DTYPE] != DTYPE_BF16) return "CHUNK is for x_dtype BF16";
    if (key_dim % DELTA_RULE_CHUNK_TILE || key_dim > DELTA_RULE_CHUNK_MOST_KEY)
        return "CHUNK is for a key_dim that is a multiple of 16 and at most 128";
    if (value_dim % columns) return "value_dim is not a multiple of 16 * COLUMN_WARPS";
    if (value_dim / columns > MOST_SPLIT) return "COLUMN_WARPS leaves more than 8 blocks to a head";
    return value_dim > columns && gpu->capability < 90 ? "COLUMN_WARPS makes a cluster, which this GPU does not have"
                                                       : NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const int64_t chunk = params[DELTA_RULE_CHUNK_ROWS], warps = params[DELTA_RULE_CHUNK_COLUMN_WARPS];
    const char *why = delta_rule_device_illegal(params);
    if (why) return why;
    if (chunk != 16 && chunk != 32) return "CHUNK is not 16 or 32";
    if (warps < 1 || warps > MOST_WARPS) return "COLUMN_WARPS is not 1 or 2";
    why = problem_illegal(params, gpu);
    if (why) return why;
    const struct delta_rule_chunk_shared shared =
        delta_rule_chunk_shared_memory(params[DELTA_RULE_KEY_DIM], chunk, warps);
    if (shared.bytes > (int64_t)gpu->shared_per_block)
        return "CHUNK and COLUMN_WARPS need more shared memory than a block has";
    const int64_t split = params[DELTA_RULE_VALUE_DIM] / (DELTA_RULE_CHUNK_TILE * warps);
    *geometry = (struct device_geometry){{(uint32_t)(split * params[DELTA_RULE_VALUE_HEADS]), 1, 1},
                                         {(uint32_t)delta_rule_chunk_threads(warps), 1, 1},
                                         {(uint32_t)split, 1, 1},
                                         (uint32_t)shared.bytes};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const int64_t own[][2] = {{32, 2}, {32, 1}, {16, 2}, {16, 1}}; /* CHUNK, COLUMN_WARPS */
    int count = 0;
    if (params[DELTA_RULE_ROWS] <= FEW_ROWS) return 0;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        count = device_add_candidate(&device_delta_rule_chunk, params, own[i], gpu, params_out, count, capacity);
    return count;
}

const struct device_kernel device_delta_rule_chunk = {
    .name = "delta_rule_chunk",
    .op = OP_DELTA_RULE,
    .problem = &op_delta_rule,
    DEVICE_OWN_NAMES(DELTA_RULE_CHUNK_PARAMS - DELTA_RULE_PARAMS, "CHUNK", "COLUMN_WARPS"),
    .launch = launch,
    .candidates = candidates,
    .cost = delta_rule_device_cost,
};
