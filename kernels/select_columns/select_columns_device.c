/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_columns/select_columns.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_select_columns, params);
    if (why) return why;
    const int64_t width = params[SELECT_COLUMNS_WIDTH], vectors = width / layout_elementwise_vector(width);
    const int64_t blocks = layout_divide_up(params[SELECT_COLUMNS_ROWS] * vectors, THREADS);
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_select_columns = {
    .name = "select_columns",
    .op = OP_SELECT_COLUMNS,
    .problem = &op_select_columns,
    .launch = launch,
    .cost = select_columns_cost,
};
