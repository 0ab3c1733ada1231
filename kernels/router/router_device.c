/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/kernel.h"
#include "kernels/router/router.h"
#include "kernels/router/router_layout.cuh"

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *why = op_params_illegal(&op_router, params);
    if (why) return why;
    const int64_t shared =
        router_shared_bytes(params[ROUTER_EXPERTS] - params[ROUTER_SHARED_GATE] + params[ROUTER_SHARED],
                            params[ROUTER_GROUPS], params[ROUTER_ROWS] * (params[ROUTER_ROUTE_WIDTH] / 2));
    if (shared > gpu->shared_per_block) return "claims and choices do not fit the shared memory of a block";
    const uint32_t blocks = gpu->capability >= 90 ? (uint32_t)router_blocks(params[ROUTER_ROWS]) : 1;
    *geometry = (struct device_geometry){{blocks, 1, 1}, {32 * ROUTER_WARPS, 1, 1}, {blocks, 1, 1}, (uint32_t)shared};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    op_router.cost(params, context, bytes, flops);
}

const struct device_kernel device_router = {
    .name = "router",
    .op = OP_ROUTER,
    .problem = &op_router,
    .launch = launch,
    .cost = cost,
};
