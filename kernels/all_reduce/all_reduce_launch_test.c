/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of all_reduce on GPUs: which launches are legal, which are tried, how large buffers are. */
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/cuda/test_launch.h"

enum { MOST_CANDIDATES = 64 };

static const struct device_kernel *const kernels[] = {&device_all_reduce_one_shot, &device_all_reduce_two_shot};
static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

static void fill_params(int64_t *params, int64_t rows, int64_t width, int64_t ranks, enum dtype dtype)
{
    const int64_t filled[ALL_REDUCE_DEVICE_PARAMS] = {
        [ALL_REDUCE_ROWS] = rows,
        [ALL_REDUCE_WIDTH] = width,
        [ALL_REDUCE_RANKS] = ranks,
        [ALL_REDUCE_X_DTYPE] = dtype,
        [ALL_REDUCE_HAS_RESIDUAL] = 1,
        [ALL_REDUCE_HAS_NORM] = 1,
        [ALL_REDUCE_NORM_DTYPE] = DTYPE_BF16,
        [ALL_REDUCE_EPS_BITS] = test_float_bits(1e-5f),
        [ALL_REDUCE_OUT_DTYPE] = DTYPE_BF16,
        [ALL_REDUCE_DEVICE_THREADS] = 256,
        [ALL_REDUCE_DEVICE_BLOCKS] = 2,
        [ALL_REDUCE_DEVICE_HALVES] = 2,
    };
    memcpy(params, filled, sizeof filled);
}

TEST(hostile_params_are_refused)
{
    int64_t params[ALL_REDUCE_DEVICE_PARAMS];
    fill_params(params, 4, 2048, 4, DTYPE_BF16);
    for (int k = 0; k < 2; k++) {
        test_hostile_launches(kernels[k], params);
        test_launch_refuses(kernels[k], params,
                            TEST_CHANGES({ALL_REDUCE_ROWS, 0}, {ALL_REDUCE_COUNT_INDEX, 2}, {ALL_REDUCE_WIDTH, 0},
                                         {ALL_REDUCE_WIDTH, 2044}, {ALL_REDUCE_WIDTH, 1 << 20}, {ALL_REDUCE_RANKS, 1},
                                         {ALL_REDUCE_RANKS, PLAN_MAX_RANKS + 1}, {ALL_REDUCE_X_DTYPE, DTYPE_I8},
                                         {ALL_REDUCE_HAS_RESIDUAL, 3}, {ALL_REDUCE_HAS_NORM, -1},
                                         {ALL_REDUCE_NORM_DTYPE, DTYPE_I8}, {ALL_REDUCE_EPS_BITS, test_float_bits(-1)},
                                         {ALL_REDUCE_OUT_DTYPE, DTYPE_U8}, {ALL_REDUCE_DEVICE_THREADS, 48},
                                         {ALL_REDUCE_DEVICE_THREADS, 1056}, {ALL_REDUCE_DEVICE_BLOCKS, 0}));
    }
    /* Blocks that do not all run at once would wait for each other for ever. */
    test_launch_refuses(&device_all_reduce_two_shot, params, TEST_CHANGES({ALL_REDUCE_DEVICE_BLOCKS, 132 * 4 / 2 + 1}));
    params[ALL_REDUCE_DEVICE_BLOCKS] = 132 * 4 / 2;
    assert_true(test_launch_accepts(&device_all_reduce_two_shot, params, 90));
    params[ALL_REDUCE_RANKS] = 5; /* more registers, fewer blocks */
    assert_false(test_launch_accepts(&device_all_reduce_two_shot, params, 90));
    params[ALL_REDUCE_DEVICE_BLOCKS] = 132 * 2 / 2;
    assert_true(test_launch_accepts(&device_all_reduce_two_shot, params, 90));
    params[ALL_REDUCE_DEVICE_BLOCKS] = 132 * 2; /* of one half, which is all */
    params[ALL_REDUCE_DEVICE_HALVES] = 1;
    assert_true(test_launch_accepts(&device_all_reduce_two_shot, params, 90));
    test_launch_refuses(&device_all_reduce_two_shot, params,
                        TEST_CHANGES({ALL_REDUCE_DEVICE_BLOCKS, 132 * 2 + 1}, {ALL_REDUCE_DEVICE_HALVES, 0},
                                     {ALL_REDUCE_DEVICE_HALVES, 3}));
    params[ALL_REDUCE_RANKS] = 4, params[ALL_REDUCE_DEVICE_BLOCKS] = params[ALL_REDUCE_DEVICE_HALVES] = 2;
    /* Rows have owners in two shots alone. */
    test_launch_refuses(&device_all_reduce_one_shot, params,
                        TEST_CHANGES({ALL_REDUCE_HAS_RESIDUAL, ALL_REDUCE_OWN_ROWS},
                                     {ALL_REDUCE_HAS_NORM, ALL_REDUCE_OWN_ROWS}, {ALL_REDUCE_DEVICE_BLOCKS, 3},
                                     {ALL_REDUCE_DEVICE_BLOCKS, 16}, {ALL_REDUCE_ROWS, 4096}));
    assert_true(test_launch_accepts(&device_all_reduce_one_shot, params, 90));
    assert_false(test_launch_accepts(&device_all_reduce_one_shot, params, 80)); /* has no clusters */
}

static int check_candidates(const struct device_kernel *kernel, const int64_t *params, int capability)
{
    static int64_t candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    const struct device_facts facts = test_facts(capability);
    int count = kernel->candidates(params, &facts, candidates, MOST_CANDIDATES), halves[3] = {0};
    assert_in_range(count, 0, MOST_CANDIDATES - 1);
    for (int c = 0; c < count; c++) {
        assert_true(test_launch_accepts(kernel, candidates[c], capability));
        assert_memory_equal(candidates[c], params, ALL_REDUCE_DEVICE_THREADS * sizeof *params);
        assert_in_range(candidates[c][ALL_REDUCE_DEVICE_HALVES], 0, 2);
        halves[candidates[c][ALL_REDUCE_DEVICE_HALVES]]++;
    }
    /* Both ways of two_shot are tried, wherever one is. */
    assert_int_equal(halves[0], kernel == &device_all_reduce_one_shot ? count : 0);
    assert_int_equal(halves[1] > 0, halves[2] > 0);
    assert_int_equal(kernel->candidates(params, &facts, candidates, 1), count > 0);
    return count;
}

/* Legal, of the problem that was asked for, and never none at all. */
TEST(candidates_are_legal)
{
    static const int64_t rows[] = {1, 16, 300, 4096};
    static const int64_t widths[] = {8, 64, 2048, 2880, 3584, 4096, 5120, 6656, 8192, 16384};
    for (int n = 0; n < 2 * 10 * 4; n++)
        for (int64_t ranks = 2; ranks <= PLAN_MAX_RANKS; ranks++) {
            int64_t params[ALL_REDUCE_DEVICE_PARAMS];
            fill_params(params, rows[n % 4], widths[n / 4 % 10], ranks, dtypes[(n + ranks) % 3]);
            int capability = n < 40 ? 80 : 90;
            if (check_candidates(kernels[0], params, capability) + check_candidates(kernels[1], params, capability) ==
                0)
                fail_msg("no candidate: %d rows of %d, %d ranks", (int)rows[n % 4], (int)widths[n / 4 % 10],
                         (int)ranks);
        }
}

TEST(buffers_hold_every_tactic)
{
    uint64_t bytes;
    for (uint64_t ranks = 2; ranks <= PLAN_MAX_RANKS; ranks++)
        for (uint64_t rows = 1; rows <= 300; rows += 13) {
            const uint64_t row = 4096 * 2, owned = (rows + ranks - 1) / ranks;
            int64_t params[ALL_REDUCE_DEVICE_PARAMS];
            fill_params(params, (int64_t)rows, 4096, (int64_t)ranks, DTYPE_BF16);
            assert_true(all_reduce_device_buffer_bytes(rows, 4096, ranks, DTYPE_BF16, DTYPE_F32, &bytes));
            assert_true(bytes >= (ranks * owned + 2 * rows) * row);
            assert_true(all_reduce_device_buffer_bytes(rows, 4096, ranks, DTYPE_BF16, DTYPE_BF16, &bytes));
            assert_true(bytes >= (ranks * owned + rows) * row);
            assert_int_equal(all_reduce_device_is_large(rows, 4096, ranks, DTYPE_BF16),
                             !test_launch_accepts(&device_all_reduce_one_shot, params, 90));
            if (test_launch_accepts(&device_all_reduce_one_shot, params, 90)) assert_true(bytes >= ranks * rows * row);
        }
    assert_false(all_reduce_device_buffer_bytes(UINT64_MAX / 4, 4096, 2, DTYPE_BF16, DTYPE_BF16, &bytes));
    assert_false(all_reduce_device_buffer_bytes(4, UINT64_MAX / 2, 2, DTYPE_F32, DTYPE_F32, &bytes));
    assert_false(all_reduce_device_buffer_bytes(UINT64_MAX, 8, 2, DTYPE_F32, DTYPE_F32, &bytes));
    assert_false(all_reduce_device_buffer_bytes(1 << 20, UINT64_MAX >> 22, 2, DTYPE_BF16, DTYPE_F32, &bytes));
    assert_true(all_reduce_device_is_large(UINT64_MAX, 8, 2, DTYPE_F32));
}

int main(void) { return test_run(); }
