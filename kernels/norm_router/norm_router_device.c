/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm_router/norm_router.h"
#include "kernels/norm_router/norm_router_layout.cuh"

enum { LEAST_BLOCKS = 2, MOST_BLOCKS = 8, LEAST_WARPS = 4, MOST_WARPS = 16, MOST_K = 1 << 16 };

static bool is_power_in(int64_t value, int64_t least, int64_t most)
{
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const int64_t blocks = params[NORM_ROUTER_BLOCKS], warps = params[NORM_ROUTER_WARPS];
    const char *why = op_params_illegal(&op_norm_router, params);
    if (why) return why;
    if (gpu->capability < 90) return "norm_router needs clusters: compute capability 9.0";
    if (params[NORM_ROUTER_ROWS] > NORM_ROUTER_MOST_ROWS) return "parameter rows is above 64";
    if (params[NORM_ROUTER_K] % 8 || params[NORM_ROUTER_K] > MOST_K)
        return "parameter k is not a multiple of 8 up to 65536";
    if (params[NORM_ROUTER_MATRIX_DTYPE] == DTYPE_F32) return "parameter matrix_dtype has no 16 bits";
    if (params[NORM_ROUTER_OUT_DTYPE] != params[NORM_ROUTER_MATRIX_DTYPE])
        return "parameter out_dtype is not matrix_dtype";
    if (!is_power_in(blocks, LEAST_BLOCKS, MOST_BLOCKS)) return "BLOCKS is not a power of two in 2..8";
    if (!is_power_in(warps, LEAST_WARPS, MOST_WARPS)) return "WARPS is not a power of two in 4..16";
    if (params[NORM_ROUTER_ROWS] > blocks * warps) return "a block has more rows to route than warps";
    const struct norm_router_layout layout =
        norm_router_lay_out(params[NORM_ROUTER_ROWS], params[NORM_ROUTER_K], params[NORM_ROUTER_ROUTED],
                            params[NORM_ROUTER_ROUTER_GROUPS], params[NORM_ROUTER_ROUTE_WIDTH] / 2, blocks, warps);
    if (layout.bytes > gpu->shared_per_block) return "the router's matrix does not fit the shared memory of the blocks";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1},
                                         {(uint32_t)(32 * warps), 1, 1},
                                         {(uint32_t)blocks, 1, 1},
                                         (uint32_t)layout.bytes};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    static const int64_t shapes[][2] = {{8, 16}, {8, 8}, {4, 16}};
    int count = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        count = device_add_candidate(&device_norm_router, params, shapes[i], gpu, params_out, count, capacity);
    return count;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_OF_NORM = 4, X_BYTES = 4, HALF_BYTES = 2 };
    int64_t router[PLAN_MAX_PARAMS] = {0};
    const uint64_t k = (uint64_t)params[NORM_ROUTER_K], x = (uint64_t)params[NORM_ROUTER_ROWS] * k;
    const uint64_t routed = (uint64_t)params[NORM_ROUTER_ROUTED];
    norm_router_as_router(params, router);
    op_router.cost(router, context, bytes, flops);
    *bytes += x * (X_BYTES + HALF_BYTES) + routed * k * HALF_BYTES;
    *flops += x * (FLOPS_OF_NORM + 2 * routed);
}

const struct device_kernel device_norm_router = {
    .name = "norm_router",
    .op = OP_NORM_ROUTER,
    .least_capability = 90,
    .problem = &op_norm_router,
    DEVICE_OWN_NAMES(NORM_ROUTER_PARAMS - NORM_ROUTER_PROBLEM_PARAMS, "BLOCKS", "WARPS"),
    .launch = launch,
    .candidates = candidates,
    .cost = cost,
};
