/* SPDX-License-Identifier: Apache-2.0 */
/* How delta_rule_chunk divides a head over warps and blocks, and its shared memory: for host and device code. */
#ifndef KERNELS_DELTA_RULE_DELTA_RULE_CHUNK_LAYOUT_CUH
#define KERNELS_DELTA_RULE_DELTA_RULE_CHUNK_LAYOUT_CUH

#include "kernels/cuda/include/layout.cuh"

enum {
    DELTA_RULE_CHUNK_TILE = 16,      /* rows and columns of a tile of products */
    DELTA_RULE_CHUNK_PREPARERS = 4,  /* warps of a block that prepare the next chunk, */
    DELTA_RULE_CHUNK_FINISHERS = 2,  /* and that finish the chunk before */
    DELTA_RULE_CHUNK_STAGES = 3,     /* chunks in shared memory: that is computed, that is prepared, that comes */
    DELTA_RULE_CHUNK_MOST_KEY = 128, /* key_dim whose state fits a thread's registers */
};

LAYOUT_FUNCTION layout_size delta_rule_chunk_threads(layout_size column_warps)
{
    return 32 * (column_warps + DELTA_RULE_CHUNK_PREPARERS + DELTA_RULE_CHUNK_FINISHERS);
}

/* Elements from a row to the next of a matrix with `columns` columns. 16-bit elements that ldmatrix reads, float32 that lanes store in
 * columns: no bank conflicts where columns is a multiple of 16. */
LAYOUT_FUNCTION layout_size delta_rule_chunk_half_stride(layout_size columns) { return columns + 8; }
LAYOUT_FUNCTION layout_size delta_rule_chunk_float_stride(layout_size columns) { return columns + 4; }

/* Places in shared memory, in bytes: each a multiple of 16. Those of a stage and of a turn (chunks take two by turns) begin at 0. */
struct delta_rule_chunk_shared {
    layout_size q, k, v;             /* of a stage: bf16[chunk, key_dim, key_dim, block columns] as they come */
    layout_size stage_bytes;         /* the stages come first */
    layout_size solve, weights, low; /* of a turn: bf16[chunk, chunk]; their lower parts are `low` bytes after them */
    layout_size betas, held, read, after; /* of a turn: f32[chunk] */
    layout_size whole;                    /* of a turn: f32 */
    layout_size squares;                  /* of a turn: f32[column warps, chunk] */
    layout_size o;                        /* of a turn: f32[chunk, block columns] */
    layout_size turn_bytes;
    layout_size turns;
    layout_size blocks;                   /* f32[chunk / 16, 16, 16]: what the diagonal of `solve` is the inverse of */
    layout_size sums;                     /* f64[chunk] */
    layout_size logs, q_scales, k_scales; /* f32[chunk] */
    layout_size scales;                   /* f32[chunk] */
    layout_size bytes;
};

LAYOUT_FUNCTION struct delta_rule_chunk_shared delta_rule_chunk_shared_memory(layout_size key_dim, layout_size chunk,
                                                                              layout_size column_warps)
{
    const layout_size columns = DELTA_RULE_CHUNK_TILE * column_warps, numbers = 4 * chunk;
    const layout_size keys = 2 * chunk * delta_rule_chunk_half_stride(key_dim);
    const layout_size matrix = 2 * chunk * delta_rule_chunk_half_stride(chunk);
    struct delta_rule_chunk_shared at = {};
    at.k = at.q + keys;
    at.v = at.k + keys;
    at.stage_bytes = at.v + 2 * chunk * delta_rule_chunk_half_stride(columns);
    at.weights = at.solve + matrix;
    at.low = 2 * matrix;
    at.betas = at.solve + 4 * matrix;
    at.held = at.betas + numbers;
    at.read = at.held + numbers;
    at.after = at.read + numbers;
    at.whole = at.after + numbers;
    at.squares = at.whole + 16;
    at.o = at.squares + column_warps * numbers;
    at.turn_bytes = at.o + 4 * chunk * delta_rule_chunk_float_stride(columns);
    at.turns = DELTA_RULE_CHUNK_STAGES * at.stage_bytes;
    at.blocks = at.turns + 2 * at.turn_bytes;
    at.sums = at.blocks + 4 * chunk * DELTA_RULE_CHUNK_TILE;
    at.logs = at.sums + 2 * numbers;
    at.q_scales = at.logs + numbers;
    at.k_scales = at.q_scales + numbers;
    at.scales = at.k_scales + numbers;
    at.bytes = at.scales + numbers;
    return at;
}

#endif
