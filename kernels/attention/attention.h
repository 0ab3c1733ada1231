/* SPDX-License-Identifier: Apache-2.0 */
/* attention: causal grouped-query attention of each row over its sequence's KV pages.
 *
 *   out[r, h, :] = sum over t of softmax_t(SCALE * q[r, h] . k[t, g]) * v[t, g],  g = h / (HEADS / KV_HEADS),
 *   t from max(0, position[r] - WINDOW + 1) (WINDOW 0: from 0) to position[r] inclusive.
 *
 * With VALUE_DIM (latent attention) v[t] is the first VALUE_DIM elements of k[t], and a row of out has as many for each head.
 *
 * With CAP a score s = SCALE * q . k becomes CAP * tanh(s / CAP) before the softmax. With sinks the softmax of head h has one term
 * more, of score sinks[h], which has no value: it only adds to the sum (Xiao et al. 2023, arXiv:2309.17453; learned, as in gpt-oss).
 *
 * Tokens before a row's window have no influence. Their entries of the page table name pages of the same sequence, which may hold
 * later tokens (plan_ring_pages). A kernel that loads such tokens in a tile gives them the weight 0, so their elements must be finite:
 * they are, unless the sequence itself has computed others. Only attention_prefill and cuDNN load them.
 *
 * Serves decode (rows of different slots) and prefill (rows of one slot) alike: rope_append has already stored k and v
 * of every row of this step. Pages as in kernels/op/paged.h. Where rows of the KV cache have scales, the score of a token
 * is (q . codes of k) * scale of k, and its probability * scale of v multiplies the codes of v, in float32.
 *
 * Numerics contract: a row's result depends on its own sequence only, never on the other rows, the chunking of the prompt
 * or the number of threads: tokens are taken in blocks of ATTENTION_BLOCK_TOKENS counted from token 0 of the sequence,
 * blocks merged in rising order. HEAD_DIM is at most OP_MAX_HEAD_DIM (kernels/op/schema.h); SCALE is positive. */
#ifndef KERNELS_ATTENTION_ATTENTION_H
#define KERNELS_ATTENTION_ATTENTION_H

#include "kernels/op/paged.h"

enum { ATTENTION_BLOCK_TOKENS = 256 };

enum attention_operand {
    ATTENTION_COUNTS,
    ATTENTION_Q,          /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    ATTENTION_SLOTS,      /* i32[rows] */
    ATTENTION_POSITIONS,  /* i32[rows] */
    ATTENTION_PAGE_TABLE, /* i32[slots, pages_per_slot] */
    ATTENTION_KV,         /* as ROPE_APPEND_KV, read */
    ATTENTION_OUT, /* X_DTYPE[rows, HEADS * HEAD_DIM]; may be Q. With VALUE_DIM [rows, HEADS * VALUE_DIM], not Q */
    ATTENTION_WORKSPACE, /* CPU: attention_workspace_bytes */
    ATTENTION_SINKS,     /* HAS_SINKS: SINKS_DTYPE[HEADS] */
    ATTENTION_COUNTERS, /* CUDA, VALUE_DIM: partial results of the blocks that share a row; all zero before a launch and after it */
    ATTENTION_OPERANDS
};
enum attention_param {
    PAGED_NAMES(ATTENTION),
    ATTENTION_WINDOW,     /* tokens that a row sees, itself included; 0: all */
    ATTENTION_SCALE_BITS, /* bits of a float32 > 0 */
    ATTENTION_SCATTERED, /* CUDA: 0: the rows are tokens of one sequence, in order; 1: of any, those of one after the other */
    ATTENTION_CAP_BITS, /* bits of a float32 >= 0; 0: no cap */
    ATTENTION_HAS_SINKS,
    ATTENTION_SINKS_DTYPE,
    ATTENTION_VALUE_DIM, /* at most HEAD_DIM, with one KV head; 0: v is in the pages, of HEAD_DIM elements */
    ATTENTION_PARAMS
};

/* Elements of v. */
static inline int64_t attention_value_dim(const int64_t *params)
{
    return params[ATTENTION_VALUE_DIM] ? params[ATTENTION_VALUE_DIM] : params[ATTENTION_HEAD_DIM];
}

extern const struct op_descriptor op_attention;
void attention_reference(const struct op_call *call);

/* Bytes of partial results (maximum, sum, accumulated v) of the blocks of up to 16 rows, with which threads share long
 * contexts; more rows give all threads enough work without. False: the size overflows. */
bool attention_workspace_bytes(uint64_t rows, uint64_t heads, uint64_t value_dim, const struct plan_geometry *geometry,
                               uint64_t *bytes);

#endif
