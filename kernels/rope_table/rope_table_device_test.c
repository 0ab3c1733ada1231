/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_table/rope_table_device.h"

#include <math.h>

#include "kernels/embed/test_hostile.h"
#include "kernels/rope_table/rope_table.h"

static double worst;

static void check(int64_t rows, int64_t valid, int64_t head_dim, float theta, float scaling, bool switches)
{
    enum { SLOTS = 5 };
    struct test_random random = {(uint64_t)(rows + head_dim)};
    const int64_t half = head_dim / 2;
    const size_t outs = (size_t)(rows * head_dim);
    const int64_t frequencies = switches ? 2 * half : half;
    int32_t counts[2] = {(int32_t)valid, INT32_MAX}, *positions = malloc((size_t)rows * 4);
    int32_t *slots = malloc((size_t)rows * 4), rope_set[SLOTS];
    float *inv_freq = malloc((size_t)frequencies * 4), *out = malloc(outs * 4), *expected = malloc(outs * 4);
    for (int64_t i = 0; i < frequencies; i++)
        inv_freq[i] = powf(theta, -2.0f * (float)(i % half) / (float)head_dim) / (i < half ? 1.0f : 3.0f);
    for (int i = 0; i < SLOTS; i++) rope_set[i] = i % 2;
    for (int64_t r = 0; r < rows; r++) slots[r] = r < valid ? (int32_t)(r * 3 % SLOTS) : INT32_MAX;
    for (int64_t r = 0; r < rows; r++)
        positions[r] = (int32_t)test_random_range(&random, 0, r % 3 ? (1 << 20) - 1 : 5000);
    positions[0] = rows % 2 ? 0 : (1 << 20) - 1;
    struct test_device_buffer buffers[ROPE_TABLE_DEVICE_OPERANDS_SWITCHES] = {test_upload(counts, sizeof counts),
                                                                              test_upload(positions, (size_t)rows * 4),
                                                                              test_upload(inv_freq,
                                                                                          (size_t)frequencies * 4),
                                                                              test_device_buffer_new(outs * 4),
                                                                              test_upload(slots, (size_t)rows * 4),
                                                                              test_upload(rope_set, sizeof rope_set)};
    cu_deviceptr operands[ROPE_TABLE_DEVICE_OPERANDS_SWITCHES];
    for (int i = 0; i < ROPE_TABLE_DEVICE_OPERANDS_SWITCHES; i++) operands[i] = buffers[i].data;
    const int64_t params[ROPE_TABLE_DEVICE_PARAMS] = {rows, 0, head_dim, test_float_bits(scaling), switches};
    struct test_kernel kernel;
    test_kernel_open(&kernel, &device_rope_table, params);
    assert_int_equal(kernel.local_bytes, 0);
    test_kernel_run(&kernel, operands, switches ? ROPE_TABLE_DEVICE_OPERANDS_SWITCHES : ROPE_TABLE_DEVICE_OPERANDS, 0);
    test_device_read(&buffers[ROPE_TABLE_DEVICE_OUT], out, outs * 4);
    const int64_t reference_params[ROPE_TABLE_PARAMS] = {rows, 0, head_dim, test_float_bits(scaling), switches};
    op_rope_table.reference(
        &(struct op_call){reference_params, {counts, positions, inv_freq, expected, slots, rope_set}});
    for (int64_t i = 0; i < valid * head_dim; i++)
        worst = fmax(worst, fabs((double)out[i] - expected[i]) / (double)scaling);
    test_assert_close(out, expected, (size_t)(valid * head_dim), 1e-6 * (double)scaling, 0, "rope_table");
    test_kernel_close(&kernel);
    for (int i = 0; i < ROPE_TABLE_DEVICE_OPERANDS_SWITCHES; i++) {
        test_device_assert_intact(&buffers[i], "rope_table");
        test_device_buffer_free(&buffers[i]);
    }
    free(slots), free(positions), free(inv_freq), free(out), free(expected);
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
    const int64_t params[ROPE_TABLE_DEVICE_PARAMS] = {4, 0, 64, test_float_bits(1)};
    test_hostile_launches(&device_rope_table, params);
    test_launch_refuses(&device_rope_table, params, ROPE_TABLE_DEVICE_SWITCHES, 2);
    test_launch_refuses(&device_rope_table, params, ROPE_TABLE_DEVICE_HEAD_DIM, 63);
    test_launch_refuses(&device_rope_table, params, ROPE_TABLE_DEVICE_HEAD_DIM, 258);
    test_launch_refuses(&device_rope_table, params, ROPE_TABLE_DEVICE_SCALING_BITS, test_float_bits(INFINITY));
}

int main(void) { return test_run(); }
