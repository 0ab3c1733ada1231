/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/xielu/xielu.h"

#include <math.h>

#include "kernels/op/test_support.h"

/* As published models have them; alpha_p and alpha_n before the softplus. */
static const float usual[XIELU_NUMBER_COUNT] = {0.203125f, -1.0546875f, 0.5f, -1e-6f};

static void check(int64_t rows, int64_t valid, int64_t width, float range, enum dtype dtype, const float *numbers)
{
    struct test_random random = {(uint64_t)(rows + width)};
    const int64_t params[XIELU_PARAMS] =
        {[XIELU_ROWS] = rows, [XIELU_WIDTH] = width, [XIELU_NUMBERS_DTYPE] = dtype, [XIELU_X_DTYPE] = DTYPE_F32};
    const size_t count = (size_t)(valid * width);
    struct test_case test;
    test_case_open(&test, &op_xielu, params, &test_geometry, (int32_t)valid);
    float *x = test.call.operands[XIELU_X];
    double by[XIELU_NUMBER_COUNT];
    test_fill(&random, x, count, DTYPE_F32, -range, range);
    x[0] = 0;
    for (int64_t i = 0; i < XIELU_NUMBER_COUNT; i++) {
        if (dtype == DTYPE_F32)
            ((float *)test.call.operands[XIELU_NUMBERS])[i] = numbers[i];
        else
            ((uint16_t *)test.call.operands[XIELU_NUMBERS])[i] =
                dtype == DTYPE_F16 ? f16_from_float(numbers[i]) : bf16_from_float(numbers[i]);
        by[i] = (double)op_element(test.call.operands[XIELU_NUMBERS], i, dtype);
    }
    const double positive = log(1 + exp(by[0])), negative = by[2] + log(1 + exp(by[1]));
    const float *out = test.call.operands[XIELU_OUT];
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, XIELU_OUT, run);
        for (size_t i = 0; i < count; i++) {
            const double in = (double)x[i], least = in < by[3] ? in : by[3];
            const double bent = in > 0 ? positive * in * in : (expm1(least) - in) * negative, linear = by[2] * in;
            if (!(fabs((double)out[i] - (bent + linear)) <= 1e-6 * (fabs(bent) + fabs(linear)) + 1e-37))
                fail_msg("xielu(%.9g): expected %.9g, found %.9g", in, bent + linear, (double)out[i]);
        }
        assert_true(test_is_poison(out + count, (size_t)((rows - valid) * width) * sizeof *out));
    }
    test_case_close(&test);
}

TEST(equals_the_formula)
{
    static const float others[XIELU_NUMBER_COUNT] = {-3, 4, 0.25f, -0.75f}, large[XIELU_NUMBER_COUNT] = {90, 30, 2, 1};
    static const float ranges[] = {1e-7f, 1e-3f, 0.6f, 5, 120};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        check(1, 1, 1, ranges[i], DTYPE_F32, usual);
        check(3, 2, 77, ranges[i], DTYPE_BF16, usual);
        check(40, 40, 1024, ranges[i], DTYPE_F16, others);
        check(5, 4, 36, ranges[i], DTYPE_F32, large);
    }
}

TEST(nan_stays)
{
    const int64_t params[XIELU_PARAMS] =
        {[XIELU_ROWS] = 1, [XIELU_WIDTH] = 9, [XIELU_NUMBERS_DTYPE] = DTYPE_F32, [XIELU_X_DTYPE] = DTYPE_F32};
    struct test_case test;
    test_case_open(&test, &op_xielu, params, &test_geometry, 1);
    float *x = test.call.operands[XIELU_X];
    const float *out = test.call.operands[XIELU_OUT];
    memcpy(test.call.operands[XIELU_NUMBERS], usual, sizeof usual);
    for (int i = 0; i < 9; i++) x[i] = i % 2 ? NAN : 1;
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, XIELU_OUT, run);
        for (int i = 0; i < 9; i++) assert_int_equal(isnan(out[i]) != 0, i % 2);
    }
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[XIELU_PARAMS] =
        {[XIELU_ROWS] = 3, [XIELU_WIDTH] = 64, [XIELU_NUMBERS_DTYPE] = DTYPE_BF16, [XIELU_X_DTYPE] = DTYPE_F32};
    test_refuses(&op_xielu, params, &test_geometry,
                 TEST_CHANGES({XIELU_WIDTH, 0}, {XIELU_ROWS, -1}, {XIELU_NUMBERS_DTYPE, DTYPE_F8_E4M3},
                              {XIELU_X_DTYPE, DTYPE_BF16}));
    test_hostile_params(&op_xielu, params, &test_geometry);
}

int main(void) { return test_run(); }
