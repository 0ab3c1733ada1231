/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul_mma on the GPU: tails in every dimension, epilogues, counts, every candidate, repeatable bits. */
#include "kernels/matmul/test_matmul_device.h"
#include "kernels/matmul/matmul_mma.h"

/* An A100, for what needs no GPU. */
static const struct device_facts a100 = {.capability = 80,
                                         .multiprocessors = 108,
                                         .shared_per_sm = 167936,
                                         .shared_per_block = 166912,
                                         .l2_bytes = 40 << 20};

struct tunables {
    int64_t value[MATMUL_MMA_PARAMS - MATMUL_FIRST_TUNABLE];
};

static void check(const struct matmul_device_problem *problem, struct tunables tunables, int samples)
{
    int64_t params[PLAN_MAX_PARAMS];
    matmul_device_problem_params(problem, params);
    memcpy(params + MATMUL_FIRST_TUNABLE, tunables.value, sizeof tunables.value);
    matmul_device_check(&device_matmul_mma, params, problem->valid, samples);
}

/* TILE_N, TILE_M, TILE_K, STAGES, WARPS_N, WARPS_M, WARPS_K */
static const struct tunables narrow = {{16, 8, 128, 4, 1, 1, 8}}, small = {{64, 16, 64, 3, 2, 1, 2}},
                             middle = {{64, 64, 32, 2, 2, 2, 1}}, large = {{128, 128, 64, 3, 4, 2, 1}};

TEST(test_tails)
{
    static const struct {
        struct matmul_device_problem problem;
        struct tunables tunables;
    } cases[] = {
        {{.rows = 1, .n = 1, .k = 8, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16}, narrow},
        {{.rows = 1, .n = 4104, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32}, narrow},
        {{.rows = 8, .n = 17, .k = 72, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32}, narrow},
        {{.rows = 9, .n = 4104, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16}, small},
        {{.rows = 33, .n = 17, .k = 64, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16}, middle},
        {{.rows = 33, .n = 1000, .k = 1096, .dtype = DTYPE_F16, .out_dtype = DTYPE_F32}, {{96, 24, 64, 4, 2, 1, 4}}},
        {{.rows = 64, .n = 4104, .k = 176, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16}, large},
        {{.rows = 100, .n = 1, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32}, middle},
        {{.rows = 256, .n = 4104, .k = 72, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16}, large},
        {{.rows = 257, .n = 700, .k = 8, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32}, {{256, 128, 64, 2, 4, 2, 1}}},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check(&cases[i].problem, cases[i].tunables, 0);
}

TEST(test_epilogues)
{
    static const struct {
        struct matmul_device_problem problem;
        struct tunables tunables;
    } cases[] = {
        {{.rows = 16, .n = 344, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .bias = DTYPE_BF16}, small},
        {{.rows = 16, .n = 512, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true}, small},
        {{.rows = 12, .n = 511, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true}, narrow},
        {{.rows = 16, .n = 688, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .activation = ACTIVATION_SILU},
         narrow},
        {{.rows = 64,
          .n = 688,
          .k = 512,
          .dtype = DTYPE_F16,
          .out_dtype = DTYPE_F32,
          .activation = ACTIVATION_SILU,
          .bias = DTYPE_F32},
         middle},
        {{.rows = 200,
          .n = 688,
          .k = 176,
          .dtype = DTYPE_BF16,
          .out_dtype = DTYPE_BF16,
          .activation = ACTIVATION_SILU,
          .bias = DTYPE_F16},
         large},
        {{.rows = 200, .n = 1296, .k = 176, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16, .activation = ACTIVATION_SILU},
         large},
        {{.rows = 200,
          .n = 700,
          .k = 176,
          .dtype = DTYPE_BF16,
          .out_dtype = DTYPE_F32,
          .residual = true,
          .bias = DTYPE_BF16},
         large},
        {{.rows = 2048, .n = 4096, .k = 4096, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true}, large},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct matmul_device_problem scaled = cases[i].problem;
        const int samples = scaled.k > 1024 ? 10000 : 0;
        scaled.scale = 0.22f;
        check(&cases[i].problem, cases[i].tunables, samples);
        if (scaled.activation == ACTIVATION_NONE) check(&scaled, cases[i].tunables, samples);
        struct matmul_device_problem gated = cases[i].problem;
        while (gated.activation != ACTIVATION_NONE && ++gated.activation < ACTIVATION_COUNT)
            check(&gated, cases[i].tunables, samples);
    }
}

/* Rows beyond the valid count hold NaN and do not disturb; no valid row at all ends at once. */
TEST(test_counts)
{
    const struct matmul_device_problem all =
        {.rows = 300, .n = 272, .k = 264, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true};
    static const int valid[] = {1, 8, 129, 299, -1};
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        struct matmul_device_problem problem = all;
        problem.valid = valid[i];
        check(&problem, small, 0);
        check(&problem, large, 0);
    }
}

TEST(test_candidates)
{
    static const struct matmul_device_problem problems[] = {
        {.rows = 1, .n = 264, .k = 256, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16},
        {.rows = 16, .n = 1040, .k = 1032, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true},
        {.rows = 64, .n = 2064, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .activation = ACTIVATION_SILU},
        {.rows = 500, .n = 3080, .k = 264, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16, .bias = DTYPE_F16},
    };
    int64_t params[PLAN_MAX_PARAMS];
    static int64_t found[64][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        matmul_device_problem_params(&problems[i], params);
        const int count = matmul_mma_candidates(params, &a100, found, 64);
        assert_in_range(count, 6, 32);
        for (int j = 0; j < count; j++) {
            assert_null(device_matmul_mma.launch(found[j], &a100, &geometry));
            assert_memory_equal(found[j], params, MATMUL_FIRST_TUNABLE * sizeof *params);
            for (int other = 0; other < j; other++) assert_memory_not_equal(found[j], found[other], sizeof found[j]);
        }
        assert_int_equal(matmul_mma_candidates(params, &a100, found, 3), 3);
        if (!test_device()) continue;
        const int here = matmul_mma_candidates(params, &test_device()->device.facts, found, 64);
        for (int j = 0; j < here; j++) matmul_device_check(&device_matmul_mma, found[j], 0, 5000);
    }
}

TEST(test_hostile)
{
    int64_t params[PLAN_MAX_PARAMS];
    static int64_t found[1][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    const struct matmul_device_problem problem =
        {.rows = 64, .n = 4096, .k = 4096, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true};
    matmul_device_problem_params(&problem, params);
    memcpy(params + MATMUL_FIRST_TUNABLE, small.value, sizeof small.value);
    matmul_device_check_hostile(&device_matmul_mma, params, &a100);
    memcpy(params + MATMUL_FIRST_TUNABLE, large.value, sizeof large.value);
    matmul_device_check_hostile(&device_matmul_mma, params, &a100);
    params[MATMUL_HAS_NORM] = 1;
    assert_non_null(device_matmul_mma.launch(params, &a100, &geometry));
    assert_int_equal(matmul_mma_candidates(params, &a100, found, 1), 0);
    params[MATMUL_HAS_NORM] = 0;
    struct device_facts older = a100;
    older.capability = 75;
    assert_non_null(device_matmul_mma.launch(params, &older, &geometry));
}

int main(void) { return test_run(); }
