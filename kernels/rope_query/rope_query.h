/* SPDX-License-Identifier: Apache-2.0 */
/* rope_query: normalises (optional) and rotates q alone, for layers that read the keys and values of another layer.
 *
 *   out[r, h, :] = rope(norm(x[r, h, :])), norm over each head and rope as rope_append.h has them
 *
 * float32, relative error 1e-6 of the larger of a rotated pair; GPUs: X_DTYPE of 16 bits, that error before the rounding to it, operands
 * begin at multiples of 16 bytes. */
#ifndef KERNELS_ROPE_QUERY_ROPE_QUERY_H
#define KERNELS_ROPE_QUERY_ROPE_QUERY_H

#include "kernels/op/op.h"

enum rope_query_operand {
    ROPE_QUERY_COUNTS,
    ROPE_QUERY_X,     /* X_DTYPE[rows, HEADS * HEAD_DIM] */
    ROPE_QUERY_TABLE, /* f32[rows, ROTARY_DIM]: rope_table's output */
    ROPE_QUERY_OUT,   /* X_DTYPE[rows, HEADS * HEAD_DIM]; may be X */
    ROPE_QUERY_NORM,  /* HAS_NORM: NORM_DTYPE[HEAD_DIM] */
    ROPE_QUERY_OPERANDS
};
enum rope_query_param {
    ROPE_QUERY_ROWS,
    ROPE_QUERY_COUNT_INDEX,
    ROPE_QUERY_HEADS,
    ROPE_QUERY_HEAD_DIM,   /* even */
    ROPE_QUERY_ROTARY_DIM, /* even, 2 to HEAD_DIM */
    ROPE_QUERY_HAS_NORM,
    ROPE_QUERY_NORM_DTYPE,
    ROPE_QUERY_EPS_BITS, /* bits of a float32 >= 0 */
    ROPE_QUERY_X_DTYPE,  /* CPU: F32 */
    ROPE_QUERY_PARAMS
};

extern const struct op_descriptor op_rope_query;
extern const struct device_kernel device_rope_query;
op_cost rope_query_cost;

#endif
