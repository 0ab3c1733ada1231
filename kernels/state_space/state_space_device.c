/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cuda/kernel.h"
#include "kernels/op/recurrent.h"
#include "kernels/state_space/state_space.h"
#include "kernels/state_space/state_space_layout.cuh"

enum {
    MOST_WARPS = 16,
    MOST_PART = 64,      /* numbers of the state that a lane has in registers, */
    MOST_PART_WIDE = 32, /* and in a block of more than WIDE_WARPS warps */
    WIDE_WARPS = 8,
    WAVES = 16, /* walkers' blocks for each multiprocessor, of a step of many slots */
};

static uint64_t layer_bytes(const int64_t *params)
{
    return state_space_state_bytes((uint64_t)params[STATE_SPACE_HEADS], (uint64_t)params[STATE_SPACE_STATE_DIM],
                                   (uint64_t)params[STATE_SPACE_HEAD_DIM]);
}

/* With SCATTERED each row reads and writes a state, else all rows are of one slot. */
void state_space_device_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    int64_t one_slot[STATE_SPACE_PARAMS];
    uint64_t row_bytes, row_flops;
    memcpy(one_slot, params, sizeof one_slot);
    one_slot[STATE_SPACE_ROWS] = 1;
    state_space_cost(one_slot, context, &row_bytes, &row_flops);
    const uint64_t rows = (uint64_t)params[STATE_SPACE_ROWS], states = 2 * layer_bytes(params);
    *bytes = rows * (row_bytes - states) + (params[STATE_SPACE_SCATTERED] ? rows : 1) * states;
    *flops = rows * row_flops;
}

const char *state_space_device_illegal(const int64_t *params)
{
    const char *why = op_params_illegal(&op_state_space, params);
    if (why) return why;
    why = op_recurrent_device_illegal(params[STATE_SPACE_RECURRENT_BYTES], layer_bytes(params));
    if (why) return why;
    const int64_t widest = params[STATE_SPACE_HEADS] * params[STATE_SPACE_HEAD_DIM] +
                           2 * params[STATE_SPACE_GROUPS] * params[STATE_SPACE_STATE_DIM];
    return widest > INT32_MAX ? "groups, heads, state_dim and head_dim make rows of more than 2^31 elements" : NULL;
}

static const char *tunables_illegal(const int64_t *params)
{
    const int64_t lanes = params[STATE_SPACE_DEVICE_LANES], warps = params[STATE_SPACE_DEVICE_WARPS];
    const int64_t head_dim = params[STATE_SPACE_HEAD_DIM];
    if (lanes != 4 && lanes != 8 && lanes != 16 && lanes != 32) return "LANES is not 4, 8, 16 or 32";
    if (warps < 1 || warps > MOST_WARPS) return "WARPS is not in 1..16";
    if ((warps - 1) * delta_rule_warp_columns(head_dim, lanes) >= head_dim) return "WARPS have no columns";
    const int64_t part = delta_rule_lane_rows(params[STATE_SPACE_STATE_DIM], lanes) * delta_rule_lane_columns(head_dim);
    return part > (warps > WIDE_WARPS ? MOST_PART_WIDE : MOST_PART) ? "LANES are too few for state_dim" : NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *why = state_space_device_illegal(params);
    if (why) return why;
    why = tunables_illegal(params);
    if (why) return why;
    const int64_t lanes = params[STATE_SPACE_DEVICE_LANES], warps = params[STATE_SPACE_DEVICE_WARPS];
    const int64_t head_dim = params[STATE_SPACE_HEAD_DIM];
    const struct state_space_shared shared =
        state_space_shared_memory(params[STATE_SPACE_STATE_DIM], head_dim, lanes, warps, params[STATE_SPACE_SCATTERED],
                                  (layout_size)dtype_bytes((enum dtype)params[STATE_SPACE_X_DTYPE]));
    if (shared.bytes > (int64_t)gpu->shared_per_block)
        return "WARPS and LANES need more shared memory than a block has";
    const int64_t blocks = delta_rule_split(head_dim, lanes, warps) * params[STATE_SPACE_HEADS];
    const int64_t rows = params[STATE_SPACE_SCATTERED] ? params[STATE_SPACE_ROWS] : 1;
    const int64_t most = layout_larger(1, WAVES * (int64_t)gpu->multiprocessors / blocks);
    *geometry = (struct device_geometry){{(uint32_t)(blocks * layout_smaller(rows, most)), 1, 1},
                                         {(uint32_t)(32 * warps), 1, 1},
                                         {1, 1, 1},
                                         (uint32_t)shared.bytes};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const int64_t splits[] = {2, 1, 4, 8}, lanes[] = {16, 8, 32, 4};
    const int64_t head_dim = params[STATE_SPACE_HEAD_DIM];
    int count = 0;
    if (head_dim < 1 || head_dim > STATE_SPACE_MAX_DIM) return 0;
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++)
        for (size_t l = 0; l < sizeof lanes / sizeof *lanes; l++) {
            const int64_t columns = splits[s] * delta_rule_warp_columns(head_dim, lanes[l]);
            const int64_t own[] = {lanes[l], layout_divide_up(head_dim, columns)};
            count = device_add_candidate(&device_state_space, params, own, gpu, params_out, count, capacity);
        }
    return count;
}

const struct device_kernel device_state_space = {
    .name = "state_space",
    .op = OP_STATE_SPACE,
    .problem = &op_state_space,
    DEVICE_OWN_NAMES(STATE_SPACE_DEVICE_PARAMS - STATE_SPACE_PARAMS, "LANES", "WARPS"),
    .launch = launch,
    .candidates = candidates,
    .cost = state_space_device_cost,
};
