/* SPDX-License-Identifier: Apache-2.0 */
/* rope_attention: decode attention in one launch (device targets): head norms, rotary embedding, append of k and v to
 * their page, grouped-query attention over the sequence's pages.
 *
 * For each valid row r (rows belong to different slots), with q, k, v the row's heads in QKV:
 *
 *   q, k = rope(norm(q)), rope(norm(k))                  norm over each head if HAS_NORM, of v if NORM_V: rope_append.h
 *   page of positions[r] takes k and v in KV_DTYPE       pages as in rope_append.h
 *   out[r, h, :] = sum over t of softmax_t(SCALE * q[h] . k[t, g]) * v[t, g],   g = h / (HEADS / KV_HEADS),
 *   t from max(0, positions[r] - WINDOW + 1) (WINDOW 0: from 0) to positions[r], the new token as rounded.
 *
 * With APPENDED the row's k and v are in the page, where an earlier launch of the same step has put them: QKV has q alone.
 *
 * q and the softmax weights are rounded to KV_DTYPE, or to f16 where that has codes; sums are float32. Tolerance against
 * op_rope_append.reference and op_attention.reference on the same rounded inputs: 1 % of the largest |out| of the row with
 * bf16, 0.2 % with f16 and with codes, where k and v of the new token may be rounded to a neighbouring code.
 *
 * COUNTS, SLOTS, POSITIONS, PAGE_TABLE, NORM_Q, NORM_K and KV of earlier tokens are read before the launches before have completed: no
 * launch of the same graph may write them, but for KV this launch itself and those of other layers. TABLE, QKV
 * and MEANS are read after the wait, with APPENDED the token's own k and v, too. Results are the same bits in every run, whatever the other rows are. */
#ifndef KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_H
#define KERNELS_ROPE_ATTENTION_ROPE_ATTENTION_H

#include "kernels/cuda/kernel.h"
#include "kernels/op/paged.h"
#include "kernels/rope_append/rope_append_layout.cuh"

enum rope_attention_operand {
    ROPE_ATTENTION_COUNTS,
    ROPE_ATTENTION_QKV,        /* X_DTYPE[rows, (HEADS + 2 KV_HEADS) * HEAD_DIM]; APPENDED: [rows, HEADS * HEAD_DIM] */
    ROPE_ATTENTION_TABLE,      /* f32[rows, ROTARY_DIM or HEAD_DIM]: rope_table's output */
    ROPE_ATTENTION_SLOTS,      /* i32[rows] */
    ROPE_ATTENTION_POSITIONS,  /* i32[rows] */
    ROPE_ATTENTION_PAGE_TABLE, /* i32[slots, pages_per_slot] */
    ROPE_ATTENTION_KV,         /* this layer's block of a page, read and written */
    ROPE_ATTENTION_OUT,        /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    ROPE_ATTENTION_WORKSPACE,  /* rope_attention_workspace_bytes, all zero before the first launch, and again after
                                * each */
    ROPE_ATTENTION_NORM_Q,     /* HAS_NORM: NORM_DTYPE[HEAD_DIM], with NORM_SCOPE 1 and 2 [HEADS * HEAD_DIM] */
    ROPE_ATTENTION_NORM_K,     /* likewise, [KV_HEADS * HEAD_DIM]; with APPENDED not read */
    ROPE_ATTENTION_SINKS,      /* HAS_SINKS: SINKS_DTYPE[HEADS] */
    ROPE_ATTENTION_KV_SCALES,  /* HAS_KV_SCALES: f32[KV_HEADS, 2], static scales (kernels/op/paged.h) */
    ROPE_ATTENTION_MEANS,      /* HAS_MEANS: f32[rows, MEAN_SQUARES_WIDTH]: rope_append.h */
    ROPE_ATTENTION_OPERANDS
};
enum rope_attention_param {
    PAGED_NAMES(ROPE_ATTENTION), /* HEAD_DIM is even */
    ROPE_ATTENTION_WINDOW,       /* 0: none */
    ROPE_ATTENTION_SCALE_BITS,   /* bits of a float32 > 0 */
    ROPE_ATTENTION_HAS_NORM,
    ROPE_ATTENTION_NORM_DTYPE,
    ROPE_ATTENTION_EPS_BITS,   /* bits of a float32 >= 0 */
    ROPE_ATTENTION_ROTARY_DIM, /* even, at most HEAD_DIM; 0: HEAD_DIM */
    ROPE_ATTENTION_CAP_BITS,   /* this and sinks as in attention.h */
    ROPE_ATTENTION_HAS_SINKS,
    ROPE_ATTENTION_SINKS_DTYPE,
    ROPE_ATTENTION_NORM_SCOPE, /* this and the next two as in rope_append.h; over the width only with HAS_MEANS */
    ROPE_ATTENTION_NORM_V,
    ROPE_ATTENTION_CENTRED,
    ROPE_ATTENTION_APPENDED, /* without the three before */
    ROPE_ATTENTION_HAS_KV_SCALES,
    ROPE_ATTENTION_HAS_MEANS, /* only with NORM_SCOPE 1, and not with NORM_V */
    ROPE_ATTENTION_PROBLEM_PARAMS,
    /* Tunables: see rope_attention.cu. */
    ROPE_ATTENTION_SPLITS = ROPE_ATTENTION_PROBLEM_PARAMS, /* 1 to 64 */
    ROPE_ATTENTION_WARPS,                                  /* 1 to 16 */
    ROPE_ATTENTION_TILE_TOKENS,                            /* 16, 32, 64, at most PAGE_TOKENS */
    ROPE_ATTENTION_HEAD_TILES,                             /* 1, 2, 4: query heads per block / 8 */
    ROPE_ATTENTION_STAGES,                                 /* 2 to 16: of a warp's ring in shared memory */
    ROPE_ATTENTION_BULK,        /* 0, 1: rows fetched by the copy engine: sm_90, HEAD_DIM a multiple of 8 */
    ROPE_ATTENTION_ALONE_TILES, /* 1 to 64: per warp, that one split takes alone */
    ROPE_ATTENTION_PARAMS
};

extern const struct op_descriptor op_rope_attention;
extern const struct device_kernel device_rope_attention;

/* Bytes for parameters that `launch` accepts. */
uint64_t rope_attention_workspace_bytes(const int64_t *params);

#endif
