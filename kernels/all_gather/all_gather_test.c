/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_gather/all_gather.h"
#include "kernels/op/test_support.h"

/* What rank has in row r, column c. */
static float value_of(int round, int64_t rank, int64_t r, int64_t c)
{
    return (float)((round * 7919 + rank * 1009 + r * 131 + c * 7) % 100003) * 0.25f;
}

static void group_open(struct test_group *group, int count, int64_t rows, int64_t width, int64_t out_width,
                       uint64_t timeout_ns, struct test_random *random)
{
    const int64_t params[ALL_GATHER_PARAMS] = {rows, 1, width, out_width, count};
    test_group_open(group, &op_all_gather, params, count, width, timeout_ns, random);
    for (int round = 0; round < TEST_GROUP_ROUNDS; round++)
        for (int rank = 0; rank < count; rank++) {
            struct test_case *test = &group->cases[rank][round];
            assert_int_equal(test->demands[ALL_GATHER_OUT].bytes, (uint64_t)(rows * out_width) * sizeof(float));
            float *x = test->call.operands[ALL_GATHER_X];
            /* All rows: what was made of those beyond the valid ones shows. */
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < width; c++) x[r * width + c] = value_of(round, rank, r, c);
        }
}

static void assert_gathered(const struct test_group *group)
{
    const int64_t width = group->width, out_width = group->cases[0][0].params[ALL_GATHER_OUT_WIDTH];
    for (int round = 0; round < TEST_GROUP_ROUNDS; round++) {
        int64_t valid = group->valid[round];
        for (int rank = 0; rank < group->ranks.count; rank++) {
            const float *out = group->cases[rank][round].call.operands[ALL_GATHER_OUT];
            for (int64_t r = 0; r < valid; r++)
                for (int64_t c = 0; c < out_width; c++)
                    if (out[r * out_width + c] != value_of(round, c / width, r, c % width))
                        fail_msg("%d ranks of %d columns, out of %d: round %d, rank %d, row %d, column %d",
                                 group->ranks.count, (int)width, (int)out_width, round, rank, (int)r, (int)c);
            assert_true(
                test_is_poison(out + valid * out_width, (size_t)((group->rows - valid) * out_width) * sizeof *out));
        }
    }
    test_group_assert_buffers(group);
}

TEST(gathers)
{
    static const int counts[] = {2, 3, 8, PLAN_MAX_RANKS};
    static const int64_t widths[] = {1, 7, 64, 3001};
    struct test_random random = {41};
    static struct test_group group;
    for (int c = 0; c < 4; c++) {
        for (int w = 0; w < 4; w++) {
            for (int variant = 0; variant < 4; variant++) { /* members of a team; 0: the reference */
                /* All columns; the last rank's in part; the last ranks' not at all; of the first rank alone. */
                int64_t all = counts[c] * widths[w];
                int64_t out_widths[] = {all, all - test_random_range(&random, 0, widths[w] - 1),
                                        test_random_range(&random, 1, all), test_random_range(&random, 1, widths[w])};
                group_open(&group, counts[c], test_random_range(&random, 1, 4), widths[w],
                           out_widths[(variant + w) % 4], 0, &random);
                test_group_run(&group, variant, w % 2 == 0);
                assert_gathered(&group);
                test_group_close(&group);
            }
        }
    }
}

/* No result: what the outputs held stays, and no rank waits longer than it must. */
TEST(absent_rank_leaves_outputs)
{
    struct test_random random = {42};
    static struct test_group group;
    for (int reference = 0; reference < 2; reference++) {
        group_open(&group, 3, 2, 4000, 12000, UINT64_C(20000000), &random);
        group.absent = 2;
        test_group_run(&group, reference ? 0 : 2, false);
        test_group_assert_stopped(&group, ALL_GATHER_OUT);
        test_group_close(&group);
    }
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ALL_GATHER_PARAMS] = {4, 1, 64, 250, 4};
    struct plan_geometry geometry = test_geometry;
    geometry.ranks = 4;
    test_hostile_params(&op_all_gather, params, &geometry);
    test_refuses(&op_all_gather, params, &geometry,
                 TEST_CHANGES({ALL_GATHER_WIDTH, 0}, {ALL_GATHER_WIDTH, 62},
                              /* 248 columns in all */ {ALL_GATHER_WIDTH, (int64_t)INT32_MAX + 1},
                              {ALL_GATHER_OUT_WIDTH, 0}, {ALL_GATHER_OUT_WIDTH, 257}));
    test_refuses_other_ranks(&op_all_gather, params, &geometry, ALL_GATHER_RANKS);
    uint64_t bytes;
    assert_true(all_gather_buffer_bytes(3, 5, 1, &bytes));
    assert_int_equal(bytes, 60);
    assert_false(all_gather_buffer_bytes(UINT64_C(1) << 32, UINT64_C(1) << 30, 1, &bytes));
}

TEST(cost_counts_what_moves)
{
    uint64_t bytes, flops;
    const int64_t params[ALL_GATHER_PARAMS] = {2, 1, 10, 37, 4};
    op_all_gather.cost(params, test_geometry.max_context / 2, &bytes, &flops);
    assert_int_equal(bytes, 2 * 4 * (10 + 37 + 27)); /* x, out, what rank 0 reads of the others */
    assert_int_equal(flops, 0);
    const int64_t narrow[ALL_GATHER_PARAMS] = {2, 1, 10, 9, 4};
    op_all_gather.cost(narrow, test_geometry.max_context / 2, &bytes, &flops);
    assert_int_equal(bytes, 2 * 4 * (10 + 9));
}

int main(void) { return test_run(); }
