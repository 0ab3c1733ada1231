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

#include "kernels/op/paged.h"

enum rope_append_operand {
    ROPE_APPEND_COUNTS,
    ROPE_APPEND_QKV,        /* X_DTYPE[rows, (HEADS + 2 KV_HEADS) * HEAD_DIM] */
    ROPE_APPEND_TABLE,      /* f32[rows, HEAD_DIM]: rope_table's output */
    ROPE_APPEND_SLOTS,      /* i32[rows] */
    ROPE_APPEND_POSITIONS,  /* i32[rows] */
    ROPE_APPEND_PAGE_TABLE, /* i32[slots, pages_per_slot] */
    ROPE_APPEND_KV,         /* this layer's block of a page: 2 * KV_HEADS * page_tokens * HEAD_DIM elements */
    ROPE_APPEND_Q,          /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    ROPE_APPEND_NORM_Q,     /* HAS_NORM: NORM_DTYPE[HEAD_DIM] */
    ROPE_APPEND_NORM_K,     /* likewise */
    ROPE_APPEND_OPERANDS
};
enum rope_append_param {
    ROPE_APPEND_ROWS = OP_PARAM_ROWS,
    ROPE_APPEND_COUNT_INDEX = OP_PARAM_COUNT_INDEX,
    ROPE_APPEND_HEADS = PAGED_HEADS,
    ROPE_APPEND_KV_HEADS = PAGED_KV_HEADS,
    ROPE_APPEND_HEAD_DIM = PAGED_HEAD_DIM, /* even */
    ROPE_APPEND_PAGE_TOKENS = PAGED_PAGE_TOKENS,
    ROPE_APPEND_PAGES_PER_SLOT = PAGED_PAGES_PER_SLOT,
    ROPE_APPEND_PAGE_BYTES = PAGED_PAGE_BYTES,
    ROPE_APPEND_SLOT_COUNT = PAGED_SLOT_COUNT,
    ROPE_APPEND_KV_DTYPE = PAGED_KV_DTYPE,
    ROPE_APPEND_X_DTYPE = PAGED_X_DTYPE,
    ROPE_APPEND_HAS_NORM,
    ROPE_APPEND_NORM_DTYPE,
    ROPE_APPEND_EPS_BITS, /* bits of a float32 >= 0 */
    ROPE_APPEND_PARAMS
};

extern const struct op_descriptor op_rope_append;
void rope_append_reference(const struct op_call *call);

#endif
