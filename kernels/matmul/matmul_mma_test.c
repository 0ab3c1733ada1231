/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul_mma on the GPU: tails in every dimension, epilogues, counts, every candidate, repeatable bits. */
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

TEST(test_hostile)
{
    const struct matmul_device_tunables tunables[] = {small, large};
    matmul_device_check_refusals(&device_matmul_mma, &a100, 75, tunables);
}

int main(void) { return test_run(); }
