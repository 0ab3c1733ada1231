/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt's space of algorithms for one matmul. Builder only. */
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/matmul_cublaslt.h"

enum {
    MOST_IDS = 256,
    MOST_TILES = 1024,
    MOST_STAGES = 64,
    MOST_FOUND = 1 << 14, /* configurations that the library takes */
    MOST_SPLITS = 5,
    LAST_CLUSTER = 14, /* the shapes of up to 16 blocks that are powers of two: 2 .. 14 */
    FAVOURITES = 16,   /* of its heuristic */
};

struct search {
    const struct cublaslt *library;
    const struct matmul_cublaslt_problem *problem;
    struct lt_heuristic_result *found; /* [MOST_FOUND] */
    int count;
};

/* Parts of a split are added up in float32, or not at all. */
static uint32_t exact_reductions(const struct matmul_cublaslt_problem *problem)
{
    if (problem->out_type != LT_R_32F) return LT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return LT_REDUCTION_SCHEME_COMPUTE_TYPE | LT_REDUCTION_SCHEME_INPLACE | LT_REDUCTION_SCHEME_OUTPUT_TYPE;
}

static bool same(const struct lt_algorithm *a, const struct lt_algorithm *b) { return memcmp(a, b, sizeof *a) == 0; }

/* Keeps the configuration if the library takes it. */
static void try(struct search *search, const struct lt_algorithm *algorithm)
{
    const struct cublaslt *library = search->library;
    const struct matmul_cublaslt_problem *problem = search->problem;
    struct lt_heuristic_result result;
    if (search->count == MOST_FOUND) return;
    memset(&result, 0, sizeof result);
    if (library->MatmulAlgoCheck(library->handle, problem->desc, problem->w, problem->x, problem->out, problem->out,
                                 algorithm, &result) != LT_SUCCESS ||
        result.workspace_bytes > MATMUL_CUBLASLT_MOST_WORKSPACE)
        return;
    result.algorithm = *algorithm;
    search->found[search->count++] = result;
}

static void set(const struct search *search, struct lt_algorithm *algorithm, int attribute, uint32_t value)
{
    /* The library refuses unknown values here or, at the latest, in the check. */
    search->library->MatmulAlgoConfigSetAttribute(algorithm, attribute, &value, sizeof value);
}

static uint32_t capability(const struct search *search, const struct lt_algorithm *algorithm, int attribute)
{
    uint32_t value = 0;
    size_t written = 0;
    if (search->library->MatmulAlgoCapGetAttribute(algorithm, attribute, &value, sizeof value, &written) != LT_SUCCESS)
        return 0;
    return value;
}

/* At least one value: an algorithm without tiles or stages has them undefined (0). */
static int list(const struct search *search, const struct lt_algorithm *algorithm, int attribute, uint32_t *values,
                int most)
{
    size_t written = 0;
    values[0] = 0;
    if (search->library->MatmulAlgoCapGetAttribute(algorithm, attribute, values, (size_t)most * sizeof *values,
                                                   &written) != LT_SUCCESS ||
        written < sizeof *values) {
        values[0] = 0;
        return 1;
    }
    int count = (int)(written / sizeof *values);
    return count < most ? count : most;
}

/* Splits of K with each way to add them up, for one tile, stage, swizzle, option and cluster. */
static void try_splits(struct search *search, const struct lt_algorithm *algorithm, bool can_split, uint32_t reductions)
{
    static const uint32_t splits[MOST_SPLITS] = {2, 3, 4, 8, 16};
    struct lt_algorithm one = *algorithm;
    set(search, &one, LT_ALGO_CONFIG_SPLITK_NUM, 1);
    set(search, &one, LT_ALGO_CONFIG_REDUCTION_SCHEME, 0);
    try(search, &one);
    for (int s = 0; can_split && s < MOST_SPLITS; s++)
        for (uint32_t scheme = 1; scheme <= 4; scheme *= 2) {
            if (!(reductions & scheme)) continue;
            struct lt_algorithm split = *algorithm;
            set(search, &split, LT_ALGO_CONFIG_SPLITK_NUM, splits[s]);
            set(search, &split, LT_ALGO_CONFIG_REDUCTION_SCHEME, scheme);
            try(search, &split);
        }
}

static void try_algorithm(struct search *search, const struct lt_algorithm *algorithm)
{
    uint32_t tiles[MOST_TILES], stages[MOST_STAGES];
    int tile_count = list(search, algorithm, LT_ALGO_CAP_TILE_IDS, tiles, MOST_TILES);
    int stage_count = list(search, algorithm, LT_ALGO_CAP_STAGES_IDS, stages, MOST_STAGES);
    bool can_split = capability(search, algorithm, LT_ALGO_CAP_SPLITK_SUPPORT);
    uint32_t reductions =
        capability(search, algorithm, LT_ALGO_CAP_REDUCTION_SCHEME_MASK) & exact_reductions(search->problem);
    uint32_t swizzles = capability(search, algorithm, LT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) ? 1 : 0;
    uint32_t options = capability(search, algorithm, LT_ALGO_CAP_CUSTOM_OPTION_MAX);
    for (int t = 0; t < tile_count; t++)
        for (int g = 0; g < stage_count; g++)
            for (uint32_t option = 0; option <= options; option++)
                for (uint32_t swizzle = 0; swizzle <= swizzles; swizzle++)
                    for (uint32_t cluster = 0; cluster <= LAST_CLUSTER; cluster++) {
                        if (cluster == 1) continue; /* no shape has this number */
                        struct lt_algorithm made = *algorithm;
                        set(search, &made, LT_ALGO_CONFIG_TILE_ID, tiles[t]);
                        set(search, &made, LT_ALGO_CONFIG_STAGES_ID, stages[g]);
                        set(search, &made, LT_ALGO_CONFIG_CUSTOM_OPTION, option);
                        set(search, &made, LT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
                        uint16_t shape = (uint16_t)cluster;
                        if (search->library->MatmulAlgoConfigSetAttribute(&made, LT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                                                          &shape, sizeof shape) != LT_SUCCESS &&
                            cluster > 0)
                            break;
                        int before = search->count;
                        try_splits(search, &made, can_split && cluster == 0, reductions);
                        /* A tile that the library refuses without a cluster it also refuses with one. */
                        if (cluster == 0 && search->count == before) break;
                    }
}

static void search_all(struct search *search)
{
    const struct cublaslt *library = search->library;
    const struct matmul_cublaslt_problem *problem = search->problem;
    int ids[MOST_IDS], count = 0;
    if (library->MatmulAlgoGetIds(library->handle, LT_COMPUTE_32F, LT_R_32F, problem->type, problem->type,
                                  problem->out_type, problem->out_type, MOST_IDS, ids, &count) != LT_SUCCESS)
        return;
    for (int i = 0; i < count && i < MOST_IDS; i++) {
        struct lt_algorithm algorithm;
        memset(&algorithm, 0, sizeof algorithm);
        if (library->MatmulAlgoInit(library->handle, LT_COMPUTE_32F, LT_R_32F, problem->type, problem->type,
                                    problem->out_type, problem->out_type, ids[i], &algorithm) == LT_SUCCESS)
            try_algorithm(search, &algorithm);
    }
}

static int ask_heuristic(const struct search *search, struct lt_heuristic_result *results)
{
    const struct cublaslt *library = search->library;
    const struct matmul_cublaslt_problem *problem = search->problem;
    const uint64_t most = MATMUL_CUBLASLT_MOST_WORKSPACE;
    const uint32_t reductions = exact_reductions(problem);
    lt_preference preference = NULL;
    int count = 0;
    if (library->MatmulPreferenceCreate(&preference) != LT_SUCCESS) return 0;
    if (library->MatmulPreferenceSetAttribute(preference, LT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most) !=
            LT_SUCCESS ||
        library->MatmulPreferenceSetAttribute(preference, LT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                              sizeof reductions) != LT_SUCCESS ||
        library->MatmulAlgoGetHeuristic(library->handle, problem->desc, problem->w, problem->x, problem->out,
                                        problem->out, preference, FAVOURITES, results, &count) != LT_SUCCESS)
        count = 0;
    library->MatmulPreferenceDestroy(preference);
    return count;
}

static void add(const struct search *search, const int64_t *params, const struct lt_heuristic_result *result,
                int64_t *out)
{
    memset(out, 0, PLAN_MAX_PARAMS * sizeof *out);
    memcpy(out, params, MATMUL_FIRST_TUNABLE * sizeof *out);
    out[MATMUL_CUBLASLT_VERSION] = search->library->version;
    out[MATMUL_CUBLASLT_WORKSPACE] = (int64_t)result->workspace_bytes;
    memcpy(out + MATMUL_CUBLASLT_ALGORITHM, &result->algorithm, sizeof result->algorithm);
}

int matmul_cublaslt_tactics(const struct cublaslt *library, const int64_t *params,
                            int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    struct matmul_cublaslt_problem problem;
    struct lt_heuristic_result favourites[FAVOURITES];
    struct device_geometry geometry;
    int64_t checked[PLAN_MAX_PARAMS] = {0};
    int count = 0;
    memcpy(checked, params, MATMUL_FIRST_TUNABLE * sizeof *params);
    if (device_matmul_cublaslt.launch(checked, NULL, &geometry) ||
        !matmul_cublaslt_describe(&problem, library, params, NULL))
        return 0;
    struct search search = {.library = library, .problem = &problem};
    int liked = ask_heuristic(&search, favourites);
    for (int i = 0; i < liked && count < capacity; i++)
        if (favourites[i].state == LT_SUCCESS) add(&search, params, &favourites[i], params_out[count++]);
    search.found = capacity > FAVOURITES ? calloc(MOST_FOUND, sizeof *search.found) : NULL;
    if (search.found) {
        search_all(&search);
        /* Takes every n-th, so that each algorithm and tile is represented in the race. */
        int room = capacity - count, step = room > 0 ? (search.count + room - 1) / room : 1;
        for (int i = 0; i < search.count && count<capacity; i += step> 0 ? step : 1) {
            bool known = false;
            for (int f = 0; f < liked && !known; f++)
                known = same(&favourites[f].algorithm, &search.found[i].algorithm);
            if (!known) add(&search, params, &search.found[i], params_out[count++]);
        }
        free(search.found);
    }
    matmul_cublaslt_release(&problem, library);
    return count;
}
