/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of short_conv: chunks and mixed batches against a computation over whole sequences, a state of NaN before a sequence begins,
 * refusal of hostile parameters. */
#include "kernels/short_conv/short_conv.h"

#include <math.h>

#include "kernels/op/activation.h"
#include "kernels/op/test_support.h"

enum { SLOTS = 3, TOKENS = 12, BEFORE = 64 /* bytes of another layer in a slot's block */ };

struct shape {
    int64_t channels, kernel;
    bool gated, bias;
    enum activation activation;
    enum dtype w_dtype;
};

struct setup {
    struct test_case test;
    struct shape shape;
    float *x; /* [SLOTS, TOKENS, x width] */
    struct test_memory memory;
};

static int64_t x_width(const struct shape *shape) { return shape->channels * (shape->gated ? 3 : 1); }

static void setup_open(struct setup *setup, const struct shape *shape)
{
    struct test_random random = {(uint64_t)(shape->channels * 31 + shape->kernel)};
    const uint64_t part = short_conv_state_bytes((uint64_t)shape->channels, (uint64_t)shape->kernel);
    struct plan_geometry geometry = test_geometry;
    geometry.slots = SLOTS;
    geometry.recurrent_bytes = 2 * BEFORE + (part + 63) / 64 * 64;
    memset(setup, 0, sizeof *setup);
    setup->shape = *shape;
    const int64_t params[SHORT_CONV_PARAMS] = {
        [SHORT_CONV_ROWS] = TOKENS,
        [SHORT_CONV_CHANNELS] = shape->channels,
        [SHORT_CONV_KERNEL] = shape->kernel,
        [SHORT_CONV_GATED] = shape->gated,
        [SHORT_CONV_ACTIVATION] = shape->activation,
        [SHORT_CONV_W_DTYPE] = shape->w_dtype,
        [SHORT_CONV_HAS_BIAS] = shape->bias,
        [SHORT_CONV_BIAS_DTYPE] = DTYPE_F32,
        [SHORT_CONV_RECURRENT_BYTES] = (int64_t)geometry.recurrent_bytes,
        [SHORT_CONV_SLOT_COUNT] = SLOTS,
        [SHORT_CONV_X_DTYPE] = DTYPE_F32,
    };
    struct test_case *test = &setup->test;
    test_case_open(test, &op_short_conv, params, &geometry, TOKENS);
    assert_int_equal(test->demands[SHORT_CONV_STATE].bytes, (SLOTS - 1) * geometry.recurrent_bytes + part);
    test_case_replace(test, SHORT_CONV_STATE, SLOTS * geometry.recurrent_bytes, BEFORE);
    const size_t count = (size_t)(SLOTS * TOKENS * x_width(shape));
    setup->x = test_take(&setup->memory, count * sizeof *setup->x);
    test_fill(&random, setup->x, count, DTYPE_F32, -1, 1);
    test_fill(&random, test->call.operands[SHORT_CONV_W], (size_t)(shape->channels * shape->kernel), shape->w_dtype, -1,
              1);
    if (shape->bias)
        test_fill(&random, test->call.operands[SHORT_CONV_BIAS], (size_t)shape->channels, DTYPE_F32, -1, 1);
}

static double input_at(const struct setup *setup, int64_t slot, int64_t position, int64_t part, int64_t channel)
{
    if (position < 0) return 0;
    return (double)
        setup->x[(slot * TOKENS + position) * x_width(&setup->shape) + part * setup->shape.channels + channel];
}

static double expected_at(const struct setup *setup, int64_t slot, int64_t position, int64_t channel)
{
    const struct shape *shape = &setup->shape;
    double sum = shape->bias ? (double)((const float *)setup->test.call.operands[SHORT_CONV_BIAS])[channel] : 0;
    for (int64_t j = 0; j < shape->kernel; j++) {
        const int64_t at = position - (shape->kernel - 1) + j;
        double value = input_at(setup, slot, at, 0, channel);
        if (shape->gated) value *= input_at(setup, slot, at, 2, channel);
        sum += value *
               (double)op_element(setup->test.call.operands[SHORT_CONV_W], channel * shape->kernel + j, shape->w_dtype);
    }
    sum = activate_exactly(shape->activation, sum);
    return shape->gated ? sum * input_at(setup, slot, position, 1, channel) : sum;
}

/* One launch of the rows (slot, position); `run`: as test_case_run. */
static void step(struct setup *setup, const int32_t (*rows)[2], int32_t count, int run)
{
    struct test_case *test = &setup->test;
    const int64_t width = x_width(&setup->shape), channels = setup->shape.channels;
    ((int32_t *)test->call.operands[SHORT_CONV_COUNTS])[0] = count;
    for (int32_t r = 0; r < count; r++) {
        ((int32_t *)test->call.operands[SHORT_CONV_SLOTS])[r] = rows[r][0];
        ((int32_t *)test->call.operands[SHORT_CONV_POSITIONS])[r] = rows[r][1];
        memcpy((float *)test->call.operands[SHORT_CONV_X] + r * width,
               setup->x + (rows[r][0] * TOKENS + rows[r][1]) * width, (size_t)width * sizeof(float));
    }
    test_case_run(test, SHORT_CONV_OUT, run);
    const float *out = test->call.operands[SHORT_CONV_OUT];
    for (int32_t r = 0; r < count; r++)
        for (int64_t c = 0; c < channels; c++) {
            const double want = expected_at(setup, rows[r][0], rows[r][1], c), got = (double)out[r * channels + c];
            if (!(fabs(got - want) <= 2e-6 * (1 + fabs(want))))
                fail_msg("slot %d, position %d, channel %d: expected %.9g, found %.9g", rows[r][0], rows[r][1], (int)c,
                         want, got);
        }
    assert_true(test_is_poison(out + count * channels, (size_t)((TOKENS - count) * channels) * sizeof *out));
}

static void check(const struct shape *shape)
{
    static const int32_t chunk[][2] = {{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}}, rest[][2] = {{1, 5}, {1, 6}, {1, 7}};
    static const int32_t batches[][3][2] = {{{2, 0}, {0, 0}, {1, 8}},
                                            {{0, 1}, {1, 9}, {2, 1}},
                                            {{1, 10}, {0, 2}, {2, 2}}};
    struct setup setup;
    setup_open(&setup, shape);
    for (int run = 0; run <= TEST_TEAMS;
         run++) { /* each begins the sequences again, after the state of the run before */
        step(&setup, chunk, 5, run);
        step(&setup, rest, 3, run);
        for (int b = 0; b < 3; b++) step(&setup, batches[b], 3, run);
    }
    test_case_assert_intact(&setup.test);
    const uint8_t *blocks = setup.test.buffers[SHORT_CONV_STATE].data;
    for (int64_t slot = 0; slot < SLOTS; slot++) /* what other layers have in the block */
        assert_true(test_is_poison(blocks + slot * setup.test.params[SHORT_CONV_RECURRENT_BYTES], BEFORE));
    test_case_close(&setup.test);
    test_release(&setup.memory);
}

TEST(equals_a_convolution_over_the_sequence)
{
    static const struct shape shapes[] = {
        {1, 2, false, false, ACTIVATION_NONE, DTYPE_F32},  {70, 3, true, false, ACTIVATION_NONE, DTYPE_BF16},
        {33, 4, false, false, ACTIVATION_SILU, DTYPE_F16}, {5, 16, true, true, ACTIVATION_NONE, DTYPE_F32},
        {600, 3, true, true, ACTIVATION_SILU, DTYPE_BF16},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check(&shapes[i]);
}

TEST(hostile_params_are_refused)
{
    struct setup setup;
    setup_open(&setup, &(struct shape){64, 4, true, true, ACTIVATION_SILU, DTYPE_F32});
    test_refuses(&op_short_conv, setup.test.params, &setup.test.geometry,
                 TEST_CHANGES({SHORT_CONV_KERNEL, 1}, {SHORT_CONV_KERNEL, 17}, {SHORT_CONV_CHANNELS, 0},
                              {SHORT_CONV_CHANNELS, 4096}, {SHORT_CONV_ACTIVATION, ACTIVATION_GELU},
                              {SHORT_CONV_GATED, 2}, {SHORT_CONV_RECURRENT_BYTES, 64}, {SHORT_CONV_SLOT_COUNT, 4}));
    test_hostile_params(&op_short_conv, setup.test.params, &setup.test.geometry);
    test_case_close(&setup.test);
    test_release(&setup.memory);
}

int main(void) { return test_run(); }
