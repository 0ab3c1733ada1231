/* SPDX-License-Identifier: Apache-2.0 */
/* xielu on the GPU against the formula, also in place. */
#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/xielu/xielu.h"

static void check(int64_t rows, int64_t valid, int64_t width, enum dtype numbers_dtype, enum dtype dtype, bool in_place)
{
    const int64_t params[XIELU_PARAMS] = {rows, 0, width, numbers_dtype, dtype};
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_xielu, params, valid);
    test_launch_fill(&launch, XIELU_X, &random, -6, 6);
    test_launch_fill(&launch, XIELU_NUMBERS, &random, -1.5f, -0.25f);
    if (in_place) test_launch_alias(&launch, XIELU_X, XIELU_OUT);
    const size_t count = (size_t)(valid * width);
    float *expected = test_take(&launch.memory, count * sizeof *expected);
    const float *x = test_launch_decode(&launch, XIELU_X), *by = test_launch_decode(&launch, XIELU_NUMBERS);
    const double beta = (double)by[2], eps = (double)by[3];
    for (size_t i = 0; i < count; i++) {
        const double in = (double)x[i], least = in < eps ? in : eps;
        expected[i] = (float)(beta * in + (in > 0 ? log(1 + exp((double)by[0])) * in * in
                                                  : (expm1(least) - in) * (beta + log(1 + exp((double)by[1])))));
    }
    test_launch_run(&launch);
    test_assert_close(test_launch_found(&launch, XIELU_OUT), expected, count, 1e-4,
                      dtype == DTYPE_F32   ? 1e-5
                      : dtype == DTYPE_F16 ? 5e-4
                                           : 4e-3,
                      "xielu");
    test_launch_assert_rows_untouched(&launch, XIELU_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 21504, DTYPE_BF16, DTYPE_BF16, true);
    check(33, 31, 2056, DTYPE_F32, DTYPE_F16, false);
    check(5, 4, 13, DTYPE_F16, DTYPE_BF16, true);
    check(300, 299, 36, DTYPE_BF16, DTYPE_F32, false);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[XIELU_PARAMS] = {4, 0, 64, DTYPE_BF16, DTYPE_BF16};
    test_hostile_launches(&device_xielu, params);
    test_launch_refuses(&device_xielu, params,
                        TEST_CHANGES({XIELU_WIDTH, (1 << 24) + 1}, {XIELU_X_DTYPE, DTYPE_F8_E4M3},
                                     {XIELU_NUMBERS_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
