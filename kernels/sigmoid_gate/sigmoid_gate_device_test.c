/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid_gate on the GPU against the formula, also where the output takes the place of an input. */
#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/sigmoid_gate/sigmoid_gate.h"

/* `alias`: the input whose memory the output has; SIGMOID_GATE_OUT: none. */
static void check(int64_t rows, int64_t valid, int64_t width, enum dtype dtype, int alias)
{
    const int64_t params[SIGMOID_GATE_PARAMS] = {rows, 0, width, dtype};
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_sigmoid_gate, params, valid);
    test_launch_fill(&launch, SIGMOID_GATE_X, &random, -3, 3);
    test_launch_fill(&launch, SIGMOID_GATE_GATE, &random, -30, 30);
    if (alias != SIGMOID_GATE_OUT) test_launch_alias(&launch, alias, SIGMOID_GATE_OUT);
    const size_t count = (size_t)(valid * width);
    const float *x = test_launch_decode(&launch, SIGMOID_GATE_X),
                *gate = test_launch_decode(&launch, SIGMOID_GATE_GATE);
    float *expected = test_take(&launch.memory, count * sizeof *expected);
    for (size_t i = 0; i < count; i++) expected[i] = (float)((double)x[i] / (1 + exp(-(double)gate[i])));
    test_launch_run(&launch);
    test_assert_close(test_launch_found(&launch, SIGMOID_GATE_OUT), expected, count, dtype == DTYPE_F16 ? 6e-8 : 1e-30,
                      dtype == DTYPE_F32   ? 1e-6
                      : dtype == DTYPE_F16 ? 5e-4
                                           : 4e-3,
                      "sigmoid_gate");
    test_launch_assert_rows_untouched(&launch, SIGMOID_GATE_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 4096, DTYPE_BF16, SIGMOID_GATE_X);
    check(33, 31, 2056, DTYPE_F16, SIGMOID_GATE_GATE);
    check(5, 4, 13, DTYPE_BF16, SIGMOID_GATE_OUT);
    check(3, 3, 36, DTYPE_F32, SIGMOID_GATE_X);
    check(300, 299, 64, DTYPE_BF16, SIGMOID_GATE_OUT);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SIGMOID_GATE_PARAMS] = {4, 0, 64, DTYPE_BF16};
    test_hostile_launches(&device_sigmoid_gate, params);
    test_launch_refuses(&device_sigmoid_gate, params,
                        TEST_CHANGES({SIGMOID_GATE_WIDTH, (1 << 24) + 1}, {SIGMOID_GATE_X_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
