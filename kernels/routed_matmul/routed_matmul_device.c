/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul on the host: checks, launch and candidates, from those of matmul_gemv. */
#include <string.h>

#include "kernels/matmul/matmul_device.h"
#include "kernels/matmul/matmul_gemv_layout.cuh"
#include "kernels/routed_matmul/routed_matmul.h"
#include "kernels/routed_matmul/routed_matmul_layout.cuh"

/* The launch of matmul_gemv whose ring and tiles it has: params[MATMUL_GEMV_PARAMS]. */
static void as_gemv(const int64_t *params, int64_t *gemv)
{
    routed_matmul_as_matmul(params, gemv);
    gemv[MATMUL_GEMV_WARPS] = params[ROUTED_MATMUL_WARPS];
    gemv[MATMUL_GEMV_STAGES] = params[ROUTED_MATMUL_STAGES];
    gemv[MATMUL_GEMV_CHUNK] = params[ROUTED_MATMUL_CHUNK];
    gemv[MATMUL_GEMV_SPLIT_K] = 1;
    gemv[MATMUL_GEMV_GROUPS] = params[ROUTED_MATMUL_TILE_GROUPS];
    gemv[MATMUL_GEMV_CTAS_PER_SM] = params[ROUTED_MATMUL_CTAS_PER_SM];
    gemv[MATMUL_GEMV_X_SHARED] = 1;
    gemv[MATMUL_GEMV_COPY] = params[ROUTED_MATMUL_COPY];
}

static struct gemv_layout ring_of(const int64_t *gemv)
{
    return gemv_lay_out(gemv[MATMUL_DTYPE], 1, gemv[MATMUL_ROWS], gemv[MATMUL_K], gemv[MATMUL_GEMV_WARPS],
                        gemv[MATMUL_GEMV_STAGES], gemv[MATMUL_GEMV_CHUNK], 1, gemv[MATMUL_GEMV_GROUPS], 1,
                        gemv[MATMUL_GEMV_COPY], 0);
}

static struct routed_matmul_layout layout_of(const int64_t *params, layout_size gemv_bytes)
{
    return routed_matmul_lay_out(gemv_bytes, params[ROUTED_MATMUL_ROWS], params[ROUTED_MATMUL_K],
                                 params[ROUTED_MATMUL_WARPS], params[ROUTED_MATMUL_SHARE], params[ROUTED_MATMUL_ROUTED],
                                 params[ROUTED_MATMUL_ROUTER_GROUPS], params[ROUTED_MATMUL_ROUTE_WIDTH] / 2);
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    int64_t gemv[PLAN_MAX_PARAMS] = {0};
    const char *why = op_params_illegal(&op_routed_matmul, params);
    if (why) return why;
    if (gpu->capability < 90) return "routed_matmul needs bulk copies: compute capability 9.0";
    as_gemv(params, gemv);
    why = device_matmul_gemv.launch(gemv, gpu, geometry);
    if (why) return why;
    if (params[ROUTED_MATMUL_MATRIX_DTYPE] != matmul_device_element(gemv))
        return "parameter matrix_dtype is not that of the elements that are multiplied";
    if (params[ROUTED_MATMUL_COPY] == MATMUL_GEMV_COPY_THREADS) return "COPY is 0";
    if (params[ROUTED_MATMUL_SHARE] > ROUTED_MATMUL_MOST_SHARE ||
        params[ROUTED_MATMUL_SHARE] < layout_divide_up(params[ROUTED_MATMUL_ROUTED], geometry->grid[0]))
        return "SHARE is not in 1..8, or less than a thread block has of the router's matrix";
    const struct gemv_layout ring = ring_of(gemv);
    const struct routed_matmul_layout layout = layout_of(params, ring.bytes);
    if (geometry->shared_bytes < layout.bytes) geometry->shared_bytes = (uint32_t)layout.bytes;
    return layout.bytes > gpu->shared_per_block ? "the ring and the routes do not fit in shared memory" : NULL;
}

static uint64_t counter_bytes(const int64_t *params)
{
    return (uint64_t)routed_matmul_workspace_bytes(params[ROUTED_MATMUL_ROWS], params[ROUTED_MATMUL_ROUTED]);
}

static bool tensor_map(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    int64_t gemv[PLAN_MAX_PARAMS] = {0};
    as_gemv(params, gemv);
    return operand == ROUTED_MATMUL_W && device_matmul_gemv.tensor_map(gemv, MATMUL_W, map);
}

/* ---- candidates ---- */

enum { GEMV_CANDIDATES = 32 };

/* A candidate of matmul_gemv, with as many stages fewer as fit into `most` bytes of shared memory beside the routes. */
static int add(const int64_t *params, const int64_t *base, int64_t most, const struct device_facts *gpu,
               int64_t (*found)[PLAN_MAX_PARAMS], int count, int capacity)
{
    int64_t gemv[PLAN_MAX_PARAMS];
    memcpy(gemv, base, sizeof gemv);
    int64_t own[ROUTED_MATMUL_PARAMS] = {0};
    memcpy(own, params, ROUTED_MATMUL_PROBLEM_PARAMS * sizeof *own);
    own[ROUTED_MATMUL_WARPS] = gemv[MATMUL_GEMV_WARPS];
    own[ROUTED_MATMUL_CHUNK] = gemv[MATMUL_GEMV_CHUNK];
    own[ROUTED_MATMUL_TILE_GROUPS] = gemv[MATMUL_GEMV_GROUPS];
    own[ROUTED_MATMUL_CTAS_PER_SM] = gemv[MATMUL_GEMV_CTAS_PER_SM];
    own[ROUTED_MATMUL_COPY] = gemv[MATMUL_GEMV_COPY];
    own[ROUTED_MATMUL_SHARE] = ROUTED_MATMUL_MOST_SHARE;
    struct device_geometry geometry;
    if (!device_matmul_gemv.launch(gemv, gpu, &geometry))
        own[ROUTED_MATMUL_SHARE] = layout_divide_up(params[ROUTED_MATMUL_ROUTED], geometry.grid[0]);
    while (gemv[MATMUL_GEMV_STAGES] > 2 && layout_of(own, ring_of(gemv).bytes).bytes > most) gemv[MATMUL_GEMV_STAGES]--;
    own[ROUTED_MATMUL_STAGES] = gemv[MATMUL_GEMV_STAGES];
    return device_add_candidate(&device_routed_matmul, params, own + ROUTED_MATMUL_PROBLEM_PARAMS, gpu, found, count,
                                capacity);
}

static int find_candidates(const int64_t *params, const struct device_facts *gpu,
                           int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    int64_t gemv[PLAN_MAX_PARAMS] = {0}, rings[GEMV_CANDIDATES][PLAN_MAX_PARAMS];
    if (op_params_illegal(&op_routed_matmul, params)) return 0;
    routed_matmul_as_matmul(params, gemv);
    memset(rings, 0, sizeof rings);
    const int ring_count = device_matmul_gemv.candidates(gemv, gpu, rings, GEMV_CANDIDATES);
    int count = 0;
    /* Each also so that it leaves half of each multiprocessor to the next launch, which knows the routes long before this one ends. */
    const int64_t most[2] = {matmul_device_least_shared(gpu, 1), matmul_device_most_shared(gpu, 1)};
    for (int i = 0; i < ring_count; i++)
        for (int m = 0; m < 2; m++)
            if (rings[i][MATMUL_GEMV_SPLIT_K] == 1 && rings[i][MATMUL_GEMV_X_SHARED] &&
                rings[i][MATMUL_GEMV_CTAS_PER_SM] == 1)
                count = add(params, rings[i], most[m], gpu, params_out, count, capacity);
    return count;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    int64_t gemv[PLAN_MAX_PARAMS] = {0}, router[PLAN_MAX_PARAMS] = {0};
    uint64_t router_bytes, router_flops;
    routed_matmul_as_matmul(params, gemv);
    routed_matmul_as_router(params, router);
    device_matmul_gemv.cost(gemv, context, bytes, flops);
    op_router.cost(router, context, &router_bytes, &router_flops);
    const uint64_t matrix = (uint64_t)params[ROUTED_MATMUL_ROUTED] * (uint64_t)params[ROUTED_MATMUL_K];
    *bytes += 2 * matrix;
    *flops += router_flops + 2 * matrix * (uint64_t)params[ROUTED_MATMUL_ROWS];
}

const struct device_kernel device_routed_matmul = {
    .name = "routed_matmul",
    .op = OP_ROUTED_MATMUL,
    .least_capability = 90,
    .problem = &op_routed_matmul,
    DEVICE_OWN_NAMES(ROUTED_MATMUL_PARAMS - ROUTED_MATMUL_PROBLEM_PARAMS, "WARPS", "STAGES", "CHUNK", "TILE_GROUPS",
                     "CTAS_PER_SM", "COPY", "SHARE"),
    .coresident = true,
    .launch = launch,
    .candidates = find_candidates,
    .tensor_map = tensor_map,
    .cost = cost,
    .counter_bytes = counter_bytes,
};
