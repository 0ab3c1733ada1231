/* SPDX-License-Identifier: Apache-2.0 */

#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/swiglu/swiglu.h"

static void check_activation(int64_t rows, int64_t valid, int64_t width, enum dtype dtype, float range,
                             enum activation activation)
{
    const int64_t params[SWIGLU_PARAMS] = {rows, 0, width, dtype, activation};
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_swiglu, params, valid);
    const size_t cells = test_launch_count(&launch, SWIGLU_OUT);
    test_launch_fill(&launch, SWIGLU_GATE_UP, &random, -range, range);
    const float *both = test_launch_decode(&launch, SWIGLU_GATE_UP);
    float *expected = test_take(&launch.memory, cells * sizeof *expected);
    for (size_t i = 0; i < cells; i++) {
        const double gate = both[i / 8 * 16 + i % 8], up = both[i / 8 * 16 + 8 + i % 8];
        expected[i] = (float)(activate_exactly(activation, gate) * up);
    }
    test_launch_run_twice(&launch);
    test_assert_close(test_launch_found(&launch, SWIGLU_OUT), expected, (size_t)(valid * width),
                      dtype == DTYPE_F16 ? 6e-8 : 1e-30, dtype == DTYPE_F16 ? 5e-4 : 4e-3, "swiglu");
    test_launch_close(&launch);
}

static void check(int64_t rows, int64_t valid, int64_t width, enum dtype dtype, float range)
{
    for (int activation = ACTIVATION_SILU; activation < ACTIVATION_COUNT; activation++)
        if (activation != ACTIVATION_SOFTCAP && activation != ACTIVATION_CLAMPED)
            check_activation(rows, valid, width, dtype, range, (enum activation)activation);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    for (int d = 0; d < 2; d++) {
        enum dtype dtype = d ? DTYPE_F16 : DTYPE_BF16;
        check(1, 1, 8, dtype, 4);
        check(3, 2, 24, dtype, 10);
        check(16, 15, 8192, dtype, 8);
        check(130, 129, 1000, dtype, 40);
        check(4, 4, 14336, dtype, 0.01f);
    }
    check(5, 5, 512, DTYPE_BF16, 120); /* where exp overflows */
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SWIGLU_PARAMS] = {4, 0, 64, DTYPE_BF16, ACTIVATION_SILU};
    test_hostile_launches(&device_swiglu, params);
    test_launch_refuses(&device_swiglu, params,
                        TEST_CHANGES({SWIGLU_WIDTH, 12}, {SWIGLU_X_DTYPE, DTYPE_F32},
                                     {SWIGLU_ACTIVATION, ACTIVATION_NONE}, {SWIGLU_ACTIVATION, ACTIVATION_SOFTCAP},
                                     {SWIGLU_ACTIVATION, ACTIVATION_CLAMPED}, {SWIGLU_ACTIVATION, ACTIVATION_COUNT}));
}

int main(void) { return test_run(); }
