/* SPDX-License-Identifier: Apache-2.0 */
/* latent_append: makes the rows of latent attention (kernels/op/paged.h) from what the layer's projections give, and appends those
 * of keys to the sequence's KV page. With R = HEAD_DIM - VALUE_DIM:
 *
 *   q[r, h, :] = q_latent[r, h, :], then rope(q_rope[r, h, :])            for each head
 *   k[r, :]    = norm(kv[r, 0 .. VALUE_DIM)), then rope(kv[r, VALUE_DIM .. HEAD_DIM))
 *   norm(x)    = x / sqrt(mean(x^2) + EPS) * weight
 *   rope(x)[i], rope(x)[i + R/2]: as rope_append.h has them for a head of R elements
 *
 * q_rope and kv may be columns of wider rows (Q_PITCH, KV_PITCH), as one matmul makes them with others.
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
    LATENT_APPEND_Q_ROPE,     /* X_DTYPE[rows, HEADS * R], with Q_PITCH [rows, Q_PITCH]: from column Q_FIRST on */
    LATENT_APPEND_KV_ROW,     /* X_DTYPE[rows, HEAD_DIM], with KV_PITCH [rows, KV_PITCH]: the last columns */
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
    LATENT_APPEND_Q_PITCH,  /* elements of a row of q_rope where they are more than HEADS * R; 0: they are as many */
    LATENT_APPEND_Q_FIRST,
    LATENT_APPEND_KV_PITCH, /* elements of a row of kv where they are more than HEAD_DIM; 0: they are as many */
    LATENT_APPEND_PARAMS
};

static inline int64_t latent_append_rope_dim(const int64_t *params)
{
    return params[LATENT_APPEND_HEAD_DIM] - params[LATENT_APPEND_VALUE_DIM];
}

/* Where the elements of a row of q_rope and of kv are. */
static inline int64_t latent_append_q_at(const int64_t *params, int64_t row)
{
    const int64_t pitch = params[LATENT_APPEND_Q_PITCH];
    return row * (pitch ? pitch : params[LATENT_APPEND_HEADS] * latent_append_rope_dim(params)) +
           params[LATENT_APPEND_Q_FIRST];
}
static inline int64_t latent_append_kv_at(const int64_t *params, int64_t row)
{
    const int64_t head_dim = params[LATENT_APPEND_HEAD_DIM], pitch = params[LATENT_APPEND_KV_PITCH];
    return pitch ? (row + 1) * pitch - head_dim : row * head_dim;
}

extern const struct op_descriptor op_latent_append;
extern const struct device_kernel device_latent_append;
void latent_append_reference(const struct op_call *call);

#endif
