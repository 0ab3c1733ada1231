/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_table/rope_table.h"
#include "kernels/op/test_support.h"

#include <math.h>

static const struct plan_geometry geometry =
    {.slots = 1, .max_context = 200000, .page_tokens = 16, .pages_per_slot = 12500, .page_bytes = 64, .vocab_size = 10};

TEST(tables_are_right)
{
    static const int64_t head_dims[] = {2, 8, 20, 64, 128, 256};
    for (int h = 0; h < 6; h++) {
        for (int scaled = 0; scaled < 2; scaled++) {
            int64_t head_dim = head_dims[h], half = head_dim / 2, rows = 7, valid = 6;
            float scaling = scaled ? 1.2079f : 1.0f;
            const int64_t params[ROPE_TABLE_PARAMS] = {rows, 0, head_dim, test_float_bits(scaling)};
            struct test_case test;
            test_case_open(&test, &op_rope_table, params, &geometry, (int32_t)valid);
            int32_t *positions = test.call.operands[ROPE_TABLE_POSITIONS];
            const int32_t fixed[6] = {0, 1, 99999, 100000, 131071, 17};
            memcpy(positions, fixed, sizeof fixed);
            float *inv_freq = test.call.operands[ROPE_TABLE_INV_FREQ], *out = test.call.operands[ROPE_TABLE_OUT];
            for (int64_t i = 0; i < half; i++) inv_freq[i] = (float)pow(500000.0, -2.0 * (double)i / (double)head_dim);
            for (int run = 0; run <= TEST_TEAMS; run++) {
                test_case_run(&test, ROPE_TABLE_OUT, run);
                for (int64_t r = 0; r < valid; r++) {
                    for (int64_t i = 0; i < half; i++) {
                        float angle = (float)positions[r] * inv_freq[i];
                        assert_true(out[r * head_dim + i] == (float)cos((double)angle) * scaling);
                        assert_true(out[r * head_dim + half + i] == (float)sin((double)angle) * scaling);
                    }
                }
                assert_true(test_is_poison(out + valid * head_dim, (size_t)((rows - valid) * head_dim) * 4));
            }
            test_case_close(&test);
        }
    }
}

/* Each row has the set of its slot. */
TEST(slots_pick_their_set)
{
    struct plan_geometry two_sets = geometry;
    two_sets.slots = 3;
    two_sets.rope_original = 4096;
    const int64_t rows = 9, valid = 8, head_dim = 24, half = head_dim / 2;
    const int64_t params[ROPE_TABLE_PARAMS] = {rows, 0, head_dim, test_float_bits(1.5f), 1};
    struct test_case test;
    test_case_open(&test, &op_rope_table, params, &two_sets, (int32_t)valid);
    assert_int_equal(test.demands[ROPE_TABLE_INV_FREQ].bytes, 2 * half * 4);
    assert_int_equal(test.demands[ROPE_TABLE_ROPE_SET].bytes, 3 * 4);
    int32_t *positions = test.call.operands[ROPE_TABLE_POSITIONS], *slots = test.call.operands[ROPE_TABLE_SLOTS];
    int32_t *rope_set = test.call.operands[ROPE_TABLE_ROPE_SET];
    float *inv_freq = test.call.operands[ROPE_TABLE_INV_FREQ], *out = test.call.operands[ROPE_TABLE_OUT];
    for (int64_t i = 0; i < 2 * half; i++) inv_freq[i] = 1.0f / (float)(1 + i);
    for (int i = 0; i < 3; i++) rope_set[i] = i == 1;
    for (int64_t r = 0; r < valid; r++) {
        positions[r] = (int32_t)(1000 * r + 3);
        slots[r] = (int32_t)(r * 2 % 3);
    }
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, ROPE_TABLE_OUT, run);
        for (int64_t r = 0; r < valid; r++)
            for (int64_t i = 0; i < half; i++) {
                float angle = (float)positions[r] * inv_freq[slots[r] == 1 ? half + i : i];
                assert_true(out[r * head_dim + i] == (float)cos((double)angle) * 1.5f);
                assert_true(out[r * head_dim + half + i] == (float)sin((double)angle) * 1.5f);
            }
        assert_true(test_is_poison(out + valid * head_dim, (size_t)((rows - valid) * head_dim) * 4));
    }
    test_case_close(&test);
    test_hostile_params(&op_rope_table, params, &two_sets);
    test_refuses(&op_rope_table, params, &two_sets, TEST_CHANGES({ROPE_TABLE_SWITCHES, 0}, {ROPE_TABLE_SWITCHES, 2}));
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ROPE_TABLE_PARAMS] = {4, 0, 64, test_float_bits(1)};
    test_hostile_params(&op_rope_table, params, &geometry);
    static const int64_t head_dims[] = {0, -2, 63, 1, OP_MAX_HEAD_DIM + 2, INT64_MAX};
    for (int i = 0; i < 6; i++)
        test_refuses(&op_rope_table, params, &geometry, TEST_CHANGES({ROPE_TABLE_HEAD_DIM, head_dims[i]}));
    static const float scalings[] = {-1.0f, INFINITY, NAN, -NAN, 1e30f};
    for (int i = 0; i < 5; i++)
        test_refuses(&op_rope_table, params, &geometry,
                     TEST_CHANGES({ROPE_TABLE_SCALING_BITS, test_float_bits(scalings[i])}));
    test_refuses(&op_rope_table, params, &geometry,
                 TEST_CHANGES({ROPE_TABLE_SWITCHES, 1}, {ROPE_TABLE_SCALING_BITS, -1},
                              {ROPE_TABLE_SCALING_BITS, (int64_t)1 << 32}));
}

int main(void) { return test_run(); }
