/* SPDX-License-Identifier: Apache-2.0 */
/* How state_space divides a head over lanes, warps and blocks: for host and device code. Its state is that of a delta rule (STATE_DIM
 * is its KEY_DIM, HEAD_DIM its VALUE_DIM), and so are the lanes' and the warps' parts of it. */
#ifndef KERNELS_STATE_SPACE_STATE_SPACE_LAYOUT_CUH
#define KERNELS_STATE_SPACE_STATE_SPACE_LAYOUT_CUH

#include "kernels/delta_rule/delta_rule_layout.cuh"

/* Places in shared memory, in bytes: each a multiple of 16. */
struct state_space_shared {
    layout_size b, c;    /* f32[stage, lanes * lane rows] */
    layout_size x, z, o; /* f32[stage, block columns] */
    layout_size factors; /* f32[stage, 2]: decay, dt */
    layout_size raw;     /* X_DTYPE[stage, 2 * state_dim + 2 * block columns]: B, C, x, z as they come */
    layout_size bytes;
};

LAYOUT_FUNCTION struct state_space_shared state_space_shared_memory(layout_size state_dim, layout_size head_dim,
                                                                    layout_size lanes, layout_size warps,
                                                                    layout_size scattered, layout_size element_bytes)
{
    const layout_size stage = delta_rule_stage(scattered), rows = lanes * delta_rule_lane_rows(state_dim, lanes);
    const layout_size columns = warps * delta_rule_warp_columns(head_dim, lanes);
    const layout_size of_state = 4 * stage * rows, of_head = (4 * stage * columns + 15) / 16 * 16;
    const layout_size raw = delta_rule_copies(state_dim, head_dim, columns, element_bytes)
                                ? stage * (2 * state_dim + 2 * columns) * element_bytes
                                : 0;
    struct state_space_shared at = {};
    at.c = at.b + of_state;
    at.x = at.c + of_state;
    at.z = at.x + of_head;
    at.o = at.z + of_head;
    at.factors = at.o + of_head;
    at.raw = at.factors + (2 * 4 * stage + 15) / 16 * 16;
    at.bytes = at.raw + raw;
    return at;
}

#endif
