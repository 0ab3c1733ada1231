/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/mean_squares/mean_squares.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_mean_squares, params);
    if (why) return why;
    if (params[MEAN_SQUARES_X_DTYPE] == DTYPE_F32) return "X_DTYPE is not F16 or BF16";
    *geometry = (struct device_geometry){{(uint32_t)params[MEAN_SQUARES_ROWS], 1, 1},
                                         {LAYOUT_ELEMENTWISE_THREADS, 1, 1},
                                         {1, 1, 1},
                                         0};
    return NULL;
}

const struct device_kernel device_mean_squares = {
    .name = "mean_squares",
    .op = OP_MEAN_SQUARES,
    .problem = &op_mean_squares,
    .launch = launch,
    .cost = mean_squares_cost,
};
