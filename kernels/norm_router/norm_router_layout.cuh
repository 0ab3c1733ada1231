/* SPDX-License-Identifier: Apache-2.0 */
/* norm_router: how the thread blocks of its cluster share k, and the shared memory of each, for the kernel and for its host file. */
#ifndef KERNELS_NORM_ROUTER_NORM_ROUTER_LAYOUT_CUH
#define KERNELS_NORM_ROUTER_NORM_ROUTER_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

/* Most rows; k that a warp multiplies at a time; experts and rows of a product; most warps that share a tile's k: a lane adds what they and
 * all blocks found. */
enum {
    NORM_ROUTER_MOST_ROWS = 64,
    NORM_ROUTER_STEP = 32,
    NORM_ROUTER_TILE = 8,
    NORM_ROUTER_TILE_ROWS = 16,
    NORM_ROUTER_MOST_K_PARTS = 4
};

struct norm_router_layout {
    layout_size slice;    /* k of a block; the last blocks have less, or none */
    layout_size pitch;    /* bytes of a row of MATRIX's slice, and of y's */
    layout_size tiles;    /* of experts */
    layout_size k_parts;  /* warps that share a tile's k */
    layout_size sources;  /* addends of a logit */
    layout_size own_rows; /* that a block routes at most */
    /* Offsets in shared memory. */
    layout_size matrix;    /* [8 * tiles] rows */
    layout_size y;         /* [rows, rounded up to 16] rows */
    layout_size squares;   /* f32[blocks][rows]: sums of each block's k */
    layout_size addends;   /* f32[sources][own_rows][8 * tiles] of this block's rows */
    layout_size constants; /* f32[3][8 * tiles]: the router's bias, biases of claims, scales */
    layout_size claims;    /* f32[own_rows][8 * tiles] with groups */
    layout_size choices;   /* i32[rows][top_k] */
    layout_size kept;      /* u16[own_rows][top_k], as router_body wants it */
    layout_size barriers;
    layout_size bytes; /* in all */
};

LAYOUT_FUNCTION struct norm_router_layout norm_router_lay_out(layout_size rows, layout_size k, layout_size routed,
                                                              layout_size groups, layout_size top_k, layout_size blocks,
                                                              layout_size warps)
{
    struct norm_router_layout l = {0};
    l.slice = layout_round_up(layout_divide_up(k, blocks), NORM_ROUTER_STEP);
    l.pitch = l.slice * 2 + 16; /* eight rows that a warp reads 16 bytes of at once are in different banks */
    l.tiles = layout_divide_up(routed, NORM_ROUTER_TILE);
    l.k_parts = layout_smaller(layout_smaller(warps / l.tiles, NORM_ROUTER_MOST_K_PARTS), l.slice / NORM_ROUTER_STEP);
    if (l.k_parts < 1) l.k_parts = 1;
    l.sources = blocks * l.k_parts;
    l.own_rows = layout_divide_up(rows, blocks);
    const layout_size columns = l.tiles * NORM_ROUTER_TILE;
    l.y = l.matrix + columns * l.pitch;
    l.squares = l.y + layout_round_up(rows, NORM_ROUTER_TILE_ROWS) * l.pitch;
    l.addends = layout_round_up(l.squares + 4 * blocks * rows, 8);
    l.constants = l.addends + 4 * l.sources * l.own_rows * columns;
    l.claims = l.constants + 4 * 3 * columns;
    l.choices = l.claims + (groups > 1 ? 4 * l.own_rows * columns : 0);
    l.kept = l.choices + 4 * rows * top_k;
    l.barriers = layout_round_up(l.kept + 2 * l.own_rows * top_k, 8);
    l.bytes = l.barriers + 8 * 3;
    return l;
}

#endif
