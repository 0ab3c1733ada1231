/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/op/test_support.h"

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

enum alias { ALIAS_NONE, ALIAS_OUT_X, ALIAS_SUM_RESIDUAL, ALIAS_SUM_X, ALIAS_BOTH, ALIAS_COUNT };

struct data {
    float *x, *residual, *out, *sum; /* inputs and expected outputs, [rows, width] */
};

static void load_inputs(struct test_case *test, const struct data *data, size_t bytes, enum alias alias,
                        bool has_residual)
{
    void **operands = test->call.operands;
    operands[RMS_NORM_OUT] = test->buffers[RMS_NORM_OUT].data;
    test_buffer_poison(&test->buffers[RMS_NORM_OUT]);
    memcpy(operands[RMS_NORM_X], data->x, bytes);
    if (alias == ALIAS_OUT_X || alias == ALIAS_BOTH) operands[RMS_NORM_OUT] = operands[RMS_NORM_X];
    if (!has_residual) return;
    memcpy(operands[RMS_NORM_RESIDUAL], data->residual, bytes);
    operands[RMS_NORM_SUM] = test->buffers[RMS_NORM_SUM].data;
    test_buffer_poison(&test->buffers[RMS_NORM_SUM]);
    if (alias == ALIAS_SUM_X) operands[RMS_NORM_SUM] = operands[RMS_NORM_X];
    if (alias == ALIAS_SUM_RESIDUAL || alias == ALIAS_BOTH) operands[RMS_NORM_SUM] = operands[RMS_NORM_RESIDUAL];
}

static void check_shape(struct test_random *random, int64_t rows, int64_t valid, int64_t width, enum dtype dtype,
                        bool has_residual, bool centred, enum dtype bias)
{
    const int64_t params[RMS_NORM_PARAMS] = {[RMS_NORM_PARTS] = 1,
                                             [RMS_NORM_ROWS] = rows,
                                             [RMS_NORM_HIDDEN] = width,
                                             [RMS_NORM_WEIGHT_DTYPE] = dtype,
                                             [RMS_NORM_EPS_BITS] = test_float_bits(1e-5f),
                                             [RMS_NORM_HAS_RESIDUAL] = has_residual,
                                             [RMS_NORM_CENTRED] = centred,
                                             [RMS_NORM_HAS_BIAS] = bias != DTYPE_NONE,
                                             [RMS_NORM_BIAS_DTYPE] = bias ? bias : DTYPE_BF16,
                                             [RMS_NORM_FACTOR_DTYPE] = DTYPE_BF16};
    struct test_case test;
    test_case_open(&test, &op_rms_norm, params, &test_geometry, (int32_t)valid);
    size_t count = (size_t)(valid * width), all = (size_t)(rows * width), bytes = count * sizeof(float);
    struct data data = {malloc(all * 4), malloc(all * 4), malloc(all * 4), malloc(all * 4)};
    test_fill(random, data.x, all, DTYPE_F32, -3, 3);
    test_fill(random, data.residual, all, DTYPE_F32, -3, 3);
    /* Far from 0 compared with their spread, where taking the mean off matters. */
    for (size_t i = 0; i < all && centred; i++) data.x[i] += 20;
    test_fill(random, test.call.operands[RMS_NORM_WEIGHT], (size_t)width, dtype, 0.5f, 1.5f);
    if (bias) test_fill(random, test.call.operands[RMS_NORM_BIAS], (size_t)width, bias, -1, 1);
    load_inputs(&test, &data, bytes, ALIAS_NONE, has_residual);
    op_rms_norm.reference(&test.call);
    memcpy(data.out, test.call.operands[RMS_NORM_OUT], bytes);
    if (has_residual) memcpy(data.sum, test.call.operands[RMS_NORM_SUM], bytes);

    TEST_FOR_EACH_ISA(isa)
    {
        float *first = malloc(all * sizeof *first);
        for (enum alias alias = ALIAS_NONE; alias < ALIAS_COUNT; alias++) {
            load_inputs(&test, &data, bytes, alias, has_residual);
            test_run_op(&op_rms_norm, isa, &test.call, test_teams[alias % TEST_TEAMS]);
            const float *out = test.call.operands[RMS_NORM_OUT];
            test_assert_close(out, data.out, count, centred || bias ? 4e-5 : 1e-30, 6e-7, cpu_isa_name(isa));
            if (has_residual) test_assert_same_bits(test.call.operands[RMS_NORM_SUM], data.sum, bytes, "sum");
            if (alias == ALIAS_NONE) {
                memcpy(first, out, bytes);
                assert_true(test_is_poison(out + count, (all - count) * sizeof *out));
            }
            test_assert_same_bits(out, first, bytes, "aliased, with another team");
        }
        /* Each row alone gives the bits that it gives among the others. */
        int32_t *counts = test.call.operands[RMS_NORM_COUNTS];
        for (int64_t r = 0; r < valid && r < 3; r++) {
            load_inputs(&test, &data, bytes, ALIAS_NONE, has_residual);
            memcpy(test.call.operands[RMS_NORM_X], data.x + r * width, (size_t)width * 4);
            if (has_residual)
                memcpy(test.call.operands[RMS_NORM_RESIDUAL], data.residual + r * width, (size_t)width * 4);
            counts[0] = 1;
            test_run_op(&op_rms_norm, isa, &test.call, 1);
            counts[0] = (int32_t)valid;
            test_assert_same_bits(test.call.operands[RMS_NORM_OUT], first + r * width, (size_t)width * 4, "row alone");
        }
        free(first);
    }
    free(data.x);
    free(data.residual);
    free(data.out);
    free(data.sum);
    test_case_close(&test);
}

TEST(equals_reference)
{
    struct test_random random = {6};
    static const int64_t widths[] = {1, 3, 8, 15, 16, 17, 63, 64, 65, 100, 127, 288, 2048, 4097};
    for (int w = 0; w < 14; w++) {
        for (int d = 0; d < 3; d++) {
            for (int residual = 0; residual < 2; residual++) {
                int64_t rows = test_random_range(&random, 1, widths[w] > 1000 ? 4 : 70);
                check_shape(&random, rows, test_random_range(&random, 1, rows), widths[w], dtypes[d], residual, false,
                            DTYPE_NONE);
                check_shape(&random, rows, rows, widths[w], dtypes[d], residual, true,
                            (w + d) % 4 == 3 ? DTYPE_NONE : dtypes[(w + d) % 4]);
            }
        }
    }
}

TEST(zeros_give_zeros)
{
    const int64_t params[RMS_NORM_PARAMS] = {1, 0, 40, DTYPE_F32, test_float_bits(1e-6f), [RMS_NORM_PARTS] = 1};
    TEST_FOR_EACH_ISA(isa)
    {
        struct test_case test;
        test_case_open(&test, &op_rms_norm, params, &test_geometry, 1);
        memset(test.call.operands[RMS_NORM_X], 0, 160);
        memset(test.call.operands[RMS_NORM_WEIGHT], 0, 160);
        test_run_op(&op_rms_norm, isa, &test.call, 1);
        const float *out = test.call.operands[RMS_NORM_OUT];
        for (int i = 0; i < 40; i++) assert_true(out[i] == 0);
        test_case_close(&test);
    }
}

TEST(hostile_params_are_refused)
{
    const int64_t params[RMS_NORM_PARAMS] = {4, 0, 64, DTYPE_BF16, test_float_bits(1e-5f), 0, 1, [RMS_NORM_PARTS] = 1};
    test_hostile_params(&op_rms_norm, params, &test_geometry);
    test_refuses(&op_rms_norm, params, &test_geometry,
                 TEST_CHANGES({RMS_NORM_HIDDEN, 0}, {RMS_NORM_WEIGHT_DTYPE, DTYPE_F8_E4M3},
                              {RMS_NORM_EPS_BITS, test_float_bits(-1e-5f)}, {RMS_NORM_EPS_BITS, INT64_MIN},
                              {RMS_NORM_HAS_RESIDUAL, 2}, {RMS_NORM_CENTRED, 2}, {RMS_NORM_HAS_BIAS, -1}));
}

int main(void) { return test_run(); }
