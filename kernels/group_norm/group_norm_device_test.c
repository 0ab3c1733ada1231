/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm on the GPU against the reference. */
#include "kernels/cuda/test_launch.h"
#include "kernels/group_norm/group_norm.h"

static void check(int64_t rows, int64_t valid, int64_t groups, int64_t width, enum dtype weight_dtype, bool has_means,
                  enum dtype dtype)
{
    const int64_t params[GROUP_NORM_PARAMS] = {rows,         0,         groups, width, test_float_bits(1e-5f),
                                               weight_dtype, has_means, dtype};
    const double relative = dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_F16 ? 5.1e-4 : 4e-3;
    struct test_random random = {(uint64_t)(rows * 5 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_group_norm, params, valid);
    test_launch_fill(&launch, GROUP_NORM_X, &random, -2, 2);
    test_launch_fill(&launch, GROUP_NORM_WEIGHT, &random, 0.5f, 1.5f);
    if (has_means) test_launch_fill(&launch, GROUP_NORM_MEANS, &random, 0.1f, 4);
    struct op_call call = test_launch_call(&launch);
    float *expected = test_take(&launch.memory, test_launch_count(&launch, GROUP_NORM_OUT) * sizeof *expected);
    call.operands[GROUP_NORM_X] = test_launch_decode(&launch, GROUP_NORM_X);
    call.operands[GROUP_NORM_OUT] = expected;
    op_group_norm.reference(&call);
    test_launch_run_twice(&launch);
    test_assert_close(test_launch_found(&launch, GROUP_NORM_OUT), expected, (size_t)(valid * width), 1e-6, relative,
                      "group norm");
    test_launch_assert_rows_untouched(&launch, GROUP_NORM_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 1, 1, DTYPE_F32, false, DTYPE_F32);
    check(5, 4, 3, 60, DTYPE_BF16, false, DTYPE_F16);
    check(33, 31, 8, 8192, DTYPE_BF16, false, DTYPE_BF16);
    check(16, 16, 2, 74, DTYPE_F32, false, DTYPE_F32);
    check(700, 650, 1, 4096, DTYPE_F16, true, DTYPE_BF16);
    check(2, 2, 1, 37, DTYPE_BF16, true, DTYPE_F16);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[GROUP_NORM_PARAMS] = {4, 0, 2, 64, test_float_bits(1e-5f), DTYPE_BF16, 0, DTYPE_BF16};
    test_hostile_launches(&device_group_norm, params);
    test_launch_refuses(&device_group_norm, params,
                        TEST_CHANGES({GROUP_NORM_GROUPS, 0}, {GROUP_NORM_GROUPS, 3}, {GROUP_NORM_HAS_MEANS, 1},
                                     {GROUP_NORM_WIDTH, 0}, {GROUP_NORM_X_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
