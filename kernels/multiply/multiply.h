/* SPDX-License-Identifier: Apache-2.0 */
/* multiply: out[r, c] = x[r, c] * by[r, c], or x[r, c] * weight[c]. float32, rounded once. */
#ifndef KERNELS_MULTIPLY_MULTIPLY_H
#define KERNELS_MULTIPLY_MULTIPLY_H

#include "kernels/op/op.h"

enum multiply_operand {
    MULTIPLY_COUNTS,
    MULTIPLY_X,      /* f32[rows, WIDTH] */
    MULTIPLY_OUT,    /* f32[rows, WIDTH]; may be X or BY */
    MULTIPLY_BY,     /* HAS_BY: f32[rows, WIDTH] */
    MULTIPLY_WEIGHT, /* HAS_WEIGHT: WEIGHT_DTYPE[WIDTH] */
    MULTIPLY_OPERANDS
};
enum multiply_param {
    MULTIPLY_ROWS,
    MULTIPLY_COUNT_INDEX,
    MULTIPLY_WIDTH,
    MULTIPLY_HAS_BY, /* one of the two is 1 */
    MULTIPLY_HAS_WEIGHT,
    MULTIPLY_WEIGHT_DTYPE,
    MULTIPLY_PARAMS
};

extern const struct op_descriptor op_multiply;

#endif
