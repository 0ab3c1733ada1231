/* SPDX-License-Identifier: Apache-2.0 */

#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/rope_table/rope_table.h"

static double worst;

static void check(int64_t rows, int64_t valid, int64_t head_dim, float theta, float scaling, bool switches)
{
    const int64_t params[ROPE_TABLE_PARAMS] = {rows, 0, head_dim, test_float_bits(scaling), switches};
    struct test_random random = {(uint64_t)(rows + head_dim)};
    struct test_launch launch;
    test_launch_open(&launch, &device_rope_table, params, valid);
    const int64_t half = head_dim / 2;
    float *inv_freq = launch.host[ROPE_TABLE_INV_FREQ];
    int32_t *positions = launch.host[ROPE_TABLE_POSITIONS], *slots = launch.host[ROPE_TABLE_SLOTS];
    int32_t *rope_set = launch.host[ROPE_TABLE_ROPE_SET];
    for (int64_t i = 0; i < (switches ? 2 * half : half); i++)
        inv_freq[i] = powf(theta, -2.0f * (float)(i % half) / (float)head_dim) / (i < half ? 1.0f : 3.0f);
    for (int i = 0; switches && i < TEST_LAUNCH_SLOTS; i++) rope_set[i] = i % 2;
    for (int64_t r = 0; switches && r < rows; r++)
        slots[r] = r < valid ? (int32_t)(r * 3 % TEST_LAUNCH_SLOTS) : INT32_MAX;
    for (int64_t r = 0; r < rows; r++)
        positions[r] = (int32_t)test_random_range(&random, 0, r % 3 ? (1 << 20) - 1 : 5000);
    positions[0] = rows % 2 ? 0 : (1 << 20) - 1;
    test_launch_run(&launch);
    struct op_call call = test_launch_call(&launch);
    op_rope_table.reference(&call);
    const float *out = launch.found[ROPE_TABLE_OUT], *expected = call.operands[ROPE_TABLE_OUT];
    for (int64_t i = 0; i < valid * head_dim; i++)
        worst = fmax(worst, fabs((double)out[i] - expected[i]) / (double)scaling);
    test_assert_close(out, expected, (size_t)(valid * head_dim), 1e-6 * (double)scaling, 0, "rope_table");
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 128, 500000, 1, false);
    check(1, 1, 2, 10000, 1, false);
    check(16, 13, 64, 10000, 1, false);
    check(777, 700, 128, 1e6f, 1.2f, false);
    check(2048, 2048, 128, 10000, 1, false);
    check(100, 99, 254, 500000, 1, false);
    check(64, 64, 80, 0.5f, 0.1f, false); /* frequencies above 1: angles up to 2^21 */
    check(16, 13, 24, 10000, 1.2f, true);
    check(777, 700, 96, 1e6f, 1, true);
    check(1, 1, 2, 10000, 1, true);
    print_message("largest error %.3g\n", worst);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ROPE_TABLE_PARAMS] = {4, 0, 64, test_float_bits(1)};
    test_hostile_launches(&device_rope_table, params);
    test_launch_refuses(&device_rope_table, params,
                        TEST_CHANGES({ROPE_TABLE_SWITCHES, 2}, {ROPE_TABLE_HEAD_DIM, 63},
                                     {ROPE_TABLE_HEAD_DIM, OP_MAX_HEAD_DIM + 2},
                                     {ROPE_TABLE_SCALING_BITS, test_float_bits(INFINITY)}));
}

int main(void) { return test_run(); }
