/* SPDX-License-Identifier: Apache-2.0 */
/* rope_append: splits the QKV projection, normalises heads (optional, Qwen3), rotates q and k, appends k and v to the
 * sequence's KV page.
 *
 *   q[r, h, :] = rope(norm_q(qkv[r, h, :])), k likewise, v as it is;
 *   rope(x)[i]         = x[i] * cos[i] - x[i + D/2] * sin[i]
 *   rope(x)[i + D/2]   = x[i + D/2] * cos[i] + x[i] * sin[i]      (half-split form, as transformers stores weights)
 *   norm(x) = x / sqrt(mean(x^2) + EPS) * weight over the head.
 *
 * The row's token goes to page page_table[slot, position / PAGE_TOKENS], entry position % PAGE_TOKENS. Inside a page,
 * a layer's block begins at the KV operand's offset: K as KV_DTYPE [KV_HEADS, PAGE_TOKENS, HEAD_DIM], then V. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_H
#define KERNELS_ROPE_APPEND_ROPE_APPEND_H

#include "kernels/op/op.h"

enum rope_append_operand {
    ROPE_APPEND_COUNTS,
    ROPE_APPEND_QKV,        /* f32[rows, (HEADS + 2 KV_HEADS) * HEAD_DIM] */
    ROPE_APPEND_TABLE,      /* f32[rows, HEAD_DIM]: rope_table's output */
    ROPE_APPEND_SLOTS,      /* i32[rows] */
    ROPE_APPEND_POSITIONS,  /* i32[rows] */
    ROPE_APPEND_PAGE_TABLE, /* i32[slots, pages_per_slot] */
    ROPE_APPEND_KV,         /* this layer's block of a page: 2 * KV_HEADS * page_tokens * HEAD_DIM elements */
    ROPE_APPEND_Q,          /* f32[rows, HEADS * HEAD_DIM] */
    ROPE_APPEND_OPERANDS,   /* with HAS_NORM two more: */
    ROPE_APPEND_NORM_Q = ROPE_APPEND_OPERANDS, /* NORM_DTYPE[HEAD_DIM] */
    ROPE_APPEND_NORM_K,
    ROPE_APPEND_OPERANDS_NORM
};
enum rope_append_param {
    ROPE_APPEND_ROWS,
    ROPE_APPEND_COUNT_INDEX,
    ROPE_APPEND_HEADS,
    ROPE_APPEND_KV_HEADS,
    ROPE_APPEND_HEAD_DIM,
    ROPE_APPEND_PAGE_TOKENS, /* this and the next two must equal the engine's geometry */
    ROPE_APPEND_PAGES_PER_SLOT,
    ROPE_APPEND_PAGE_BYTES,
    ROPE_APPEND_SLOT_COUNT, /* likewise */
    ROPE_APPEND_KV_DTYPE,   /* F32, F16, BF16 */
    ROPE_APPEND_HAS_NORM,
    ROPE_APPEND_NORM_DTYPE,
    ROPE_APPEND_EPS_BITS,
    ROPE_APPEND_PARAMS
};

extern const struct op_descriptor op_rope_append;
void rope_append_reference(const struct op_call *call);

#endif
