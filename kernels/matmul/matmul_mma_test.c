/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul_mma on the GPU: tails in every dimension, epilogues, counts, every candidate, repeatable bits; the same
 * with coded weights. */
#include "kernels/matmul/test_matmul_device.h"
#include "kernels/matmul/matmul_device.h"

/* An A100, for what needs no GPU. */
static const struct device_facts a100 = {.capability = 80,
                                         .multiprocessors = 108,
                                         .shared_per_sm = 167936,
                                         .shared_per_block = 166912,
                                         .l2_bytes = 40 << 20};

/* TILE_N, TILE_M, TILE_K, STAGES, WARPS_N, WARPS_M, WARPS_K */
static const struct matmul_device_tunables narrow = {{16, 8, 128, 4, 1, 1, 8}}, small = {{64, 16, 64, 3, 2, 1, 2}},
                                           middle = {{64, 64, 32, 2, 2, 2, 1}}, large = {{128, 128, 64, 3, 4, 2, 1}};

TEST(test_tails)
{
    static const struct matmul_device_case cases[] = {
        {{.rows = 1, .n = 1, .k = 8, .dtype = BF16, .out_dtype = BF16}, narrow},
        {{.rows = 1, .n = 4104, .k = 176, .dtype = BF16, .out_dtype = F32}, narrow},
        {{.rows = 8, .n = 17, .k = 72, .dtype = BF16, .out_dtype = F32}, narrow},
        {{.rows = 9, .n = 4104, .k = 176, .dtype = BF16, .out_dtype = BF16}, small},
        {{.rows = 33, .n = 17, .k = 64, .dtype = F16, .out_dtype = F16}, middle},
        {{.rows = 33, .n = 1000, .k = 1096, .dtype = F16, .out_dtype = F32}, {{96, 24, 64, 4, 2, 1, 4}}},
        {{.rows = 64, .n = 4104, .k = 176, .dtype = F16, .out_dtype = F16}, large},
        {{.rows = 100, .n = 1, .k = 176, .dtype = BF16, .out_dtype = F32}, middle},
        {{.rows = 256, .n = 4104, .k = 72, .dtype = BF16, .out_dtype = BF16}, large},
        {{.rows = 257, .n = 700, .k = 8, .dtype = BF16, .out_dtype = F32}, {{256, 128, 64, 2, 4, 2, 1}}},
    };
    TEST_NEEDS_DEVICE();
    matmul_device_check_cases(&device_matmul_mma, cases, sizeof cases / sizeof cases[0]);
}

TEST(test_epilogues)
{
    static const struct matmul_device_case cases[] = {
        {{.rows = 16, .n = 344, .k = 512, .dtype = BF16, .out_dtype = BF16, .bias = BF16}, small},
        {{.rows = 16, .n = 512, .k = 512, .dtype = BF16, .out_dtype = F32, .residual = true}, small},
        {{.rows = 12, .n = 511, .k = 512, .dtype = BF16, .out_dtype = F32, .residual = true}, narrow},
        {{.rows = 16, .n = 688, .k = 512, .dtype = BF16, .out_dtype = BF16, .activation = SILU}, narrow},
        {{.rows = 64, .n = 688, .k = 512, .dtype = F16, .out_dtype = F32, .activation = SILU, .bias = F32}, middle},
        {{.rows = 200, .n = 688, .k = 176, .dtype = BF16, .out_dtype = BF16, .activation = SILU, .bias = F16}, large},
        {{.rows = 200, .n = 1296, .k = 176, .dtype = F16, .out_dtype = F16, .activation = SILU}, large},
        {{.rows = 200, .n = 700, .k = 176, .dtype = BF16, .out_dtype = F32, .residual = true, .bias = BF16}, large},
        {{.rows = 2048, .n = 4096, .k = 4096, .dtype = BF16, .out_dtype = F32, .residual = true}, large},
    };
    TEST_NEEDS_DEVICE();
    matmul_device_check_epilogues(&device_matmul_mma, cases, sizeof cases / sizeof cases[0]);
}

/* Rows beyond the valid count hold NaN and do not disturb; no valid row at all ends at once. */
TEST(test_counts)
{
    const struct matmul_device_problem all =
        {.rows = 300, .n = 272, .k = 264, .dtype = BF16, .out_dtype = F32, .residual = true};
    static const int valid[] = {1, 8, 129, 299, -1};
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        struct matmul_device_problem problem = all;
        problem.valid = valid[i];
        matmul_device_check(&device_matmul_mma, &problem, small, 0);
        matmul_device_check(&device_matmul_mma, &problem, large, 0);
    }
}

TEST(test_candidates)
{
    matmul_device_check_candidates(
        &device_matmul_mma, &a100, 6,
        (struct matmul_device_problem){.rows = 1, .n = 264, .k = 256, .dtype = BF16, .out_dtype = BF16});
}

/* Problems with every encoding of W. */
static const struct matmul_device_case coded_cases[] = {
    {{.rows = 1, .n = 1, .k = 8, .out_dtype = F32}, {{16, 8, 512, 4, 1, 1, 4}}},
    {{.rows = 8, .n = 17, .k = 176, .out_dtype = BF16}, {{16, 8, 1024, 2, 1, 1, 8}}},
    {{.rows = 9, .n = 1041, .k = 1000, .out_dtype = F32, .residual = true, .bias = BF16}, {{64, 16, 256, 3, 4, 1, 2}}},
    {{.rows = 33, .n = 352, .k = 2056, .out_dtype = BF16, .activation = SILU}, {{64, 24, 256, 3, 2, 1, 2}}},
    {{.rows = 100, .n = 720, .k = 392, .out_dtype = F32, .activation = SILU, .bias = F32},
     {{128, 48, 128, 3, 4, 2, 1}}},
    {{.rows = 257, .n = 700, .k = 136, .out_dtype = F16, .bias = F16, .scale = 0.22f}, {{64, 128, 128, 2, 2, 2, 1}}},
};
/* Corners of the tunables that no candidate takes. */
static const struct matmul_device_tunables odd_coded[] = {
    {{16, 8, 128, 2, 1, 1, 1}},   {{96, 24, 256, 2, 2, 1, 1}},  {{48, 40, 256, 2, 1, 1, 2}},
    {{32, 16, 512, 2, 2, 1, 2}},  {{256, 16, 128, 2, 4, 1, 1}}, {{64, 64, 128, 4, 4, 4, 1}},
    {{128, 64, 128, 2, 2, 2, 1}},
};
static const enum encoding_id some_encodings[] = {ENCODING_INT4_G128, ENCODING_INT4_G32_ZEROS, ENCODING_E4M3_BLOCK128,
                                                  ENCODING_NVFP4, ENCODING_INT8_CHANNEL};
enum { SOME_ENCODINGS = sizeof some_encodings / sizeof *some_encodings };

static struct matmul_device_problem with_encoding(struct matmul_device_problem problem, enum encoding_id encoding)
{
    problem.dtype = (enum dtype)encoding;
    return problem;
}

static void check_coded(struct matmul_device_problem problem, enum encoding_id encoding,
                        struct matmul_device_tunables tunables)
{
    problem = with_encoding(problem, encoding);
    matmul_device_check(&device_matmul_mma, &problem, tunables, 5000);
}

TEST(test_coded)
{
    TEST_NEEDS_DEVICE();
    matmul_device_check_coded(&device_matmul_mma, coded_cases, sizeof coded_cases / sizeof *coded_cases);
}

TEST(test_odd_coded_tunables)
{
    static const struct matmul_device_problem problems[] = {
        {.rows = 65, .n = 1043, .k = 2056, .out_dtype = F32, .residual = true, .bias = F32},
        {.rows = 40, .n = 2000, .k = 1544, .out_dtype = BF16, .activation = SILU, .bias = F16},
    };
    enum { ODD = sizeof odd_coded / sizeof *odd_coded };
    struct matmul_device_case cases[ODD];
    TEST_NEEDS_DEVICE();
    for (int i = 0; i < ODD; i++) cases[i] = (struct matmul_device_case){problems[i % 2], odd_coded[i]};
    matmul_device_check_coded(&device_matmul_mma, cases, ODD);
}

TEST(test_coded_counts)
{
    static const int valid[] = {1, 8, 129, 299, -1};
    struct matmul_device_problem problem = {.rows = 300, .n = 272, .k = 264, .out_dtype = F32, .residual = true};
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++) {
        problem.valid = valid[i];
        check_coded(problem, ENCODING_INT4_G128, odd_coded[3]);
        check_coded(problem, ENCODING_E4M3_CHANNEL, coded_cases[5].tunables);
    }
}

static void check_legal(struct matmul_device_problem problem, enum encoding_id encoding,
                        struct matmul_device_tunables tunables, const struct device_facts *gpu)
{
    int64_t params[PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    problem = with_encoding(problem, encoding);
    matmul_device_problem_params(&problem, params);
    memcpy(params + MATMUL_FIRST_TUNABLE, tunables.value, (size_t)device_matmul_mma.own_count * sizeof *params);
    const char *illegal = device_matmul_mma.launch(params, gpu, &geometry);
    if (illegal) fail_msg("%s: %s", test_describe(&device_matmul_mma, params), illegal);
}

/* The cases above, also on the smallest GPU that runs them. */
TEST(test_coded_cases_are_legal)
{
    enum encoding_id encoding;
    for (size_t e = 0; matmul_device_next_coded(&e, &encoding);) {
        for (size_t i = 0; i < sizeof coded_cases / sizeof *coded_cases; i++)
            check_legal(coded_cases[i].problem, encoding, coded_cases[i].tunables, &matmul_test_a10);
        for (size_t i = 0; i < sizeof odd_coded / sizeof *odd_coded; i++)
            check_legal(coded_cases[0].problem, encoding, odd_coded[i], &matmul_test_a10);
    }
}

enum { MOST_CANDIDATES = 32 };

TEST(test_coded_candidates)
{
    static const struct matmul_device_problem problems[] = {
        {.rows = 4, .n = 1040, .k = 2056, .out_dtype = F32, .residual = true},
        {.rows = 16, .n = 1040, .k = 1032, .out_dtype = F32, .residual = true},
        {.rows = 64, .n = 2064, .k = 512, .out_dtype = BF16, .activation = SILU},
        {.rows = 500, .n = 3080, .k = 264, .out_dtype = F16, .bias = F16},
    };
    for (int e = 0; e < SOME_ENCODINGS; e++)
        matmul_device_check_coded_candidates(&device_matmul_mma, &a100, &problems[e % 4], some_encodings[e]);
}

static void check_coded_candidates(const struct matmul_device_problem *problem, const struct device_facts *gpu)
{
    int64_t params[PLAN_MAX_PARAMS], candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    matmul_device_problem_params(problem, params);
    const int count = device_matmul_mma.candidates(params, gpu, candidates, MOST_CANDIDATES);
    if (!count)
        fail_msg("%s: %d rows of %d: no candidate", encoding_name((enum encoding_id)problem->dtype), (int)problem->rows,
                 (int)problem->k);
    for (int c = 0; c < count; c++) {
        const char *illegal = device_matmul_mma.launch(candidates[c], gpu, &geometry);
        if (illegal) fail_msg("%s", illegal);
        assert_true(geometry.shared_bytes <= (uint32_t)gpu->shared_per_block);
        assert_memory_equal(candidates[c], params, MATMUL_FIRST_TUNABLE * sizeof *params);
        for (int other = 0; other < c; other++)
            assert_memory_not_equal(candidates[c], candidates[other], sizeof candidates[c]);
    }
    assert_int_equal(device_matmul_mma.candidates(params, gpu, candidates, 1), 1);
}

TEST(test_coded_problems_have_candidates)
{
    static const int64_t rows[] = {1, 2, 7, 8, 9, 16, 33, 64, 100, 512, 2048};
    static const int64_t ks[] = {8, 64, 176, 2048, 14336, 65536, MATMUL_DEVICE_MOST_K};
    static const int64_t ns[] = {16, 4096, 128256};
    const struct device_facts *facts[] = {&matmul_test_h200, &matmul_test_a10};
    enum encoding_id encoding;
    int encodings = 0;
    for (size_t e = 0; matmul_device_next_coded(&e, &encoding); encodings++)
        for (size_t f = 0; f < 2; f++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
                    for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
                        const struct matmul_device_problem problem = {.rows = rows[r],
                                                                      .n = ns[j],
                                                                      .k = ks[i],
                                                                      .dtype = (enum dtype)encoding,
                                                                      .out_dtype = F32,
                                                                      .activation = (enum activation)(rows[r] % 2),
                                                                      .bias = F32};
                        check_coded_candidates(&problem, facts[f]);
                    }
    assert_true(encodings > 0);
}

TEST(test_coded_refusals)
{
    const struct matmul_device_problem problem = {.rows = 64, .n = 4096, .k = 4096, .out_dtype = F32, .residual = true};
    int64_t params[PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    for (int e = 0; e < SOME_ENCODINGS; e++) {
        const struct matmul_device_problem coded = with_encoding(problem, some_encodings[e]);
        matmul_device_problem_params(&coded, params);
        memcpy(params + MATMUL_FIRST_TUNABLE, coded_cases[3].tunables.value,
               (size_t)device_matmul_mma.own_count * sizeof *params);
        assert_null(device_matmul_mma.launch(params, &matmul_test_h200, &geometry));
        assert_null(device_matmul_mma.launch(params, &matmul_test_a10, &geometry));
        test_launch_refuses(&device_matmul_mma, params,
                            TEST_CHANGES({MATMUL_DTYPE, ENCODING_E4M3_TENSOR}, {MATMUL_DTYPE, 99},
                                         {MATMUL_INPUT_DTYPE, DTYPE_F16}, {MATMUL_HAS_NORM, 1}, {MATMUL_K, 2052},
                                         {MATMUL_MMA_TILE_K, 0}, {MATMUL_MMA_TILE_K, 64}, {MATMUL_MMA_TILE_K, 128},
                                         {MATMUL_MMA_TILE_K, 384}, {MATMUL_MMA_TILE_K, 2048},
                                         {MATMUL_MMA_TILE_K, INT64_MIN}, {MATMUL_MMA_WARPS_K, 4},
                                         {MATMUL_MMA_TILE_N, 40}, {MATMUL_MMA_STAGES, 1}, {MATMUL_MMA_TILE_M, 256}));
        /* 64 sums a thread; sums of groups as many again. */
        params[MATMUL_MMA_WARPS_K] = 1;
        params[MATMUL_MMA_TILE_N] = params[MATMUL_MMA_TILE_M] = 64;
        assert_null(device_matmul_mma.launch(params, &matmul_test_h200, &geometry));
        params[MATMUL_MMA_WARPS_N] = 1;
        const bool sums_groups = some_encodings[e] != ENCODING_NVFP4 && some_encodings[e] != ENCODING_INT8_CHANNEL;
        assert_int_equal(device_matmul_mma.launch(params, &matmul_test_h200, &geometry) != NULL, sums_groups);
    }
}

TEST(test_hostile)
{
    const struct matmul_device_problem coded =
        {.rows = 64, .n = 4096, .k = 4096, .dtype = (enum dtype)ENCODING_INT4_G128, .out_dtype = F32, .residual = true};
    const struct matmul_device_tunables tunables[] = {small, large};
    matmul_device_check_refusals(&device_matmul_mma, &a100, 75, tunables);
    matmul_device_check_hostile(&device_matmul_mma, &a100, &coded, coded_cases[3].tunables);
}

int main(void) { return test_run(); }
