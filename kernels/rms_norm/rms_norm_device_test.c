/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rms_norm/rms_norm_device.h"

#include <inttypes.h>

#include "kernels/embed/test_hostile.h"
#include "kernels/rms_norm/rms_norm.h"

static const float eps = 1e-5f;

static double relative_of(enum dtype dtype) { return dtype == DTYPE_F32 ? 1e-6 : dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3; }

/* `copy_dtype`: DTYPE_NONE: the op neither adds nor copies. */
static void check_all(int64_t rows, int64_t valid, int64_t hidden, enum dtype dtype, enum dtype out_dtype,
                      int64_t threads, enum dtype copy_dtype)
{
    const bool adds = copy_dtype != DTYPE_NONE;
    const int operand_count = adds ? RMS_NORM_DEVICE_OPERANDS : RMS_NORM_DEVICE_LEAST_OPERANDS;
    struct test_random random = {(uint64_t)(rows * 3 + hidden)};
    const size_t cells = (size_t)(rows * hidden), valid_cells = (size_t)(valid * hidden);
    const size_t element = dtype_bytes(dtype), out_bytes = cells * dtype_bytes(out_dtype);
    const size_t copy_bytes = adds ? cells * dtype_bytes(copy_dtype) : 16;
    float *x = malloc(cells * 4), *expected = malloc(cells * 4), *out = malloc(cells * 4), *add_to = malloc(cells * 4);
    void *copy = malloc(copy_bytes);
    void *weight = malloc((size_t)hidden * element), *found = malloc(out_bytes), *again = malloc(out_bytes);
    int32_t counts[2] = {INT32_MAX, (int32_t)valid};
    test_fill(&random, x, cells, DTYPE_F32, -3, 3);
    test_fill(&random, weight, (size_t)hidden, dtype, 0.2f, 2);
    test_fill(&random, add_to, cells, DTYPE_F32, -3, 3);
    struct test_device_buffer buffers[RMS_NORM_DEVICE_OPERANDS] = {test_upload(counts, sizeof counts),
                                                                   test_upload(x, cells * 4),
                                                                   test_upload(weight, (size_t)hidden * element),
                                                                   test_device_buffer_new(out_bytes),
                                                                   test_upload(add_to, cells * 4),
                                                                   test_device_buffer_new(copy_bytes)};
    cu_deviceptr operands[RMS_NORM_DEVICE_OPERANDS];
    for (int i = 0; i < RMS_NORM_DEVICE_OPERANDS; i++) operands[i] = buffers[i].data;
    const int64_t params[RMS_NORM_DEVICE_PARAMS] = {rows,      1, hidden, dtype, test_float_bits(eps),
                                                    out_dtype, 0, adds,   adds,  adds ? copy_dtype : DTYPE_BF16,
                                                    threads};
    struct test_kernel kernel;
    test_kernel_open(&kernel, &device_rms_norm, params);
    assert_int_equal(kernel.local_bytes, 0);
    test_kernel_run(&kernel, operands, operand_count, 0);
    test_device_read(&buffers[RMS_NORM_OUT], found, out_bytes);
    test_device_buffer_poison(&buffers[RMS_NORM_OUT]);
    test_kernel_run(&kernel, operands, operand_count, 0);
    test_device_read(&buffers[RMS_NORM_OUT], again, out_bytes);
    test_assert_same_bits(found, again, valid_cells * dtype_bytes(out_dtype), "rms_norm, second run");
    const int64_t reference_params[RMS_NORM_PARAMS] = {[RMS_NORM_ROWS] = rows,
                                                       [RMS_NORM_COUNT_INDEX] = 1,
                                                       [RMS_NORM_HIDDEN] = hidden,
                                                       [RMS_NORM_WEIGHT_DTYPE] = dtype,
                                                       [RMS_NORM_EPS_BITS] = test_float_bits(eps),
                                                       [RMS_NORM_HAS_ADD_TO] = adds};
    rms_norm_reference(
        &(struct op_call){reference_params, {counts, x, weight, expected, [RMS_NORM_ADD_TO] = adds ? add_to : NULL}});
    test_decode(found, out, valid_cells, out_dtype);
    /* Where the sum nearly cancels, the error is that of its parts. */
    const double absolute = adds ? 2e-5 : 1e-7;
    test_assert_close(out, expected, valid_cells, absolute, relative_of(out_dtype), "rms_norm");
    if (adds) {
        test_device_read(&buffers[RMS_NORM_DEVICE_COPY], copy, copy_bytes);
        test_decode(copy, out, valid_cells, copy_dtype);
        test_assert_close(out, expected, valid_cells, absolute, relative_of(copy_dtype), "rms_norm, copy");
    }
    test_kernel_close(&kernel);
    for (int i = 0; i < RMS_NORM_DEVICE_OPERANDS; i++) {
        test_device_assert_intact(&buffers[i], "rms_norm");
        test_device_buffer_free(&buffers[i]);
    }
    free(x), free(expected), free(out), free(weight), free(found), free(again), free(add_to), free(copy);
}

static void check(int64_t rows, int64_t valid, int64_t hidden, enum dtype dtype, enum dtype out_dtype, int64_t threads)
{
    check_all(rows, valid, hidden, dtype, out_dtype, threads, DTYPE_NONE);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int d = 0; d < 3; d++)
        for (int o = 0; o < 3; o++) check(9, 7, 2048, dtypes[d], dtypes[o], o == 0 ? 1024 : 256);
    check(1, 1, 4096, DTYPE_BF16, DTYPE_BF16, 1024);
    check(300, 300, 4096, DTYPE_BF16, DTYPE_BF16, 256);
    check(3, 2, 1, DTYPE_F32, DTYPE_F32, 32);
    check(3, 3, 333, DTYPE_F16, DTYPE_F16, 64);
    check(2, 2, 20002, DTYPE_BF16, DTYPE_BF16, 128); /* does not stay in registers */
    check(2, 2, 40000, DTYPE_F32, DTYPE_F32, 1024);
    check(5, 5, 2880, DTYPE_BF16, DTYPE_BF16, 96);
}

TEST(adds_and_copies)
{
    TEST_NEEDS_DEVICE();
    check_all(9, 7, 2048, DTYPE_BF16, DTYPE_F32, 256, DTYPE_BF16);
    check_all(1, 1, 4096, DTYPE_F16, DTYPE_F32, 1024, DTYPE_F16);
    check_all(3, 3, 333, DTYPE_F32, DTYPE_F32, 64, DTYPE_BF16);
    check_all(2, 2, 20002, DTYPE_BF16, DTYPE_F32, 128, DTYPE_BF16); /* does not stay in registers */
    check_all(5, 4, 2880, DTYPE_BF16, DTYPE_F32, 96, DTYPE_F32);
}

static void time_rows(int64_t rows, int64_t hidden)
{
    enum { COPIES = 12 };
    int64_t candidates[8][PLAN_MAX_PARAMS];
    const int64_t params[RMS_NORM_DEVICE_PARAMS] =
        {rows, 0, hidden, DTYPE_BF16, test_float_bits(eps), DTYPE_BF16, [RMS_NORM_COPY_DTYPE] = DTYPE_BF16};
    int count = rms_norm_device_candidates(params, &test_device()->device.facts, candidates, 8);
    assert_true(count > 0);
    const size_t cells = (size_t)(rows * hidden);
    float *x = malloc(cells * 4);
    struct test_random random = {5};
    test_fill(&random, x, cells, DTYPE_F32, -3, 3);
    const int32_t counts[2] = {(int32_t)rows, 0};
    struct test_device_buffer count_buffer = test_upload(counts, sizeof counts);
    struct test_device_buffer weight = test_upload(x, (size_t)hidden * 2), in[COPIES], out[COPIES];
    cu_deviceptr operands[COPIES][RMS_NORM_DEVICE_LEAST_OPERANDS];
    for (int i = 0; i < COPIES; i++) {
        in[i] = test_upload(x, cells * 4), out[i] = test_device_buffer_new(cells * 2);
        operands[i][0] = count_buffer.data, operands[i][1] = in[i].data;
        operands[i][2] = weight.data, operands[i][3] = out[i].data;
    }
    uint64_t bytes, flops;
    for (int c = 0; c < count; c++) {
        struct test_kernel kernel;
        test_kernel_open(&kernel, &device_rms_norm, candidates[c]);
        double us = test_kernel_time(&kernel, operands[0], RMS_NORM_DEVICE_LEAST_OPERANDS, COPIES, 0);
        device_rms_norm.cost(candidates[c], 0, &bytes, &flops);
        print_message("rms_norm %" PRId64 " x %" PRId64 " threads %4" PRId64 ": %.2f us, %.0f GB/s\n", rows, hidden,
                      candidates[c][RMS_NORM_DEVICE_THREADS], us, (double)bytes / us * 1e-3);
        test_kernel_close(&kernel);
    }
    for (int i = 0; i < COPIES; i++) test_device_buffer_free(&in[i]), test_device_buffer_free(&out[i]);
    test_device_buffer_free(&weight), test_device_buffer_free(&count_buffer);
    free(x);
}

TEST(times)
{
    TEST_NEEDS_DEVICE();
    if (!getenv("BENCH")) skip();
    time_rows(1, 4096);
    time_rows(16, 4096);
    time_rows(2048, 4096);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[RMS_NORM_DEVICE_PARAMS] = {4, 0, 64,         DTYPE_BF16, test_float_bits(eps), DTYPE_BF16, 0,
                                                    0, 0, DTYPE_BF16, 256};
    test_hostile_launches(&device_rms_norm, params);
    test_launch_refuses(&device_rms_norm, params, RMS_NORM_HIDDEN, 0);
    test_launch_refuses(&device_rms_norm, params, RMS_NORM_DEVICE_THREADS, 48);
    test_launch_refuses(&device_rms_norm, params, RMS_NORM_DEVICE_THREADS, 1056);
    test_launch_refuses(&device_rms_norm, params, RMS_NORM_OUT_DTYPE, DTYPE_U8);
    const struct device_facts facts = test_facts(90);
    int64_t candidates[8][PLAN_MAX_PARAMS];
    assert_in_range(rms_norm_device_candidates(params, &facts, candidates, 8), 1, 8);
    assert_int_equal(rms_norm_device_candidates(params, &facts, candidates, 1), 1);
}

int main(void) { return test_run(); }
