/* SPDX-License-Identifier: Apache-2.0 */
/* How delta_rule divides a head over lanes, warps and blocks: for host and device code. */
#ifndef KERNELS_DELTA_RULE_DELTA_RULE_LAYOUT_CUH
#define KERNELS_DELTA_RULE_DELTA_RULE_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

/* Rows of a slot that are prepared together. */
LAYOUT_FUNCTION layout_size delta_rule_stage(layout_size scattered) { return scattered ? 1 : 16; }

/* Neighbouring columns of the state that a lane has; LANES lanes share their rows. */
LAYOUT_FUNCTION layout_size delta_rule_lane_columns(layout_size value_dim) { return value_dim % 4 == 0 ? 4 : 1; }
LAYOUT_FUNCTION layout_size delta_rule_warp_columns(layout_size value_dim, layout_size lanes)
{
    return 32 / lanes * delta_rule_lane_columns(value_dim);
}
/* Blocks of a head: a cluster. */
LAYOUT_FUNCTION layout_size delta_rule_split(layout_size value_dim, layout_size lanes, layout_size warps)
{
    return layout_divide_up(value_dim, warps * delta_rule_warp_columns(value_dim, lanes));
}
/* Rows of the state that a lane has; those after the last one are zero. */
LAYOUT_FUNCTION layout_size delta_rule_lane_rows(layout_size key_dim, layout_size lanes)
{
    return 4 * layout_divide_up(key_dim, 4 * lanes);
}

/* Whether q, k, v and z are copied to shared memory ahead, in pieces of 16 bytes. */
LAYOUT_FUNCTION layout_size delta_rule_copies(layout_size key_dim, layout_size value_dim, layout_size block_columns,
                                              layout_size element_bytes)
{
    return key_dim * element_bytes % 16 == 0 && value_dim * element_bytes % 16 == 0 &&
           block_columns * element_bytes % 16 == 0;
}

/* Places in shared memory, in bytes: each a multiple of 16. */
struct delta_rule_shared {
    layout_size q, k;    /* f32[stage, lanes * lane rows]: normalised */
    layout_size v, z, o; /* f32[stage, block columns] */
    layout_size factors; /* f32[stage, 4]: decay, beta, k * q */
    layout_size squares; /* f32[2, stage]: sums over the block's columns of o^2, of stages by turns */
    layout_size scales;  /* f32[stage] */
    layout_size raw;     /* X_DTYPE[stage, 2 * key_dim + 2 * block columns]: q, k, v, z as they come */
    layout_size bytes;
};

LAYOUT_FUNCTION struct delta_rule_shared delta_rule_shared_memory(layout_size key_dim, layout_size value_dim,
                                                                  layout_size lanes, layout_size warps,
                                                                  layout_size scattered, layout_size element_bytes)
{
    const layout_size stage = delta_rule_stage(scattered), rows = lanes * delta_rule_lane_rows(key_dim, lanes);
    const layout_size columns = warps * delta_rule_warp_columns(value_dim, lanes);
    const layout_size keys = 4 * stage * rows, values = (4 * stage * columns + 15) / 16 * 16;
    const layout_size numbers = (4 * stage + 15) / 16 * 16;
    const layout_size raw = delta_rule_copies(key_dim, value_dim, columns, element_bytes)
                                ? stage * (2 * key_dim + 2 * columns) * element_bytes
                                : 0;
    struct delta_rule_shared at = {};
    at.k = at.q + keys;
    at.v = at.k + keys;
    at.z = at.v + values;
    at.o = at.z + values;
    at.factors = at.o + values;
    at.squares = at.factors + 4 * 4 * stage;
    at.scales = at.squares + 2 * numbers;
    at.raw = at.scales + numbers;
    at.bytes = at.raw + raw;
    return at;
}

#endif
