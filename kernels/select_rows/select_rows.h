/* SPDX-License-Identifier: Apache-2.0 */
/* select_rows: out[o, :] = x[out_rows[o], :] for the valid out rows: from here on only rows that need logits count. */
#ifndef KERNELS_SELECT_ROWS_SELECT_ROWS_H
#define KERNELS_SELECT_ROWS_SELECT_ROWS_H

#include "kernels/op/op.h"

enum select_rows_operand {
    SELECT_ROWS_COUNTS,
    SELECT_ROWS_X,     /* X_DTYPE[IN_ROWS, WIDTH] */
    SELECT_ROWS_INDEX, /* i32[rows], each in [0, IN_ROWS): the submitter's duty */
    SELECT_ROWS_OUT,   /* X_DTYPE[rows, WIDTH]; not X */
    SELECT_ROWS_OPERANDS
};
enum select_rows_param {
    SELECT_ROWS_ROWS,        /* out rows */
    SELECT_ROWS_COUNT_INDEX, /* 1 */
    SELECT_ROWS_WIDTH,
    SELECT_ROWS_IN_ROWS,
    SELECT_ROWS_X_DTYPE,
    SELECT_ROWS_PARAMS
};

extern const struct op_descriptor op_select_rows;
extern const struct device_kernel device_select_rows;
op_cost select_rows_cost;

#endif
