/* SPDX-License-Identifier: Apache-2.0 */
/* attention_latent against the reference; parameters that it refuses. */
#include "formats/encoding/encoding.h"
#include "kernels/attention/test_attention.h"

/* As in attention_prefill_test.c: weights and the result are rounded to X_DTYPE, with codes k and v, too. */
static void check_shape(struct test_random *random, const struct attention_shape *shape, int most)
{
    const double rounding = shape->x_dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
    const double tolerance = (encoding_is_plain(shape->kv_dtype) ? 1 : 3) * rounding + 1e-4;
    attention_check_candidates(random, shape, &device_attention_latent, most, tolerance);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    struct test_random random = {31};
    /* rows, valid, start, kv_heads, heads, head_dim, window, x_dtype, kv_dtype, page_tokens, scattered */
    static const struct attention_shape all_candidates[] = {
        {1, 1, 200, 1, 16, 576, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .value_dim = 512},
        {9, 7, 700, 1, 16, 576, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .value_dim = 512},
        {3, 3, 1000, 1, 128, 576, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .value_dim = 512},
        {600, 590, 100, 1, 16, 576, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .value_dim = 512},
        {5, 4, 300, 1, 16, 576, 0, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 0, true, .value_dim = 512},
        {600, 590, 100, 1, 16, 576, 0, DTYPE_BF16, ENCODING_INT8_CHANNEL, 0, false, .value_dim = 512},
    };
    static const struct attention_shape shapes[] = {
        {1, 1, 0, 1, 1, 48, 0, DTYPE_BF16, ENCODING_BF16, 16, true, .value_dim = 32},
        {16, 13, 60, 1, 2, 48, 0, DTYPE_BF16, ENCODING_BF16, 16, true, .value_dim = 32, .nan_rows = true},
        {40, 37, 100, 1, 3, 56, 0, DTYPE_F16, ENCODING_F16, 48, true, .value_dim = 40},
        {33, 31, 90, 1, 8, 72, 0, DTYPE_F16, ENCODING_F16, 0, false, .value_dim = 72},
        {64, 60, 1000, 1, 5, 576, 0, DTYPE_F16, ENCODING_F16, 32, true, .value_dim = 512},
        {100, 93, 500, 1, 8, 576, 0, DTYPE_BF16, ENCODING_BF16, 256, false, .value_dim = 512},
        {20, 19, 130, 1, 20, 320, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .value_dim = 256, .count_index = 1},
        {24, 24, 70, 1, 7, 8, 0, DTYPE_BF16, ENCODING_BF16, 0, false, .value_dim = 8},
        {33, 31, 90, 1, 16, 576, 0, DTYPE_F16, ENCODING_INT8_CHANNEL, 16, true, .value_dim = 512},
        {40, 37, 100, 1, 2, 96, 0, DTYPE_BF16, ENCODING_E4M3_CHANNEL, 16, false, .value_dim = 64},
        {1, 0, 10, 1, 16, 576, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .value_dim = 512},
        {5, 4, 254, 1, 16, 576, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .value_dim = 512}, /* from short to long */
        {5, 5, 254, 1, 16, 576, 0, DTYPE_F16, ENCODING_F16, 0, false, .value_dim = 512},  /* one sequence's */
        {2, 2, 60, 1, 32, 144, 0, DTYPE_BF16, ENCODING_BF16, 0, true, .value_dim = 128},
    };
    for (size_t i = 0; i < sizeof all_candidates / sizeof *all_candidates; i++)
        check_shape(&random, &all_candidates[i], 16);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(&random, &shapes[i], 3 + (int)(i % 3));
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ATTENTION_LATENT_PARAMS] = {
        [ATTENTION_ROWS] = 4,
        [ATTENTION_HEADS] = 16,
        [ATTENTION_KV_HEADS] = 1,
        [ATTENTION_HEAD_DIM] = 576,
        [ATTENTION_PAGE_TOKENS] = 64,
        [ATTENTION_PAGES_PER_SLOT] = 16,
        [ATTENTION_PAGE_BYTES] = 64 * 576 * 2,
        [ATTENTION_SLOT_COUNT] = 3,
        [ATTENTION_KV_DTYPE] = DTYPE_BF16,
        [ATTENTION_X_DTYPE] = DTYPE_BF16,
        [ATTENTION_SCALE_BITS] = test_float_bits(0.07f),
        [ATTENTION_SINKS_DTYPE] = DTYPE_F32,
        [ATTENTION_VALUE_DIM] = 512,
        [ATTENTION_LATENT_WARPS_Q] = 1,
        [ATTENTION_LATENT_WARPS_V] = 8,
        [ATTENTION_LATENT_KEY_TILE] = 64,
        [ATTENTION_LATENT_SPLIT] = 4,
        [ATTENTION_LATENT_GROUPS] = 3,
    };
    test_hostile_launches(&device_attention_latent, params);
    test_launch_refuses(&device_attention_latent, params,
                        TEST_CHANGES({ATTENTION_VALUE_DIM, 0}, {ATTENTION_VALUE_DIM, 500}, {ATTENTION_VALUE_DIM, 584},
                                     {ATTENTION_HEAD_DIM, 580}, {ATTENTION_WINDOW, 5}, {ATTENTION_KV_HEADS, 2},
                                     {ATTENTION_CAP_BITS, test_float_bits(2)}, {ATTENTION_HAS_SINKS, 1},
                                     {ATTENTION_KV_DTYPE, DTYPE_F16}, {ATTENTION_KV_DTYPE, DTYPE_F32},
                                     {ATTENTION_X_DTYPE, DTYPE_F32}, {ATTENTION_PAGE_BYTES, 64 * 576 * 2 + 8},
                                     {ATTENTION_LATENT_WARPS_Q, 3}, {ATTENTION_LATENT_WARPS_V, 1},
                                     {ATTENTION_LATENT_KEY_TILE, 16}, {ATTENTION_LATENT_KEY_TILE, 128},
                                     {ATTENTION_LATENT_SPLIT, 16}, {ATTENTION_LATENT_GROUPS, 0},
                                     {ATTENTION_LATENT_GROUPS, 33}));
    assert_false(test_launch_accepts(&device_attention_latent, params, 80)); /* no clusters */
    for (int i = 0; i < 2; i++) {
        const struct device_kernel *others[] = {&device_attention_generic, &device_attention_prefill};
        int64_t list[4][PLAN_MAX_PARAMS];
        const struct device_facts gpu = test_facts(90);
        assert_int_equal(others[i]->candidates(params, &gpu, list, 4), 0);
    }
}

int main(void) { return test_run(); }
