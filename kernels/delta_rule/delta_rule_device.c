/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/delta_rule/delta_rule.h"

#include <string.h>

#include "kernels/cuda/kernel.h"
#include "kernels/delta_rule/delta_rule_layout.cuh"
#include "kernels/op/recurrent.h"

enum {
    MOST_WARPS = 16,
    MOST_SPLIT = 8,      /* blocks of a cluster */
    MOST_PART = 64,      /* numbers of the state that a lane has in registers, */
    MOST_PART_WIDE = 32, /* and in a block of more than WIDE_WARPS warps */
    WIDE_WARPS = 8,
    WAVES = 16, /* clusters' blocks for each multiprocessor, of a step of many slots */
};

static uint64_t layer_bytes(const int64_t *params)
{
    return delta_rule_state_bytes((uint64_t)params[DELTA_RULE_VALUE_HEADS], (uint64_t)params[DELTA_RULE_KEY_DIM],
                                  (uint64_t)params[DELTA_RULE_VALUE_DIM]);
}

static const char *tunables_illegal(const int64_t *params, const struct device_facts *gpu)
{
    const int64_t lanes = params[DELTA_RULE_DEVICE_LANES], warps = params[DELTA_RULE_DEVICE_WARPS];
    const int64_t value_dim = params[DELTA_RULE_VALUE_DIM];
    if (lanes != 4 && lanes != 8 && lanes != 16 && lanes != 32) return "LANES is not 4, 8, 16 or 32";
    if (warps < 1 || warps > MOST_WARPS) return "WARPS is not in 1..16";
    if ((warps - 1) * delta_rule_warp_columns(value_dim, lanes) >= value_dim) return "WARPS have no columns";
    const int64_t split = delta_rule_split(value_dim, lanes, warps);
    if (split > MOST_SPLIT) return "WARPS and LANES leave more than 8 blocks to a head";
    if (split > 1 && gpu->capability < 90) return "WARPS and LANES make a cluster, which this GPU does not have";
    const int64_t part = delta_rule_lane_rows(params[DELTA_RULE_KEY_DIM], lanes) * delta_rule_lane_columns(value_dim);
    return part > (warps > WIDE_WARPS ? MOST_PART_WIDE : MOST_PART) ? "LANES are too few for key_dim" : NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *why = op_params_illegal(&op_delta_rule, params);
    if (why) return why;
    why = op_recurrent_device_illegal(params[DELTA_RULE_RECURRENT_BYTES], layer_bytes(params));
    if (why) return why;
    why = tunables_illegal(params, gpu);
    if (why) return why;
    const int64_t lanes = params[DELTA_RULE_DEVICE_LANES], warps = params[DELTA_RULE_DEVICE_WARPS];
    const int64_t value_dim = params[DELTA_RULE_VALUE_DIM], key_dim = params[DELTA_RULE_KEY_DIM];
    const int64_t widest = 2 * params[DELTA_RULE_KEY_HEADS] * key_dim + params[DELTA_RULE_VALUE_HEADS] * value_dim;
    if (widest > INT32_MAX) return "key_heads, value_heads, key_dim and value_dim make rows of more than 2^31 elements";
    const struct delta_rule_shared shared =
        delta_rule_shared_memory(key_dim, value_dim, lanes, warps, params[DELTA_RULE_SCATTERED],
                                 (layout_size)dtype_bytes((enum dtype)params[DELTA_RULE_X_DTYPE]));
    if (shared.bytes > (int64_t)gpu->shared_per_block)
        return "WARPS and LANES need more shared memory than a block has";
    const int64_t split = delta_rule_split(value_dim, lanes, warps), blocks = split * params[DELTA_RULE_VALUE_HEADS];
    const int64_t rows = params[DELTA_RULE_SCATTERED] ? params[DELTA_RULE_ROWS] : 1;
    const int64_t most = layout_larger(1, WAVES * (int64_t)gpu->multiprocessors / blocks);
    *geometry = (struct device_geometry){{(uint32_t)(blocks * layout_smaller(rows, most)), 1, 1},
                                         {(uint32_t)(32 * warps), 1, 1},
                                         {(uint32_t)split, 1, 1},
                                         (uint32_t)shared.bytes};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const int64_t splits[] = {4, 2, 8, 1}, lanes[] = {16, 8, 32, 4};
    const int64_t value_dim = params[DELTA_RULE_VALUE_DIM];
    int count = 0;
    if (value_dim < 1 || value_dim > DELTA_RULE_MAX_DIM) return 0;
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++)
        for (size_t l = 0; l < sizeof lanes / sizeof *lanes; l++) {
            const int64_t columns = splits[s] * delta_rule_warp_columns(value_dim, lanes[l]);
            const int64_t own[] = {lanes[l], layout_divide_up(value_dim, columns)};
            count = device_add_candidate(&device_delta_rule, params, own, gpu, params_out, count, capacity);
        }
    return count;
}

/* With SCATTERED each row reads and writes a state, else all rows are of one slot. */
static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    int64_t one_slot[DELTA_RULE_PARAMS];
    uint64_t row_bytes, row_flops;
    memcpy(one_slot, params, sizeof one_slot);
    one_slot[DELTA_RULE_ROWS] = 1;
    delta_rule_cost(one_slot, context, &row_bytes, &row_flops);
    const uint64_t rows = (uint64_t)params[DELTA_RULE_ROWS], states = 2 * layer_bytes(params);
    *bytes = rows * (row_bytes - states) + (params[DELTA_RULE_SCATTERED] ? rows : 1) * states;
    *flops = rows * row_flops;
}

const struct device_kernel device_delta_rule = {
    .name = "delta_rule",
    .op = OP_DELTA_RULE,
    .problem = &op_delta_rule,
    DEVICE_OWN_NAMES(DELTA_RULE_DEVICE_PARAMS - DELTA_RULE_PARAMS, "LANES", "WARPS"),
    .launch = launch,
    .candidates = candidates,
    .cost = cost,
};
