/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv: how K is divided and how a thread block's shared memory is laid out, for the kernel and for its host file.
 * All sizes are bytes unless they say otherwise. */
#ifndef KERNELS_MATMUL_MATMUL_GEMV_LAYOUT_CUH
#define KERNELS_MATMUL_MATMUL_GEMV_LAYOUT_CUH

#include "kernels/matmul/fragment_layout.cuh"

/* COPY: how weights come into shared memory. */
#define GEMV_COPY_THREADS 0 /* 16 bytes per thread: any GPU */
#define GEMV_COPY_ROWS    1 /* a bulk copy per row: from 2 KiB (CHUNK 1024) on as fast as the memory; coded: per panel */
#define GEMV_COPY_BOXES   2 /* a tensor map, boxes of 64 k x all rows of the tile; not coded */

enum { GEMV_MOST_CHOICES = 64 }; /* of experts, by all rows */

/* k that one thread block of a cluster takes; the last one's part may be smaller. Whole boxes and 128-byte lines, or whole
 * strips. */
LAYOUT_FUNCTION layout_size gemv_part(layout_size encoding, layout_size k, layout_size split_k)
{
    return layout_round_up(layout_divide_up(k, split_k), fragment_is_coded(encoding) ? FRAGMENT_STRIP_K : 64);
}

/* In this order: ring of weights, x, sums of x over groups (coded weights with zeros), sums of the warps (two tiles), sums of the
 * cluster's blocks (two tiles), squares of the warps and of the blocks, mbarriers. */
struct gemv_layout {
    layout_size part;         /* k */
    layout_size weight_pitch; /* rows of W that are not coded; of a panel's strips in a stage otherwise */
    layout_size strips;       /* from the beginning of a stage to them */
    layout_size stage_bytes, x_pitch;
    layout_size x_sum_bytes; /* of all rows of x over one group: at least eight, since a product has as many */
    layout_size sum_pitch;   /* floats: partial sums of one warp, [ROWS][8 * GROUPS] */
    layout_size sum_bytes;
    layout_size x, x_sums, sums, cluster_sums, squares, cluster_squares, barriers; /* offsets */
    layout_size bytes;
};

/* `rows` of x are multiplied with a tile; `x_rows` are staged. `sums`: over choices; a stage then begins with the factors of its rows. */
LAYOUT_FUNCTION struct gemv_layout gemv_lay_out(layout_size encoding, layout_size rows, layout_size x_rows,
                                                layout_size k, layout_size warps, layout_size stages, layout_size chunk,
                                                layout_size split_k, layout_size groups, layout_size x_shared,
                                                layout_size copy, layout_size sums)
{
    struct gemv_layout l = {0};
    l.part = gemv_part(encoding, k, split_k);
    if (fragment_is_coded(encoding)) {
        l.weight_pitch = chunk / FRAGMENT_STRIP_K * fragment_lay_out(encoding).strip_bytes;
        l.strips = sums ? groups / 2 * fragment_factor_bytes(fragment_lay_out(encoding)) : 0;
        l.stage_bytes = l.strips + groups / 2 * l.weight_pitch;
        l.x_pitch = l.part * 2 + 16; /* eight rows that a warp reads 16 bytes of at once are in different banks */
    } else {
        /* A quarter of a warp reads 64 bytes of two rows at once. Boxes have rows of 128 bytes, in which the hardware swaps
         * pieces; other rows lie 64 bytes more than a multiple of 128 apart. Either way the two rows are in different
         * banks. */
        l.weight_pitch = copy == GEMV_COPY_BOXES ? 128 : chunk * 2 + 64;
        l.stage_bytes = 8 * groups * (copy == GEMV_COPY_BOXES ? chunk * 2 : l.weight_pitch);
        l.x_pitch = l.part * 2 + 64;
    }
    l.sum_pitch = 8 * groups + 4; /* spreads what a warp stores over all banks */
    l.sum_bytes = 4 * rows * l.sum_pitch;
    l.x = stages * l.stage_bytes;
    l.x_sum_bytes = 4 * (x_rows > 8 ? x_rows : 8);
    l.x_sums = l.x + x_shared * x_rows * l.x_pitch;
    l.sums = l.x_sums;
    if (fragment_lay_out(encoding).code == FRAGMENT_UINT4)
        l.sums += layout_round_up(l.part / fragment_lay_out(encoding).group * l.x_sum_bytes, 16);
    l.cluster_sums = l.sums + 2 * warps * l.sum_bytes;
    l.squares = l.cluster_sums + (split_k > 1 ? 2 * split_k * l.sum_bytes : 0);
    const layout_size normed = layout_smaller(x_rows, 8); /* a norm is of rows of x, not of choices */
    l.cluster_squares = l.squares + 4 * normed * warps;
    l.barriers = layout_round_up(l.cluster_squares + 4 * normed * split_k, 8);
    l.bytes = l.barriers + 8 * (2 * stages + 8);
    return l;
}

#endif
