/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_table/rope_table.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ROPE_TABLE_THREADS };

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

const struct device_kernel device_rope_table = {
    .name = "rope_table",
    .op = OP_ROPE_TABLE,
    .problem = &op_rope_table,
    .launch = launch,
    .cost = rope_table_cost,
};
