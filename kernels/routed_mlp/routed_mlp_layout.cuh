/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of routed_mlp: that of routed_matmul, then that of the second matmul, whose ring is its own, then what passes between
 * them; and its workspace. For the kernel and for its host file. */
#ifndef KERNELS_ROUTED_MLP_ROUTED_MLP_LAYOUT_CUH
#define KERNELS_ROUTED_MLP_ROUTED_MLP_LAYOUT_CUH

#include "kernels/routed_matmul/routed_matmul_layout.cuh"

struct routed_mlp_layout {
    layout_size down;     /* offset of the second matmul's: boxes of its ring begin at multiples of 1024 */
    layout_size weights;  /* f32[rows * top_k] of the choices */
    layout_size barriers; /* two */
    layout_size bytes;    /* in all */
};

LAYOUT_FUNCTION struct routed_mlp_layout routed_mlp_lay_out(layout_size routed_bytes, layout_size down_bytes,
                                                            layout_size choices)
{
    struct routed_mlp_layout l = {0};
    l.down = layout_round_up(routed_bytes, 1024);
    l.weights = l.down + layout_round_up(down_bytes, 16);
    l.barriers = l.weights + layout_round_up(4 * choices, 8);
    l.bytes = l.barriers + 8 * 2;
    return l;
}

/* Bytes of the workspace before the activations, which are 16 bits each: routed_matmul's in whole lines; and in all. */
LAYOUT_FUNCTION layout_size routed_mlp_activations_at(layout_size rows, layout_size routed)
{
    return layout_round_up(routed_matmul_workspace_bytes(rows, routed), 128);
}
LAYOUT_FUNCTION layout_size routed_mlp_workspace_bytes(layout_size rows, layout_size routed, layout_size choices,
                                                       layout_size inner)
{
    return routed_mlp_activations_at(rows, routed) + layout_round_up(2 * choices * inner, 16);
}

#endif
