/* SPDX-License-Identifier: Apache-2.0 */

#include "kernels/cuda/test_launch.h"
#include "kernels/select_rows/select_rows.h"

static void check(int64_t rows, int64_t valid, int64_t width, int64_t in_rows)
{
    const int64_t params[SELECT_ROWS_PARAMS] = {rows, 1, width, in_rows, DTYPE_F32};
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_select_rows, params, valid);
    test_launch_fill(&launch, SELECT_ROWS_X, &random, -3, 3);
    int32_t *index = launch.host[SELECT_ROWS_INDEX];
    for (int64_t r = 0; r < rows; r++)
        index[r] = r < valid ? (int32_t)test_random_range(&random, -1, in_rows) : INT32_MAX; /* both ends are outside */
    test_launch_run(&launch);
    struct op_call call = test_launch_call(&launch);
    op_select_rows.reference(&call);
    test_assert_same_bits(launch.found[SELECT_ROWS_OUT], call.operands[SELECT_ROWS_OUT], (size_t)(valid * width) * 4,
                          "select_rows");
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 4096, 512);
    check(16, 9, 2048, 16);
    check(7, 7, 33, 3);
    check(3, 3, 1, 5);
    check(64, 50, 5000, 100);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SELECT_ROWS_PARAMS] = {4, 1, 64, 8, DTYPE_F32};
    test_hostile_launches(&device_select_rows, params);
    test_launch_refuses(&device_select_rows, params, TEST_CHANGES({SELECT_ROWS_WIDTH, 0}, {SELECT_ROWS_IN_ROWS, 0}));
}

int main(void) { return test_run(); }
