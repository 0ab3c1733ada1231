/* SPDX-License-Identifier: Apache-2.0 */
/* The device kernels that serve chunks of prompts, attention_prefill and attention_generic, against the reference. */
#include "formats/encoding/encoding.h"
#include "kernels/attention/test_attention.h"

/* |v| <= 1 and the weights sum to 1. Rounding each weight by at most u of itself moves the result by at most u,
 * rounding the result by u of itself; u = 2^-9 for bf16, 2^-12 for f16. With tf32, weights are cut at 2^-10. f32 inputs
 * are cut by 2^-10, too: a score of up to about 3 moves by 2^-9 of that, which moves the result by no more than
 * 2 * 0.006. What remains (sums of up to 256 products in f32, exp2 to 2^-22) stays below 1e-4. */
static double tolerance(const struct attention_shape *shape)
{
    if (shape->x_dtype == DTYPE_F32 || shape->kv_dtype == ENCODING_F32) return 1.2e-2;
    const bool is_coded = !encoding_is_plain(shape->kv_dtype); /* k and v are rounded, too: each like a weight */
    if (is_coded) return 3 * (shape->x_dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12) + 1e-4;
    if ((int)shape->x_dtype != (int)shape->kv_dtype) return 0x1p-10 + 1e-4;
    return (shape->x_dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12) + 1e-4;
}

static void check_shape(struct test_random *random, const struct attention_shape *shape,
                        const struct device_kernel *kernel, int most)
{
    attention_check_candidates(random, shape, kernel, most, tolerance(shape));
}

/* rows, valid, start, kv_heads, group, head_dim, window, x_dtype, kv_dtype, page_tokens, scattered, in_place */
TEST(generic_equals_reference)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {11};
    static const struct attention_shape all_candidates = {100, 93,         50,
                                                          2,   4,          128,
                                                          0,   DTYPE_BF16, ENCODING_BF16,
                                                          0,   false,      .in_place = false};
    static const struct attention_shape shapes[] = {
        {16, 16, 0, 2, 4, 64, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {1, 1, 200, 3, 1, 128, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = false},
        {64, 64, 1000, 1, 7, 80, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = true},
        {40, 37, 100, 2, 2, 96, 16, DTYPE_F16, ENCODING_F16, 16, false, .in_place = false},
        {20, 20, 130, 1, 8, 256, 100, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {33, 31, 90, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .in_place = false},
        {64, 60, 90, 1, 1, 64, 30, DTYPE_F16, ENCODING_F16, 32, true, .in_place = true},
        {24, 24, 70, 2, 3, 2, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {24, 20, 70, 2, 3, 6, 0, DTYPE_F16, ENCODING_F16, 0, true, .in_place = false},
        {24, 24, 70, 1, 2, 250, 0, DTYPE_BF16, ENCODING_BF16, 48, false, .in_place = false},
        {24, 24, 70, 2, 2, 36, 0, DTYPE_BF16, ENCODING_F16, 0, false, .in_place = false},
        {24, 23, 170, 2, 2, 128, 0, DTYPE_F16, ENCODING_BF16, 0, true, .in_place = false},
        {24, 24, 70, 1, 4, 64, 0, DTYPE_F32, ENCODING_F32, 0, false, .in_place = false},
        {24, 24, 70, 1, 2, 18, 0, DTYPE_F32, ENCODING_BF16, 0, false, .in_place = true},
        {24, 24, 70, 1, 4, 256, 0, DTYPE_BF16, ENCODING_F32, 0, false, .in_place = false},
        {33, 31, 90, 2, 4, 128, 0, DTYPE_BF16, ENCODING_INT8_CHANNEL, 0, true, .in_place = false},
        {100, 93, 500, 1, 8, 128, 0, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 16, false, .in_place = true},
        {33, 31, 90, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .cap = 2, .sinks = DTYPE_BF16},
        {40, 37, 100, 2, 2, 96, 16, DTYPE_F16, ENCODING_F16, 16, false, .sinks = DTYPE_F32},
        {40, 37, 100, 2, 2, 96, 16, DTYPE_F16, ENCODING_E4M3_CHANNEL, 16, false, .in_place = false},
        {64, 60, 90, 1, 1, 80, 30, DTYPE_F16, ENCODING_INT8_CHANNEL, 32, true, .in_place = false},
        {24, 24, 70, 1, 4, 256, 0, DTYPE_F32, ENCODING_INT8_CHANNEL, 0, false, .in_place = false},
        {24, 24, 70, 3, 1, 16, 0, DTYPE_F32, ENCODING_E4M3_CHANNEL, 48, false, .in_place = false},
        {100, 93, 500, 1, 8, 512, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {40, 37, 100, 2, 2, 272, 16, DTYPE_F16, ENCODING_F16, 16, false, .sinks = DTYPE_F32},
        {33, 31, 90, 2, 4, 320, 0, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 0, true, .cap = 2},
        {24, 24, 70, 1, 4, 330, 0, DTYPE_F32, ENCODING_F32, 0, false, .in_place = false},
        {64, 60, 90, 1, 4, 512, 0, DTYPE_F16, ENCODING_INT8_CHANNEL, 32, true, .in_place = false},
    };
    static const struct attention_shape wide_candidates = {100, 93,         50,
                                                           1,   8,          512,
                                                           0,   DTYPE_BF16, ENCODING_BF16,
                                                           0,   false,      .in_place = false};
    check_shape(&random, &wide_candidates, &device_attention_generic, 16);
    check_shape(&random, &all_candidates, &device_attention_generic, 16);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_shape(&random, &shapes[i], &device_attention_generic, 1 + (int)(i % 2));
}

TEST(prefill_equals_reference)
{
    TEST_NEEDS_DEVICE();
    if (test_device()->device.facts.capability != 90) skip();
    struct test_random random = {12};
    static const struct attention_shape all_candidates[] = {
        {300, 290, 100, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {500, 450, 1000, 2, 4, 64, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        /* More tiles than SMs: persistent blocks with two pieces of work. */
        {300, 290, 100, 6, 8, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = true},
        {1024, 1000, 50, 4, 8, 64, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = false},
        {300, 300, 1, 6, 8, 64, 40, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {300, 290, 100, 2, 4, 128, 0, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 0, false, .in_place = false},
        {1024, 1000, 50, 4, 8, 64, 0, DTYPE_F16, ENCODING_INT8_CHANNEL, 0, false, .in_place = false},
    };
    static const struct attention_shape shapes[] = {
        {16, 16, 0, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {64, 64, 0, 1, 1, 64, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = false},
        {128, 128, 1000, 2, 2, 128, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = true},
        {256, 129, 64, 1, 7, 64, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {1024, 1024, 0, 1, 8, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {1024, 1001, 333, 2, 4, 64, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = false},
        {256, 250, 100, 1, 4, 128, 16, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {400, 400, 1000, 2, 2, 64, 100, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {100, 1, 63, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {200, 200, 65, 1, 2, 16, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {200, 190, 65, 2, 1, 32, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = false},
        {200, 190, 31, 2, 2, 80, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {200, 190, 1, 2, 2, 96, 70, DTYPE_F16, ENCODING_F16, 0, false, .in_place = true},
        {200, 190, 500, 1, 2, 256, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {1024, 1001, 333, 2, 4, 64, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .cap = 2, .sinks = DTYPE_BF16},
        {256, 250, 100, 1, 4, 128, 16, DTYPE_F16, ENCODING_F16, 0, false, .sinks = DTYPE_F32},
        {300, 270, 33, 6, 8, 16, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {300, 270, 33, 6, 8, 32, 200, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {300, 270, 33, 6, 8, 80, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = false},
        {300, 270, 33, 6, 8, 96, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .in_place = false},
        {300, 270, 33, 6, 8, 256, 0, DTYPE_F16, ENCODING_F16, 0, false, .in_place = false},
        {130, 130, 77, 1, 2, 128, 0, DTYPE_BF16, ENCODING_BF16, 16, false, .in_place = false},
        {130, 130, 77, 1, 2, 64, 0, DTYPE_BF16, ENCODING_BF16, 256, false, .in_place = false},
        {1024, 1024, 0, 1, 8, 128, 0, DTYPE_BF16, ENCODING_INT8_CHANNEL, 0, false, .in_place = false},
        {400, 400, 1000, 2, 2, 64, 100, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 0, false, .in_place = true},
        {200, 190, 31, 2, 2, 80, 0, DTYPE_F16, ENCODING_E4M3_CHANNEL, 16, false, .in_place = false},
        {300, 270, 33, 6, 8, 256, 0, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 128, false, .in_place = false},
        {200, 200, 65, 1, 2, 16, 0, DTYPE_BF16, ENCODING_INT8_CHANNEL, 256, false, .in_place = false},
    };
    for (size_t i = 0; i < sizeof all_candidates / sizeof all_candidates[0]; i++)
        check_shape(&random, &all_candidates[i], &device_attention_prefill, 16);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_shape(&random, &shapes[i], &device_attention_prefill, 1 + (int)(i % 3));
}

TEST(prefill_of_several_sequences_equals_reference)
{
    TEST_NEEDS_DEVICE();
    if (test_device()->device.facts.capability != 90) skip();
    struct test_random random = {13};
    static const struct attention_shape all_candidates[] = {
        {200, 190, 300, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .runs = true, .slots = 60},
        {500, 450, 200, 4, 8, 64, 0, DTYPE_F16, ENCODING_F16, 0, true, .runs = true, .slots = 80},
        {8, 8, 500, 8, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .runs = true},
        {300, 290, 100, 2, 4, 128, 0, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 0, true, .runs = true, .slots = 40},
    };
    static const struct attention_shape shapes[] = {
        {1, 1, 300, 2, 4, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .runs = true},
        {64, 64, 100, 2, 1, 64, 0, DTYPE_F16, ENCODING_F16, 0, true, .in_place = true, .runs = true, .slots = 9},
        {130, 100, 200, 1, 7, 128, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .runs = true, .slots = 30},
        {130, 100, 200, 2, 3, 80, 70, DTYPE_F16, ENCODING_F16, 16, true, .runs = true, .slots = 30},
        {100, 93, 500, 1, 16, 64, 0, DTYPE_BF16, ENCODING_BF16, 32, true, .runs = true, .slots = 20},
        {100, 93, 100, 2, 5, 256, 0, DTYPE_BF16, ENCODING_BF16, 256, true, .runs = true, .slots = 20},
        {256, 250, 100, 2, 8, 64, 50, DTYPE_BF16, ENCODING_BF16, 0, true, .cap = 2, .sinks = DTYPE_BF16, .runs = true},
        {16, 13, 700, 1, 6, 96, 0, DTYPE_F16, ENCODING_INT8_CHANNEL, 0, true, .sinks = DTYPE_F32, .runs = true},
        {700, 700, 30, 6, 8, 64, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .runs = true},
    };
    for (size_t i = 0; i < sizeof all_candidates / sizeof all_candidates[0]; i++)
        check_shape(&random, &all_candidates[i], &device_attention_prefill, 16);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_shape(&random, &shapes[i], &device_attention_prefill, 1 + (int)(i % 3));
}

/* Needs no GPU: parameters at their extremes are refused with a reason, or give a launch within the limits. */
TEST(hostile_params)
{
    const struct device_facts gpu = test_facts(90);
    static const int64_t extremes[] = {INT64_MIN, INT32_MIN,        -1,       0, 1, 3, 1 << 20,
                                       INT32_MAX, (int64_t)1 << 40, INT64_MAX};
    static const int64_t problem[ATTENTION_PARAMS] = {
        2048, 0, 32, 8, 128, 64, 128, 1 << 23, 8, DTYPE_BF16, DTYPE_BF16, 0, 0x3db504f3, 0, 0, 0, DTYPE_F32,
    };
    const struct device_kernel *kernels[] = {&device_attention_generic, &device_attention_prefill};
    for (int k = 0; k < 2; k++) {
        int64_t list[8][PLAN_MAX_PARAMS], params[PLAN_MAX_PARAMS];
        struct device_geometry geometry;
        int count = kernels[k]->candidates(problem, &gpu, list, 8);
        assert_true(count >= 3);
        assert_int_equal(kernels[k]->candidates(problem, &gpu, list, 1), 1);
        for (int c = 0; c < count; c++) {
            for (int i = 0; i < device_param_count(kernels[k]); i++) {
                for (size_t e = 0; e < sizeof extremes / sizeof extremes[0]; e++) {
                    memcpy(params, list[0], sizeof params);
                    params[i] = extremes[e];
                    memset(&geometry, 0, sizeof geometry);
                    const char *why = kernels[k]->launch(params, &gpu, &geometry);
                    kernels[k]->candidates(params, &gpu, list + 1, 7);
                    if (why) continue;
                    assert_in_range(geometry.block[0], 32, 1024);
                    assert_in_range(geometry.shared_bytes, 1, 232448);
                    assert_true(geometry.grid[0] >= 1 && geometry.grid[1] >= 1 && geometry.grid[1] <= 65535);
                }
            }
        }
        memcpy(params, list[0], sizeof params);
        assert_null(kernels[k]->launch(params, &gpu, &geometry));
        params[ATTENTION_SCATTERED] = 1;
        assert_null(kernels[k]->launch(params, &gpu, &geometry));
        memcpy(params, problem, sizeof problem);
        params[ATTENTION_HEAD_DIM] = 512; /* more than a warpgroup's registers hold */
        assert_int_equal(kernels[k]->candidates(params, &gpu, list + 1, 7) > 0,
                         kernels[k] == &device_attention_generic);
        test_launch_refuses(kernels[k], list[0],
                            TEST_CHANGES({ATTENTION_ROWS, 0}, {ATTENTION_COUNT_INDEX, 2}, {ATTENTION_HEADS, 31},
                                         {ATTENTION_KV_HEADS, 0}, {ATTENTION_HEAD_DIM, 127}, {ATTENTION_HEAD_DIM, 514},
                                         {ATTENTION_PAGE_TOKENS, 0}, {ATTENTION_PAGE_BYTES, 8},
                                         {ATTENTION_PAGES_PER_SLOT, 0}, {ATTENTION_SLOT_COUNT, 0},
                                         {ATTENTION_KV_DTYPE, 0}, {ATTENTION_KV_DTYPE, ENCODING_INT4_G32},
                                         {ATTENTION_X_DTYPE, 4}, {ATTENTION_WINDOW, -1}, {ATTENTION_SCALE_BITS, 0},
                                         {ATTENTION_PARAMS, 0}, {ATTENTION_PARAMS + 1, 8}));
    }
}

int main(void) { return test_run(); }
