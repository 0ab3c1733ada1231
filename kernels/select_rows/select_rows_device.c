/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_rows/select_rows.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, VECTOR = 4, MAX_WIDTH = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[SELECT_ROWS_ROWS], width = params[SELECT_ROWS_WIDTH];
    const int64_t dtype = params[SELECT_ROWS_X_DTYPE];
    const char *why = op_params_illegal(&op_select_rows, params);
    if (why) return why;
    if (width > MAX_WIDTH) return "parameter width is above 2^24";
    if (dtype != DTYPE_F32 && width % 2) return "parameter width is odd with a 16-bit x_dtype";
    const int64_t words = dtype == DTYPE_F32 ? width : width / 2;
    const int64_t vectors = words % VECTOR == 0 ? words / VECTOR : words;
    const int64_t blocks = (vectors + THREADS - 1) / THREADS * rows;
    if (blocks > INT32_MAX) return "rows * width is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_select_rows = {
    .name = "select_rows",
    .op = OP_SELECT_ROWS,
    .problem = &op_select_rows,
    .launch = launch,
    .cost = select_rows_cost,
};
