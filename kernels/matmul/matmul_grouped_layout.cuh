/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread block of matmul_grouped divides its shared memory, for the kernel and for its host file. */
#ifndef KERNELS_MATMUL_MATMUL_GROUPED_LAYOUT_CUH
#define KERNELS_MATMUL_MATMUL_GROUPED_LAYOUT_CUH

#include "kernels/matmul/expert_tiles.cuh"
#include "kernels/matmul/fragment_layout.cuh"

enum { GROUPED_MOST_CHOICES = 1024, GROUPED_MOST_COLUMNS = 8 };

/* In this order: ring of stages (weights, then COLUMNS rows of x), sums of the warps (two tiles), beginnings of the experts' lists,
 * groups, choices of all rows and their weights, mbarriers. All sizes and offsets are bytes unless they say otherwise. */
struct grouped_layout {
    layout_size weight_pitch; /* rows of W that are not coded; of a panel's strips in a stage otherwise */
    layout_size weight_bytes, x_pitch, stage_bytes;
    layout_size sum_pitch;  /* floats: partial sums of one warp, [COLUMNS][8 * GROUPS] */
    layout_size sum_floats; /* of one warp */
    layout_size most_groups;
    layout_size sums, begins, groups, choices, weights, barriers; /* offsets */
    layout_size bytes;
};

LAYOUT_FUNCTION struct grouped_layout grouped_lay_out(layout_size encoding, layout_size choices, layout_size experts,
                                                      layout_size warps, layout_size stages, layout_size chunk,
                                                      layout_size groups, layout_size columns)
{
    struct grouped_layout l = {0};
    if (fragment_is_coded(encoding)) {
        l.weight_pitch = chunk / FRAGMENT_STRIP_K * fragment_lay_out(encoding).strip_bytes;
        l.weight_bytes = groups / 2 * l.weight_pitch;
        l.x_pitch = chunk * 2 + 16; /* eight rows that a warp reads 16 bytes of at once are in different banks */
    } else {
        l.weight_pitch = chunk * 2 + 64; /* a quarter of a warp reads 64 bytes of two rows at once */
        l.weight_bytes = 8 * groups * l.weight_pitch;
        l.x_pitch = chunk * 2 + 64;
    }
    l.stage_bytes = l.weight_bytes + columns * l.x_pitch;
    l.sum_pitch = 8 * groups + 4; /* spreads what a warp stores over all banks */
    l.sum_floats = columns * l.sum_pitch;
    l.most_groups = expert_tiles(choices, experts, columns);
    l.sums = stages * l.stage_bytes;
    l.begins = l.sums + 2 * warps * l.sum_floats * 4;
    l.groups = l.begins + (experts + 1) * 4;
    l.choices = l.groups + l.most_groups * 4;
    l.weights = l.choices + choices * 4;
    l.barriers = layout_round_up(l.weights + choices * 4, 8);
    l.bytes = l.barriers + 8 * (2 * stages + 4);
    return l;
}

#endif
