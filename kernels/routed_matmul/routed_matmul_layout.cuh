/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of routed_matmul after that of matmul_gemv, for the kernel and for its host file. */
#ifndef KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_LAYOUT_CUH
#define KERNELS_ROUTED_MATMUL_ROUTED_MATMUL_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

/* Rows of the router's matrix that a thread block has at most; bytes of the workspace before the logits; of all copies of those, but
 * that there is one. */
enum { ROUTED_MATMUL_MOST_SHARE = 8, ROUTED_MATMUL_TICKET_BYTES = 128, ROUTED_MATMUL_MOST_LOGIT_BYTES = 16 << 10 };

/* Bytes of the logits of all rows, each row's in whole lines. */
LAYOUT_FUNCTION layout_size routed_matmul_logit_bytes(layout_size rows, layout_size routed)
{
    return 4 * rows * layout_round_up(routed, 32);
}
/* Copies of the logits: blocks that read one place at the same time wait for each other. */
LAYOUT_FUNCTION layout_size routed_matmul_copies(layout_size rows, layout_size routed)
{
    const layout_size copies = ROUTED_MATMUL_MOST_LOGIT_BYTES / routed_matmul_logit_bytes(rows, routed);
    return copies < 1 ? 1 : layout_smaller(copies, 32);
}
LAYOUT_FUNCTION layout_size routed_matmul_workspace_bytes(layout_size rows, layout_size routed)
{
    return ROUTED_MATMUL_TICKET_BYTES + routed_matmul_copies(rows, routed) * routed_matmul_logit_bytes(rows, routed);
}

struct routed_matmul_layout {
    layout_size matrix_pitch; /* bytes of a row of the router's matrix */
    /* Offsets in shared memory. */
    layout_size matrix;  /* [share] rows of it */
    layout_size parts;   /* f32[warps][rows][ROUTED_MATMUL_MOST_SHARE]: products of each warp's k */
    layout_size claims;  /* f32[warps][routed] with groups */
    layout_size experts; /* f32[rows][top_k] */
    layout_size kept;    /* u16[rows * top_k], as router_body wants it */
    layout_size barriers;
    layout_size bytes; /* in all */
};

LAYOUT_FUNCTION struct routed_matmul_layout routed_matmul_lay_out(layout_size gemv_bytes, layout_size rows,
                                                                  layout_size k, layout_size warps, layout_size share,
                                                                  layout_size routed, layout_size groups,
                                                                  layout_size top_k)
{
    struct routed_matmul_layout l = {0};
    l.matrix_pitch =
        layout_round_up(k * 2, 128) + 64; /* two rows that a quarter of a warp reads are in different banks */
    l.matrix = layout_round_up(gemv_bytes, 16);
    l.parts = l.matrix + share * l.matrix_pitch;
    l.claims = l.parts + 4 * warps * rows * ROUTED_MATMUL_MOST_SHARE;
    l.experts = l.claims + (groups > 1 ? 4 * warps * routed : 0);
    l.kept = l.experts + 4 * rows * top_k;
    l.barriers = layout_round_up(l.kept + 2 * rows * top_k, 8);
    l.bytes = l.barriers + 8 * 3;
    return l;
}

#endif
