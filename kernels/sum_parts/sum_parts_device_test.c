/* SPDX-License-Identifier: Apache-2.0 */
/* sum_parts on the GPU against plain sums. */
#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/sum_parts/sum_parts.h"

static void check(int64_t rows, int64_t valid, int64_t width, int64_t parts, enum dtype out_dtype, bool residual)
{
    const int64_t params[SUM_PARTS_PARAMS] = {rows, 0, width, parts, out_dtype, residual};
    struct test_random random = {(uint64_t)(rows * 3 + width + parts)};
    struct test_launch launch;
    test_launch_open(&launch, &device_sum_parts, params, valid);
    test_launch_fill(&launch, SUM_PARTS_X, &random, -2, 2);
    if (residual) {
        test_launch_fill(&launch, SUM_PARTS_RESIDUAL, &random, -2, 2);
        test_launch_alias(&launch, SUM_PARTS_RESIDUAL, SUM_PARTS_OUT);
    }
    const float *x = launch.host[SUM_PARTS_X], *before = launch.host[SUM_PARTS_RESIDUAL];
    float *expected = test_take(&launch.memory, (size_t)(rows * width) * sizeof *expected);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t n = 0; n < width; n++) {
            float sum = residual ? before[row * width + n] : 0;
            for (int64_t part = 0; part < parts; part++) sum += x[(row * parts + part) * width + n];
            expected[row * width + n] = sum;
        }
    test_launch_run(&launch);
    test_assert_close(test_launch_found(&launch, SUM_PARTS_OUT), expected, (size_t)(valid * width), 1e-30,
                      out_dtype == DTYPE_F32 ? 0 : 4e-3, "sum_parts");
    test_launch_assert_rows_untouched(&launch, SUM_PARTS_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 2048, 8, DTYPE_F32, true);
    check(16, 15, 2880, 4, DTYPE_F32, true);
    check(3, 2, 7, 64, DTYPE_F32, false);
    check(130, 129, 72, 1, DTYPE_BF16, false);
    check(2, 2, 4096, 10, DTYPE_F16, false);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SUM_PARTS_PARAMS] = {4, 0, 64, 8, DTYPE_F32, 1};
    test_hostile_launches(&device_sum_parts, params);
    test_launch_refuses(&device_sum_parts, params,
                        TEST_CHANGES({SUM_PARTS_PARTS, 0}, {SUM_PARTS_PARTS, 65}, {SUM_PARTS_OUT_DTYPE, DTYPE_BF16},
                                     {SUM_PARTS_WIDTH, (1 << 24) + 1}));
}

int main(void) { return test_run(); }
