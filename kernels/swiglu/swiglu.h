/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu: out[r, j] = act(gate[r, j]) * up[r, j], for a gate/up projection whose matmul has no
 * such epilogue, as those of cuBLASLt. Columns 16i..16i+7 of GATE_UP are gate columns
 * 8i..8i+7, columns 16i+8..16i+15 are up columns 8i..8i+7.
 *
 * Float32 inside, relative error 3e-6 before the rounding to X_DTYPE. */
#ifndef KERNELS_SWIGLU_SWIGLU_H
#define KERNELS_SWIGLU_SWIGLU_H

#include "kernels/op/activation.h"
#include "kernels/op/op.h"

enum swiglu_operand {
    SWIGLU_COUNTS,
    SWIGLU_GATE_UP, /* X_DTYPE[rows, 2 * WIDTH] */
    SWIGLU_OUT,     /* X_DTYPE[rows, WIDTH] */
    SWIGLU_OPERANDS
};
enum swiglu_param {
    SWIGLU_ROWS,
    SWIGLU_COUNT_INDEX,
    SWIGLU_WIDTH /* a multiple of 8 */,
    SWIGLU_X_DTYPE,
    SWIGLU_ACTIVATION, /* enum activation, not NONE */
    SWIGLU_PARAMS
};

extern const struct op_descriptor op_swiglu;
extern const struct device_kernel device_swiglu;

#endif
