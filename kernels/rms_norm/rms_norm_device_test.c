/* SPDX-License-Identifier: Apache-2.0 */

#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/cuda/test_launch.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm.h"

static const float eps = 1e-5f;

static double relative_of(enum dtype dtype) { return dtype == DTYPE_F32 ? 1e-6 : dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3; }

/* `copy_dtype`: DTYPE_NONE: the op neither adds nor copies. `bias`, `factor`: likewise. `parts`: 0: no residual. */
static void check_parts(int64_t rows, int64_t valid, int64_t hidden, enum dtype dtype, enum dtype out_dtype,
                        int64_t threads, enum dtype copy_dtype, bool centred, enum dtype bias, enum dtype factor,
                        int64_t parts)
{
    const bool adds = copy_dtype != DTYPE_NONE;
    const int64_t params[RMS_NORM_DEVICE_PARAMS] = {rows,
                                                    1,
                                                    hidden,
                                                    dtype,
                                                    test_float_bits(eps),
                                                    out_dtype,
                                                    parts > 0,
                                                    adds,
                                                    adds,
                                                    adds ? copy_dtype : DTYPE_BF16,
                                                    0,
                                                    centred,
                                                    bias != DTYPE_NONE,
                                                    bias ? bias : DTYPE_BF16,
                                                    factor != DTYPE_NONE,
                                                    factor ? factor : DTYPE_BF16,
                                                    parts ? parts : 1,
                                                    threads};
    struct test_random random = {(uint64_t)(rows * 3 + hidden)};
    struct test_launch launch;
    test_launch_open(&launch, &device_rms_norm, params, valid);
    const size_t cells = (size_t)(rows * hidden), valid_cells = (size_t)(valid * hidden);
    test_launch_fill(&launch, RMS_NORM_X, &random, -3, 3);
    test_launch_fill(&launch, RMS_NORM_WEIGHT, &random, 0.2f, 2);
    if (bias) test_launch_fill(&launch, RMS_NORM_BIAS, &random, -1, 1);
    if (factor) test_launch_fill(&launch, RMS_NORM_FACTOR, &random, 0.2f, 1);
    if (adds) test_launch_fill(&launch, RMS_NORM_ADD_TO, &random, -3, 3);
    if (parts) test_launch_fill(&launch, RMS_NORM_RESIDUAL, &random, -3, 3);
    test_launch_run_twice(&launch);
    struct op_call call = test_launch_call(&launch);
    float *sum = parts ? test_take(&launch.memory, cells * sizeof *sum) : NULL;
    call.operands[RMS_NORM_SUM] = sum;
    float *expected = call.operands[RMS_NORM_OUT] = test_take(&launch.memory, cells * sizeof *expected);
    rms_norm_reference(&call);
    /* Where the sum nearly cancels, the error is that of its parts. */
    const double absolute = adds || centred || bias ? 2e-5 : 1e-7;
    if (parts) /* the same additions in the same order */
        assert_memory_equal(test_launch_found(&launch, RMS_NORM_SUM), sum, valid_cells * sizeof *sum);
    test_assert_close(test_launch_found(&launch, RMS_NORM_OUT), expected, valid_cells, absolute, relative_of(out_dtype),
                      "rms_norm");
    if (adds)
        test_assert_close(test_launch_found(&launch, RMS_NORM_COPY), expected, valid_cells, absolute,
                          relative_of(copy_dtype), "rms_norm, copy");
    test_launch_close(&launch);
}

static void check_factors(int64_t rows, int64_t valid, int64_t hidden, enum dtype dtype, enum dtype out_dtype,
                          int64_t threads, enum dtype copy_dtype, bool centred, enum dtype bias, enum dtype factor)
{
    check_parts(rows, valid, hidden, dtype, out_dtype, threads, copy_dtype, centred, bias, factor, 0);
}

static void check_all(int64_t rows, int64_t valid, int64_t hidden, enum dtype dtype, enum dtype out_dtype,
                      int64_t threads, enum dtype copy_dtype, bool centred, enum dtype bias)
{
    check_factors(rows, valid, hidden, dtype, out_dtype, threads, copy_dtype, centred, bias, DTYPE_NONE);
}

static void check(int64_t rows, int64_t valid, int64_t hidden, enum dtype dtype, enum dtype out_dtype, int64_t threads)
{
    check_all(rows, valid, hidden, dtype, out_dtype, threads, DTYPE_NONE, false, DTYPE_NONE);
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
    check_all(9, 7, 2048, DTYPE_BF16, DTYPE_F32, 256, DTYPE_BF16, false, DTYPE_NONE);
    check_all(1, 1, 4096, DTYPE_F16, DTYPE_F32, 1024, DTYPE_F16, false, DTYPE_NONE);
    check_all(3, 3, 333, DTYPE_F32, DTYPE_F32, 64, DTYPE_BF16, false, DTYPE_NONE);
    check_all(2, 2, 20002, DTYPE_BF16, DTYPE_F32, 128, DTYPE_BF16, false, DTYPE_NONE); /* does not stay in registers */
    check_all(5, 4, 2880, DTYPE_BF16, DTYPE_F32, 96, DTYPE_F32, false, DTYPE_NONE);
}

TEST(multiplies_by_factors)
{
    TEST_NEEDS_DEVICE();
    check_factors(9, 7, 2048, DTYPE_BF16, DTYPE_F32, 256, DTYPE_BF16, false, DTYPE_NONE, DTYPE_BF16);
    check_factors(1, 1, 5376, DTYPE_BF16, DTYPE_F32, 1024, DTYPE_F16, false, DTYPE_NONE, DTYPE_F32);
    check_factors(3, 3, 333, DTYPE_F32, DTYPE_F32, 64, DTYPE_BF16, true, DTYPE_F32, DTYPE_F16);
    check_factors(2, 2, 20002, DTYPE_BF16, DTYPE_F32, 128, DTYPE_BF16, false, DTYPE_NONE, DTYPE_BF16);
}

TEST(adds_parts_to_a_residual)
{
    TEST_NEEDS_DEVICE();
    check_parts(16, 13, 2048, DTYPE_BF16, DTYPE_BF16, 512, DTYPE_NONE, false, DTYPE_NONE, DTYPE_NONE, 8);
    check_parts(300, 299, 2880, DTYPE_F32, DTYPE_BF16, 256, DTYPE_NONE, false, DTYPE_NONE, DTYPE_NONE, 4);
    check_parts(1, 1, 333, DTYPE_F16, DTYPE_F32, 64, DTYPE_NONE, true, DTYPE_F32, DTYPE_NONE, 11);
    check_parts(5, 4, 20000, DTYPE_BF16, DTYPE_F16, 1024, DTYPE_NONE, false, DTYPE_NONE, DTYPE_NONE, 2);
    check_parts(9, 9, 4096, DTYPE_BF16, DTYPE_BF16, 1024, DTYPE_NONE, false, DTYPE_NONE, DTYPE_NONE, 1);
}

TEST(takes_the_mean_off)
{
    TEST_NEEDS_DEVICE();
    check_all(9, 7, 2048, DTYPE_BF16, DTYPE_BF16, 256, DTYPE_NONE, true, DTYPE_BF16);
    check_all(1, 1, 4096, DTYPE_F16, DTYPE_F16, 1024, DTYPE_NONE, true, DTYPE_F16);
    check_all(3, 3, 333, DTYPE_F32, DTYPE_F32, 64, DTYPE_BF16, true, DTYPE_F32);
    check_all(2, 2, 20002, DTYPE_BF16, DTYPE_F32, 128, DTYPE_BF16, true, DTYPE_BF16); /* does not stay in registers */
    check_all(5, 4, 2880, DTYPE_BF16, DTYPE_BF16, 96, DTYPE_NONE, true, DTYPE_NONE);
    check_all(5, 4, 2880, DTYPE_BF16, DTYPE_BF16, 96, DTYPE_NONE, false, DTYPE_F32);
}

/* A row becomes what quantise makes of it, whose largest number has the largest code; the last bits of its numbers may differ from the
 * reference's, and so may a code by one. */
static void check_codes(int64_t rows, int64_t valid, int64_t hidden, enum dtype dtype, enum dtype out, int64_t threads)
{
    const bool integers = out == DTYPE_I8;
    const float steps = integers ? 127 : 448;
    const int64_t params[RMS_NORM_DEVICE_PARAMS] = {rows,       1, hidden, dtype,      test_float_bits(eps),
                                                    out,        0, 0,      0,          DTYPE_BF16,
                                                    1,          0, 0,      DTYPE_BF16, 0,
                                                    DTYPE_BF16, 1, threads};
    struct test_random random = {(uint64_t)(rows * 3 + hidden)};
    struct test_launch launch;
    test_launch_open(&launch, &device_rms_norm, params, valid);
    test_launch_fill(&launch, RMS_NORM_X, &random, -3, 3);
    test_launch_fill(&launch, RMS_NORM_WEIGHT, &random, 0.2f, 2);
    float *x = launch.host[RMS_NORM_X];
    if (valid > 2) memset(x + hidden, 0, (size_t)hidden * sizeof *x), x[2 * hidden + hidden / 2] = NAN;
    test_launch_run_twice(&launch);
    struct op_call call = test_launch_call(&launch);
    float *expected = call.operands[RMS_NORM_OUT] =
        test_take(&launch.memory, (size_t)(rows * hidden) * sizeof *expected);
    rms_norm_reference(&call);
    const uint8_t *codes = launch.found[RMS_NORM_OUT];
    const float *scales = launch.found[RMS_NORM_SCALES];
    for (int64_t r = 0; r < valid; r++) {
        float largest = 0;
        const bool is_nan = valid > 2 && r == 2, is_zero = valid > 2 && r == 1;
        int most = 0;
        for (int64_t k = 0; k < hidden; k++) largest = fmaxf(largest, fabsf(expected[r * hidden + k]));
        if (is_nan ? !isnan(scales[r]) : !(fabsf(scales[r] - largest / steps) <= 1e-6f * largest / steps))
            fail_msg("scale of row %lld: expected %g, found %g", (long long)r, (double)(largest / steps),
                     (double)scales[r]);
        for (int64_t k = 0; k < hidden; k++) {
            const int code = codes[r * hidden + k];
            const int64_t from = k / QUANTISE_GROUP * QUANTISE_GROUP + quantise_element((int)(k % QUANTISE_GROUP));
            const int magnitude = integers ? abs((int8_t)code) : code & 0x7f;
            const float number = integers ? (float)(int8_t)code : e4m3_to_float((uint8_t)code);
            const float wanted = expected[r * hidden + from];
            const float error = integers ? 0.501f * scales[r] : 0x1.01p-4f * fabsf(wanted) + 0x1.01p-10f * scales[r];
            if (magnitude > most) most = magnitude;
            if (is_nan || is_zero ? code != 0 : !(fabsf(number * scales[r] - wanted) <= error))
                fail_msg("row %lld, element %lld: code %d, scale %g, expected %g", (long long)r, (long long)from, code,
                         (double)scales[r], (double)wanted);
        }
        if (!is_nan && !is_zero) assert_int_equal(most, integers ? 127 : 0x7e);
    }
    test_launch_close(&launch);
}

TEST(makes_codes)
{
    TEST_NEEDS_DEVICE();
    for (int i = 0; i < 2; i++) {
        const enum dtype out = i ? DTYPE_I8 : DTYPE_F8_E4M3;
        check_codes(1, 1, 16, DTYPE_F32, out, 32);
        check_codes(9, 7, 2048, DTYPE_BF16, out, 256);
        check_codes(5, 5, 4096, DTYPE_F16, out, 1024);
        check_codes(300, 300, 4096, DTYPE_BF16, out, 128);
        check_codes(4, 4, 2880, DTYPE_BF16, out, 96);
        check_codes(3, 3, 16384, DTYPE_BF16, out, 512);
    }
}

TEST(hostile_params_are_refused)
{
    const int64_t params[RMS_NORM_DEVICE_PARAMS] = {4,          0, 64, DTYPE_BF16, test_float_bits(eps),
                                                    DTYPE_BF16, 0, 0,  0,          DTYPE_BF16,
                                                    0,          0, 0,  DTYPE_BF16, 0,
                                                    DTYPE_BF16, 1, 256};
    test_hostile_launches(&device_rms_norm, params);
    test_launch_refuses(&device_rms_norm, params,
                        TEST_CHANGES({RMS_NORM_HIDDEN, 0}, {RMS_NORM_DEVICE_THREADS, 48},
                                     {RMS_NORM_DEVICE_THREADS, 1056}, {RMS_NORM_OUT_DTYPE, DTYPE_U8},
                                     {RMS_NORM_OUT_DTYPE, DTYPE_F8_E4M3}, {RMS_NORM_OUT_DTYPE, DTYPE_I8},
                                     {RMS_NORM_HAS_SCALES, 1}, {RMS_NORM_HAS_FACTOR, 1}, {RMS_NORM_PARTS, 0},
                                     {RMS_NORM_PARTS, 2}));
    int64_t summed[RMS_NORM_DEVICE_PARAMS];
    memcpy(summed, params, sizeof summed);
    summed[RMS_NORM_HAS_RESIDUAL] = 1, summed[RMS_NORM_PARTS] = 8;
    test_hostile_launches(&device_rms_norm, summed);
    test_launch_refuses(&device_rms_norm, summed,
                        TEST_CHANGES({RMS_NORM_PARTS, 65}, {RMS_NORM_HAS_ADD_TO, 1}, {RMS_NORM_HIDDEN, 8193}));
    const struct device_facts facts = test_facts(90);
    int64_t candidates[8][PLAN_MAX_PARAMS];
    assert_in_range(device_rms_norm.candidates(params, &facts, candidates, 8), 1, 8);
    assert_int_equal(device_rms_norm.candidates(params, &facts, candidates, 1), 1);
}

int main(void) { return test_run(); }
