/* SPDX-License-Identifier: Apache-2.0 */
/* xielu: an activation with numbers that a layer has learned. Huang and Schlag 2024, arXiv:2411.13010.
 *
 *   p = softplus(numbers[0]), n = beta + softplus(numbers[1]), beta = numbers[2], eps = numbers[3]
 *   out[r, c] = p x^2 + beta x                          where x = x[r, c] is above 0
 *               (exp(min(x, eps)) - 1 - x) n + beta x   elsewhere
 *
 * float32, within 1e-6 of the sum of the terms' magnitudes; GPUs: 4e-6 while n is at most 60 beta, then rounded to X_DTYPE. Operands begin at multiples of 16 bytes
 * there. */
#ifndef KERNELS_XIELU_XIELU_H
#define KERNELS_XIELU_XIELU_H

#include "kernels/op/op.h"

enum { XIELU_NUMBER_COUNT = 4 };

enum xielu_operand {
    XIELU_COUNTS,
    XIELU_X,       /* X_DTYPE[rows, WIDTH] */
    XIELU_NUMBERS, /* NUMBERS_DTYPE[XIELU_NUMBER_COUNT] */
    XIELU_OUT,     /* X_DTYPE[rows, WIDTH]; may be X */
    XIELU_OPERANDS
};
enum xielu_param {
    XIELU_ROWS,
    XIELU_COUNT_INDEX,
    XIELU_WIDTH,
    XIELU_NUMBERS_DTYPE,
    XIELU_X_DTYPE, /* CPU: F32 */
    XIELU_PARAMS
};

extern const struct op_descriptor op_xielu;
extern const struct device_kernel device_xielu;
op_cost xielu_cost;

#endif
