/* SPDX-License-Identifier: Apache-2.0 */
/* select_columns on the GPU against the formula. */
#include "kernels/cuda/test_launch.h"
#include "kernels/select_columns/select_columns.h"

static void check(int64_t rows, int64_t valid, int64_t width, enum dtype x_dtype, enum dtype out_dtype)
{
    const int64_t params[SELECT_COLUMNS_PARAMS] = {rows, 0, width, x_dtype, out_dtype};
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_select_columns, params, valid);
    test_launch_fill(&launch, SELECT_COLUMNS_X, &random, -3, 3);
    float *order = launch.host[SELECT_COLUMNS_ORDER]; /* both ends are outside */
    for (int64_t i = 0; i < width; i++) order[i] = (float)test_random_range(&random, -1, width);
    const float *x = test_launch_decode(&launch, SELECT_COLUMNS_X);
    float *expected = test_take(&launch.memory, (size_t)(rows * width) * sizeof *expected);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            const bool inside = order[i] >= 0 && order[i] < (float)width;
            expected[r * width + i] = inside ? x[r * width + (int64_t)order[i]] : 0;
        }
    test_launch_run_twice(&launch);
    test_assert_close(test_launch_found(&launch, SELECT_COLUMNS_OUT), expected, (size_t)(valid * width), 0,
                      x_dtype == out_dtype ? 0 : 4e-3, "select_columns");
    test_launch_assert_rows_untouched(&launch, SELECT_COLUMNS_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 4096, DTYPE_BF16, DTYPE_BF16);
    check(33, 31, 2816, DTYPE_F16, DTYPE_F16);
    check(5, 4, 13, DTYPE_BF16, DTYPE_BF16);
    check(7, 7, 36, DTYPE_F32, DTYPE_BF16);
    check(300, 299, 512, DTYPE_F32, DTYPE_BF16);
    check(2, 1, 1, DTYPE_F32, DTYPE_F32);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SELECT_COLUMNS_PARAMS] = {4, 0, 64, DTYPE_F32, DTYPE_BF16};
    test_hostile_launches(&device_select_columns, params);
    test_launch_refuses(&device_select_columns, params,
                        TEST_CHANGES({SELECT_COLUMNS_WIDTH, SELECT_COLUMNS_MOST + 1}, {SELECT_COLUMNS_WIDTH, 0},
                                     {SELECT_COLUMNS_X_DTYPE, DTYPE_F8_E4M3},
                                     {SELECT_COLUMNS_OUT_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
