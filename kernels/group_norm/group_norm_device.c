/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"
#include "kernels/group_norm/group_norm.h"

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_group_norm, params);
    if (why) return why;
    if (params[GROUP_NORM_WIDTH] > INT32_MAX) return "parameter width is above 2^31";
    const int64_t blocks = params[GROUP_NORM_ROWS] * params[GROUP_NORM_GROUPS];
    if (blocks > INT32_MAX) return "ROWS * GROUPS is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {LAYOUT_ELEMENTWISE_THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_group_norm = {
    .name = "group_norm",
    .op = OP_GROUP_NORM,
    .problem = &op_group_norm,
    .launch = launch,
    .cost = group_norm_cost,
};
