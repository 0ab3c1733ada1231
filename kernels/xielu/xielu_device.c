/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/xielu/xielu.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, MOST_WIDTH = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_xielu, params);
    if (why) return why;
    const int64_t width = params[XIELU_WIDTH];
    if (width > MOST_WIDTH) return "parameter width is above 2^24";
    const int64_t vectors = params[XIELU_ROWS] * (width / layout_elementwise_vector(width));
    const int64_t blocks = layout_divide_up(vectors, THREADS);
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_xielu = {
    .name = "xielu",
    .op = OP_XIELU,
    .problem = &op_xielu,
    .launch = launch,
    .cost = xielu_cost,
};
