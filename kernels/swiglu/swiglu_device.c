/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/swiglu/swiglu.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, GROUP = 8, MAX_WIDTH = 1 << 24, FLOPS_PER_ELEMENT = 6 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[SWIGLU_ROWS], width = params[SWIGLU_WIDTH];
    const int64_t dtype = params[SWIGLU_X_DTYPE];
    const char *why = op_params_illegal(&op_swiglu, params);
    if (why) return why;
    if (width > MAX_WIDTH) return "parameter width is above 2^24";
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "parameter x_dtype is not F16 or BF16";
    const int64_t blocks = (rows * (width / GROUP) + THREADS - 1) / THREADS;
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[SWIGLU_ROWS] * (uint64_t)params[SWIGLU_WIDTH];
    *bytes = 3 * elements * dtype_bytes((enum dtype)params[SWIGLU_X_DTYPE]);
    *flops = FLOPS_PER_ELEMENT * elements;
}

const struct device_kernel device_swiglu = {
    .name = "swiglu",
    .op = OP_SWIGLU,
    .problem = &op_swiglu,
    .launch = launch,
    .cost = cost,
};
