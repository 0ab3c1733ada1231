/* SPDX-License-Identifier: Apache-2.0 */

#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/cuda/test_launch.h"
#include "kernels/quantise/quantise.h"

/* Rows, in turn: random ones, of zeros, with a NaN, with an infinity, with scales that are subnormal or nearly so. */
static void fill(struct test_launch *launch, struct test_random *random)
{
    const int64_t rows = launch->params[QUANTISE_ROWS], width = launch->params[QUANTISE_WIDTH];
    const enum dtype dtype = (enum dtype)launch->params[QUANTISE_X_DTYPE];
    uint16_t *x = launch->host[QUANTISE_X];
    test_launch_fill(launch, QUANTISE_X, random, -20, 20);
    for (int64_t r = 0; r < rows; r++) {
        uint16_t *row = x + r * width;
        const float few[] = {NAN, -INFINITY};
        const float tiny = dtype == DTYPE_F16 ? 0x1p-22f : 0x1p-120f;
        if (r % 7 == 1) memset(row, 0, (size_t)width * sizeof *row);
        if (r % 7 == 2 || r % 7 == 3) test_encode(&few[r % 7 - 2], row + (r * 5 + 3) % width, 1, dtype);
        if (r % 7 == 4) test_fill(random, row, (size_t)width, dtype, -tiny, tiny);
    }
}

static uint8_t code_of(float number, enum dtype codes)
{
    return codes == DTYPE_I8 ? (uint8_t)(int8_t)nearbyintf(number) : e4m3_from_float(number);
}

static void check(int64_t rows, int64_t valid, int64_t width, enum dtype dtype, enum dtype out, int64_t threads)
{
    const int64_t params[QUANTISE_DEVICE_PARAMS] = {rows, 1, width, dtype, out, threads};
    struct test_random random = {(uint64_t)(rows * 3 + width)};
    struct test_launch launch;
    test_launch_open(&launch, &device_quantise, params, valid);
    fill(&launch, &random);
    const float *x = test_launch_decode(&launch, QUANTISE_X);
    uint8_t *codes = test_take(&launch.memory, (size_t)(rows * width));
    float *scales = test_take(&launch.memory, (size_t)rows * sizeof *scales);
    for (int64_t r = 0; r < valid; r++) {
        float largest = 0;
        for (int64_t k = 0; k < width; k++) {
            const float magnitude = fabsf(x[r * width + k]);
            if (!(magnitude <= largest)) largest = isnan(largest) ? largest : magnitude;
        }
        scales[r] = largest / (out == DTYPE_I8 ? 127 : 448) + largest * 0;
        for (int64_t k = 0; k < width; k++) {
            const int64_t from = k / QUANTISE_GROUP * QUANTISE_GROUP + quantise_element((int)(k % QUANTISE_GROUP));
            codes[r * width + k] =
                scales[r] > 0 && x[r * width + from] != 0 ? code_of(x[r * width + from] / scales[r], out) : 0;
        }
    }
    test_launch_run_twice(&launch);
    const float *found = launch.found[QUANTISE_SCALES];
    for (int64_t r = 0; r < valid; r++)
        if (found[r] != scales[r] && !(isnan(found[r]) && isnan(scales[r])))
            fail_msg("scale of row %lld: expected %g, found %g", (long long)r, (double)scales[r], (double)found[r]);
    test_assert_same_bits(launch.found[QUANTISE_OUT], codes, (size_t)(valid * width), "codes");
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    for (int d = 0; d < 4; d++) {
        const enum dtype dtype = d % 2 ? DTYPE_F16 : DTYPE_BF16, out = d / 2 ? DTYPE_I8 : DTYPE_F8_E4M3;
        check(1, 1, 16, dtype, out, 32);
        check(9, 7, 48, dtype, out, 64);
        check(16, 15, 8192, dtype, out, 128);
        check(40, 40, 14336, dtype, out, 256);
        check(300, 299, 4096, dtype, out, 64);
        check(8, 8, 2880, dtype, out, 1024);
        check(7, 7, 57344, dtype, out, 448);
    }
}

/* Engines whose quantise has no such parameter have e4m3 codes. */
TEST(codes_are_e4m3_where_no_parameter_says)
{
    const struct op_param *out = &op_quantise.params[QUANTISE_OUT_DTYPE];
    assert_true(out->id >= OP_LATER_PARAM_ID);
    assert_int_equal(op_param_absent(out), DTYPE_F8_E4M3);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[QUANTISE_DEVICE_PARAMS] = {4, 0, 64, DTYPE_BF16, DTYPE_I8, 64};
    const struct device_facts facts = test_facts(90);
    int64_t candidates[8][PLAN_MAX_PARAMS];
    test_hostile_launches(&device_quantise, params);
    test_launch_refuses(&device_quantise, params,
                        TEST_CHANGES({QUANTISE_WIDTH, 24}, {QUANTISE_WIDTH, 128 * 64 + 16},
                                     {QUANTISE_X_DTYPE, DTYPE_F32}, {QUANTISE_X_DTYPE, DTYPE_F8_E4M3},
                                     {QUANTISE_OUT_DTYPE, DTYPE_BF16}, {QUANTISE_OUT_DTYPE, DTYPE_U8},
                                     {QUANTISE_OUT_DTYPE, 0}, {QUANTISE_THREADS, 48}, {QUANTISE_THREADS, 1056}));
    assert_in_range(device_quantise.candidates(params, &facts, candidates, 8), 1, 8);
}

int main(void) { return test_run(); }
