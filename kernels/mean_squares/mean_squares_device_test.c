/* SPDX-License-Identifier: Apache-2.0 */
/* mean_squares on the GPU against the reference. */
#include "kernels/cuda/test_launch.h"
#include "kernels/mean_squares/mean_squares.h"

static void check(int64_t rows, int64_t valid, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t ranks,
                  enum dtype dtype)
{
    const int64_t params[MEAN_SQUARES_PARAMS] =
        {[MEAN_SQUARES_ROWS] = rows,         [MEAN_SQUARES_HEADS] = heads, [MEAN_SQUARES_KV_HEADS] = kv_heads,
         [MEAN_SQUARES_HEAD_DIM] = head_dim, [MEAN_SQUARES_RANKS] = ranks, [MEAN_SQUARES_X_DTYPE] = dtype};
    struct test_random random = {(uint64_t)(rows * 5 + heads * head_dim)};
    struct test_launch launch;
    test_launch_open(&launch, &device_mean_squares, params, valid);
    test_launch_fill(&launch, MEAN_SQUARES_QKV, &random, -2, 2);
    struct op_call call = test_launch_call(&launch);
    float *expected = test_take(&launch.memory, test_launch_count(&launch, MEAN_SQUARES_OUT) * sizeof *expected);
    call.operands[MEAN_SQUARES_QKV] = test_launch_decode(&launch, MEAN_SQUARES_QKV);
    call.operands[MEAN_SQUARES_OUT] = expected;
    op_mean_squares.reference(&call);
    test_launch_run_twice(&launch);
    test_assert_close(test_launch_found(&launch, MEAN_SQUARES_OUT), expected, (size_t)(valid * MEAN_SQUARES_WIDTH), 0,
                      1e-5, "mean squares");
    test_launch_assert_rows_untouched(&launch, MEAN_SQUARES_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    TEST_NEEDS_DEVICE();
    check(1, 1, 1, 1, 2, 2, DTYPE_BF16);
    check(5, 4, 3, 1, 20, 3, DTYPE_F16);
    check(33, 31, 6, 2, 254, 2, DTYPE_BF16);
    check(16, 16, 20, 4, 128, 2, DTYPE_BF16);
    check(700, 650, 40, 40, 128, 16, DTYPE_F16);
    check(2, 2, 64, 8, 512, 8, DTYPE_BF16);
    check(9, 7, 24, 0, 64, 2, DTYPE_BF16);
}

TEST(hostile_params_are_refused)
{
    const int64_t params[MEAN_SQUARES_PARAMS] = {4, 0, 8, 2, 64, 2, DTYPE_BF16};
    test_hostile_launches(&device_mean_squares, params);
    test_launch_refuses(&device_mean_squares, params,
                        TEST_CHANGES({MEAN_SQUARES_HEADS, 0}, {MEAN_SQUARES_KV_HEADS, -1}, {MEAN_SQUARES_HEAD_DIM, 63},
                                     {MEAN_SQUARES_HEAD_DIM, 514}, {MEAN_SQUARES_RANKS, 1},
                                     {MEAN_SQUARES_RANKS, PLAN_MAX_RANKS + 1}, {MEAN_SQUARES_X_DTYPE, DTYPE_F32},
                                     {MEAN_SQUARES_X_DTYPE, DTYPE_F8_E4M3}));
}

int main(void) { return test_run(); }
