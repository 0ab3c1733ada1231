/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_query/rope_query.h"

#include "kernels/cuda/kernel.h"
#include "kernels/rope_append/rope_append_layout.cuh"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_rope_query, params);
    if (why) return why;
    if (params[ROPE_QUERY_X_DTYPE] == DTYPE_F32) return "X_DTYPE is not F16 or BF16";
    const int64_t half = params[ROPE_QUERY_HEAD_DIM] / 2, rotated = params[ROPE_QUERY_ROTARY_DIM] / 2;
    const int64_t groups = THREADS / rope_append_lanes(half, rotated);
    const int64_t blocks = layout_divide_up(params[ROPE_QUERY_ROWS] * params[ROPE_QUERY_HEADS], groups);
    if (blocks > INT32_MAX) return "ROWS * HEADS is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_rope_query = {
    .name = "rope_query",
    .op = OP_ROPE_QUERY,
    .problem = &op_rope_query,
    .launch = launch,
    .cost = rope_query_cost,
};
