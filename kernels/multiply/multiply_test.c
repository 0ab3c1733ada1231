/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/multiply/multiply.h"

#include "kernels/op/test_support.h"

static void check(int64_t rows, int64_t valid, int64_t width, enum dtype dtype)
{
    struct test_random random = {(uint64_t)(rows + width)};
    const int64_t params[MULTIPLY_PARAMS] = {[MULTIPLY_ROWS] = rows,
                                             [MULTIPLY_WIDTH] = width,
                                             [MULTIPLY_HAS_BY] = dtype == DTYPE_NONE,
                                             [MULTIPLY_HAS_WEIGHT] = dtype != DTYPE_NONE,
                                             [MULTIPLY_WEIGHT_DTYPE] = dtype == DTYPE_NONE ? DTYPE_F32 : dtype,
                                             [MULTIPLY_X_DTYPE] = DTYPE_F32,
                                             [MULTIPLY_BY_DTYPE] = DTYPE_F32,
                                             [MULTIPLY_OUT_DTYPE] = DTYPE_F32};
    const size_t count = (size_t)(valid * width);
    struct test_case test;
    test_case_open(&test, &op_multiply, params, &test_geometry, (int32_t)valid);
    float *x = test.call.operands[MULTIPLY_X];
    test_fill(&random, x, count, DTYPE_F32, -3, 3);
    if (dtype == DTYPE_NONE)
        test_fill(&random, test.call.operands[MULTIPLY_BY], count, DTYPE_F32, -5, 5);
    else
        test_fill(&random, test.call.operands[MULTIPLY_WEIGHT], (size_t)width, dtype, -5, 5);
    const float *out = test.call.operands[MULTIPLY_OUT], *by = test.call.operands[MULTIPLY_BY];
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, MULTIPLY_OUT, run);
        for (size_t i = 0; i < count; i++) {
            const int64_t column = (int64_t)i % width;
            const float factor = by ? by[i] : op_element(test.call.operands[MULTIPLY_WEIGHT], column, dtype);
            if (out[i] != x[i] * factor)
                fail_msg("element %zu: expected %.9g, found %.9g", i, (double)(x[i] * factor), (double)out[i]);
        }
        assert_true(test_is_poison(out + count, (size_t)((rows - valid) * width) * sizeof *out));
    }
    test_case_close(&test);
}

TEST(equals_the_formula)
{
    static const enum dtype dtypes[] = {DTYPE_NONE, DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        check(1, 1, 1, dtypes[i]);
        check(3, 2, 77, dtypes[i]);
        check(40, 40, 1024, dtypes[i]);
    }
}

TEST(hostile_params_are_refused)
{
    const int64_t params[MULTIPLY_PARAMS] = {[MULTIPLY_ROWS] = 3,
                                             [MULTIPLY_WIDTH] = 64,
                                             [MULTIPLY_HAS_WEIGHT] = 1,
                                             [MULTIPLY_WEIGHT_DTYPE] = DTYPE_BF16,
                                             [MULTIPLY_X_DTYPE] = DTYPE_F32,
                                             [MULTIPLY_BY_DTYPE] = DTYPE_F32,
                                             [MULTIPLY_OUT_DTYPE] = DTYPE_F32};
    test_refuses(&op_multiply, params, &test_geometry,
                 TEST_CHANGES({MULTIPLY_WIDTH, 0}, {MULTIPLY_ROWS, -1}, {MULTIPLY_HAS_BY, 1}, {MULTIPLY_HAS_WEIGHT, 0},
                              {MULTIPLY_WEIGHT_DTYPE, DTYPE_F8_E4M3}, {MULTIPLY_X_DTYPE, 0}, {MULTIPLY_OUT_DTYPE, 0}));
    test_hostile_params(&op_multiply, params, &test_geometry);
}

int main(void) { return test_run(); }
