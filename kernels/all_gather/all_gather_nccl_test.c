/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of all_gather by NCCL: which calls and launches are legal, and how large what they pass on is. */
#include "kernels/all_gather/all_gather_nccl.h"
#include "kernels/cuda/test_launch.h"

enum { MOST_PLACED_ROWS = 65535 }; /* a grid's second dimension */

static const int64_t good[ALL_GATHER_DEVICE_PARAMS] = {4, 1, 63, 250, 4, 96};

/* Values that neither the call nor the kernel takes. */
static const struct test_change illegal[] = {
    {ALL_GATHER_ROWS, 0},
    {ALL_GATHER_ROWS, -1},
    {ALL_GATHER_ROWS, OP_MAX_ROWS + 1},
    {ALL_GATHER_COUNT_INDEX, -1},
    {ALL_GATHER_COUNT_INDEX, 2},
    {ALL_GATHER_WIDTH, 0},
    {ALL_GATHER_WIDTH, 62}, /* 248 columns in all */
    {ALL_GATHER_WIDTH, INT64_C(1) << 31},
    {ALL_GATHER_WIDTH, INT64_MAX},
    {ALL_GATHER_OUT_WIDTH, 0},
    {ALL_GATHER_OUT_WIDTH, 253},
    {ALL_GATHER_OUT_WIDTH, INT64_MIN},
    {ALL_GATHER_RANKS, 1},
    {ALL_GATHER_RANKS, 3},
    {ALL_GATHER_RANKS, PLAN_MAX_RANKS + 1},
};
enum { ILLEGAL = sizeof illegal / sizeof *illegal };

static void copy(int64_t *params) { memcpy(params, good, sizeof good); }

TEST(hostile_calls_are_refused)
{
    int64_t params[ALL_GATHER_DEVICE_PARAMS];
    uint64_t bytes, flops;
    copy(params);
    assert_true(test_call_accepts(&device_all_gather_nccl, params));
    device_all_gather_nccl.cost(params, 1, &bytes, &flops);
    assert_int_equal(bytes, 4 * 63 * 4 * (1 + 4)); /* reads x, writes what all have */
    assert_int_equal(flops, 0);
    for (int i = 0; i < ILLEGAL; i++) {
        copy(params);
        params[illegal[i].index] = illegal[i].value;
        if (test_call_accepts(&device_all_gather_nccl, params)) fail_msg("case %d was accepted", i);
    }
    copy(params);
    params[ALL_GATHER_DEVICE_THREADS] = -1; /* not its own */
    params[ALL_GATHER_ROWS] = OP_MAX_ROWS;
    assert_true(test_call_accepts(&device_all_gather_nccl, params));
}

TEST(hostile_launches_are_refused)
{
    test_hostile_launches(&device_all_gather_place, good);
    test_launch_refuses(&device_all_gather_place, good, illegal, ILLEGAL);
    test_launch_refuses(&device_all_gather_place, good,
                        TEST_CHANGES({ALL_GATHER_DEVICE_THREADS, 0}, {ALL_GATHER_DEVICE_THREADS, 48},
                                     {ALL_GATHER_DEVICE_THREADS, 1056}, {ALL_GATHER_ROWS, MOST_PLACED_ROWS + 1}));
}

/* The grid has every cell of out, and no block that has none. */
TEST(a_launch_has_all_cells)
{
    static const int64_t out_widths[] = {1, 95, 96, 97, 250}, rows[] = {1, 5, MOST_PLACED_ROWS};
    const struct device_facts facts = test_facts(90);
    for (int n = 0; n < 5 * 3; n++) {
        int64_t params[ALL_GATHER_DEVICE_PARAMS];
        struct device_geometry geometry;
        copy(params);
        params[ALL_GATHER_OUT_WIDTH] = out_widths[n % 5];
        params[ALL_GATHER_ROWS] = rows[n / 5];
        assert_true(test_launch_accepts(&device_all_gather_place, params, 80));
        assert_null(device_all_gather_place.launch(params, &facts, &geometry));
        assert_int_equal(geometry.grid[0], (out_widths[n % 5] + 95) / 96);
        assert_int_equal(geometry.grid[1], rows[n / 5]);
        assert_int_equal(geometry.grid[2] * geometry.block[1] * geometry.block[2], 1);
        assert_int_equal(geometry.block[0], 96);
        assert_int_equal(geometry.shared_bytes, 0);
    }
}

TEST(bytes_are_those_of_the_operand)
{
    int64_t params[ALL_GATHER_DEVICE_PARAMS];
    copy(params);
    params[ALL_GATHER_DEVICE_THREADS] = INT64_MIN; /* not read */
    assert_int_equal(all_gather_nccl_bytes(params, ALL_GATHER_CALL_X), 4 * 63 * 4);
    assert_int_equal(all_gather_nccl_bytes(params, ALL_GATHER_CALL_GATHERED), 4 * 4 * 63 * 4);
    params[ALL_GATHER_ROWS] = OP_MAX_ROWS; /* more than 32 bits have */
    params[ALL_GATHER_WIDTH] = 1 << 20;
    params[ALL_GATHER_RANKS] = PLAN_MAX_RANKS;
    assert_int_equal(all_gather_nccl_bytes(params, ALL_GATHER_CALL_X), UINT64_C(1) << (20 + 20 + 2));
    assert_int_equal(all_gather_nccl_bytes(params, ALL_GATHER_CALL_GATHERED), UINT64_C(1) << (20 + 20 + 4 + 2));
    for (int i = 0; i < ILLEGAL; i++) {
        copy(params);
        params[illegal[i].index] = illegal[i].value;
        assert_int_equal(all_gather_nccl_bytes(params, ALL_GATHER_CALL_X), 0);
        assert_int_equal(all_gather_nccl_bytes(params, ALL_GATHER_CALL_GATHERED), 0);
    }
}

TEST(places_cost_what_they_copy)
{
    uint64_t bytes, flops;
    device_all_gather_place.cost(good, 1, &bytes, &flops);
    assert_int_equal(bytes, 2 * 4 * 250 * 4);
    assert_int_equal(flops, 0);
}

int main(void) { return test_run(); }
