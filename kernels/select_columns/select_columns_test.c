/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_columns/select_columns.h"

#include <math.h>

#include "kernels/op/test_support.h"

static void open_case(struct test_case *test, int64_t rows, int64_t valid, int64_t width)
{
    const int64_t params[SELECT_COLUMNS_PARAMS] = {[SELECT_COLUMNS_ROWS] = rows,
                                                   [SELECT_COLUMNS_WIDTH] = width,
                                                   [SELECT_COLUMNS_X_DTYPE] = DTYPE_F32,
                                                   [SELECT_COLUMNS_OUT_DTYPE] = DTYPE_F32};
    test_case_open(test, &op_select_columns, params, &test_geometry, (int32_t)valid);
}

static void draw_order(struct test_random *random, float *order, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        const int64_t j = test_random_range(random, 0, i);
        order[i] = order[j];
        order[j] = (float)i;
    }
}

static void check(int64_t rows, int64_t valid, int64_t width)
{
    struct test_random random = {(uint64_t)(rows + width)};
    struct test_case test;
    open_case(&test, rows, valid, width);
    const float *x = test.call.operands[SELECT_COLUMNS_X], *out = test.call.operands[SELECT_COLUMNS_OUT];
    float *order = test.call.operands[SELECT_COLUMNS_ORDER];
    test_fill(&random, test.call.operands[SELECT_COLUMNS_X], (size_t)(valid * width), DTYPE_F32, -3, 3);
    draw_order(&random, order, width);
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, SELECT_COLUMNS_OUT, run);
        for (int64_t r = 0; r < valid; r++)
            for (int64_t i = 0; i < width; i++)
                if (out[r * width + i] != x[r * width + (int64_t)order[i]])
                    fail_msg("row %ld, column %ld", (long)r, (long)i);
        assert_true(test_is_poison(out + valid * width, (size_t)((rows - valid) * width) * sizeof *out));
    }
    test_case_close(&test);
}

TEST(equals_the_formula)
{
    check(1, 1, 1);
    check(3, 2, 77);
    check(2, 0, 16);
    check(40, 33, 1040);
    check(5, 5, 6000);
}

TEST(columns_outside_x_are_not_read)
{
    static const float order[6] = {-1, 6, NAN, INFINITY, -INFINITY, 5}, x[6] = {1, 2, 3, 4, 5, 7},
                       expected[6] = {[5] = 7};
    struct test_case test;
    open_case(&test, 1, 1, 6);
    memcpy(test.call.operands[SELECT_COLUMNS_X], x, sizeof x);
    memcpy(test.call.operands[SELECT_COLUMNS_ORDER], order, sizeof order);
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, SELECT_COLUMNS_OUT, run);
        test_assert_same_bits(test.call.operands[SELECT_COLUMNS_OUT], expected, sizeof expected, "out");
    }
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SELECT_COLUMNS_PARAMS] = {3, 0, 64, DTYPE_F32, DTYPE_F32};
    test_refuses(&op_select_columns, params, &test_geometry,
                 TEST_CHANGES({SELECT_COLUMNS_ROWS, -1}, {SELECT_COLUMNS_WIDTH, 0},
                              {SELECT_COLUMNS_WIDTH, SELECT_COLUMNS_MOST + 1}, {SELECT_COLUMNS_X_DTYPE, DTYPE_I8},
                              {SELECT_COLUMNS_X_DTYPE, DTYPE_BF16}, {SELECT_COLUMNS_OUT_DTYPE, DTYPE_F16}));
    test_hostile_params(&op_select_columns, params, &test_geometry);
}

int main(void) { return test_run(); }
