/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_grouped on the host: checks, launch and candidates. */
#include "kernels/matmul/matmul_device.h"

#include <string.h>

#include "kernels/matmul/matmul_grouped_layout.cuh"

enum { MOST_CANDIDATES = 24, LEAST_RING_BYTES = 48 << 10 };

static int64_t choices(const int64_t *params) { return matmul_slots(params, params[MATMUL_ROWS]); }

static struct grouped_layout layout_of(const int64_t *params)
{
    return grouped_lay_out(params[MATMUL_DTYPE], choices(params), params[MATMUL_EXPERTS], params[MATMUL_GROUPED_WARPS],
                           params[MATMUL_GROUPED_STAGES], params[MATMUL_GROUPED_CHUNK], params[MATMUL_GROUPED_GROUPS],
                           params[MATMUL_GROUPED_COLUMNS]);
}

static const char *problem_illegal(const int64_t *params, const struct device_facts *gpu)
{
    const char *illegal = matmul_device_illegal(params);
    if (illegal) return illegal;
    if (!params[MATMUL_EXPERTS]) return "matmul_grouped is over experts";
    if (gpu->capability < 90) return "matmul_grouped needs bulk copies: compute capability 9.0";
    if (matmul_sums_choices(params)) return "matmul_grouped has no sum over experts";
    if (params[MATMUL_HAS_NORM]) return "matmul_grouped has no HAS_NORM";
    if (params[MATMUL_HAS_X_SCALES]) return "matmul_grouped has no HAS_X_SCALES";
    if (params[MATMUL_HAS_RESIDUAL]) return "matmul_grouped has no HAS_RESIDUAL";
    if (choices(params) > GROUPED_MOST_CHOICES) return "ROWS have more than 1024 choices of experts";
    if (params[MATMUL_K] % 32) return "K is not a multiple of 32";
    return NULL;
}

static const char *tunables_illegal(const int64_t *params)
{
    const int64_t warps = params[MATMUL_GROUPED_WARPS], chunk = params[MATMUL_GROUPED_CHUNK],
                  groups = params[MATMUL_GROUPED_GROUPS];
    if (warps < 1 || warps > 16) return "WARPS is not in 1..16";
    if (params[MATMUL_GROUPED_STAGES] < 2 || params[MATMUL_GROUPED_STAGES] > 32) return "STAGES is not in 2..32";
    if (chunk < 128 || chunk > 4096 || chunk % 128) return "CHUNK is not a multiple of 128 in 128..4096";
    if (chunk % ((matmul_is_coded(params) ? FRAGMENT_STRIP_K : 32) * warps))
        return "CHUNK is not a multiple of 32 * WARPS, or of 128 * WARPS with coded weights";
    if (groups != 2 && groups != 4 && groups != 8) return "GROUPS is not 2, 4 or 8";
    const struct fragment_layout fragments = fragment_lay_out(params[MATMUL_DTYPE]);
    if (groups == 8 && fragments.group == 64 && fragments.code != FRAGMENT_UINT4)
        return "GROUPS of 8 with scales of 64 k and codes that are not int4: registers spill";
    if (params[MATMUL_GROUPED_COLUMNS] < 1 || params[MATMUL_GROUPED_COLUMNS] > GROUPED_MOST_COLUMNS)
        return "COLUMNS is not in 1..8";
    if (params[MATMUL_GROUPED_CTAS_PER_SM] < 1 || params[MATMUL_GROUPED_CTAS_PER_SM] > 4)
        return "CTAS_PER_SM is not in 1..4";
    if (32 * (warps + 2) * params[MATMUL_GROUPED_CTAS_PER_SM] > 2048) return "a multiprocessor has 2048 threads";
    return NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *illegal = problem_illegal(params, gpu);
    if (illegal) return illegal;
    illegal = tunables_illegal(params);
    if (illegal) return illegal;
    const struct grouped_layout layout = layout_of(params);
    const int64_t per_sm = params[MATMUL_GROUPED_CTAS_PER_SM];
    int64_t shared = (int64_t)layout.bytes;
    if (shared > matmul_device_most_shared(gpu, per_sm))
        return "the ring does not fit the shared memory of CTAS_PER_SM";
    if (shared < matmul_device_least_shared(gpu, per_sm)) shared = matmul_device_least_shared(gpu, per_sm);
    const int64_t pieces =
        (int64_t)layout.most_groups * layout_divide_up(matmul_expert_n(params), 8 * params[MATMUL_GROUPED_GROUPS]);
    const int64_t blocks = gpu->multiprocessors * per_sm;
    *geometry = (struct device_geometry){
        .grid = {(uint32_t)(blocks < pieces ? blocks : pieces), 1, 1},
        .block = {(uint32_t)(32 * (params[MATMUL_GROUPED_WARPS] + 2)), 1, 1},
        .cluster = {1, 1, 1},
        .shared_bytes = (uint32_t)shared,
    };
    return NULL;
}

/* Candidates: WARPS, CHUNK, GROUPS, COLUMNS, CTAS_PER_SM, and the most stages that fit. */
struct shape {
    int64_t warps, chunk, groups, columns, per_sm, most_stages;
};
static const struct shape plain_shapes[] = {
    {8, 512, 4, 8, 1, 5}, {8, 512, 2, 8, 1, 8},  {8, 256, 4, 8, 1, 8},  {8, 256, 8, 8, 1, 6},
    {4, 512, 4, 4, 1, 6}, {8, 1024, 2, 4, 1, 4}, {4, 256, 4, 8, 2, 5},  {8, 512, 8, 8, 1, 3},
    {4, 256, 2, 4, 2, 8}, {8, 512, 4, 8, 1, 4},  {4, 128, 8, 8, 1, 10}, {4, 128, 4, 8, 2, 10},
};
/* Larger tiles first, which are a tenth faster for MXFP4 where a multiprocessor has the bandwidth of an H200: a warp that decodes four
 * panels between two mbarriers waits less than one that decodes two. With that of an H100 they are 1 per cent slower. */
static const struct shape coded_shapes[] = {
    {8, 1024, 8, 8, 1, 4}, {4, 512, 8, 8, 2, 4},  {8, 1024, 4, 8, 2, 3}, {12, 1536, 4, 8, 1, 4}, {12, 1536, 4, 4, 1, 5},
    {8, 1024, 8, 6, 1, 5}, {8, 1024, 4, 8, 1, 6}, {8, 1024, 8, 4, 1, 5}, {4, 512, 4, 4, 2, 6},   {8, 2048, 4, 4, 1, 4},
    {6, 768, 4, 8, 1, 8},  {4, 512, 4, 8, 1, 10}, {3, 384, 4, 4, 2, 8},  {6, 768, 4, 4, 2, 3},   {4, 512, 4, 8, 2, 4},
};

static int find_candidates(const int64_t *params, const struct device_facts *gpu,
                           int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    const bool coded = matmul_is_coded(params);
    const struct shape *shapes = coded ? coded_shapes : plain_shapes;
    const size_t shape_count = coded ? sizeof coded_shapes / sizeof *shapes : sizeof plain_shapes / sizeof *shapes;
    const int most = capacity < MOST_CANDIDATES ? capacity : MOST_CANDIDATES;
    int64_t p[PLAN_MAX_PARAMS] = {0};
    int count = 0;
    if (problem_illegal(params, gpu)) return 0;
    /* More rows for each matrix: reading it again for every eight of them costs more than matmul_mma's tiles. */
    if (choices(params) > GROUPED_MOST_COLUMNS * params[MATMUL_EXPERTS]) return 0;
    memcpy(p, params, MATMUL_FIRST_TUNABLE * sizeof *params);
    for (size_t i = 0; i < shape_count; i++) {
        const struct shape *shape = &shapes[i];
        p[MATMUL_GROUPED_WARPS] = shape->warps;
        p[MATMUL_GROUPED_CHUNK] = shape->chunk;
        p[MATMUL_GROUPED_GROUPS] = shape->groups;
        p[MATMUL_GROUPED_COLUMNS] = shape->columns;
        p[MATMUL_GROUPED_CTAS_PER_SM] = shape->per_sm;
        p[MATMUL_GROUPED_STAGES] = shape->most_stages;
        const int64_t room = matmul_device_most_shared(gpu, shape->per_sm);
        while (p[MATMUL_GROUPED_STAGES] > 2 && (int64_t)layout_of(p).bytes > room) p[MATMUL_GROUPED_STAGES]--;
        const struct grouped_layout layout = layout_of(p);
        if ((int64_t)layout.bytes > room) continue;
        if (p[MATMUL_GROUPED_STAGES] * (int64_t)layout.stage_bytes * shape->per_sm < LEAST_RING_BYTES) continue;
        count = device_add_candidate(&device_matmul_grouped, params, p + MATMUL_FIRST_TUNABLE, gpu, params_out, count,
                                     most);
    }
    return count;
}

const struct device_kernel device_matmul_grouped = {
    .name = "matmul_grouped",
    .op = OP_MATMUL,
    .problem = &op_matmul,
    DEVICE_OWN_NAMES(MATMUL_GROUPED_PARAMS - MATMUL_FIRST_TUNABLE, "WARPS", "STAGES", "CHUNK", "GROUPS", "COLUMNS",
                     "CTAS_PER_SM"),
    .launch = launch,
    .candidates = find_candidates,
    .cost = matmul_device_cost,
};
