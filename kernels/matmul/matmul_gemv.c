/* matmul_gemv on the host: what is legal, how it is launched, what is worth measuring. */
#include "kernels/matmul/matmul_device.h"

#include <string.h>

#include "kernels/matmul/matmul_gemv_layout.cuh"

static int64_t shared_bytes(const int64_t *params)
{
    const int64_t rows = params[MATMUL_DEVICE_ROWS], k = params[MATMUL_DEVICE_K], warps = params[MATMUL_GEMV_WARPS],
                  groups = params[MATMUL_GEMV_GROUPS], chunk = params[MATMUL_GEMV_CHUNK],
                  stages = params[MATMUL_GEMV_STAGES], split_k = params[MATMUL_GEMV_SPLIT_K],
                  x_shared = params[MATMUL_GEMV_X_SHARED];
    return GEMV_SHARED_BYTES(rows, k, warps, groups, chunk, stages, split_k, x_shared);
}

static int64_t tiles(const int64_t *params)
{
    return GEMV_CEIL_DIV(params[MATMUL_DEVICE_N], 16 * params[MATMUL_GEMV_GROUPS]);
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *illegal = matmul_device_illegal(params);
    if (illegal) return illegal;
    if (params[MATMUL_DEVICE_ROWS] > MATMUL_GEMV_MOST_ROWS) return "ROWS is not in 1..8";
    if (params[MATMUL_DEVICE_K] > MATMUL_GEMV_MOST_K) return "K is above 65536";
    const int64_t warps = params[MATMUL_GEMV_WARPS], stages = params[MATMUL_GEMV_STAGES],
                  chunk = params[MATMUL_GEMV_CHUNK], split_k = params[MATMUL_GEMV_SPLIT_K],
                  groups = params[MATMUL_GEMV_GROUPS], per_sm = params[MATMUL_GEMV_CTAS_PER_SM];
    if (warps < 1 || warps > 16) return "WARPS is not in 1..16";
    if (stages < 2 || stages > 64) return "STAGES is not in 2..64";
    if (chunk < 64 || chunk > 4096 || chunk % 64 || chunk % (32 * warps))
        return "CHUNK is not a multiple of 64 and of 32 * WARPS in 64..4096";
    if (split_k < 1 || split_k > 8) return "SPLIT_K is not in 1..8";
    if (split_k > 1 && gpu->capability < 90) return "SPLIT_K above 1 needs clusters: compute capability 9.0";
    if ((split_k - 1) * GEMV_PART(params[MATMUL_DEVICE_K], split_k) >= params[MATMUL_DEVICE_K])
        return "SPLIT_K leaves a part of K empty";
    if (groups != 1 && groups != 2) return "GROUPS is not 1 or 2";
    if (per_sm < 1 || per_sm > 4) return "CTAS_PER_SM is not in 1..4";
    if (params[MATMUL_GEMV_X_SHARED] != 0 && params[MATMUL_GEMV_X_SHARED] != 1) return "X_SHARED is not 0 or 1";
    if (params[MATMUL_GEMV_TRIGGER] < 0 || params[MATMUL_GEMV_TRIGGER] > INT32_MAX)
        return "TRIGGER is not in 0..2^31-1";
    const int64_t shared = shared_bytes(params);
    if (shared > gpu->shared_per_block) return "the ring and x do not fit in shared memory";

    int64_t clusters = gpu->multiprocessors * per_sm / split_k;
    if (clusters > tiles(params)) clusters = tiles(params);
    if (clusters < 1) clusters = 1;
    *geometry = (struct device_geometry){
        .grid = {(uint32_t)(clusters * split_k), 1, 1},
        .block = {(uint32_t)(32 * (warps + 2)), 1, 1},
        .cluster = {(uint32_t)split_k, 1, 1},
        .shared_bytes = (uint32_t)shared,
    };
    return NULL;
}

static const char *const param_names[] = {
    MATMUL_DEVICE_PARAM_NAMES, "WARPS", "STAGES", "CHUNK", "SPLIT_K", "GROUPS", "CTAS_PER_SM", "X_SHARED", "TRIGGER", "COPY", "ORDER", "PREFETCH",
};
_Static_assert(sizeof param_names / sizeof *param_names == MATMUL_GEMV_PARAMS, "a name for each parameter");

static bool tensor_map(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    if (operand != MATMUL_DEVICE_W || params[MATMUL_GEMV_COPY] != 2) return false;
    *map = (struct plan_tensor_map){
        .dtype = params[MATMUL_DEVICE_DTYPE],
        .columns = params[MATMUL_DEVICE_K],
        .rows = params[MATMUL_DEVICE_N],
        .pitch = params[MATMUL_DEVICE_K] * 2,
        .box_columns = 64,
        .box_rows = 16 * params[MATMUL_GEMV_GROUPS],
        .swizzle = 128,
    };
    return true;
}

const struct device_kernel device_matmul_gemv = {
    .name = "matmul_gemv",
    .source = "kernels/matmul/matmul_gemv.cu",
    .op = OP_MATMUL,
    .least_capability = 80,
    .param_count = MATMUL_GEMV_PARAMS,
    .param_names = param_names,
    .first_tunable = MATMUL_DEVICE_FIRST_TUNABLE,
    .operand_count = MATMUL_DEVICE_MOST_OPERANDS,
    .launch = launch,
    .candidates = matmul_gemv_candidates,
    .tensor_map = tensor_map,
    .cost = matmul_device_cost,
};

/* Takes as many stages as fit in `budget`; false if not even two do. */
static bool fill_ring(int64_t *params, int64_t budget, int64_t most_stages)
{
    params[MATMUL_GEMV_STAGES] = most_stages;
    while (params[MATMUL_GEMV_STAGES] >= 2 && shared_bytes(params) > budget) params[MATMUL_GEMV_STAGES]--;
    return params[MATMUL_GEMV_STAGES] >= 2;
}

int matmul_gemv_candidates(const int64_t *params, const struct device_facts *gpu,
                           int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    static const struct {
        int64_t warps, chunk, groups;
    } shapes[] = {{8, 512, 1}, {16, 1024, 1}, {8, 256, 2}, {16, 512, 1}, {4, 256, 2}, {8, 1024, 1}, {16, 512, 2}};
    static const int64_t splits[] = {1, 2, 4, 8}, triggers[] = {0, INT32_MAX};
    if (matmul_device_illegal(params) || params[MATMUL_DEVICE_ROWS] > MATMUL_GEMV_MOST_ROWS ||
        params[MATMUL_DEVICE_K] > MATMUL_GEMV_MOST_K)
        return 0;
    const int64_t half = gpu->shared_per_sm / 2 - 1024;
    int count = 0;
    for (int x_shared = 1; x_shared >= 0 && !count; x_shared--)
        for (size_t t = 0; t < sizeof triggers / sizeof *triggers; t++)
            for (size_t i = 0; i < (t ? 1 : sizeof shapes / sizeof *shapes); i++)
                for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
                    int64_t candidate[PLAN_MAX_PARAMS] = {0};
                    memcpy(candidate, params, MATMUL_DEVICE_FIRST_TUNABLE * sizeof *params);
                    candidate[MATMUL_GEMV_WARPS] = shapes[i].warps;
                    candidate[MATMUL_GEMV_CHUNK] = shapes[i].chunk;
                    candidate[MATMUL_GEMV_SPLIT_K] = splits[s];
                    candidate[MATMUL_GEMV_GROUPS] = shapes[i].groups;
                    candidate[MATMUL_GEMV_CTAS_PER_SM] = 1;
                    candidate[MATMUL_GEMV_X_SHARED] = x_shared;
                    candidate[MATMUL_GEMV_TRIGGER] = triggers[t];
                    candidate[MATMUL_GEMV_COPY] = gpu->capability < 90 ? 0 : (int64_t)i % 3;
                    struct device_geometry geometry;
                    if (!fill_ring(candidate, half < gpu->shared_per_block ? half : gpu->shared_per_block, 16) &&
                        !fill_ring(candidate, gpu->shared_per_block, 16))
                        continue;
                    if (launch(candidate, gpu, &geometry) || count == capacity) continue;
                    memcpy(params_out[count++], candidate, sizeof candidate);
                }
    return count;
}
