/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sigmoid_gate/sigmoid_gate.h"

#include <math.h>

#include "kernels/op/test_support.h"

static void check(int64_t rows, int64_t valid, int64_t width)
{
    struct test_random random = {(uint64_t)(rows + width)};
    const int64_t params[SIGMOID_GATE_PARAMS] =
        {[SIGMOID_GATE_ROWS] = rows, [SIGMOID_GATE_WIDTH] = width, [SIGMOID_GATE_X_DTYPE] = DTYPE_F32};
    const size_t count = (size_t)(valid * width);
    struct test_case test;
    test_case_open(&test, &op_sigmoid_gate, params, &test_geometry, (int32_t)valid);
    float *x = test.call.operands[SIGMOID_GATE_X], *gate = test.call.operands[SIGMOID_GATE_GATE];
    test_fill(&random, x, count, DTYPE_F32, -3, 3);
    test_fill(&random, gate, count, DTYPE_F32, -100, 100);
    const float *out = test.call.operands[SIGMOID_GATE_OUT];
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, SIGMOID_GATE_OUT, run);
        for (size_t i = 0; i < count; i++) {
            const double want = (double)x[i] / (1 + exp(-(double)gate[i]));
            if (!(fabs((double)out[i] - want) <= 3e-7 * fabs(want) + 1e-37))
                fail_msg("element %zu: expected %.9g, found %.9g", i, want, (double)out[i]);
        }
        assert_true(test_is_poison(out + count, (size_t)((rows - valid) * width) * sizeof *out));
    }
    test_case_close(&test);
}

TEST(equals_the_formula)
{
    check(1, 1, 1);
    check(3, 2, 77);
    check(40, 40, 1024);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SIGMOID_GATE_PARAMS] =
        {[SIGMOID_GATE_ROWS] = 3, [SIGMOID_GATE_WIDTH] = 64, [SIGMOID_GATE_X_DTYPE] = DTYPE_F32};
    test_refuses(&op_sigmoid_gate, params, &test_geometry,
                 TEST_CHANGES({SIGMOID_GATE_WIDTH, 0}, {SIGMOID_GATE_ROWS, -1}, {SIGMOID_GATE_X_DTYPE, 0}));
    test_hostile_params(&op_sigmoid_gate, params, &test_geometry);
}

int main(void) { return test_run(); }
