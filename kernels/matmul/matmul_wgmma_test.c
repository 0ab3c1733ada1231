/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul_wgmma on the GPU: tails in every dimension, epilogues, counts, every candidate, repeatable bits. */
#include "kernels/matmul/test_matmul_device.h"
#include "kernels/matmul/matmul_device.h"

/* An H200, for what needs no GPU. */
static const struct device_facts h200 = {.capability = 90,
                                         .multiprocessors = 132,
                                         .shared_per_sm = 233472,
                                         .shared_per_block = 232448,
                                         .l2_bytes = 60 << 20};

/* TILE_N, TILE_M, TILE_K, WARPGROUPS, STAGES, SPLIT_K, MULTICAST, PERSISTENT, ROW_GROUP, PREFETCH */
static const struct matmul_device_tunables small = {{64, 16, 64, 1, 8, 1, 1, 0, 8, 1}},
                                           split = {{64, 16, 64, 1, 4, 4, 1, 0, 8, 1}},
                                           wide = {{128, 256, 64, 2, 4, 1, 2, 1, 8, 1}},
                                           tall = {{256, 128, 64, 2, 4, 1, 1, 1, 2, 0}};

TEST(test_tails)
{
    static const struct matmul_device_case cases[] = {
        {{.rows = 1, .n = 1, .k = 8, .dtype = BF16, .out_dtype = BF16}, {{64, 8, 64, 1, 2, 1, 1, 0, 1, 0}}},
        {{.rows = 8, .n = 17, .k = 72, .dtype = BF16, .out_dtype = F32}, {{64, 8, 64, 1, 3, 2, 1, 0, 1, 1}}},
        {{.rows = 9, .n = 4104, .k = 176, .dtype = BF16, .out_dtype = BF16}, small},
        {{.rows = 33, .n = 17, .k = 64, .dtype = F16, .out_dtype = F16}, {{128, 48, 128, 2, 4, 1, 1, 0, 1, 1}}},
        {{.rows = 33, .n = 1000, .k = 1096, .dtype = F16, .out_dtype = F32}, {{128, 24, 64, 1, 5, 3, 1, 0, 2, 1}}},
        {{.rows = 64, .n = 4104, .k = 176, .dtype = F16, .out_dtype = F16}, {{128, 64, 128, 1, 2, 2, 1, 0, 1, 1}}},
        {{.rows = 100, .n = 1, .k = 176, .dtype = BF16, .out_dtype = F32}, {{192, 96, 64, 3, 5, 1, 1, 1, 1, 1}}},
        {{.rows = 100, .n = 4104, .k = 72, .dtype = BF16, .out_dtype = BF16}, tall},
        {{.rows = 256, .n = 4104, .k = 176, .dtype = BF16, .out_dtype = BF16}, wide},
        {{.rows = 257, .n = 700, .k = 8, .dtype = BF16, .out_dtype = F32}, wide},
        {{.rows = 300, .n = 650, .k = 328, .dtype = F16, .out_dtype = F32}, {{192, 192, 64, 3, 3, 1, 2, 1, 1, 1}}},
        {{.rows = 330, .n = 300, .k = 328, .dtype = BF16, .out_dtype = F16}, {{128, 160, 64, 2, 3, 1, 2, 0, 2, 1}}},
        {{.rows = 256, .n = 300, .k = 2048, .dtype = BF16, .out_dtype = F32}, {{128, 128, 64, 2, 3, 8, 1, 0, 2, 1}}},
        {{.rows = 64, .n = 300, .k = 2048, .dtype = BF16, .out_dtype = F32}, {{128, 64, 64, 2, 6, 3, 1, 0, 2, 4}}},
        {{.rows = 64, .n = 700, .k = 512, .dtype = BF16, .out_dtype = BF16}, {{256, 64, 64, 2, 3, 7, 1, 0, 1, 24}}},
    };
    TEST_NEEDS_DEVICE();
    matmul_device_check_cases(&device_matmul_wgmma, cases, sizeof cases / sizeof cases[0]);
}

TEST(test_epilogues)
{
    static const struct matmul_device_case cases[] = {
        {{.rows = 16, .n = 344, .k = 512, .dtype = BF16, .out_dtype = BF16, .bias = BF16}, split},
        {{.rows = 16, .n = 512, .k = 512, .dtype = BF16, .out_dtype = F32, .residual = true}, split},
        {{.rows = 12, .n = 511, .k = 512, .dtype = BF16, .out_dtype = F32, .residual = true}, split},
        {{.rows = 16, .n = 688, .k = 512, .dtype = BF16, .out_dtype = BF16, .activation = SILU}, split},
        {{.rows = 64, .n = 688, .k = 512, .dtype = F16, .out_dtype = F32, .activation = SILU, .bias = F32},
         {{128, 64, 128, 2, 3, 2, 1, 0, 1, 1}}},
        {{.rows = 200, .n = 688, .k = 176, .dtype = BF16, .out_dtype = BF16, .activation = SILU, .bias = F16}, tall},
        {{.rows = 200, .n = 688, .k = 176, .dtype = F16, .out_dtype = F16, .activation = SILU}, wide},
        {{.rows = 200, .n = 1296, .k = 176, .dtype = BF16, .out_dtype = F32, .activation = SILU}, wide},
        {{.rows = 200, .n = 700, .k = 176, .dtype = BF16, .out_dtype = F32, .residual = true, .bias = BF16}, wide},
        {{.rows = 200, .n = 701, .k = 176, .dtype = BF16, .out_dtype = F32, .residual = true}, tall},
        {{.rows = 40, .n = 16, .k = 64, .dtype = BF16, .out_dtype = BF16, .activation = SILU}, small},
        {{.rows = 20, .n = 24, .k = 64, .dtype = BF16, .out_dtype = F32, .residual = true, .bias = F32}, small},
    };
    TEST_NEEDS_DEVICE();
    matmul_device_check_epilogues(&device_matmul_wgmma, cases, sizeof cases / sizeof cases[0]);
}

/* Rows beyond the valid count hold NaN and do not disturb; no valid row at all ends at once. */
TEST(test_counts)
{
    struct matmul_device_problem problem =
        {.rows = 600, .n = 272, .k = 264, .dtype = BF16, .out_dtype = F32, .residual = true};
    static const int valid[] = {1, 8, 129, 256, 257, 599, -1};
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof valid / sizeof valid[0]; i++) {
        problem.valid = valid[i];
        problem.rows = 600;
        matmul_device_check(&device_matmul_wgmma, &problem, wide, 0);
        matmul_device_check(&device_matmul_wgmma, &problem,
                            (struct matmul_device_tunables){{64, 64, 64, 1, 3, 2, 1, 0, 3, 1}}, 0);
        problem.rows = 16;
        matmul_device_check(&device_matmul_wgmma, &problem, small, 0);
        matmul_device_check(&device_matmul_wgmma, &problem, split, 0);
        matmul_device_check(&device_matmul_wgmma, &problem,
                            (struct matmul_device_tunables){{64, 16, 64, 1, 8, 1, 2, 1, 8, 1}}, 0);
    }
}

/* Many tiles for each block: the ring and the staging pass from tile to tile. */
TEST(test_many_tiles)
{
    TEST_NEEDS_DEVICE();
    const struct matmul_device_problem decode = {.rows = 16, .n = 30008, .k = 520, .dtype = BF16, .out_dtype = BF16};
    matmul_device_check(&device_matmul_wgmma, &decode,
                        (struct matmul_device_tunables){{64, 16, 64, 1, 6, 1, 1, 1, 8, 1}}, 20000);
    matmul_device_check(&device_matmul_wgmma, &decode,
                        (struct matmul_device_tunables){{64, 16, 128, 1, 3, 1, 2, 2, 8, 1}}, 20000);
    const struct matmul_device_problem prefill =
        {.rows = 2048, .n = 4096, .k = 4096, .dtype = BF16, .out_dtype = F32, .residual = true};
    matmul_device_check(&device_matmul_wgmma, &prefill, wide, 10000);
    matmul_device_check(&device_matmul_wgmma, &prefill, tall, 10000);
    const struct matmul_device_problem gate_up =
        {.rows = 1500, .n = 6160, .k = 1024, .dtype = F16, .out_dtype = F16, .activation = SILU, .valid = 1300};
    matmul_device_check(&device_matmul_wgmma, &gate_up,
                        (struct matmul_device_tunables){{256, 128, 64, 2, 4, 1, 2, 1, 4, 1}}, 10000);
    matmul_device_check(&device_matmul_wgmma, &gate_up,
                        (struct matmul_device_tunables){{128, 128, 64, 2, 3, 1, 2, 2, 16, 1}}, 10000);
}

TEST(test_coded)
{
    static const struct matmul_device_case cases[] = {
        {{.rows = 1, .n = 1, .k = 8, .out_dtype = BF16}, {{64, 8, 128, 1, 2, 1, 1, 0, 1, 0}}},
        {{.rows = 9, .n = 4104, .k = 1176, .out_dtype = BF16, .valid = 7}, {{128, 16, 256, 2, 3, 1, 1, 0, 8, 1}}},
        {{.rows = 16, .n = 688, .k = 2048, .out_dtype = BF16, .activation = SILU},
         {{64, 16, 256, 1, 4, 3, 1, 0, 8, 1}}},
        {{.rows = 33, .n = 1000, .k = 2056, .out_dtype = F32, .bias = BF16}, {{128, 24, 128, 1, 3, 2, 1, 0, 2, 1}}},
        {{.rows = 60, .n = 1000, .k = 2048, .out_dtype = BF16}, {{256, 48, 256, 2, 2, 2, 1, 0, 2, 1}}},
        {{.rows = 64, .n = 700, .k = 1152, .out_dtype = F32, .residual = true}, {{128, 64, 128, 2, 3, 1, 2, 1, 1, 1}}},
        {{.rows = 300, .n = 650, .k = 328, .out_dtype = F32, .residual = true}, {{192, 24, 128, 3, 3, 1, 1, 1, 4, 1}}},
        /* Five tiles of W for pairs of blocks: the last block has none; both kinds of sums. */
        {{.rows = 70, .n = 600, .k = 264, .out_dtype = F32}, {{128, 64, 128, 2, 3, 1, 2, 1, 1, 1}}},
        {{.rows = 70, .n = 600, .k = 264, .out_dtype = F32}, {{128, 64, 128, 2, 3, 1, 2, 0, 1, 1}}},
        {{.rows = 257, .n = 336, .k = 520, .out_dtype = BF16, .activation = SILU, .bias = F32},
         {{128, 128, 128, 2, 3, 1, 1, 1, 2, 1}}},
    };
    TEST_NEEDS_DEVICE();
    matmul_device_check_coded(&device_matmul_wgmma, cases, sizeof cases / sizeof cases[0]);
}

TEST(test_coded_candidates)
{
    static const struct matmul_device_problem problems[] = {
        {.rows = 1, .n = 4096, .k = 4096, .out_dtype = F32, .residual = true},
        {.rows = 16, .n = 2064, .k = 2040, .out_dtype = BF16, .activation = SILU},
        {.rows = 64, .n = 6144, .k = 4096, .out_dtype = BF16},
        {.rows = 500, .n = 3080, .k = 1032, .out_dtype = F32, .residual = true},
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
        matmul_device_check_coded_candidates(&device_matmul_wgmma, &h200, &problems[i],
                                             i % 2 ? ENCODING_INT4_G128 : ENCODING_E4M3_CHANNEL);
    matmul_device_check_coded_candidates(&device_matmul_wgmma, &h200, &problems[1], ENCODING_INT4_G32_ZEROS);
    matmul_device_check_coded_candidates(&device_matmul_wgmma, &h200, &problems[3], ENCODING_MXFP8);
}

TEST(test_codes_of_both)
{
    static const struct matmul_device_case cases[] = {
        {{.rows = 1, .n = 8, .k = 16, .out_dtype = BF16, .codes = true}, {{64, 8, 128, 1, 2, 1, 1, 0, 1, 0}}},
        {{.rows = 9, .n = 4104, .k = 1136, .out_dtype = BF16, .valid = 7, .codes = true},
         {{128, 16, 128, 2, 3, 1, 1, 0, 8, 1}}},
        {{.rows = 33, .n = 1000, .k = 2064, .out_dtype = F32, .bias = BF16, .codes = true},
         {{128, 24, 128, 1, 3, 2, 1, 0, 2, 1}}},
        {{.rows = 60, .n = 1000, .k = 2048, .out_dtype = BF16, .codes = true}, {{256, 64, 256, 2, 2, 2, 1, 0, 2, 1}}},
        {{.rows = 64, .n = 700, .k = 1152, .out_dtype = F32, .residual = true, .codes = true},
         {{64, 64, 128, 1, 5, 4, 1, 0, 1, 3}}},
        {{.rows = 300, .n = 650, .k = 336, .out_dtype = F32, .residual = true, .codes = true},
         {{192, 64, 128, 3, 3, 1, 1, 1, 4, 1}}},
        {{.rows = 700, .n = 1600, .k = 4096, .out_dtype = BF16, .codes = true}, {{128, 128, 128, 2, 4, 1, 2, 1, 4, 1}}},
        {{.rows = 501, .n = 1600, .k = 1024, .out_dtype = BF16, .activation = SILU, .codes = true},
         {{256, 96, 128, 2, 4, 1, 1, 1, 4, 1}}},
        {{.rows = 257, .n = 336, .k = 528, .out_dtype = BF16, .activation = SILU, .bias = F32, .codes = true},
         {{128, 160, 128, 2, 3, 1, 1, 1, 2, 1}}},
    };
    TEST_NEEDS_DEVICE();
    /* Every other case with an encoding: twice, from the first and from the second on. */
    matmul_device_check_coded(&device_matmul_wgmma, cases, sizeof cases / sizeof cases[0]);
    matmul_device_check_coded(&device_matmul_wgmma, cases + 1, sizeof cases / sizeof cases[0] - 1);
}

/* Sums of int8 codes reach 2^31 at 2^17 columns: there no x of them is legal, below it is. */
TEST(test_integers_that_fit)
{
    const struct matmul_device_problem problem = {.rows = 64,
                                                  .n = 64,
                                                  .k = (1 << 17) - 16,
                                                  .dtype = (enum dtype)ENCODING_INT8_CHANNEL,
                                                  .out_dtype = F32,
                                                  .codes = true};
    int64_t params[PLAN_MAX_PARAMS], found[4][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    matmul_device_problem_params(&problem, params);
    assert_int_equal(params[MATMUL_INPUT_DTYPE], DTYPE_I8);
    assert_int_equal(device_matmul_wgmma.candidates(params, &h200, found, 4), 4);
    for (int i = 0; i < 4; i++) {
        assert_null(device_matmul_wgmma.launch(found[i], &h200, &geometry));
        found[i][MATMUL_K] = 1 << 17;
        assert_non_null(strstr(device_matmul_wgmma.launch(found[i], &h200, &geometry), "a k below 2^17"));
        found[i][MATMUL_K] = problem.k;
        found[i][MATMUL_DTYPE] = i % 2 ? ENCODING_INT8_G128 : ENCODING_INT4_G32;
        assert_non_null(strstr(device_matmul_wgmma.launch(found[i], &h200, &geometry), "one scale a row"));
        found[i][MATMUL_DTYPE] = ENCODING_E4M3_CHANNEL;
        assert_non_null(strstr(device_matmul_wgmma.launch(found[i], &h200, &geometry), "one scale a row"));
    }
    params[MATMUL_K] = 1 << 17;
    assert_int_equal(device_matmul_wgmma.candidates(params, &h200, found, 4), 0);
    TEST_NEEDS_DEVICE();
    matmul_device_check(&device_matmul_wgmma, &problem,
                        (struct matmul_device_tunables){{64, 64, 128, 1, 5, 1, 1, 0, 1, 1}}, 0);
}

TEST(test_candidates_of_codes)
{
    static const struct matmul_device_problem problems[] = {
        {.rows = 64, .n = 6144, .k = 4096, .out_dtype = BF16, .codes = true},
        {.rows = 32, .n = 2064, .k = 2048, .out_dtype = BF16, .activation = SILU, .codes = true},
        {.rows = 500, .n = 3080, .k = 1040, .out_dtype = F32, .residual = true, .codes = true},
        {.rows = 2048, .n = 4096, .k = 4096, .out_dtype = BF16, .codes = true},
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        matmul_device_check_coded_candidates(&device_matmul_wgmma, &h200, &problems[i],
                                             i % 2 ? ENCODING_E4M3_BLOCK128 : ENCODING_E4M3_CHANNEL);
        matmul_device_check_coded_candidates(&device_matmul_wgmma, &h200, &problems[i], ENCODING_INT8_CHANNEL);
        matmul_device_check_coded_candidates(&device_matmul_wgmma, &h200, &problems[i],
                                             i % 2 ? ENCODING_INT4_G64 : ENCODING_INT4_G128);
    }
}

TEST(test_candidates)
{
    matmul_device_check_candidates(
        &device_matmul_wgmma, &h200, 8,
        (struct matmul_device_problem){.rows = 8, .n = 256, .k = 256, .dtype = BF16, .out_dtype = BF16});
}

TEST(test_hostile)
{
    const struct matmul_device_tunables tunables[] = {split, wide};
    matmul_device_check_refusals(&device_matmul_wgmma, &h200, 80, tunables);
}

int main(void) { return test_run(); }
