/* SPDX-License-Identifier: Apache-2.0 */
/* multiply: out[r, c] = x[r, c] * by[r, c], or x[r, c] * weight[c]. float32, rounded once; GPUs: and then to OUT_DTYPE, operands begin at
 * multiples of 16 bytes. */
#ifndef KERNELS_MULTIPLY_MULTIPLY_H
#define KERNELS_MULTIPLY_MULTIPLY_H

#include "kernels/op/op.h"

enum multiply_operand {
    MULTIPLY_COUNTS,
    MULTIPLY_X,      /* X_DTYPE[rows, WIDTH] */
    MULTIPLY_OUT,    /* OUT_DTYPE[rows, WIDTH]; CPU: may be X or BY */
    MULTIPLY_BY,     /* HAS_BY: BY_DTYPE[rows, WIDTH] */
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
    MULTIPLY_X_DTYPE, /* CPU: F32, as the next two */
    MULTIPLY_BY_DTYPE,
    MULTIPLY_OUT_DTYPE,
    MULTIPLY_PARAMS
};

extern const struct op_descriptor op_multiply;
extern const struct device_kernel device_multiply;
op_cost multiply_cost;

#endif
