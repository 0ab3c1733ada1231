/* SPDX-License-Identifier: Apache-2.0 */
/* latent_append: makes the rows of latent attention (kernels/op/paged.h) from what the layer's projections give, and appends those
 * of keys to the sequence's KV page. With R = HEAD_DIM - VALUE_DIM:
 *
 *   q[r, h, :] = q_latent[r, h, :], then rope(q_rope[r, h, :])            for each head
 *   k[r, :]    = norm(kv[r, 0 .. VALUE_DIM)), then rope(kv[r, VALUE_DIM .. HEAD_DIM))
 *   norm(x)    = x / sqrt(mean(x^2) + EPS) * weight
 *   rope(x)[i], rope(x)[i + R/2]: as rope_append.h has them for a head of R elements
 *
 * q_latent is the part of q that does not rotate, multiplied by the head's matrix from latent rows to keys: the product of q and k is
 * then that of the uncompressed rows. Pages and encodings: kernels/op/paged.h. Slots, positions and page table entries of valid
 * rows are the submitter's duty. */
#ifndef KERNELS_LATENT_APPEND_LATENT_APPEND_H
#define KERNELS_LATENT_APPEND_LATENT_APPEND_H

#include "kernels/op/paged.h"

enum latent_append_operand {
    LATENT_APPEND_COUNTS,
    LATENT_APPEND_Q_LATENT,   /* X_DTYPE[rows, HEADS * VALUE_DIM] */
    LATENT_APPEND_Q_ROPE,     /* X_DTYPE[rows, HEADS * R] */
    LATENT_APPEND_KV_ROW,     /* X_DTYPE[rows, HEAD_DIM] */
    LATENT_APPEND_TABLE,      /* f32[rows, R]: rope_table's output */
    LATENT_APPEND_SLOTS,      /* i32[rows] */
    LATENT_APPEND_POSITIONS,  /* i32[rows] */
    LATENT_APPEND_PAGE_TABLE, /* i32[slots, pages_per_slot] */
    LATENT_APPEND_KV,         /* this layer's block of a page: struct op_kv_layout */
    LATENT_APPEND_Q,          /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    LATENT_APPEND_NORM,       /* NORM_DTYPE[VALUE_DIM] */
    LATENT_APPEND_OPERANDS
};
enum latent_append_param {
    PAGED_NAMES(LATENT_APPEND), /* KV_HEADS is 1 */
    LATENT_APPEND_VALUE_DIM,    /* below HEAD_DIM by an even number */
    LATENT_APPEND_NORM_DTYPE,
    LATENT_APPEND_EPS_BITS, /* bits of a float32 >= 0 */
    LATENT_APPEND_PARAMS
};

static inline int64_t latent_append_rope_dim(const int64_t *params)
{
    return params[LATENT_APPEND_HEAD_DIM] - params[LATENT_APPEND_VALUE_DIM];
}

extern const struct op_descriptor op_latent_append;
extern const struct device_kernel device_latent_append;
void latent_append_reference(const struct op_call *call);

#endif
