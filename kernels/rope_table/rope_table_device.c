/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_table/rope_table_device.h"

#include "kernels/op/op.h"
#include "kernels/cuda/include/layout.cuh"

enum { THREADS = LAYOUT_ROPE_TABLE_THREADS, FLOPS_PER_ELEMENT = 20 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_rope_table, params);
    if (why) return why;
    const int64_t rows = params[ROPE_TABLE_ROWS], head_dim = params[ROPE_TABLE_HEAD_DIM];
    const uint32_t blocks = (uint32_t)((rows * (head_dim / 2) + THREADS - 1) / THREADS);
    *geometry = (struct device_geometry){{blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[ROPE_TABLE_ROWS];
    const uint64_t head_dim = (uint64_t)params[ROPE_TABLE_HEAD_DIM];
    *bytes = rows * (head_dim * sizeof(float) + sizeof(int32_t)) + head_dim / 2 * sizeof(float);
    *flops = FLOPS_PER_ELEMENT * rows * head_dim;
}

const struct device_kernel device_rope_table = {
    .name = "rope_table",
    .source = "kernels/rope_table/rope_table.cu",
    .op = OP_ROPE_TABLE,
    .least_capability = 80,
    .problem = &op_rope_table,
    .operand_count = ROPE_TABLE_OPERANDS,
    .launch = launch,
    .cost = cost,
};
