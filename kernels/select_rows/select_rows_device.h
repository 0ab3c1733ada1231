/* SPDX-License-Identifier: Apache-2.0 */
/* select_rows on the GPU: out[o, :] = x[index[o], :] for the valid out rows; zeros where index[o] is no row of x. */
#ifndef KERNELS_SELECT_ROWS_SELECT_ROWS_DEVICE_H
#define KERNELS_SELECT_ROWS_SELECT_ROWS_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/select_rows/select_rows.h"

extern const struct device_kernel device_select_rows;

#endif
