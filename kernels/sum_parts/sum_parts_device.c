/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sum_parts/sum_parts.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, MOST_WIDTH = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_sum_parts, params);
    if (why) return why;
    const int64_t rows = params[SUM_PARTS_ROWS], width = params[SUM_PARTS_WIDTH];
    if (width > MOST_WIDTH) return "parameter width is above 2^24";
    const int64_t blocks = layout_divide_up(rows * (width % 4 ? width : width / 4), THREADS);
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[SUM_PARTS_ROWS] * (uint64_t)params[SUM_PARTS_WIDTH];
    const uint64_t parts = (uint64_t)params[SUM_PARTS_PARTS];
    *bytes = elements * ((parts + (params[SUM_PARTS_HAS_RESIDUAL] ? 1 : 0)) * sizeof(float) +
                         dtype_bytes((enum dtype)params[SUM_PARTS_OUT_DTYPE]));
    *flops = parts * elements;
}

const struct device_kernel device_sum_parts = {
    .name = "sum_parts",
    .op = OP_SUM_PARTS,
    .problem = &op_sum_parts,
    .launch = launch,
    .cost = cost,
};
