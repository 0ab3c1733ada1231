/* SPDX-License-Identifier: Apache-2.0 */
/* sum_parts: out[r, n] = (residual[r, n] +) x[r, 0, n] + x[r, 1, n] + ..., x of PARTS parts of WIDTH columns a row, in this
 * order. What a matmul over experts leaves to be done on CUDA (MATMUL_PARTS). */
#ifndef KERNELS_SUM_PARTS_SUM_PARTS_H
#define KERNELS_SUM_PARTS_SUM_PARTS_H

#include "kernels/op/op.h"

enum { SUM_PARTS_MOST = 64 };

enum sum_parts_operand {
    SUM_PARTS_COUNTS,
    SUM_PARTS_X,        /* f32[rows, PARTS * WIDTH] */
    SUM_PARTS_OUT,      /* OUT_DTYPE[rows, WIDTH]; may be RESIDUAL, never X */
    SUM_PARTS_RESIDUAL, /* HAS_RESIDUAL: f32[rows, WIDTH] */
    SUM_PARTS_OPERANDS
};
enum sum_parts_param {
    SUM_PARTS_ROWS,
    SUM_PARTS_COUNT_INDEX,
    SUM_PARTS_WIDTH,
    SUM_PARTS_PARTS,
    SUM_PARTS_OUT_DTYPE, /* F32 with a residual */
    SUM_PARTS_HAS_RESIDUAL,
    SUM_PARTS_PARAMS
};

extern const struct op_descriptor op_sum_parts;
extern const struct device_kernel device_sum_parts;

#endif
