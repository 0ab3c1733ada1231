/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread block of matmul_mma divides its shared memory, for the kernel and for its host file. */
#ifndef KERNELS_MATMUL_MATMUL_MMA_LAYOUT_CUH
#define KERNELS_MATMUL_MATMUL_MMA_LAYOUT_CUH

#include "kernels/matmul/expert_tiles.cuh"
#include "kernels/matmul/fragment_layout.cuh"

/* The ring of STAGES stages, each a tile of W, then of x. Afterwards the sums of a set of warps take its place, then
 * the tile of out in rows of staged_pitch bytes. A tile of coded weights is the strips of each of its panels in turn. */
struct matmul_mma_layout {
    layout_size panel_bytes; /* of a panel's strips in a stage, if W is coded */
    layout_size w_bytes, stage_bytes;
    layout_size staged_columns, staged_pitch;
    layout_size
        choices; /* offset; over experts and blocks: tile_m choices, then their weights, which nothing takes the place of */
    layout_size bytes;
};

LAYOUT_FUNCTION struct matmul_mma_layout matmul_mma_lay_out(layout_size encoding, layout_size tile_n,
                                                            layout_size tile_m, layout_size tile_k, layout_size stages,
                                                            layout_size warps_k, layout_size out_bytes, int is_gated,
                                                            int is_gathered)
{
    struct matmul_mma_layout l = {0};
    if (fragment_is_coded(encoding)) {
        l.panel_bytes = tile_k / FRAGMENT_STRIP_K * fragment_lay_out(encoding).strip_bytes;
        l.w_bytes = tile_n / FRAGMENT_ROWS * l.panel_bytes;
    } else {
        l.w_bytes = tile_n * tile_k * 2;
    }
    l.stage_bytes = l.w_bytes + tile_m * tile_k * 2;
    l.staged_columns = is_gated ? tile_n / 2 : tile_n;
    l.staged_pitch = l.staged_columns * out_bytes + 16; /* 16: rows begin in different banks */
    l.bytes = layout_larger(stages * l.stage_bytes, tile_m * l.staged_pitch);
    if (warps_k > 1) l.bytes = layout_larger(l.bytes, tile_n * tile_m * 4);
    l.choices = l.bytes;
    if (is_gathered) l.bytes += tile_m * 8;
    return l;
}

#endif
