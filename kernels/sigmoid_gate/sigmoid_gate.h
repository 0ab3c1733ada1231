/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid_gate: out[r, c] = x[r, c] / (1 + exp(-gate[r, c])). float32, relative error 3e-7; GPUs: 1e-6 before the rounding to X_DTYPE. */
#ifndef KERNELS_SIGMOID_GATE_SIGMOID_GATE_H
#define KERNELS_SIGMOID_GATE_SIGMOID_GATE_H

#include "kernels/op/op.h"

enum sigmoid_gate_operand {
    SIGMOID_GATE_COUNTS,
    SIGMOID_GATE_X,    /* X_DTYPE[rows, WIDTH] */
    SIGMOID_GATE_GATE, /* X_DTYPE[rows, WIDTH] */
    SIGMOID_GATE_OUT,  /* X_DTYPE[rows, WIDTH]; may be X or GATE */
    SIGMOID_GATE_OPERANDS
};
enum sigmoid_gate_param {
    SIGMOID_GATE_ROWS,
    SIGMOID_GATE_COUNT_INDEX,
    SIGMOID_GATE_WIDTH,
    SIGMOID_GATE_X_DTYPE, /* CPU: F32 */
    SIGMOID_GATE_PARAMS
};

extern const struct op_descriptor op_sigmoid_gate;
extern const struct device_kernel device_sigmoid_gate;
op_cost sigmoid_gate_cost;

#endif
