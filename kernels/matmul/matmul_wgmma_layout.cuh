/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread block of matmul_wgmma divides its threads and its shared memory, for the kernel and for its host
 * file. */
#ifndef KERNELS_MATMUL_MATMUL_WGMMA_LAYOUT_CUH
#define KERNELS_MATMUL_MATMUL_WGMMA_LAYOUT_CUH

#include "kernels/matmul/fragment_layout.cuh"

/* Codes of int8 that are multiplied and added in 32 bits: products are 2^14 at most. */
enum { MATMUL_WGMMA_MOST_INTEGERS = (1 << 17) - 1 };

/* In this order: the ring of STAGES stages, each a tile of W, then of x (with SPLIT_K, the sums take its place
 * afterwards); two buffers of staged sums for each warpgroup; if x has codes, its TILE_M scales for each warpgroup; two arrays of
 * STAGES mbarriers. */
struct matmul_wgmma_layout {
    layout_size w_bytes, stage_bytes;
    layout_size panel_pitch, strip_pitch; /* coded W: from a panel or a strip to the next one */
    layout_size staged_columns;           /* of out, from 64 rows of W */
    layout_size staged_rows, staged_pitch, staged_bytes;
    layout_size staging, scales, barriers; /* offsets */
    layout_size bytes;
};

/* Coded W whose strips come as tiles, one of all panels, since to ask for panels one by one takes longer than to multiply them:
 * codes of 4 bits, and rows that are one tile. Pieces of 8-bit codes are twice as long and arrive sooner one by one; factors need
 * W's address. */
LAYOUT_FUNCTION int matmul_wgmma_has_tiles(layout_size encoding, layout_size rows, layout_size tile_m)
{
    const struct fragment_layout layout = fragment_lay_out(encoding);
    return layout.bits == 4 && !layout.factors && rows <= tile_m;
}

/* `x_bytes`: of an element of x, 1 or 2. */
LAYOUT_FUNCTION struct matmul_wgmma_layout matmul_wgmma_lay_out(layout_size encoding, layout_size x_bytes,
                                                                layout_size rows, layout_size tile_n,
                                                                layout_size tile_m, layout_size tile_k,
                                                                layout_size warpgroups, layout_size stages,
                                                                layout_size out_bytes, int is_gated)
{
    struct matmul_wgmma_layout l = {0};
    l.w_bytes = tile_n * tile_k * 2;
    if (fragment_is_coded(encoding)) { /* strips of each panel; the x tile begins at a multiple of 1024 */
        const layout_size panels = tile_n / FRAGMENT_ROWS, strips = tile_k / FRAGMENT_STRIP_K;
        const layout_size strip_bytes = fragment_lay_out(encoding).strip_bytes;
        const int has_tiles = matmul_wgmma_has_tiles(encoding, rows, tile_m);
        l.panel_pitch = has_tiles ? strip_bytes : strips * strip_bytes;
        l.strip_pitch = has_tiles ? layout_divide_up(panels * strip_bytes, 128) * 128 : strip_bytes;
        l.w_bytes = has_tiles ? strips * l.strip_pitch : panels * l.panel_pitch;
        l.w_bytes = layout_divide_up(l.w_bytes, 1024) * 1024;
    }
    l.stage_bytes = l.w_bytes + tile_m * tile_k * x_bytes;
    l.staged_columns = is_gated ? 32 : 64;
    l.staged_rows = layout_smaller(tile_m, out_bytes == 4 ? 16 : 32);
    l.staged_pitch = l.staged_columns * out_bytes + 16; /* 16: no two of 8 rows begin in the same banks */
    l.staged_bytes = l.staged_rows * l.staged_pitch;
    l.staging = stages * l.stage_bytes;
    l.scales = l.staging + warpgroups * 2 * l.staged_bytes;
    l.barriers = l.scales + (x_bytes == 1 ? warpgroups * tile_m * 4 : 0);
    l.bytes = l.barriers + 2 * 8 * stages;
    return l;
}

/* Coded weights: sets of sums for groups with scales of their own, 2 if a group is scaled while the next is multiplied; 0: the
 * sums of the tile are computed directly. If x has codes of e4m3, 512 k of panels
 * without groups are, unless the tile leaves no registers for that: then the tensor cores keep the sums. Sums of int8 codes are exact. */
LAYOUT_FUNCTION int matmul_wgmma_group_sets(layout_size encoding, layout_size x_bytes, layout_size tile_n,
                                            layout_size tile_m, layout_size tile_k, layout_size warpgroups)
{
    const struct fragment_layout layout = fragment_lay_out(encoding);
    const layout_size parts = tile_n / (64 * warpgroups);
    const layout_size groups = parts * tile_k / FRAGMENT_STRIP_K * layout.groups;
    if (layout.code && !fragment_sum_scales(layout) && x_bytes == 1)
        return layout.code == FRAGMENT_E4M3 && parts == 1 && tile_m <= 160;
    if (layout.code == 0 || !fragment_sum_scales(layout)) return 0;
    return groups > 1 && tile_m <= (parts == 1 ? 32 : 64) ? 2 : 1;
}

/* Registers in each thread of a consumer warpgroup for sums; coded: with those of groups, decoded codes of eight steps,
 * scales and zeros, and what MULTICAST needs beside them. */
LAYOUT_FUNCTION layout_size matmul_wgmma_sums(layout_size encoding, layout_size x_bytes, layout_size tile_n,
                                              layout_size tile_m, layout_size tile_k, layout_size warpgroups,
                                              layout_size multicast)
{
    const layout_size parts = tile_n / (64 * warpgroups), sums = parts * tile_m / 2;
    const layout_size sets = matmul_wgmma_group_sets(encoding, x_bytes, tile_n, tile_m, tile_k, warpgroups);
    const struct fragment_layout layout = fragment_lay_out(encoding);
    if (!fragment_is_coded(encoding)) return sums;
    if (x_bytes == 1 && layout.code == FRAGMENT_UINT4) {
        /* int4 by int8: what ptxas 13.0 needs to compile every candidate without spills. */
        layout_size others = tile_m <= 32 ? 8 : 32 * parts, second_strip = 40;
        if (sets == 2) others = 8 + 16 * parts, second_strip = 8 * parts;
        return sums + sets * tile_m / 2 + others + (tile_k == 256 ? second_strip : 0) + (multicast > 1 ? 24 : 0);
    }
    if (x_bytes == 1)
        return sums + sets * tile_m / 2 + 24 + (sets ? 24 : 0) + (multicast > 1 ? 16 : 0) +
               (layout.code == FRAGMENT_INT8 ? 8 * (parts - 1) + (tile_k == 256 ? 8 : 0) : 0);
    return sums + sets * tile_m / 2 + 32 + (sets == 2 ? 16 + 8 * parts : 0) + (layout.zeros ? 8 : 0) +
           (layout.code == FRAGMENT_TABLE ? 16 : 0) + (layout.scale == FRAGMENT_E5M3 ? 24 + 8 * parts : 0) +
           (layout.bits == 8 ? 8 + 16 * parts : 0) + (tile_k == 256 ? 8 : 0) + (multicast > 1 ? 16 : 0);
}

/* Blocks on a multiprocessor that the registers leave room for: one loads while another begins, ends or waits. A thread with
 * coded weights needs about 48 registers more; a quarter of a multiprocessor has 512 for each lane. */
LAYOUT_FUNCTION layout_size matmul_wgmma_blocks(layout_size encoding, layout_size sums, layout_size warpgroups)
{
    const layout_size warps = 4 * warpgroups + 2;
    layout_size blocks = 1;
    if (!fragment_is_coded(encoding)) return sums <= 64 && warpgroups < 3 ? 2 : 1;
    while (blocks < 4 && 512 / layout_divide_up((blocks + 1) * warps, 4) / 8 * 8 >= sums + 48) blocks++;
    return blocks;
}

/* If one alone, the producers are a whole warpgroup, which gives its registers to the warpgroups that multiply. */
LAYOUT_FUNCTION int matmul_wgmma_reallocates(layout_size blocks, layout_size warpgroups)
{
    return blocks == 1 && warpgroups > 1;
}

LAYOUT_FUNCTION layout_size matmul_wgmma_threads(layout_size blocks, layout_size warpgroups)
{
    return 128 * warpgroups + (matmul_wgmma_reallocates(blocks, warpgroups) ? 128 : 64);
}

#endif
