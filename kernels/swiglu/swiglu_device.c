/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/swiglu/swiglu_device.h"

#include "kernels/op/op.h"
#include "kernels/cuda/include/layout.cuh"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, GROUP = 8, MAX_WIDTH = 1 << 24, FLOPS_PER_ELEMENT = 6 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[SWIGLU_DEVICE_ROWS], width = params[SWIGLU_DEVICE_WIDTH];
    const int64_t count_index = params[SWIGLU_DEVICE_COUNT_INDEX], dtype = params[SWIGLU_DEVICE_X_DTYPE];
    if (rows < 1 || rows > OP_MAX_ROWS) return "ROWS is not in 1..2^20";
    if (count_index < 0 || count_index > 1) return "COUNT_INDEX is not 0 or 1";
    if (width < GROUP || width > MAX_WIDTH || width % GROUP) return "WIDTH is not a multiple of 8 in 8..2^24";
    if (dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "X_DTYPE is not F16 or BF16";
    const int64_t blocks = (rows * (width / GROUP) + THREADS - 1) / THREADS;
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[SWIGLU_DEVICE_ROWS] * (uint64_t)params[SWIGLU_DEVICE_WIDTH];
    *bytes = 3 * elements * dtype_bytes((enum dtype)params[SWIGLU_DEVICE_X_DTYPE]);
    *flops = FLOPS_PER_ELEMENT * elements;
}

static const char *const param_names[SWIGLU_DEVICE_PARAMS] = {"ROWS", "COUNT_INDEX", "WIDTH", "X_DTYPE"};

const struct device_kernel device_swiglu = {
    .name = "swiglu",
    .source = "kernels/swiglu/swiglu.cu",
    .op = OP_SWIGLU,
    .least_capability = 80,
    .param_count = SWIGLU_DEVICE_PARAMS,
    .param_names = param_names,
    .first_tunable = SWIGLU_DEVICE_PARAMS,
    .operand_count = SWIGLU_DEVICE_OPERANDS,
    .launch = launch,
    .cost = cost,
};
