/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv on the host: checks, launch and candidates. */
#include "kernels/matmul/matmul_device.h"

#include <string.h>

#include "kernels/matmul/matmul_gemv_layout.cuh"

_Static_assert((int)MATMUL_GEMV_COPY_THREADS == GEMV_COPY_THREADS && (int)MATMUL_GEMV_COPY_ROWS == GEMV_COPY_ROWS &&
                   (int)MATMUL_GEMV_COPY_BOXES == GEMV_COPY_BOXES && (int)MATMUL_GEMV_MOST_CHOICES == GEMV_MOST_CHOICES,
               "as the kernel knows them");

enum { BOX_K = 64 };

/* Rows of x: over experts without an activation each choice has one. */
static int64_t x_rows(const int64_t *params)
{
    return matmul_shares_x(params) ? params[MATMUL_ROWS] : matmul_slots(params, params[MATMUL_ROWS]);
}

static struct gemv_layout layout_of(const int64_t *params)
{
    return gemv_lay_out(params[MATMUL_DTYPE], params[MATMUL_EXPERTS] ? 1 : params[MATMUL_ROWS], x_rows(params),
                        params[MATMUL_K], params[MATMUL_GEMV_WARPS], params[MATMUL_GEMV_STAGES],
                        params[MATMUL_GEMV_CHUNK], params[MATMUL_GEMV_SPLIT_K], params[MATMUL_GEMV_GROUPS],
                        params[MATMUL_GEMV_X_SHARED], params[MATMUL_GEMV_COPY], matmul_sums_choices(params));
}

/* Begins while the launch before runs, and takes the routes from it. */
static bool reads_early(const int64_t *params) { return params[MATMUL_EARLY_ROUTES] && matmul_sums_choices(params); }

static int64_t shared_bytes(const int64_t *params) { return layout_of(params).bytes; }

static int64_t tiles(const int64_t *params)
{
    const int64_t matrices = !params[MATMUL_EXPERTS]       ? 1
                             : matmul_sums_choices(params) ? params[MATMUL_ROWS]
                                                           : matmul_slots(params, params[MATMUL_ROWS]);
    return matrices * layout_divide_up(matmul_expert_n(params), 8 * params[MATMUL_GEMV_GROUPS]);
}

static const char *tunables_illegal(const int64_t *params, const struct device_facts *gpu)
{
    const int64_t warps = params[MATMUL_GEMV_WARPS], stages = params[MATMUL_GEMV_STAGES],
                  chunk = params[MATMUL_GEMV_CHUNK], split_k = params[MATMUL_GEMV_SPLIT_K],
                  groups = params[MATMUL_GEMV_GROUPS], per_sm = params[MATMUL_GEMV_CTAS_PER_SM],
                  copy = params[MATMUL_GEMV_COPY], k = params[MATMUL_K];
    if (warps < 1 || warps > 16) return "WARPS is not in 1..16";
    if (stages < 2 || stages > 64) return "STAGES is not in 2..64";
    const bool coded = matmul_is_coded(params);
    const bool sums = matmul_sums_choices(params); /* whose warps take turns across stages */
    if (chunk < 64 || chunk > 4096 || chunk % 64 || (!sums && chunk % (32 * warps)))
        return "CHUNK is not a multiple of 64 and of 32 * WARPS in 64..4096";
    if (coded && chunk % (FRAGMENT_STRIP_K * (sums ? 1 : warps)))
        return "CHUNK is not a multiple of 128 * WARPS with coded weights";
    if (split_k < 1 || split_k > 8) return "SPLIT_K is not in 1..8";
    if (split_k > 1 && gpu->capability < 90) return "SPLIT_K above 1 needs clusters: compute capability 9.0";
    if (split_k > gpu->multiprocessors) return "SPLIT_K is above the number of multiprocessors";
    if ((split_k - 1) * gemv_part(params[MATMUL_DTYPE], k, split_k) >= k) return "SPLIT_K leaves a part of K empty";
    if (groups != 1 && groups != 2 && groups != 4) return "GROUPS is not 1, 2 or 4";
    if (groups == 1 && matmul_is_gated(params)) return "GROUPS 1 separates gate and up rows";
    if (per_sm < 1 || per_sm > 4) return "CTAS_PER_SM is not in 1..4";
    if (params[MATMUL_GEMV_X_SHARED] != 0 && params[MATMUL_GEMV_X_SHARED] != 1) return "X_SHARED is not 0 or 1";
    if (copy < MATMUL_GEMV_COPY_THREADS || copy > MATMUL_GEMV_COPY_BOXES) return "COPY is not 0, 1 or 2";
    if (coded && groups == 1) return "GROUPS 1 divides a panel of coded weights";
    if ((coded || sums) && !params[MATMUL_GEMV_X_SHARED])
        return "X_SHARED is 0 with coded weights or a sum over choices";
    if (coded && copy == MATMUL_GEMV_COPY_BOXES) return "COPY is 2 with coded weights";
    if (copy != MATMUL_GEMV_COPY_THREADS && gpu->capability < 90)
        return "COPY above 0 needs bulk copies: compute capability 9.0";
    if (copy == MATMUL_GEMV_COPY_BOXES && (k < BOX_K || params[MATMUL_N] < 8 * groups))
        return "W is smaller than a box of COPY 2";
    return NULL;
}

static const char *problem_illegal(const int64_t *params)
{
    const char *illegal = matmul_device_illegal(params);
    if (illegal) return illegal;
    if (params[MATMUL_HAS_X_SCALES]) return "matmul_gemv has no HAS_X_SCALES";
    if (params[MATMUL_BLOCK_N]) return "matmul_gemv has no BLOCK_N";
    if (params[MATMUL_ROWS] > MATMUL_GEMV_MOST_ROWS) return "ROWS is not in 1..8";
    if (params[MATMUL_K] > MATMUL_GEMV_MOST_K) return "K is above 65536";
    if (matmul_slots(params, params[MATMUL_ROWS]) > MATMUL_GEMV_MOST_CHOICES)
        return "ROWS have more than 64 choices of experts";
    return NULL;
}

bool matmul_gemv_sums_choices(int64_t rows, int64_t experts, int64_t top_k, int64_t k)
{
    enum { MOST_X_BYTES = 64 << 10, LEAST_EXPERTS = 4 };
    const int64_t choices = rows * top_k;
    return rows <= MATMUL_GEMV_MOST_ROWS && k <= MATMUL_GEMV_MOST_K && choices <= MATMUL_GEMV_MOST_CHOICES &&
           choices * k * 2 <= MOST_X_BYTES && (rows == 1 || choices * LEAST_EXPERTS <= experts);
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const char *illegal = problem_illegal(params);
    if (illegal) return illegal;
    illegal = tunables_illegal(params, gpu);
    if (illegal) return illegal;
    int64_t shared = shared_bytes(params);
    const int64_t split_k = params[MATMUL_GEMV_SPLIT_K], per_sm = params[MATMUL_GEMV_CTAS_PER_SM];
    /* A launch that begins while the one before multiplies takes the other half of each multiprocessor. */
    const int64_t least = reads_early(params) ? 0 : matmul_device_least_shared(gpu, per_sm);
    if (shared < least) shared = least;
    if (shared > gpu->shared_per_block) return "the ring and x do not fit in shared memory";
    int64_t clusters = gpu->multiprocessors * per_sm / split_k;
    if (clusters > tiles(params)) clusters = tiles(params);
    *geometry = (struct device_geometry){
        .grid = {(uint32_t)(clusters * split_k), 1, 1},
        .block = {(uint32_t)(32 * (params[MATMUL_GEMV_WARPS] + 2)), 1, 1},
        .cluster = {(uint32_t)split_k, 1, 1},
        .shared_bytes = (uint32_t)shared,
    };
    return NULL;
}

static bool tensor_map(const int64_t *params, int operand, struct plan_tensor_map *map)
{
    if (operand != MATMUL_W || params[MATMUL_GEMV_COPY] != MATMUL_GEMV_COPY_BOXES) return false;
    *map = (struct plan_tensor_map){
        .dtype = params[MATMUL_DTYPE],
        .columns = params[MATMUL_K],
        .rows = params[MATMUL_N],
        .pitch = params[MATMUL_K] * 2,
        .box_columns = BOX_K,
        .box_rows = 8 * params[MATMUL_GEMV_GROUPS],
        .swizzle = 128,
    };
    return true;
}

/* Candidates */

struct shape {
    int64_t copy, warps, chunk, groups, most_stages, ctas_per_sm;
};

/* Best first, by measurements on an H200 with the matrices of Llama-3.1-8B and 3.2-1B at one row, in chains of a whole
 * layer: a deep ring is filled while the launches before end or wait, which a race of one kernel in sequence does not
 * show. Copies of rows slow the memory down once about 100 KiB are in flight to each multiprocessor; boxes do not. */
static const struct shape bulk_shapes[] = {
    {MATMUL_GEMV_COPY_BOXES, 8, 512, 2, 11, 1}, {MATMUL_GEMV_COPY_BOXES, 8, 512, 2, 13, 1},
    {MATMUL_GEMV_COPY_BOXES, 8, 512, 2, 8, 1},  {MATMUL_GEMV_COPY_BOXES, 8, 1024, 2, 6, 1},
    {MATMUL_GEMV_COPY_BOXES, 8, 512, 4, 6, 1},  {MATMUL_GEMV_COPY_ROWS, 8, 1024, 1, 4, 1},
    {MATMUL_GEMV_COPY_BOXES, 8, 512, 2, 6, 1},  {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 5, 1},
    {MATMUL_GEMV_COPY_ROWS, 16, 1024, 1, 4, 1}, {MATMUL_GEMV_COPY_BOXES, 16, 512, 2, 11, 1},
    {MATMUL_GEMV_COPY_BOXES, 8, 1024, 2, 3, 1}, {MATMUL_GEMV_COPY_BOXES, 8, 256, 4, 5, 1},
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 1, 4, 2},  {MATMUL_GEMV_COPY_BOXES, 8, 512, 2, 4, 2},
    {MATMUL_GEMV_COPY_ROWS, 8, 2048, 1, 2, 1},  {MATMUL_GEMV_COPY_BOXES, 4, 512, 2, 6, 1},
};
static const struct shape thread_shapes[] = {
    {MATMUL_GEMV_COPY_THREADS, 8, 512, 2, 6, 1}, {MATMUL_GEMV_COPY_THREADS, 8, 1024, 2, 3, 1},
    {MATMUL_GEMV_COPY_THREADS, 8, 256, 2, 8, 1}, {MATMUL_GEMV_COPY_THREADS, 4, 512, 2, 4, 1},
    {MATMUL_GEMV_COPY_THREADS, 4, 256, 2, 4, 1},
};
/* Coded weights. */
static const struct shape coded_shapes[] = {
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 12, 1}, {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 8, 1},
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 4, 6, 1},  {MATMUL_GEMV_COPY_ROWS, 16, 2048, 2, 6, 1},
    {MATMUL_GEMV_COPY_ROWS, 16, 2048, 4, 4, 1}, {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 20, 1},
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 4, 10, 1}, {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 6, 2},
    {MATMUL_GEMV_COPY_ROWS, 4, 512, 2, 10, 2},  {MATMUL_GEMV_COPY_ROWS, 4, 512, 4, 8, 2},
    {MATMUL_GEMV_COPY_ROWS, 4, 512, 2, 16, 1},  {MATMUL_GEMV_COPY_ROWS, 4, 512, 2, 6, 3},
    {MATMUL_GEMV_COPY_ROWS, 12, 1536, 2, 8, 1}, {MATMUL_GEMV_COPY_ROWS, 8, 2048, 2, 6, 1},
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 4, 1},  {MATMUL_GEMV_COPY_ROWS, 2, 256, 2, 8, 4},
};
/* Sums over choices, where warps take turns across stages. */
static const struct shape coded_sum_shapes[] = {
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 12, 1}, {MATMUL_GEMV_COPY_ROWS, 16, 1024, 2, 12, 1},
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 8, 1},  {MATMUL_GEMV_COPY_ROWS, 12, 1024, 2, 12, 1},
    {MATMUL_GEMV_COPY_ROWS, 8, 512, 2, 16, 1},  {MATMUL_GEMV_COPY_ROWS, 8, 1024, 4, 6, 1},
    {MATMUL_GEMV_COPY_ROWS, 16, 1024, 4, 6, 1}, {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 20, 1},
    {MATMUL_GEMV_COPY_ROWS, 4, 512, 2, 16, 1},  {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 6, 2},
    {MATMUL_GEMV_COPY_ROWS, 4, 512, 2, 10, 2},  {MATMUL_GEMV_COPY_ROWS, 16, 2048, 2, 6, 1},
    {MATMUL_GEMV_COPY_ROWS, 8, 1024, 2, 4, 1},  {MATMUL_GEMV_COPY_ROWS, 2, 256, 2, 8, 4},
};
static const struct shape coded_thread_shapes[] = {
    {MATMUL_GEMV_COPY_THREADS, 8, 1024, 2, 5, 1}, {MATMUL_GEMV_COPY_THREADS, 8, 1024, 4, 3, 1},
    {MATMUL_GEMV_COPY_THREADS, 4, 512, 2, 6, 1},  {MATMUL_GEMV_COPY_THREADS, 4, 512, 2, 4, 2},
    {MATMUL_GEMV_COPY_THREADS, 2, 256, 2, 4, 2},
};
enum { GOOD_RING_BYTES = 48 << 10, LEAST_RING_BYTES = 24 << 10, MOST_CANDIDATES = 40 };

/* Those found so far. */
struct candidates {
    int64_t (*params)[PLAN_MAX_PARAMS];
    int count, capacity;
    int64_t most_shared; /* of a thread block */
};

/* The problem with this shape and the most stages that fit, if that is legal, new, and the ring has least_ring bytes
 * (or all stages of the shape). */
static void add_candidate(struct candidates *candidates, const int64_t *problem, const struct device_facts *gpu,
                          const struct shape *shape, int64_t split_k, int64_t x_shared, int64_t least_ring)
{
    int64_t budget = matmul_device_most_shared(gpu, shape->ctas_per_sm);
    if (budget > candidates->most_shared) budget = candidates->most_shared;
    int64_t params[PLAN_MAX_PARAMS] = {0};
    memcpy(params, problem, MATMUL_FIRST_TUNABLE * sizeof *params);
    params[MATMUL_GEMV_WARPS] = shape->warps;
    params[MATMUL_GEMV_CHUNK] = shape->chunk;
    if (matmul_sums_choices(params)) { /* a stage is of one choice */
        const int64_t most = layout_round_up(gemv_part(params[MATMUL_DTYPE], params[MATMUL_K], split_k),
                                             matmul_is_coded(params) ? FRAGMENT_STRIP_K : BOX_K);
        if (params[MATMUL_GEMV_CHUNK] > most) params[MATMUL_GEMV_CHUNK] = most;
    }
    params[MATMUL_GEMV_SPLIT_K] = split_k;
    params[MATMUL_GEMV_GROUPS] = shape->groups;
    params[MATMUL_GEMV_CTAS_PER_SM] = shape->ctas_per_sm;
    params[MATMUL_GEMV_X_SHARED] = x_shared;
    params[MATMUL_GEMV_COPY] = shape->copy;
    params[MATMUL_GEMV_STAGES] = shape->most_stages;
    while (params[MATMUL_GEMV_STAGES] > 2 && shared_bytes(params) > budget) params[MATMUL_GEMV_STAGES]--;
    const int64_t stages = params[MATMUL_GEMV_STAGES];
    if (shared_bytes(params) > budget) return;
    if (stages < shape->most_stages && stages * layout_of(params).stage_bytes < least_ring) return;
    candidates->count = device_add_candidate(&device_matmul_gemv, problem, params + MATMUL_FIRST_TUNABLE, gpu,
                                             candidates->params, candidates->count, candidates->capacity);
}

#define SHAPES(table) (*shapes = (table), (int)(sizeof(table) / sizeof *(table)))
static int shapes_for(const int64_t *params, const struct device_facts *gpu, const struct shape **shapes)
{
    const bool bulk = gpu->capability >= 90;
    if (matmul_is_coded(params) && bulk)
        return matmul_sums_choices(params) ? SHAPES(coded_sum_shapes) : SHAPES(coded_shapes);
    if (matmul_is_coded(params)) return SHAPES(coded_thread_shapes);
    return bulk ? SHAPES(bulk_shapes) : SHAPES(thread_shapes);
}

static int find_candidates(const int64_t *params, const struct device_facts *gpu,
                           int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    const struct shape *shapes;
    const int count = shapes_for(params, gpu, &shapes);
    struct candidates candidates = {params_out, 0, capacity < MOST_CANDIDATES ? capacity : MOST_CANDIDATES, INT64_MAX};
    if (problem_illegal(params)) return 0;
    /* No cluster, if x leaves enough shared memory: in a cluster every tile waits for all thread blocks. */
    for (int i = 0; i < count; i++) {
        if (reads_early(params)) { /* beside the launch before, if that leaves room */
            candidates.most_shared = matmul_device_second_shared(gpu);
            add_candidate(&candidates, params, gpu, &shapes[i], 1, 1, GOOD_RING_BYTES);
            candidates.most_shared = INT64_MAX;
        }
        add_candidate(&candidates, params, gpu, &shapes[i], 1, 1, GOOD_RING_BYTES);
    }
    const bool roomy = candidates.count > 0;
    if (!roomy)
        for (int i = 0; i < count; i++) add_candidate(&candidates, params, gpu, &shapes[i], 1, 1, LEAST_RING_BYTES);
    for (int64_t split_k = 2; split_k <= (roomy ? 2 : 8); split_k *= 2)
        for (int i = 0; i < 2 && i < count; i++)
            add_candidate(&candidates, params, gpu, &shapes[i], split_k, 1, GOOD_RING_BYTES);
    /* Whatever fits. */
    const int64_t least_shared = matmul_is_coded(params) || matmul_sums_choices(params);
    for (int64_t x_shared = 1; x_shared >= least_shared; x_shared--)
        for (int64_t split_k = 1; split_k <= 8 && !candidates.count; split_k *= 2)
            for (int i = 0; i < count; i++) add_candidate(&candidates, params, gpu, &shapes[i], split_k, x_shared, 0);
    return candidates.count;
}

const struct device_kernel device_matmul_gemv = {
    .name = "matmul_gemv",
    .op = OP_MATMUL,
    .problem = &op_matmul,
    DEVICE_OWN_NAMES(MATMUL_GEMV_PARAMS - MATMUL_FIRST_TUNABLE, "WARPS", "STAGES", "CHUNK", "SPLIT_K", "GROUPS",
                     "CTAS_PER_SM", "X_SHARED", "COPY"),
    .launch = launch,
    .candidates = find_candidates,
    .tensor_map = tensor_map,
    .cost = matmul_device_cost,
};
