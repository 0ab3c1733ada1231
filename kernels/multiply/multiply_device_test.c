/* SPDX-License-Identifier: Apache-2.0 */
/* multiply on the GPU against the formula: by a value and by a weight. */
#include "kernels/cuda/test_launch.h"
#include "kernels/multiply/multiply.h"

/* `weight`: DTYPE_NONE: by a value. */
static void check(int64_t rows, int64_t valid, int64_t width, enum dtype x_dtype, enum dtype by_dtype,
                  enum dtype out_dtype, enum dtype weight)
{
    const bool by_weight = weight != DTYPE_NONE;
    const int64_t params[MULTIPLY_PARAMS] = {[MULTIPLY_ROWS] = rows,
                                             [MULTIPLY_WIDTH] = width,
                                             [MULTIPLY_HAS_BY] = !by_weight,
                                             [MULTIPLY_HAS_WEIGHT] = by_weight,
                                             [MULTIPLY_WEIGHT_DTYPE] = by_weight ? weight : DTYPE_F32,
                                             [MULTIPLY_X_DTYPE] = x_dtype,
                                             [MULTIPLY_BY_DTYPE] = by_dtype,
                                             [MULTIPLY_OUT_DTYPE] = out_dtype};
    const int factor = by_weight ? MULTIPLY_WEIGHT : MULTIPLY_BY;
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_multiply, params, valid);
    test_launch_fill(&launch, MULTIPLY_X, &random, -3, 3);
    test_launch_fill(&launch, factor, &random, -2, 2);
    const size_t count = (size_t)(valid * width);
    const float *x = test_launch_decode(&launch, MULTIPLY_X), *by = test_launch_decode(&launch, factor);
    float *expected = test_take(&launch.memory, count * sizeof *expected);
    for (size_t i = 0; i < count; i++) expected[i] = x[i] * by[by_weight ? i % (size_t)width : i];
    test_launch_run(&launch);
    test_assert_close(test_launch_found(&launch, MULTIPLY_OUT), expected, count, out_dtype == DTYPE_F16 ? 6e-8 : 1e-30,
                      out_dtype == DTYPE_F32   ? 0
                      : out_dtype == DTYPE_F16 ? 5e-4
                                               : 4e-3,
                      "multiply");
    test_launch_assert_rows_untouched(&launch, MULTIPLY_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 256, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, DTYPE_NONE);
    check(33, 31, 16, DTYPE_F16, DTYPE_F32, DTYPE_F16, DTYPE_NONE);
    check(5, 4, 13, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_NONE);
    check(4, 4, 2816, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_BF16);
    check(300, 299, 36, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    check(7, 6, 11, DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F16);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[MULTIPLY_PARAMS] = {4, 0, 64, 1, 0, DTYPE_F32, DTYPE_BF16, DTYPE_F32, DTYPE_BF16};
    test_hostile_launches(&device_multiply, params);
    test_launch_refuses(&device_multiply, params,
                        TEST_CHANGES({MULTIPLY_WIDTH, (1 << 24) + 1}, {MULTIPLY_HAS_BY, 0}, {MULTIPLY_HAS_WEIGHT, 1},
                                     {MULTIPLY_X_DTYPE, DTYPE_F8_E4M3}, {MULTIPLY_OUT_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
