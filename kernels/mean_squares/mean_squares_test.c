/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/mean_squares/mean_squares.h"

#include "kernels/op/test_support.h"

enum { RANKS = 4 };

static struct plan_geometry geometry_of_ranks(void)
{
    struct plan_geometry geometry = test_geometry;
    geometry.ranks = RANKS;
    return geometry;
}

static void open_case(struct test_case *test, int64_t rows, int64_t valid, int64_t heads, int64_t kv_heads,
                      int64_t head_dim)
{
    const int64_t params[MEAN_SQUARES_PARAMS] =
        {[MEAN_SQUARES_ROWS] = rows,         [MEAN_SQUARES_HEADS] = heads, [MEAN_SQUARES_KV_HEADS] = kv_heads,
         [MEAN_SQUARES_HEAD_DIM] = head_dim, [MEAN_SQUARES_RANKS] = RANKS, [MEAN_SQUARES_X_DTYPE] = DTYPE_F32};
    const struct plan_geometry geometry = geometry_of_ranks();
    test_case_open(test, &op_mean_squares, params, &geometry, (int32_t)valid);
}

static void check(int64_t rows, int64_t valid, int64_t heads, int64_t kv_heads, int64_t head_dim)
{
    struct test_random random = {(uint64_t)(rows + heads * head_dim)};
    const size_t count = (size_t)(valid * MEAN_SQUARES_WIDTH);
    struct test_case test;
    open_case(&test, rows, valid, heads, kv_heads, head_dim);
    test_fill(&random, test.call.operands[MEAN_SQUARES_QKV], (size_t)(valid * (heads + 2 * kv_heads) * head_dim),
              DTYPE_F32, -3, 3);
    float *out = test.call.operands[MEAN_SQUARES_OUT], *expected = malloc(count * sizeof *expected);
    op_mean_squares.reference(&test.call);
    memcpy(expected, out, count * sizeof *expected);
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, MEAN_SQUARES_OUT, run);
        test_assert_close(out, expected, count, 0, 1e-5, "mean squares");
        assert_true(test_is_poison(out + count, (size_t)((rows - valid) * MEAN_SQUARES_WIDTH) * sizeof *out));
    }
    free(expected);
    test_case_close(&test);
}

TEST(equals_reference)
{
    check(1, 1, 1, 1, 2);
    check(3, 2, 3, 1, 20);
    check(5, 5, 8, 8, 64);
    check(9, 8, 40, 8, 128);
    check(40, 33, 6, 2, 254);
    check(2, 2, 4, 2, OP_MAX_HEAD_DIM);
    check(3, 3, 12, 0, 20);
}

/* By hand: two heads of q, one of k, four ranks; v has no part in it. */
TEST(small_case)
{
    static const float qkv[8] = {1, 2, 3, 4, 5, 7, 1000, 1000};
    static const float out[MEAN_SQUARES_WIDTH] = {30.0f / 16, 74.0f / 8};
    struct test_case test;
    open_case(&test, 1, 1, 2, 1, 2);
    memcpy(test.call.operands[MEAN_SQUARES_QKV], qkv, sizeof qkv);
    op_mean_squares.reference(&test.call);
    test_assert_same_bits(test.call.operands[MEAN_SQUARES_OUT], out, sizeof out, "mean squares");
    test_case_close(&test);
}

/* A row without k and v. */
TEST(one_mean_alone)
{
    static const float x[4] = {1, 2, 3, 4}, out[MEAN_SQUARES_WIDTH] = {30.0f / 16};
    struct test_case test;
    open_case(&test, 1, 1, 2, 0, 2);
    memcpy(test.call.operands[MEAN_SQUARES_QKV], x, sizeof x);
    op_mean_squares.reference(&test.call);
    test_assert_same_bits(test.call.operands[MEAN_SQUARES_OUT], out, sizeof out, "mean squares");
    test_case_close(&test);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[MEAN_SQUARES_PARAMS] =
        {[MEAN_SQUARES_ROWS] = 3,      [MEAN_SQUARES_HEADS] = 4,     [MEAN_SQUARES_KV_HEADS] = 2,
         [MEAN_SQUARES_HEAD_DIM] = 64, [MEAN_SQUARES_RANKS] = RANKS, [MEAN_SQUARES_X_DTYPE] = DTYPE_F32};
    const struct plan_geometry geometry = geometry_of_ranks();
    test_refuses(&op_mean_squares, params, &geometry,
                 TEST_CHANGES({MEAN_SQUARES_HEADS, 0}, {MEAN_SQUARES_KV_HEADS, -1}, {MEAN_SQUARES_HEAD_DIM, 63},
                              {MEAN_SQUARES_HEAD_DIM, OP_MAX_HEAD_DIM + 2}, {MEAN_SQUARES_ROWS, -1},
                              {MEAN_SQUARES_X_DTYPE, 0}));
    test_refuses_other_ranks(&op_mean_squares, params, &geometry, MEAN_SQUARES_RANKS);
    test_hostile_params(&op_mean_squares, params, &geometry);
}

int main(void) { return test_run(); }
