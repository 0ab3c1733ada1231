/* SPDX-License-Identifier: Apache-2.0 */
/* routed_mlp on the host: checks, launch and candidates, from those of matmul_gemv. */
#include <string.h>

#include "kernels/matmul/matmul_device.h"
#include "kernels/matmul/matmul_gemv_layout.cuh"
#include "kernels/routed_mlp/routed_mlp.h"
#include "kernels/routed_mlp/routed_mlp_layout.cuh"

/* The launches of matmul_gemv whose rings and tiles it has: params[MATMUL_GEMV_PARAMS]. */
static void as_gemv(const int64_t *params, int64_t *gemv)
{
    gemv[MATMUL_GEMV_WARPS] = params[ROUTED_MLP_WARPS];
    gemv[MATMUL_GEMV_SPLIT_K] = 1;
    gemv[MATMUL_GEMV_CTAS_PER_SM] = 1;
    gemv[MATMUL_GEMV_X_SHARED] = 1;
    gemv[MATMUL_GEMV_COPY] = params[ROUTED_MLP_COPY];
}
static void as_up(const int64_t *params, int64_t *gemv)
{
    routed_matmul_as_matmul(params, gemv);
    as_gemv(params, gemv);
    gemv[MATMUL_GEMV_STAGES] = params[ROUTED_MLP_STAGES];
    gemv[MATMUL_GEMV_CHUNK] = params[ROUTED_MLP_CHUNK];
    gemv[MATMUL_GEMV_GROUPS] = params[ROUTED_MLP_TILE_GROUPS];
}
static void as_down(const int64_t *params, int64_t *gemv)
{
    routed_mlp_as_down(params, gemv);
    as_gemv(params, gemv);
    gemv[MATMUL_GEMV_STAGES] = params[ROUTED_MLP_DOWN_STAGES];
    gemv[MATMUL_GEMV_CHUNK] = params[ROUTED_MLP_DOWN_CHUNK];
    gemv[MATMUL_GEMV_GROUPS] = params[ROUTED_MLP_DOWN_GROUPS];
}

static int64_t choices(const int64_t *params)
{
    return params[ROUTED_MATMUL_ROWS] * (params[ROUTED_MATMUL_ROUTE_WIDTH] / 2);
}

static struct gemv_layout up_layout(const int64_t *params)
{
    return gemv_lay_out(params[ROUTED_MATMUL_DTYPE], 1, params[ROUTED_MATMUL_ROWS], params[ROUTED_MATMUL_K],
                        params[ROUTED_MLP_WARPS], params[ROUTED_MLP_STAGES], params[ROUTED_MLP_CHUNK], 1,
                        params[ROUTED_MLP_TILE_GROUPS], 1, params[ROUTED_MLP_COPY], 0);
}
static struct gemv_layout down_layout(const int64_t *params)
{
    return gemv_lay_out(params[ROUTED_MLP_DOWN_DTYPE], 1, choices(params), params[ROUTED_MLP_DOWN_K],
                        params[ROUTED_MLP_WARPS], params[ROUTED_MLP_DOWN_STAGES], params[ROUTED_MLP_DOWN_CHUNK], 1,
                        params[ROUTED_MLP_DOWN_GROUPS], 1, params[ROUTED_MLP_COPY], 1);
}

static int64_t shared_bytes(const int64_t *params)
{
    const layout_size routed =
        routed_matmul_lay_out(up_layout(params).bytes, params[ROUTED_MATMUL_ROWS], params[ROUTED_MATMUL_K],
                              params[ROUTED_MLP_WARPS], params[ROUTED_MLP_SHARE], params[ROUTED_MATMUL_ROUTED],
                              params[ROUTED_MATMUL_ROUTER_GROUPS], params[ROUTED_MATMUL_ROUTE_WIDTH] / 2)
            .bytes;
    return routed_mlp_lay_out(routed, down_layout(params).bytes, choices(params)).bytes;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    int64_t up[PLAN_MAX_PARAMS] = {0}, down[PLAN_MAX_PARAMS] = {0};
    struct device_geometry of_down;
    const char *why = op_params_illegal(&op_routed_mlp, params);
    if (why) return why;
    if (gpu->capability < 90) return "routed_mlp needs bulk copies: compute capability 9.0";
    as_up(params, up);
    as_down(params, down);
    why = device_matmul_gemv.launch(up, gpu, geometry);
    if (!why) why = device_matmul_gemv.launch(down, gpu, &of_down);
    if (why) return why;
    if (params[ROUTED_MATMUL_MATRIX_DTYPE] != matmul_device_element(up))
        return "parameter matrix_dtype is not that of the elements that are multiplied";
    if (params[ROUTED_MATMUL_OUT_DTYPE] != matmul_device_element(down))
        return "parameter out_dtype is not that of the elements that are multiplied";
    if (params[ROUTED_MLP_COPY] == MATMUL_GEMV_COPY_THREADS) return "COPY is 0";
    if (of_down.grid[0] > geometry->grid[0]) geometry->grid[0] = of_down.grid[0];
    if (params[ROUTED_MLP_SHARE] > ROUTED_MATMUL_MOST_SHARE ||
        params[ROUTED_MLP_SHARE] < layout_divide_up(params[ROUTED_MATMUL_ROUTED], geometry->grid[0]))
        return "SHARE is not in 1..8, or less than a thread block has of the router's matrix";
    const int64_t shared = shared_bytes(params), least = matmul_device_least_shared(gpu, 1);
    geometry->shared_bytes = (uint32_t)(shared > least ? shared : least);
    return shared > gpu->shared_per_block ? "the rings, x and activations do not fit in shared memory" : NULL;
}

static uint64_t counter_bytes(const int64_t *params)
{
    return (uint64_t)routed_mlp_workspace_bytes(params[ROUTED_MATMUL_ROWS], params[ROUTED_MATMUL_ROUTED],
                                                choices(params), params[ROUTED_MLP_DOWN_K]);
}

static bool tensor_map(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    int64_t gemv[PLAN_MAX_PARAMS] = {0};
    if (operand != ROUTED_MLP_W && operand != ROUTED_MLP_DOWN) return false;
    if (operand == ROUTED_MLP_W)
        as_up(params, gemv);
    else
        as_down(params, gemv);
    return device_matmul_gemv.tensor_map(gemv, MATMUL_W, map);
}

/* ---- candidates ---- */

/* WARPS and k of a stage of the first matmul, at most so much of the second, and groups of 8 rows in a tile of each. */
struct shape {
    int64_t warps, chunk, down_chunk, groups, down_groups;
};
/* Best first, by measurements on an H200 with the experts of Qwen3-30B-A3B in fp8 at one row, between the launches of a layer. */
static const struct shape coded_shapes[] = {{8, 1024, 1024, 2, 2},
                                            {8, 1024, 1024, 4, 2},
                                            {16, 2048, 1024, 2, 2},
                                            {4, 512, 512, 2, 2}};
static const struct shape plain_shapes[] = {{8, 512, 512, 2, 2},
                                            {8, 512, 512, 4, 2},
                                            {16, 512, 512, 2, 2},
                                            {8, 1024, 512, 2, 2}};
enum { SHAPES = sizeof coded_shapes / sizeof *coded_shapes, KIB = 1 << 10 };
/* Bytes of the rings: more of them in flight to each multiprocessor slow the memory down. */
static const struct rings {
    int64_t up, down;
} rings[] = {{64 * KIB, 76 * KIB}, {48 * KIB, 76 * KIB},  {64 * KIB, 64 * KIB},
             {80 * KIB, 76 * KIB}, {64 * KIB, 100 * KIB}, {48 * KIB, 52 * KIB}};
enum { RINGS = sizeof rings / sizeof *rings, RINGS_OF_OTHERS = 3, MOST_STAGES = 64 };

static int64_t stages_of(int64_t ring_bytes, int64_t stage_bytes)
{
    const int64_t stages = ring_bytes / stage_bytes;
    return stages < 2 ? 2 : stages > MOST_STAGES ? MOST_STAGES : stages;
}

static int add(const int64_t *params, const struct shape *shape, const struct rings *ring, int64_t copy,
               const struct device_facts *gpu, int64_t (*found)[PLAN_MAX_PARAMS], int count, int capacity)
{
    const bool coded = fragment_is_coded(params[ROUTED_MATMUL_DTYPE]);
    const int64_t most_chunk = layout_round_up(params[ROUTED_MLP_DOWN_K], coded ? FRAGMENT_STRIP_K : 64);
    int64_t own[PLAN_MAX_PARAMS] = {0}, down[PLAN_MAX_PARAMS] = {0};
    struct device_geometry up_geometry = {0}, down_geometry = {0};
    memcpy(own, params, ROUTED_MLP_PROBLEM_PARAMS * sizeof *own);
    own[ROUTED_MLP_WARPS] = shape->warps;
    own[ROUTED_MLP_CHUNK] = shape->chunk;
    own[ROUTED_MLP_TILE_GROUPS] = shape->groups;
    own[ROUTED_MLP_COPY] = copy;
    own[ROUTED_MLP_DOWN_CHUNK] = shape->down_chunk < most_chunk ? shape->down_chunk : most_chunk;
    own[ROUTED_MLP_DOWN_GROUPS] = shape->down_groups;
    own[ROUTED_MLP_STAGES] = stages_of(ring->up, up_layout(own).stage_bytes);
    own[ROUTED_MLP_DOWN_STAGES] = stages_of(ring->down, down_layout(own).stage_bytes);
    int64_t up[PLAN_MAX_PARAMS] = {0};
    as_up(own, up);
    as_down(own, down);
    if (device_matmul_gemv.launch(up, gpu, &up_geometry) || device_matmul_gemv.launch(down, gpu, &down_geometry))
        return count;
    const uint32_t blocks = up_geometry.grid[0] > down_geometry.grid[0] ? up_geometry.grid[0] : down_geometry.grid[0];
    own[ROUTED_MLP_SHARE] = layout_divide_up(params[ROUTED_MATMUL_ROUTED], blocks);
    while (shared_bytes(own) > gpu->shared_per_block) { /* the larger ring gives a stage */
        const bool of_up = own[ROUTED_MLP_STAGES] * up_layout(own).stage_bytes >
                           own[ROUTED_MLP_DOWN_STAGES] * down_layout(own).stage_bytes;
        int64_t *const stages = &own[of_up ? ROUTED_MLP_STAGES : ROUTED_MLP_DOWN_STAGES];
        if (*stages <= 2) return count;
        --*stages;
    }
    return device_add_candidate(&device_routed_mlp, params, own + ROUTED_MLP_PROBLEM_PARAMS, gpu, found, count,
                                capacity);
}

static int find_candidates(const int64_t *params, const struct device_facts *gpu,
                           int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    if (op_params_illegal(&op_routed_mlp, params) || gpu->capability < 90) return 0;
    const bool coded = fragment_is_coded(params[ROUTED_MATMUL_DTYPE]);
    const struct shape *const shapes = coded ? coded_shapes : plain_shapes;
    int count = 0;
    /* Rows where a matrix is smaller than a box. */
    for (int64_t copy = coded ? MATMUL_GEMV_COPY_ROWS : MATMUL_GEMV_COPY_BOXES;
         copy >= MATMUL_GEMV_COPY_ROWS && count == 0; copy--)
        for (int i = 0; i < SHAPES; i++)
            for (int r = 0; r < (i == 0 ? (int)RINGS : (int)RINGS_OF_OTHERS); r++)
                count = add(params, &shapes[i], &rings[r], copy, gpu, params_out, count, capacity);
    return count;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    int64_t down[PLAN_MAX_PARAMS] = {0};
    uint64_t down_bytes, down_flops;
    routed_mlp_as_down(params, down);
    device_matmul_gemv.cost(down, context, &down_bytes, &down_flops);
    device_routed_matmul.cost(params, context, bytes, flops);
    *bytes += down_bytes;
    *flops += down_flops;
}

const struct device_kernel device_routed_mlp = {
    .name = "routed_mlp",
    .op = OP_ROUTED_MLP,
    .least_capability = 90,
    .problem = &op_routed_mlp,
    DEVICE_OWN_NAMES(ROUTED_MLP_PARAMS - ROUTED_MLP_PROBLEM_PARAMS, "WARPS", "STAGES", "CHUNK", "TILE_GROUPS", "COPY",
                     "SHARE", "DOWN_STAGES", "DOWN_CHUNK", "DOWN_GROUPS"),
    .coresident = true,
    .launch = launch,
    .candidates = find_candidates,
    .tensor_map = tensor_map,
    .cost = cost,
    .counter_bytes = counter_bytes,
};
