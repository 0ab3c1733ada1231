/* SPDX-License-Identifier: Apache-2.0 */
/* How state_space_chunk divides a head over warps and blocks, and its shared memory: for host and device code. Its warps and their tiles
 * are those of delta_rule_chunk. */
#ifndef KERNELS_STATE_SPACE_STATE_SPACE_CHUNK_LAYOUT_CUH
#define KERNELS_STATE_SPACE_STATE_SPACE_CHUNK_LAYOUT_CUH

#include "kernels/delta_rule/delta_rule_chunk_layout.cuh"

enum {
    STATE_SPACE_CHUNK_PARTS = 3,        /* bfloat16 whose sum is a float32 */
    STATE_SPACE_CHUNK_MOST_STATE = 128, /* state_dim whose state fits a thread's registers */
};

/* Places in shared memory, in bytes: each a multiple of 16. Those of a stage and of a turn (chunks take two by turns) begin at 0. */
struct state_space_chunk_shared {
    layout_size b, c, x;       /* of a stage: bf16[chunk, state_dim, state_dim, block columns] as they come */
    layout_size stage_bytes;   /* the stages come first */
    layout_size weights, part; /* of a turn: bf16[chunk, chunk], and after so many bytes its next part */
    layout_size read, after;   /* of a turn: f32[chunk] */
    layout_size whole;         /* of a turn: f32 */
    layout_size o;             /* of a turn: f32[chunk, block columns] */
    layout_size turn_bytes;
    layout_size turns;
    layout_size sums;        /* f64[chunk] */
    layout_size logs, steps; /* f32[chunk] */
    layout_size bytes;
};

LAYOUT_FUNCTION struct state_space_chunk_shared
state_space_chunk_shared_memory(layout_size state_dim, layout_size chunk, layout_size column_warps)
{
    const layout_size columns = DELTA_RULE_CHUNK_TILE * column_warps, numbers = 4 * chunk;
    const layout_size of_state = 2 * chunk * delta_rule_chunk_half_stride(state_dim);
    struct state_space_chunk_shared at = {};
    at.c = at.b + of_state;
    at.x = at.c + of_state;
    at.stage_bytes = at.x + 2 * chunk * delta_rule_chunk_half_stride(columns);
    at.part = 2 * chunk * delta_rule_chunk_half_stride(chunk);
    at.read = at.weights + STATE_SPACE_CHUNK_PARTS * at.part;
    at.after = at.read + numbers;
    at.whole = at.after + numbers;
    at.o = at.whole + 16;
    at.turn_bytes = at.o + 4 * chunk * delta_rule_chunk_float_stride(columns);
    at.turns = DELTA_RULE_CHUNK_STAGES * at.stage_bytes;
    at.sums = at.turns + 2 * at.turn_bytes;
    at.logs = at.sums + 2 * numbers;
    at.steps = at.logs + numbers;
    at.bytes = at.steps + numbers;
    return at;
}

#endif
