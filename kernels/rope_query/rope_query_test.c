/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_query/rope_query.h"

#include <math.h>

#include "kernels/op/test_support.h"

static void check(int64_t rows, int64_t valid, int64_t heads, int64_t head_dim, int64_t rotary_dim, enum dtype dtype)
{
    struct test_random random = {(uint64_t)(rows + heads * head_dim)};
    const int64_t params[ROPE_QUERY_PARAMS] = {[ROPE_QUERY_ROWS] = rows,
                                               [ROPE_QUERY_HEADS] = heads,
                                               [ROPE_QUERY_HEAD_DIM] = head_dim,
                                               [ROPE_QUERY_ROTARY_DIM] = rotary_dim,
                                               [ROPE_QUERY_HAS_NORM] = dtype != DTYPE_NONE,
                                               [ROPE_QUERY_NORM_DTYPE] = dtype == DTYPE_NONE ? DTYPE_F32 : dtype,
                                               [ROPE_QUERY_EPS_BITS] = test_float_bits(1e-6f),
                                               [ROPE_QUERY_X_DTYPE] = DTYPE_F32};
    const size_t count = (size_t)(valid * heads * head_dim), all = (size_t)(rows * heads * head_dim);
    struct test_case test;
    test_case_open(&test, &op_rope_query, params, &test_geometry, (int32_t)valid);
    test_fill(&random, test.call.operands[ROPE_QUERY_X], count, DTYPE_F32, -3, 3);
    test_fill(&random, test.call.operands[ROPE_QUERY_TABLE], (size_t)(valid * rotary_dim), DTYPE_F32, -1, 1);
    if (dtype != DTYPE_NONE)
        test_fill(&random, test.call.operands[ROPE_QUERY_NORM], (size_t)head_dim, dtype, 0.5f, 1.5f);
    float *out = test.call.operands[ROPE_QUERY_OUT], *expected = malloc(count * sizeof *expected);
    op_rope_query.reference(&test.call);
    memcpy(expected, out, count * sizeof *expected);
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, ROPE_QUERY_OUT, run);
        test_assert_close(out, expected, count, 2e-6, 1e-6, "q");
        assert_true(test_is_poison(out + count, (all - count) * sizeof *out));
    }
    free(expected);
    test_case_close(&test);
}

TEST(equals_reference)
{
    check(1, 1, 1, 2, 2, DTYPE_NONE);
    check(3, 2, 3, 20, 6, DTYPE_F32);
    check(5, 5, 4, 64, 64, DTYPE_F16);
    check(9, 8, 2, OP_MAX_HEAD_DIM, OP_MAX_HEAD_DIM, DTYPE_BF16);
    check(40, 40, 8, 128, 32, DTYPE_BF16);
}

/* By hand: a head of 4 whose mean square is 4, of which the first 2 elements turn by a quarter. */
TEST(small_case)
{
    const int64_t params[ROPE_QUERY_PARAMS] =
        {[ROPE_QUERY_ROWS] = 1,           [ROPE_QUERY_HEADS] = 1,    [ROPE_QUERY_HEAD_DIM] = 4,
         [ROPE_QUERY_ROTARY_DIM] = 2,     [ROPE_QUERY_HAS_NORM] = 1, [ROPE_QUERY_NORM_DTYPE] = DTYPE_F32,
         [ROPE_QUERY_X_DTYPE] = DTYPE_F32};
    static const float x[4] = {2, -2, 2, 2}, table[2] = {0, 1}, norm[4] = {1, 3, 5, 7}, out[4] = {3, 1, 5, 7};
    struct test_case test;
    test_case_open(&test, &op_rope_query, params, &test_geometry, 1);
    memcpy(test.call.operands[ROPE_QUERY_X], x, sizeof x);
    memcpy(test.call.operands[ROPE_QUERY_TABLE], table, sizeof table);
    memcpy(test.call.operands[ROPE_QUERY_NORM], norm, sizeof norm);
    op_rope_query.reference(&test.call);
    const float *found = test.call.operands[ROPE_QUERY_OUT];
    for (int i = 0; i < 4; i++) assert_true(fabsf(found[i] - out[i]) < 1e-5f);
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ROPE_QUERY_PARAMS] = {[ROPE_QUERY_ROWS] = 3,
                                               [ROPE_QUERY_HEADS] = 2,
                                               [ROPE_QUERY_HEAD_DIM] = 64,
                                               [ROPE_QUERY_ROTARY_DIM] = 32,
                                               [ROPE_QUERY_HAS_NORM] = 1,
                                               [ROPE_QUERY_NORM_DTYPE] = DTYPE_BF16,
                                               [ROPE_QUERY_EPS_BITS] = test_float_bits(1e-6f),
                                               [ROPE_QUERY_X_DTYPE] = DTYPE_F32};
    test_refuses(&op_rope_query, params, &test_geometry,
                 TEST_CHANGES({ROPE_QUERY_HEADS, 0}, {ROPE_QUERY_HEAD_DIM, 63}, {ROPE_QUERY_ROTARY_DIM, 66},
                              {ROPE_QUERY_ROTARY_DIM, 31}, {ROPE_QUERY_ROTARY_DIM, 0},
                              {ROPE_QUERY_HEAD_DIM, OP_MAX_HEAD_DIM + 2}, {ROPE_QUERY_NORM_DTYPE, DTYPE_F8_E4M3},
                              {ROPE_QUERY_EPS_BITS, -1}, {ROPE_QUERY_X_DTYPE, 0}));
    test_hostile_params(&op_rope_query, params, &test_geometry);
}

int main(void) { return test_run(); }
