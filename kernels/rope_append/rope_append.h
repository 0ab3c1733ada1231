/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append: splits the QKV projection, normalises q and k (optional), rotates them, appends k and v to the sequence's
 * KV page.
 *
 *   q[r, h, :] = rope(norm_q(qkv[r, h, :])), k likewise, v as it is, with NORM_V each head normalised without a weight;
 *   rope(x)[i]         = x[i] * cos[i] - x[i + R/2] * sin[i]      i in [0, R/2)
 *   rope(x)[i + R/2]   = x[i + R/2] * cos[i] + x[i] * sin[i]      (half-split form, as transformers stores weights)
 *   rope(x)[i]         = x[i]                                     i in [R, HEAD_DIM)
 *   norm(x) = x / sqrt(mean(x^2) + EPS) * weight, over each head (NORM_SCOPE 0, Qwen 3) or over all heads of q, all heads
 *   of k (NORM_SCOPE 1, OLMo 2), or over each head, each with a weight of its own (NORM_SCOPE 2, StableLM 2). With CENTRED the mean
 *   of the head is taken from x before. With HAS_MEANS, where ranks share the heads, mean(x^2) over all heads is an operand.
 *   With NORM_SCOPE 3 (Hunyuan) q[r, h, :] = rope(x / sqrt(mean(x^2) + EPS)) * weight over each head, k likewise.
 *
 * R is ROTARY_DIM, or HEAD_DIM where ROTARY_DIM is 0.
 *
 * The row's token goes to page page_table[slot, position / PAGE_TOKENS], entry position % PAGE_TOKENS. Layout of a page and
 * encodings: kernels/op/paged.h. Encodings with scales round to the nearest code, ties to the even one.
 *
 * GPUs: for prefill; NORM_V not with NORM_SCOPE 1; X_DTYPE of 16 bits, KV_DTYPE of 16 bits or with codes. Float32 inside, relative error
 * 1e-6 of the larger of a rotated pair before the rounding to X_DTYPE (q) or KV_DTYPE (k), with CENTRED of the head's largest element;
 * v is exact without NORM_V. Every operand begins at a multiple of 16 bytes. Slots,
 * positions and page table entries of valid rows are the submitter's duty. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_H
#define KERNELS_ROPE_APPEND_ROPE_APPEND_H

#include "kernels/op/paged.h"
#include "kernels/rope_append/rope_append_layout.cuh"

enum rope_append_operand {
    ROPE_APPEND_COUNTS,
    ROPE_APPEND_QKV,        /* X_DTYPE[rows, (HEADS + 2 KV_HEADS) * HEAD_DIM] */
    ROPE_APPEND_TABLE,      /* f32[rows, R]: rope_table's output */
    ROPE_APPEND_SLOTS,      /* i32[rows] */
    ROPE_APPEND_POSITIONS,  /* i32[rows] */
    ROPE_APPEND_PAGE_TABLE, /* i32[slots, pages_per_slot] */
    ROPE_APPEND_KV,         /* this layer's block of a page: struct op_kv_layout */
    ROPE_APPEND_Q,          /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    ROPE_APPEND_NORM_Q,     /* HAS_NORM: NORM_DTYPE[HEAD_DIM], with NORM_SCOPE 1 and 2 [HEADS * HEAD_DIM] */
    ROPE_APPEND_NORM_K,     /* likewise, [KV_HEADS * HEAD_DIM] */
    ROPE_APPEND_KV_SCALES,  /* HAS_KV_SCALES: f32[KV_HEADS, 2], static scales (kernels/op/paged.h) */
    ROPE_APPEND_MEANS,      /* HAS_MEANS: f32[rows, MEAN_SQUARES_WIDTH], the sum over ranks of mean_squares' output */
    ROPE_APPEND_OPERANDS
};
enum rope_append_param {
    PAGED_NAMES(ROPE_APPEND), /* HEAD_DIM is even */
    ROPE_APPEND_HAS_NORM,
    ROPE_APPEND_NORM_DTYPE,
    ROPE_APPEND_EPS_BITS,   /* bits of a float32 >= 0 */
    ROPE_APPEND_ROTARY_DIM, /* even, at most HEAD_DIM; 0: HEAD_DIM */
    ROPE_APPEND_NORM_SCOPE, /* enum rope_append_norm_scope; above 0 only with HAS_NORM */
    ROPE_APPEND_NORM_V,
    ROPE_APPEND_CENTRED, /* with HAS_NORM, not over the width */
    ROPE_APPEND_HAS_KV_SCALES,
    ROPE_APPEND_HAS_MEANS, /* only with NORM_SCOPE 1 */
    ROPE_APPEND_PARAMS
};

extern const struct op_descriptor op_rope_append;
extern const struct device_kernel device_rope_append;
op_cost rope_append_cost;
void rope_append_reference(const struct op_call *call);

#endif
