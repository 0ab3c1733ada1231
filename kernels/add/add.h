/* SPDX-License-Identifier: Apache-2.0 */
/* add: out = a + b over [rows, WIDTH]. The residual connection, where it is not fused into its neighbour. */
#ifndef KERNELS_ADD_ADD_H
#define KERNELS_ADD_ADD_H

#include "kernels/op/op.h"

enum add_operand {
    ADD_COUNTS,
    ADD_A,   /* f32[rows, WIDTH] */
    ADD_B,   /* f32[rows, WIDTH] */
    ADD_OUT, /* f32[rows, WIDTH]; may be A or B */
    ADD_OPERANDS
};
enum add_param { ADD_ROWS, ADD_COUNT_INDEX, ADD_WIDTH, ADD_PARAMS };

extern const struct op_descriptor op_add;

#endif
