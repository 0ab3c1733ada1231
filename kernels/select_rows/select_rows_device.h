/* SPDX-License-Identifier: Apache-2.0 */
/* select_rows on the GPU: out[o, :] = x[index[o], :] for the valid out rows; zeros where index[o] is no row of x. */
#ifndef KERNELS_SELECT_ROWS_SELECT_ROWS_DEVICE_H
#define KERNELS_SELECT_ROWS_SELECT_ROWS_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/select_rows/select_rows.h"

enum select_rows_device_operand {
    SELECT_ROWS_DEVICE_COUNTS,
    SELECT_ROWS_DEVICE_X,     /* f32[IN_ROWS, WIDTH] */
    SELECT_ROWS_DEVICE_INDEX, /* i32[ROWS] */
    SELECT_ROWS_DEVICE_OUT,   /* f32[ROWS, WIDTH]; not X */
    SELECT_ROWS_DEVICE_OPERANDS
};
enum select_rows_device_param {
    SELECT_ROWS_DEVICE_ROWS = SELECT_ROWS_ROWS,
    SELECT_ROWS_DEVICE_COUNT_INDEX = SELECT_ROWS_COUNT_INDEX,
    SELECT_ROWS_DEVICE_WIDTH = SELECT_ROWS_WIDTH,
    SELECT_ROWS_DEVICE_IN_ROWS = SELECT_ROWS_IN_ROWS,
    SELECT_ROWS_DEVICE_PARAMS = SELECT_ROWS_PARAMS
};
extern const struct device_kernel device_select_rows;

#endif
