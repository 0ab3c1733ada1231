/* SPDX-License-Identifier: Apache-2.0 */
/* short_conv on the GPU against the reference, from launch to launch. */
#include "kernels/cuda/test_recurrent.h"
#include "kernels/op/activation.h"
#include "kernels/short_conv/short_conv.h"

struct shape {
    int64_t rows, channels, kernel;
    bool gated, bias;
    enum activation activation;
    enum dtype w_dtype, x_dtype;
};

static void fill_params(const struct shape *shape, int64_t *params)
{
    const uint64_t part = short_conv_state_bytes((uint64_t)shape->channels, (uint64_t)shape->kernel);
    const int64_t values[SHORT_CONV_PARAMS] = {
        [SHORT_CONV_ROWS] = shape->rows,
        [SHORT_CONV_CHANNELS] = shape->channels,
        [SHORT_CONV_KERNEL] = shape->kernel,
        [SHORT_CONV_GATED] = shape->gated,
        [SHORT_CONV_ACTIVATION] = shape->activation,
        [SHORT_CONV_W_DTYPE] = shape->w_dtype,
        [SHORT_CONV_HAS_BIAS] = shape->bias,
        [SHORT_CONV_BIAS_DTYPE] = DTYPE_F32,
        [SHORT_CONV_RECURRENT_BYTES] = test_recurrent_bytes(part),
        [SHORT_CONV_SLOT_COUNT] = TEST_RECURRENT_SLOTS,
        [SHORT_CONV_X_DTYPE] = shape->x_dtype,
    };
    memcpy(params, values, sizeof values);
}

static void check(const struct shape *shape)
{
    int64_t params[SHORT_CONV_PARAMS];
    struct test_random random = {(uint64_t)(shape->channels * 31 + shape->kernel)};
    struct test_launch launch;
    fill_params(shape, params);
    test_launch_open(&launch, &device_short_conv, params, shape->rows);
    test_launch_fill(&launch, SHORT_CONV_W, &random, -1, 1);
    if (shape->bias) test_launch_fill(&launch, SHORT_CONV_BIAS, &random, -1, 1);
    const struct test_recurrent op = {
        .kernel = &device_short_conv,
        .slots = SHORT_CONV_SLOTS,
        .positions = SHORT_CONV_POSITIONS,
        .state = SHORT_CONV_STATE,
        .out = SHORT_CONV_OUT,
        .inputs = {SHORT_CONV_X},
        .absolute = 2e-5,
        .relative = shape->x_dtype == DTYPE_F32   ? 1e-5
                    : shape->x_dtype == DTYPE_F16 ? 5e-4
                                                  : 4e-3,
        .part = short_conv_state_bytes((uint64_t)shape->channels, (uint64_t)shape->kernel),
    };
    test_recurrent_walk(&launch, &op, &random, 40);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    static const struct shape shapes[] = {
        {300, 2048, 3, true, false, ACTIVATION_NONE, DTYPE_BF16, DTYPE_BF16},
        {64, 8192, 4, false, false, ACTIVATION_SILU, DTYPE_BF16, DTYPE_BF16},
        {1, 1024, 4, false, false, ACTIVATION_SILU, DTYPE_F16, DTYPE_F16},
        {7, 68, 3, true, true, ACTIVATION_NONE, DTYPE_F32, DTYPE_BF16},
        {33, 133, 2, false, true, ACTIVATION_SILU, DTYPE_F16, DTYPE_F32},
        {40, 24, 16, true, true, ACTIVATION_SILU, DTYPE_BF16, DTYPE_F16},
        {130, 640, 8, false, false, ACTIVATION_NONE, DTYPE_F32, DTYPE_BF16},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check(&shapes[i]);
}

TEST(hostile_params_are_refused)
{
    int64_t params[SHORT_CONV_PARAMS];
    fill_params(&(struct shape){4, 64, 4, true, true, ACTIVATION_SILU, DTYPE_BF16, DTYPE_BF16}, params);
    test_hostile_launches(&device_short_conv, params);
    test_launch_refuses(&device_short_conv, params,
                        TEST_CHANGES({SHORT_CONV_KERNEL, 17}, {SHORT_CONV_CHANNELS, 4096},
                                     {SHORT_CONV_RECURRENT_BYTES, 4 * 64 * 3}, {SHORT_CONV_RECURRENT_BYTES, 64 * 99},
                                     {SHORT_CONV_X_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
