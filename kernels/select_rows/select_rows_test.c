/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_rows/select_rows.h"
#include "kernels/op/test_support.h"

TEST(selects)
{
    struct test_random random = {3};
    for (int round = 0; round < 60; round++) {
        int64_t rows = test_random_range(&random, 1, 9), in_rows = test_random_range(&random, 1, 70);
        int64_t width = test_random_range(&random, 1, round < 40 ? 70 : 5000);
        int64_t valid = test_random_range(&random, 0, rows);
        const int64_t params[SELECT_ROWS_PARAMS] = {rows, 1, width, in_rows};
        for (int reference = 0; reference < 2; reference++) {
            struct test_case test;
            test_case_open(&test, &op_select_rows, params, &test_geometry, (int32_t)valid);
            float *x = test.call.operands[SELECT_ROWS_X], *out = test.call.operands[SELECT_ROWS_OUT];
            int32_t *index = test.call.operands[SELECT_ROWS_INDEX];
            test_fill(&random, x, (size_t)(in_rows * width), DTYPE_F32, -1, 1);
            for (int64_t r = 0; r < valid; r++) index[r] = (int32_t)test_random_range(&random, 0, in_rows - 1);
            if (reference)
                op_select_rows.reference(&test.call);
            else
                test_run_op(&op_select_rows, CPU_PORTABLE, &test.call, test_teams[round % TEST_TEAMS]);
            size_t row_bytes = (size_t)width * sizeof(float);
            for (int64_t r = 0; r < valid; r++)
                test_assert_same_bits(out + r * width, x + index[r] * width, row_bytes, "row");
            assert_true(test_is_poison(out + valid * width, (size_t)(rows - valid) * row_bytes));
            test_case_close(&test);
        }
    }
}

TEST(rows_outside_x_are_not_read)
{
    const int64_t params[SELECT_ROWS_PARAMS] = {3, 1, 5, 2};
    struct test_case test;
    test_case_open(&test, &op_select_rows, params, &test_geometry, 3);
    const int32_t index[3] = {-1, 2, 1};
    const float ones[5] = {1, 1, 1, 1, 1}, zeros[5] = {0};
    memcpy((float *)test.call.operands[SELECT_ROWS_X] + 5, ones, sizeof ones);
    memcpy(test.call.operands[SELECT_ROWS_INDEX], index, sizeof index);
    test_run_op(&op_select_rows, CPU_PORTABLE, &test.call, 1);
    float *out = test.call.operands[SELECT_ROWS_OUT];
    test_assert_same_bits(out, zeros, sizeof zeros, "row -1");
    test_assert_same_bits(out + 5, zeros, sizeof zeros, "row 2 of 2");
    test_assert_same_bits(out + 10, ones, sizeof ones, "row 1");
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SELECT_ROWS_PARAMS] = {4, 1, 64, 8};
    test_hostile_params(&op_select_rows, params, &test_geometry);
    test_refuses(&op_select_rows, params, &test_geometry,
                 TEST_CHANGES({SELECT_ROWS_COUNT_INDEX, 0}, {SELECT_ROWS_WIDTH, 0}, {SELECT_ROWS_IN_ROWS, 0},
                              {SELECT_ROWS_IN_ROWS, INT64_MAX}));
}

int main(void) { return test_run(); }
