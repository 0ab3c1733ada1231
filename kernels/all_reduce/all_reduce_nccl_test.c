/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of all_reduce by NCCL: which calls and launches are legal, and how large what they pass on is. */
#include "kernels/all_reduce/all_reduce_nccl.h"

#include "kernels/all_gather/all_gather_nccl.h"
#include "kernels/cuda/test_launch.h"

enum { MOST_ROW_BYTES = 65536 }; /* that 1024 threads hold in registers */

static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
static const int64_t good[ALL_REDUCE_DEVICE_PARAMS] = {
    [ALL_REDUCE_ROWS] = 4,
    [ALL_REDUCE_COUNT_INDEX] = 1,
    [ALL_REDUCE_WIDTH] = 2048,
    [ALL_REDUCE_RANKS] = 4,
    [ALL_REDUCE_X_DTYPE] = DTYPE_BF16,
    [ALL_REDUCE_NORM_DTYPE] = DTYPE_F32,
    [ALL_REDUCE_OUT_DTYPE] = DTYPE_F16,
    [ALL_REDUCE_DEVICE_THREADS] = 256,
    [ALL_REDUCE_FINISH_PARTS] = 1,
};

/* Values that no launch of either kind takes. */
static const struct test_change illegal[] = {
    {ALL_REDUCE_ROWS, 0},
    {ALL_REDUCE_ROWS, -1},
    {ALL_REDUCE_ROWS, OP_MAX_ROWS + 1},
    {ALL_REDUCE_ROWS, INT64_MIN},
    {ALL_REDUCE_COUNT_INDEX, 2},
    {ALL_REDUCE_COUNT_INDEX, -1},
    {ALL_REDUCE_WIDTH, 0},
    {ALL_REDUCE_WIDTH, -8},
    {ALL_REDUCE_WIDTH, 4},
    {ALL_REDUCE_WIDTH, 2044},
    {ALL_REDUCE_WIDTH, (1 << 24) + 8},
    {ALL_REDUCE_WIDTH, INT64_MAX - 7},
    {ALL_REDUCE_RANKS, 1},
    {ALL_REDUCE_RANKS, PLAN_MAX_RANKS + 1},
    {ALL_REDUCE_X_DTYPE, DTYPE_I8},
    {ALL_REDUCE_X_DTYPE, INT64_MAX},
    {ALL_REDUCE_HAS_RESIDUAL, 3},
    {ALL_REDUCE_HAS_NORM, -1},
    {ALL_REDUCE_NORM_DTYPE, DTYPE_I8},
    {ALL_REDUCE_EPS_BITS, -1},
    {ALL_REDUCE_EPS_BITS, 0x7f800000}, /* infinity */
    {ALL_REDUCE_OUT_DTYPE, DTYPE_U8},
};
enum { ILLEGAL = sizeof illegal / sizeof *illegal };

static void copy(int64_t *params) { memcpy(params, good, sizeof good); }

TEST(hostile_calls_are_refused)
{
    int64_t params[ALL_REDUCE_DEVICE_PARAMS];
    uint64_t bytes, flops;
    copy(params);
    assert_true(test_call_accepts(&device_all_reduce_nccl, params));
    device_all_reduce_nccl.cost(params, 1, &bytes, &flops);
    assert_int_equal(bytes, 2 * 4 * 2048 * 2); /* reads x, writes the sum */
    assert_int_equal(flops, 4 * 2048 * 4);
    /* NCCL forms sums, without residual and norm. */
    params[ALL_REDUCE_HAS_RESIDUAL] = 1;
    assert_false(test_call_accepts(&device_all_reduce_nccl, params));
    copy(params);
    params[ALL_REDUCE_HAS_NORM] = 1;
    assert_false(test_call_accepts(&device_all_reduce_nccl, params));
    for (int i = 0; i < ILLEGAL; i++) {
        copy(params);
        params[illegal[i].index] = illegal[i].value;
        if (test_call_accepts(&device_all_reduce_nccl, params)) fail_msg("case %d was accepted", i);
    }
    copy(params);
    params[ALL_REDUCE_DEVICE_THREADS] = -1; /* not its own */
    assert_true(test_call_accepts(&device_all_reduce_nccl, params));
}

TEST(hostile_launches_are_refused)
{
    int64_t params[ALL_REDUCE_DEVICE_PARAMS];
    copy(params);
    params[ALL_REDUCE_HAS_RESIDUAL] = params[ALL_REDUCE_HAS_NORM] = 1;
    test_hostile_launches(&device_all_reduce_finish, params);
    test_launch_refuses(&device_all_reduce_finish, params, illegal, ILLEGAL);
    test_launch_refuses(&device_all_reduce_finish, params,
                        TEST_CHANGES({ALL_REDUCE_HAS_RESIDUAL, ALL_REDUCE_OWN_ROWS},
                                     {ALL_REDUCE_HAS_NORM, ALL_REDUCE_OWN_ROWS}, {ALL_REDUCE_DEVICE_THREADS, 0},
                                     {ALL_REDUCE_DEVICE_THREADS, 48}, {ALL_REDUCE_DEVICE_THREADS, 1056},
                                     {ALL_REDUCE_FINISH_PARTS, 0}, {ALL_REDUCE_FINISH_PARTS, 3}));
    params[ALL_REDUCE_FINISH_PARTS] = 4; /* all terms */
    assert_true(test_launch_accepts(&device_all_reduce_finish, params, 80));
    params[ALL_REDUCE_FINISH_PARTS] = 1;
    /* Rows that the threads cannot hold. */
    params[ALL_REDUCE_DEVICE_THREADS] = 64;
    assert_true(test_launch_accepts(&device_all_reduce_finish, params, 80)); /* 4 vectors each */
    test_launch_refuses(&device_all_reduce_finish, params,
                        TEST_CHANGES({ALL_REDUCE_DEVICE_THREADS, 32}, {ALL_REDUCE_WIDTH, 2056},
                                     {ALL_REDUCE_X_DTYPE, DTYPE_F32}));
    params[ALL_REDUCE_DEVICE_THREADS] = 1024;
    test_launch_refuses(&device_all_reduce_finish, params, TEST_CHANGES({ALL_REDUCE_WIDTH, MOST_ROW_BYTES / 2 + 8}));
}

/* A block for each row. */
TEST(a_launch_has_all_rows)
{
    const struct device_facts facts = test_facts(90);
    static const int64_t rows[] = {1, 5, 65536, OP_MAX_ROWS};
    for (int r = 0; r < 4; r++) {
        int64_t params[ALL_REDUCE_DEVICE_PARAMS];
        struct device_geometry geometry;
        copy(params);
        params[ALL_REDUCE_ROWS] = rows[r];
        assert_null(device_all_reduce_finish.launch(params, &facts, &geometry));
        assert_int_equal(geometry.grid[0], rows[r]);
        assert_int_equal(geometry.grid[1] * geometry.grid[2], 1);
        assert_int_equal(geometry.block[0], 256);
        assert_int_equal(geometry.block[1] * geometry.block[2], 1);
        assert_int_equal(geometry.shared_bytes, 0);
    }
}

TEST(costs_count_what_is_there)
{
    const uint64_t cells = 4 * 2048;
    for (int n = 0; n < 4; n++) {
        int64_t params[ALL_REDUCE_DEVICE_PARAMS];
        uint64_t bytes, flops;
        copy(params);
        params[ALL_REDUCE_HAS_RESIDUAL] = n % 2;
        params[ALL_REDUCE_HAS_NORM] = n / 2;
        device_all_reduce_finish.cost(params, 1, &bytes, &flops);
        assert_int_equal(bytes, cells * (2u + 4u + (n % 2 ? 4u : 0u) + (n / 2 ? 2u : 0u)));
        assert_true(flops >= cells);
        params[ALL_REDUCE_FINISH_PARTS] = 4;
        device_all_reduce_finish.cost(params, 1, &bytes, &flops);
        assert_int_equal(bytes, cells * (4 * 2u + 4u + (n % 2 ? 4u : 0u) + (n / 2 ? 2u : 0u)));
        assert_true(flops >= 4 * cells);
    }
}

/* For few rows the gathered data are words of the same bytes. */
TEST(gathering_takes_all_bytes)
{
    const struct device_facts facts = test_facts(90);
    for (int d = 0; d < 3; d++)
        for (int64_t width = 8; width <= 16384; width *= 2) {
            int64_t params[ALL_REDUCE_DEVICE_PARAMS], gather[PLAN_MAX_PARAMS] = {0};
            struct device_geometry geometry;
            copy(params);
            params[ALL_REDUCE_X_DTYPE] = dtypes[d];
            params[ALL_REDUCE_WIDTH] = width;
            all_reduce_gather_params(params, gather);
            assert_null(device_all_gather_nccl.launch(gather, &facts, &geometry));
            assert_int_equal(all_gather_nccl_bytes(gather, ALL_GATHER_CALL_X), all_reduce_nccl_bytes(params));
            assert_int_equal(all_gather_nccl_bytes(gather, ALL_GATHER_CALL_GATHERED),
                             4 * all_reduce_nccl_bytes(params));
        }
}

TEST(bytes_are_those_of_the_sum)
{
    int64_t params[ALL_REDUCE_DEVICE_PARAMS];
    copy(params);
    assert_int_equal(all_reduce_nccl_bytes(params), 4 * 2048 * 2);
    params[ALL_REDUCE_HAS_RESIDUAL] = params[ALL_REDUCE_HAS_NORM] = 1; /* of the kernel after it */
    params[ALL_REDUCE_X_DTYPE] = DTYPE_F32;
    params[ALL_REDUCE_DEVICE_THREADS] = INT64_MIN; /* not read */
    assert_int_equal(all_reduce_nccl_bytes(params), 4 * 2048 * 4);
    params[ALL_REDUCE_ROWS] = OP_MAX_ROWS;
    params[ALL_REDUCE_WIDTH] = 1 << 24;
    assert_int_equal(all_reduce_nccl_bytes(params), UINT64_C(1) << (20 + 24 + 2));
    for (int i = 0; i < ILLEGAL; i++) {
        copy(params);
        params[illegal[i].index] = illegal[i].value;
        assert_int_equal(all_reduce_nccl_bytes(params), 0);
    }
}

/* Whatever a row is that a block can hold, and no thread more than its vectors need. */
TEST(threads_make_legal_launches)
{
    for (int d = 0; d < 3; d++) {
        const int64_t element = (int64_t)dtype_bytes(dtypes[d]);
        for (int64_t width = 8; width * element <= MOST_ROW_BYTES; width += 8) {
            int64_t params[ALL_REDUCE_DEVICE_PARAMS];
            copy(params);
            params[ALL_REDUCE_X_DTYPE] = dtypes[d];
            params[ALL_REDUCE_WIDTH] = width;
            params[ALL_REDUCE_DEVICE_THREADS] = -1;
            params[ALL_REDUCE_HAS_RESIDUAL] = width % 3 ? 0 : ALL_REDUCE_OWN_ROWS;
            params[ALL_REDUCE_HAS_NORM] = width % 5 ? 0 : ALL_REDUCE_OWN_ROWS;
            all_reduce_finish_params(params, good[ALL_REDUCE_FINISH_PARTS]);
            assert_int_equal(params[ALL_REDUCE_HAS_RESIDUAL], width % 3 ? 0 : ALL_REDUCE_EVERY_ROW);
            assert_int_equal(params[ALL_REDUCE_HAS_NORM], width % 5 ? 0 : ALL_REDUCE_EVERY_ROW);
            params[ALL_REDUCE_HAS_RESIDUAL] = good[ALL_REDUCE_HAS_RESIDUAL];
            params[ALL_REDUCE_HAS_NORM] = good[ALL_REDUCE_HAS_NORM];
            if (!test_launch_accepts(&device_all_reduce_finish, params, 80))
                fail_msg("%d of %s: %d threads", (int)width, dtype_name(dtypes[d]),
                         (int)params[ALL_REDUCE_DEVICE_THREADS]);
            const int64_t threads = params[ALL_REDUCE_DEVICE_THREADS], vectors = width * element / 16;
            assert_true(threads == 64 || threads / 2 < vectors);
            assert_true(threads == 1024 || threads >= vectors);
            params[ALL_REDUCE_DEVICE_THREADS] = good[ALL_REDUCE_DEVICE_THREADS];
            params[ALL_REDUCE_WIDTH] = good[ALL_REDUCE_WIDTH];
            params[ALL_REDUCE_X_DTYPE] = good[ALL_REDUCE_X_DTYPE];
            assert_memory_equal(params, good, sizeof good); /* the problem is as it was */
        }
    }
}

int main(void) { return test_run(); }
