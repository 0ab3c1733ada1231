/* SPDX-License-Identifier: Apache-2.0 */
/* How thread blocks of attention_prefill, attention_generic and attention_latent divide their shared memory, for the kernels and for
 * their host file. */
#ifndef KERNELS_ATTENTION_ATTENTION_LAYOUT_CUH
#define KERNELS_ATTENTION_ATTENTION_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

enum {
    ATTENTION_PREFILL_BLOCK_COLUMNS = 64,    /* of a tile, side by side in a row of the swizzle */
    ATTENTION_PREFILL_BLOCK_ROW_BYTES = 128, /* the swizzle's width */
    ATTENTION_PREFILL_SWIZZLE_BYTES = 1024,  /* after which it repeats: the alignment of tiles */
    ATTENTION_PREFILL_LISTED_BYTES = 12,     /* of a tile in the list */
};

/* A tile of q has 64 entries for each warpgroup, each a (row, head). Where the rows belong to one sequence they are rows of one head; where
 * they are scattered, those of few rows and of all heads of a group, head after head, whose keys are then read once. */
LAYOUT_FUNCTION layout_size attention_prefill_tile_heads(layout_size group, layout_size scattered)
{
    return scattered && group <= 8 ? group : 1;
}
LAYOUT_FUNCTION layout_size attention_prefill_part_rows(layout_size tile_heads)
{
    return 64 / tile_heads / 8 * 8; /* of a warpgroup; whole rows of the swizzle's pattern */
}

/* The most tiles that rows of at most `slots` sequences have: all but one of each sequence are full. */
LAYOUT_FUNCTION layout_size attention_prefill_most_tiles(layout_size rows, layout_size slots, layout_size tile_rows)
{
    const layout_size most = layout_smaller(rows, slots);
    return (rows - most) / tile_rows + most;
}

/* From a multiple of SWIZZLE_BYTES on: mbarriers, q (TILE_Q entries), STAGES tiles of k, as many of v (KEY_TILE rows
 * each), of scattered rows a list of tiles and its end. */
struct attention_prefill_layout {
    layout_size column_blocks; /* of a row */
    layout_size q_offset, q_bytes, key_bytes, list_offset;
    layout_size bytes; /* with room to align the beginning */
};

LAYOUT_FUNCTION struct attention_prefill_layout attention_prefill_lay_out(layout_size head_dim, layout_size tile_q,
                                                                          layout_size key_tile, layout_size stages,
                                                                          layout_size listed_tiles)
{
    struct attention_prefill_layout l = {0};
    l.column_blocks = layout_divide_up(head_dim, ATTENTION_PREFILL_BLOCK_COLUMNS);
    l.q_offset = ATTENTION_PREFILL_SWIZZLE_BYTES;
    l.q_bytes = tile_q * l.column_blocks * ATTENTION_PREFILL_BLOCK_ROW_BYTES;
    l.key_bytes = key_tile * l.column_blocks * ATTENTION_PREFILL_BLOCK_ROW_BYTES;
    l.list_offset = l.q_offset + l.q_bytes + 2 * stages * l.key_bytes;
    l.bytes = l.list_offset + (listed_tiles ? (listed_tiles + 1) * ATTENTION_PREFILL_LISTED_BYTES : 0) +
              ATTENTION_PREFILL_SWIZZLE_BYTES;
    return l;
}

/* A producer warpgroup, and one for each 64 rows of q. */
LAYOUT_FUNCTION layout_size attention_prefill_threads(layout_size tile_q) { return 128 + 2 * tile_q; }

/* Registers that each thread of the producer warpgroup keeps, and that each of a consumer warpgroup may have. The pool is what
 * a block is launched with, the same number for each thread: who asks for more than it holds waits forever. */
LAYOUT_FUNCTION layout_size attention_prefill_producer_registers(layout_size is_coded) { return is_coded ? 80 : 24; }
LAYOUT_FUNCTION layout_size attention_prefill_registers(layout_size tile_q, layout_size blocks_per_sm,
                                                        layout_size is_coded)
{
    const layout_size threads = attention_prefill_threads(tile_q);
    const layout_size pool = 65536 / (blocks_per_sm * threads) / 8 * 8 * threads;
    return layout_smaller((pool - 128 * attention_prefill_producer_registers(is_coded)) / (2 * tile_q) / 8 * 8, 240);
}

/* q (a row for each entry), then two stages of KEY_TILE rows of k and as many of v. After the last tile the stages
 * hold the partial results of the warps that share an entry's tokens. Static: slot and position of each entry's row.
 * Registers hold 256 columns of v: of wider heads a block computes all scores, and the results of a part of the columns. */
struct attention_generic_layout {
    layout_size entries; /* of a block, each a (row, head of the group) */
    layout_size dim;     /* of a row, padded with zeros to whole products */
    layout_size row_bytes;
    layout_size parts, value_dim, value_row_bytes; /* blocks that share the columns of v, and what each has of a row */
    layout_size stages_offset, stage_bytes;
    layout_size partial_floats; /* of an entry: accumulated v, maximum, sum */
    layout_size bytes, static_bytes;
};

LAYOUT_FUNCTION struct attention_generic_layout attention_generic_lay_out(layout_size head_dim,
                                                                          layout_size element_bytes,
                                                                          layout_size warps_q, layout_size split,
                                                                          layout_size key_tile)
{
    struct attention_generic_layout l = {0};
    l.entries = 16 * warps_q;
    l.dim = layout_divide_up(head_dim, 16) * 16;
    l.row_bytes = l.dim * element_bytes + 16; /* an odd multiple of 16: eight rows lie in eight different bank groups */
    l.parts = layout_divide_up(l.dim, 256);
    l.value_dim = layout_divide_up(l.dim, 16 * l.parts) * 16;
    l.value_row_bytes = l.value_dim * element_bytes + 16; /* likewise */
    l.stages_offset = l.entries * l.row_bytes;
    l.stage_bytes = key_tile * (l.row_bytes + l.value_row_bytes);
    l.partial_floats = l.value_dim + 2;
    l.bytes = l.stages_offset + layout_larger(2 * l.stage_bytes, (split - 1) * l.entries * l.partial_floats * 4);
    l.static_bytes = 2 * l.entries * 4;
    return l;
}

/* q (a row for each entry), then two stages of KEY_TILE tokens, the weights of a tile, and for each of WARPS_V and entry a
 * maximum, later a sum. At the end of a block of SPLIT * GROUPS that share their entries, from the beginning on: what it has of
 * each entry.
 *
 * Where a block's entries belong to one row, a cluster can share a short context otherwise (has_slab): the second stage is then
 * a slab, the block's part of the columns of v of all tokens of SPLIT tiles, the weights are those of all of them, and maxima, sums
 * and factors of each block of the cluster follow. */
struct attention_latent_layout {
    layout_size entries; /* of a block, each a (row, head) */
    layout_size dim;     /* of a row, padded with zeros to whole products */
    layout_size row_bytes;
    layout_size stages_offset, stage_bytes;
    layout_size weights_offset, weights_row_bytes;
    layout_size maxima_offset;
    layout_size key_warps,
        dim_warps;              /* parts of a tile's tokens that warps score, and of the columns: WARPS_V in all */
    layout_size scores_offset;  /* with 2 of dim_warps: float32[WARPS_Q, KEY_TILE / 8, 128], partial scores */
    layout_size partial_floats; /* of an entry: accumulated v, maximum, sum; room to keep 16-byte alignment */
    layout_size has_slab, slab_columns, slab_row_bytes;
    layout_size all_maxima_offset, all_sums_offset,
        factors_offset; /* float32[SPLIT, entries], [SPLIT, key_warps, entries], */
    layout_size bytes;  /* [entries, SPLIT] */
};

LAYOUT_FUNCTION struct attention_latent_layout attention_latent_lay_out(layout_size heads, layout_size head_dim,
                                                                        layout_size value_dim, layout_size warps_q,
                                                                        layout_size warps_v, layout_size key_tile,
                                                                        layout_size split, layout_size groups)
{
    struct attention_latent_layout l = {0};
    l.entries = 16 * warps_q;
    l.dim = layout_divide_up(head_dim, 16) * 16;
    l.row_bytes = l.dim * 2 + 16; /* an odd multiple of 16: eight rows lie in eight different bank groups */
    l.stages_offset = l.entries * l.row_bytes;
    l.stage_bytes = key_tile * l.row_bytes;
    l.weights_offset = l.stages_offset + 2 * l.stage_bytes;
    l.weights_row_bytes = key_tile * 2 + 16;
    l.key_warps = layout_smaller(warps_v, key_tile / 8);
    l.dim_warps = warps_v / l.key_warps;
    l.slab_columns = value_dim / split;
    l.slab_row_bytes = l.slab_columns * 2 + 16; /* likewise */
    l.has_slab = split > 1 && heads % l.entries == 0 && value_dim % (8 * warps_v * split) == 0 && key_tile % 32 == 0 &&
                 split * key_tile * l.slab_row_bytes <= l.stage_bytes;
    l.maxima_offset = l.weights_offset + l.entries * (l.has_slab ? split * key_tile * 2 : l.weights_row_bytes);
    l.scores_offset = l.maxima_offset + warps_v * l.entries * 4;
    l.all_maxima_offset = l.scores_offset + (l.dim_warps > 1 ? key_tile * l.entries * 4 : 0);
    l.all_sums_offset = l.all_maxima_offset + (l.has_slab ? split * l.entries * 4 : 0);
    l.factors_offset = l.all_sums_offset + (l.has_slab ? split * l.key_warps * l.entries * 4 : 0);
    l.bytes = l.factors_offset + (l.has_slab ? l.entries * split * 4 : 0);
    l.partial_floats = value_dim + 4;
    if (split * groups > 1) l.bytes = layout_larger(l.bytes, l.entries * l.partial_floats * 4);
    return l;
}

#endif
