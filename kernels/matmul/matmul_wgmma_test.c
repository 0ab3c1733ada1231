/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul_wgmma on the GPU: tails in every dimension, epilogues, counts, every candidate, repeatable bits. */
#include "kernels/matmul/test_matmul_device.h"
#include "kernels/matmul/matmul_wgmma.h"

/* An H200, for what needs no GPU. */
static const struct device_facts h200 = {.capability = 90,
                                         .multiprocessors = 132,
                                         .shared_per_sm = 233472,
                                         .shared_per_block = 232448,
                                         .l2_bytes = 60 << 20};

struct tunables {
    int64_t value[MATMUL_WGMMA_PARAMS - MATMUL_FIRST_TUNABLE];
};

static void check(const struct matmul_device_problem *problem, struct tunables tunables, int samples)
{
    int64_t params[PLAN_MAX_PARAMS];
    matmul_device_problem_params(problem, params);
    memcpy(params + MATMUL_FIRST_TUNABLE, tunables.value, sizeof tunables.value);
    matmul_device_check(&device_matmul_wgmma, params, problem->valid, samples);
}

/* TILE_N, TILE_M, TILE_K, WARPGROUPS, STAGES, SPLIT_K, MULTICAST, PERSISTENT, ROW_GROUP, PREFETCH */
static const struct tunables small = {{64, 16, 64, 1, 8, 1, 1, 0, 8, 1}}, split = {{64, 16, 64, 1, 4, 4, 1, 0, 8, 1}},
                             wide = {{128, 256, 64, 2, 4, 1, 2, 1, 8, 1}}, tall = {{256, 128, 64, 2, 4, 1, 1, 1, 2, 0}};

TEST(test_tails)
{
    static const struct {
        struct matmul_device_problem problem;
        struct tunables tunables;
    } cases[] = {
        {{.rows = 1, .n = 1, .k = 8, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16}, {{64, 8, 64, 1, 2, 1, 1, 0, 1, 0}}},
        {{.rows = 8, .n = 17, .k = 72, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32},
         {{64, 8, 64, 1, 3, 2, 1, 0, 1, 1}}},
        {{.rows = 9, .n = 4104, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16}, small},
        {{.rows = 33, .n = 17, .k = 64, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16},
         {{128, 48, 128, 2, 4, 1, 1, 0, 1, 1}}},
        {{.rows = 33, .n = 1000, .k = 1096, .dtype = DTYPE_F16, .out_dtype = DTYPE_F32},
         {{128, 24, 64, 1, 5, 3, 1, 0, 2, 1}}},
        {{.rows = 64, .n = 4104, .k = 176, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16},
         {{128, 64, 128, 1, 2, 2, 1, 0, 1, 1}}},
        {{.rows = 100, .n = 1, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32},
         {{192, 96, 64, 3, 5, 1, 1, 1, 1, 1}}},
        {{.rows = 100, .n = 4104, .k = 72, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16}, tall},
        {{.rows = 256, .n = 4104, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16}, wide},
        {{.rows = 257, .n = 700, .k = 8, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32}, wide},
        {{.rows = 300, .n = 650, .k = 328, .dtype = DTYPE_F16, .out_dtype = DTYPE_F32},
         {{192, 192, 64, 3, 3, 1, 2, 1, 1, 1}}},
        {{.rows = 330, .n = 300, .k = 328, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F16},
         {{128, 160, 64, 2, 3, 1, 2, 0, 2, 1}}},
        {{.rows = 256, .n = 300, .k = 2048, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32},
         {{128, 128, 64, 2, 3, 8, 1, 0, 2, 1}}},
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
        {{.rows = 16, .n = 344, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .bias = DTYPE_BF16}, split},
        {{.rows = 16, .n = 512, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true}, split},
        {{.rows = 12, .n = 511, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true}, split},
        {{.rows = 16, .n = 688, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .activation = ACTIVATION_SILU},
         split},
        {{.rows = 64,
          .n = 688,
          .k = 512,
          .dtype = DTYPE_F16,
          .out_dtype = DTYPE_F32,
          .activation = ACTIVATION_SILU,
          .bias = DTYPE_F32},
         {{128, 64, 128, 2, 3, 2, 1, 0, 1, 1}}},
        {{.rows = 200,
          .n = 688,
          .k = 176,
          .dtype = DTYPE_BF16,
          .out_dtype = DTYPE_BF16,
          .activation = ACTIVATION_SILU,
          .bias = DTYPE_F16},
         tall},
        {{.rows = 200, .n = 688, .k = 176, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16, .activation = ACTIVATION_SILU},
         wide},
        {{.rows = 200, .n = 1296, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .activation = ACTIVATION_SILU},
         wide},
        {{.rows = 200,
          .n = 700,
          .k = 176,
          .dtype = DTYPE_BF16,
          .out_dtype = DTYPE_F32,
          .residual = true,
          .bias = DTYPE_BF16},
         wide},
        {{.rows = 200, .n = 701, .k = 176, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true}, tall},
        {{.rows = 40, .n = 16, .k = 64, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .activation = ACTIVATION_SILU},
         small},
        {{.rows = 20,
          .n = 24,
          .k = 64,
          .dtype = DTYPE_BF16,
          .out_dtype = DTYPE_F32,
          .residual = true,
          .bias = DTYPE_F32},
         small},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct matmul_device_problem scaled = cases[i].problem;
        scaled.scale = 0.22f;
        check(&cases[i].problem, cases[i].tunables, 0);
        if (scaled.activation == ACTIVATION_NONE) check(&scaled, cases[i].tunables, 0);
        struct matmul_device_problem gated = cases[i].problem;
        while (gated.activation != ACTIVATION_NONE && ++gated.activation < ACTIVATION_COUNT)
            check(&gated, cases[i].tunables, 0);
    }
}

/* Rows beyond the valid count hold NaN and do not disturb; no valid row at all ends at once. */
TEST(test_counts)
{
    struct matmul_device_problem problem =
        {.rows = 600, .n = 272, .k = 264, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true};
    static const int valid[] = {1, 8, 129, 256, 257, 599, -1};
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        problem.valid = valid[i];
        problem.rows = 600;
        check(&problem, wide, 0);
        check(&problem, (struct tunables){{64, 64, 64, 1, 3, 2, 1, 0, 3, 1}}, 0);
        problem.rows = 16;
        check(&problem, small, 0);
        check(&problem, split, 0);
        check(&problem, (struct tunables){{64, 16, 64, 1, 8, 1, 2, 1, 8, 1}}, 0);
    }
}

/* Many tiles for each block: the ring and the staging pass from tile to tile. */
TEST(test_many_tiles)
{
    TEST_NEEDS_DEVICE();
    const struct matmul_device_problem decode = {.rows = 16,
                                                 .n = 30008,
                                                 .k = 520,
                                                 .dtype = DTYPE_BF16,
                                                 .out_dtype = DTYPE_BF16};
    check(&decode, (struct tunables){{64, 16, 64, 1, 6, 1, 1, 1, 8, 1}}, 20000);
    check(&decode, (struct tunables){{64, 16, 128, 1, 3, 1, 2, 2, 8, 1}}, 20000);
    const struct matmul_device_problem prefill =
        {.rows = 2048, .n = 4096, .k = 4096, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true};
    check(&prefill, wide, 10000);
    check(&prefill, tall, 10000);
    const struct matmul_device_problem gate_up = {.rows = 1500,
                                                  .n = 6160,
                                                  .k = 1024,
                                                  .dtype = DTYPE_F16,
                                                  .out_dtype = DTYPE_F16,
                                                  .activation = ACTIVATION_SILU,
                                                  .valid = 1300};
    check(&gate_up, (struct tunables){{256, 128, 64, 2, 4, 1, 2, 1, 4, 1}}, 10000);
    check(&gate_up, (struct tunables){{128, 128, 64, 2, 3, 1, 2, 2, 16, 1}}, 10000);
}

TEST(test_candidates)
{
    static const struct matmul_device_problem problems[] = {
        {.rows = 8, .n = 256, .k = 256, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16},
        {.rows = 16, .n = 1040, .k = 1032, .dtype = DTYPE_BF16, .out_dtype = DTYPE_F32, .residual = true},
        {.rows = 64, .n = 2064, .k = 512, .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .activation = ACTIVATION_SILU},
        {.rows = 500, .n = 3080, .k = 264, .dtype = DTYPE_F16, .out_dtype = DTYPE_F16, .bias = DTYPE_F16},
    };
    int64_t params[PLAN_MAX_PARAMS];
    static int64_t found[64][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        matmul_device_problem_params(&problems[i], params);
        const int count = matmul_wgmma_candidates(params, &h200, found, 64);
        assert_in_range(count, 8, 32);
        for (int j = 0; j < count; j++) {
            assert_null(device_matmul_wgmma.launch(found[j], &h200, &geometry));
            assert_memory_equal(found[j], params, MATMUL_FIRST_TUNABLE * sizeof *params);
            for (int other = 0; other < j; other++) assert_memory_not_equal(found[j], found[other], sizeof found[j]);
        }
        assert_int_equal(matmul_wgmma_candidates(params, &h200, found, 3), 3);
        if (!test_device()) continue;
        const int here = matmul_wgmma_candidates(params, &test_device()->device.facts, found, 64);
        for (int j = 0; j < here; j++) matmul_device_check(&device_matmul_wgmma, found[j], 0, 5000);
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
    memcpy(params + MATMUL_FIRST_TUNABLE, split.value, sizeof split.value);
    matmul_device_check_hostile(&device_matmul_wgmma, params, &h200);
    memcpy(params + MATMUL_FIRST_TUNABLE, wide.value, sizeof wide.value);
    matmul_device_check_hostile(&device_matmul_wgmma, params, &h200);
    params[MATMUL_HAS_NORM] = 1;
    assert_non_null(device_matmul_wgmma.launch(params, &h200, &geometry));
    assert_int_equal(matmul_wgmma_candidates(params, &h200, found, 1), 0);
    params[MATMUL_HAS_NORM] = 0;
    struct device_facts older = h200;
    older.capability = 80;
    assert_non_null(device_matmul_wgmma.launch(params, &older, &geometry));
    params[MATMUL_ROWS] = 0;
    assert_int_equal(matmul_wgmma_candidates(params, &h200, found, 1), 0);
}

int main(void) { return test_run(); }
