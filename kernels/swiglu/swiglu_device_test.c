/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/swiglu/swiglu_device.h"

#include <math.h>

#include "kernels/embed/test_hostile.h"
#include "kernels/swiglu/swiglu.h"

static void check_activation(int64_t rows, int64_t valid, int64_t width, enum dtype dtype, float range,
                             enum activation activation)
{
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    const size_t cells = (size_t)(rows * width), valid_cells = (size_t)(valid * width);
    float *both = malloc(cells * 8), *expected = malloc(cells * 4);
    float *out = malloc(cells * 4);
    void *encoded = malloc(cells * 4), *found = malloc(cells * 2), *again = malloc(cells * 2);
    int32_t counts[2] = {(int32_t)valid, INT32_MAX};
    test_fill(&random, both, 2 * cells, DTYPE_F32, -range, range);
    test_encode(both, encoded, 2 * cells, dtype);
    test_decode(encoded, both, 2 * cells, dtype);
    for (size_t i = 0; i < cells; i++) {
        const double gate = both[i / 8 * 16 + i % 8], up = both[i / 8 * 16 + 8 + i % 8];
        expected[i] = (float)(activate_exactly(activation, gate) * up);
    }
    struct test_device_buffer buffers[SWIGLU_OPERANDS] = {test_upload(counts, sizeof counts),
                                                          test_upload(encoded, cells * 4),
                                                          test_device_buffer_new(cells * 2)};
    cu_deviceptr operands[SWIGLU_OPERANDS];
    for (int i = 0; i < SWIGLU_OPERANDS; i++) operands[i] = buffers[i].data;
    const int64_t params[SWIGLU_PARAMS] = {rows, 0, width, dtype, activation};
    struct test_kernel kernel;
    test_kernel_open(&kernel, &device_swiglu, params);
    assert_int_equal(kernel.local_bytes, 0);
    test_kernel_run(&kernel, operands, SWIGLU_OPERANDS, 0);
    test_device_read(&buffers[SWIGLU_OUT], found, cells * 2);
    test_device_buffer_poison(&buffers[SWIGLU_OUT]);
    test_kernel_run(&kernel, operands, SWIGLU_OPERANDS, 0);
    test_device_read(&buffers[SWIGLU_OUT], again, cells * 2);
    test_assert_same_bits(found, again, valid_cells * 2, "swiglu, second run");
    test_decode(found, out, valid_cells, dtype);
    test_assert_close(out, expected, valid_cells, dtype == DTYPE_F16 ? 6e-8 : 1e-30, dtype == DTYPE_F16 ? 5e-4 : 4e-3,
                      "swiglu");
    test_kernel_close(&kernel);
    for (int i = 0; i < SWIGLU_OPERANDS; i++) {
        test_device_assert_intact(&buffers[i], "swiglu");
        test_device_buffer_free(&buffers[i]);
    }
    free(both), free(expected), free(out), free(encoded), free(found), free(again);
}

static void check(int64_t rows, int64_t valid, int64_t width, enum dtype dtype, float range)
{
    for (int activation = ACTIVATION_SILU; activation < ACTIVATION_COUNT; activation++)
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

TEST(times)
{
    TEST_NEEDS_DEVICE();
    if (!getenv("BENCH")) skip();
    enum { COPIES = 6, ROWS = 2048, WIDTH = 14336 };
    const int64_t params[SWIGLU_PARAMS] = {ROWS, 0, WIDTH, DTYPE_BF16, ACTIVATION_SILU};
    const int32_t counts[2] = {ROWS, 0};
    struct test_device_buffer count_buffer = test_upload(counts, sizeof counts), in[COPIES], out[COPIES];
    uint16_t *values = malloc((size_t)ROWS * WIDTH * 4);
    struct test_random random = {6};
    test_fill(&random, values, (size_t)ROWS * WIDTH * 2, DTYPE_BF16, -3, 3);
    cu_deviceptr operands[COPIES][SWIGLU_OPERANDS];
    for (int i = 0; i < COPIES; i++) {
        in[i] = test_upload(values, (size_t)ROWS * WIDTH * 4),
        out[i] = test_device_buffer_new((size_t)ROWS * WIDTH * 2);
        operands[i][0] = count_buffer.data, operands[i][1] = in[i].data, operands[i][2] = out[i].data;
    }
    struct test_kernel kernel;
    test_kernel_open(&kernel, &device_swiglu, params);
    double us = test_kernel_time(&kernel, operands[0], SWIGLU_OPERANDS, COPIES, 0);
    uint64_t bytes, flops;
    device_swiglu.cost(params, 0, &bytes, &flops);
    print_message("swiglu %d x %d: %.2f us, %.0f GB/s\n", ROWS, WIDTH, us, (double)bytes / us * 1e-3);
    test_kernel_close(&kernel);
    for (int i = 0; i < COPIES; i++) test_device_buffer_free(&in[i]), test_device_buffer_free(&out[i]);
    test_device_buffer_free(&count_buffer);
    free(values);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[SWIGLU_PARAMS] = {4, 0, 64, DTYPE_BF16, ACTIVATION_SILU};
    test_hostile_launches(&device_swiglu, params);
    test_launch_refuses(&device_swiglu, params, SWIGLU_WIDTH, 12);
    test_launch_refuses(&device_swiglu, params, SWIGLU_X_DTYPE, DTYPE_F32);
    test_launch_refuses(&device_swiglu, params, SWIGLU_ACTIVATION, ACTIVATION_NONE);
    test_launch_refuses(&device_swiglu, params, SWIGLU_ACTIVATION, ACTIVATION_COUNT);
}

int main(void) { return test_run(); }
