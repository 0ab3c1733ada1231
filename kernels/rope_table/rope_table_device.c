/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_table/rope_table_device.h"

#include "kernels/op/op.h"
#include "kernels/cuda/include/layout.cuh"

enum { THREADS = LAYOUT_ROPE_TABLE_THREADS, FLT_MAX_BITS = 0x7f7fffff, FLOPS_PER_ELEMENT = 20 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const int64_t rows = params[ROPE_TABLE_DEVICE_ROWS], head_dim = params[ROPE_TABLE_DEVICE_HEAD_DIM];
    const int64_t count_index = params[ROPE_TABLE_DEVICE_COUNT_INDEX];
    const int64_t scaling = params[ROPE_TABLE_DEVICE_SCALING_BITS], switches = params[ROPE_TABLE_DEVICE_SWITCHES];
    if (rows < 1 || rows > OP_MAX_ROWS) return "ROWS is not in 1..2^20";
    if (count_index < 0 || count_index > 1) return "COUNT_INDEX is not 0 or 1";
    if (head_dim < 2 || head_dim > OP_MAX_HEAD_DIM || head_dim % 2) return "HEAD_DIM is not an even number in 2..256";
    if (scaling < 0 || scaling > FLT_MAX_BITS) return "SCALING_BITS are not of a finite float >= 0";
    if (switches != 0 && switches != 1) return "SWITCHES is not 0 or 1";
    const uint32_t blocks = (uint32_t)((rows * (head_dim / 2) + THREADS - 1) / THREADS);
    *geometry = (struct device_geometry){{blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[ROPE_TABLE_DEVICE_ROWS];
    const uint64_t head_dim = (uint64_t)params[ROPE_TABLE_DEVICE_HEAD_DIM];
    *bytes = rows * (head_dim * sizeof(float) + sizeof(int32_t)) + head_dim / 2 * sizeof(float);
    *flops = FLOPS_PER_ELEMENT * rows * head_dim;
}

const struct device_kernel device_rope_table = {
    .name = "rope_table",
    .source = "kernels/rope_table/rope_table.cu",
    .op = OP_ROPE_TABLE,
    .least_capability = 80,
    .problem = &op_rope_table,
    .operand_count = ROPE_TABLE_DEVICE_OPERANDS_SWITCHES,
    .launch = launch,
    .cost = cost,
};
