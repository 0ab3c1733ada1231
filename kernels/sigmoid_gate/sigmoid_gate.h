/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid_gate: out[r, c] = x[r, c] / (1 + exp(-gate[r, c])). float32, relative error 3e-7. */
#ifndef KERNELS_SIGMOID_GATE_SIGMOID_GATE_H
#define KERNELS_SIGMOID_GATE_SIGMOID_GATE_H

#include "kernels/op/op.h"

enum sigmoid_gate_operand {
    SIGMOID_GATE_COUNTS,
    SIGMOID_GATE_X,    /* f32[rows, WIDTH] */
    SIGMOID_GATE_GATE, /* f32[rows, WIDTH] */
    SIGMOID_GATE_OUT,  /* f32[rows, WIDTH]; may be X or GATE */
    SIGMOID_GATE_OPERANDS
};
enum sigmoid_gate_param { SIGMOID_GATE_ROWS, SIGMOID_GATE_COUNT_INDEX, SIGMOID_GATE_WIDTH, SIGMOID_GATE_PARAMS };

extern const struct op_descriptor op_sigmoid_gate;

#endif
