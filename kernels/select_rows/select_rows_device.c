/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_rows/select_rows_device.h"

#include "kernels/op/op.h"
#include "kernels/cuda/include/layout.cuh"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, VECTOR = 4, MAX_WIDTH = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[SELECT_ROWS_DEVICE_ROWS], width = params[SELECT_ROWS_DEVICE_WIDTH];
    const int64_t count_index = params[SELECT_ROWS_DEVICE_COUNT_INDEX], in_rows = params[SELECT_ROWS_DEVICE_IN_ROWS];
    if (rows < 1 || rows > OP_MAX_ROWS) return "ROWS is not in 1..2^20";
    if (count_index < 0 || count_index > 1) return "COUNT_INDEX is not 0 or 1";
    if (width < 1 || width > MAX_WIDTH) return "WIDTH is not in 1..2^24";
    if (in_rows < 1 || in_rows > OP_MAX_ROWS) return "IN_ROWS is not in 1..2^20";
    const int64_t dtype = params[SELECT_ROWS_X_DTYPE];
    if (dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16) return "X_DTYPE is not F32, F16 or BF16";
    if (dtype != DTYPE_F32 && width % 2) return "WIDTH is odd with a 16-bit X_DTYPE";
    const int64_t words = dtype == DTYPE_F32 ? width : width / 2;
    const int64_t vectors = words % VECTOR == 0 ? words / VECTOR : words;
    const int64_t blocks = (vectors + THREADS - 1) / THREADS * rows;
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    *bytes = (uint64_t)params[SELECT_ROWS_DEVICE_ROWS] *
             (2 * dtype_bytes((enum dtype)params[SELECT_ROWS_X_DTYPE]) * (uint64_t)params[SELECT_ROWS_DEVICE_WIDTH] +
              sizeof(int32_t));
    *flops = 0;
}

static const char *const param_names[SELECT_ROWS_DEVICE_PARAMS] = {"ROWS", "COUNT_INDEX", "WIDTH", "IN_ROWS",
                                                                   "X_DTYPE"};

const struct device_kernel device_select_rows = {
    .name = "select_rows",
    .source = "kernels/select_rows/select_rows.cu",
    .op = OP_SELECT_ROWS,
    .least_capability = 80,
    .param_count = SELECT_ROWS_DEVICE_PARAMS,
    .param_names = param_names,
    .first_tunable = SELECT_ROWS_DEVICE_PARAMS,
    .operand_count = SELECT_ROWS_DEVICE_OPERANDS,
    .launch = launch,
    .cost = cost,
};
