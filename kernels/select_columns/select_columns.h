/* SPDX-License-Identifier: Apache-2.0 */
/* select_columns: out[r, i] = x[r, order[i]], what a matmul multiplies whose weight has its columns in that order.
 *
 * `order` has whole numbers in [0, WIDTH), each once. A column beyond them, or one that is no number, gives 0. */
#ifndef KERNELS_SELECT_COLUMNS_SELECT_COLUMNS_H
#define KERNELS_SELECT_COLUMNS_SELECT_COLUMNS_H

#include "kernels/op/op.h"

enum { SELECT_COLUMNS_MOST = 1 << 24 }; /* columns: up to it float32 has every whole number */

enum select_columns_operand {
    SELECT_COLUMNS_COUNTS,
    SELECT_COLUMNS_X,     /* X_DTYPE[rows, WIDTH] */
    SELECT_COLUMNS_ORDER, /* f32[WIDTH] */
    SELECT_COLUMNS_OUT,   /* OUT_DTYPE[rows, WIDTH]; not X */
    SELECT_COLUMNS_OPERANDS
};
enum select_columns_param {
    SELECT_COLUMNS_ROWS,
    SELECT_COLUMNS_COUNT_INDEX,
    SELECT_COLUMNS_WIDTH,
    SELECT_COLUMNS_X_DTYPE,   /* CPU: F32 */
    SELECT_COLUMNS_OUT_DTYPE, /* CPU: F32 */
    SELECT_COLUMNS_PARAMS
};

extern const struct op_descriptor op_select_columns;
extern const struct device_kernel device_select_columns;
op_cost select_columns_cost;

#endif
