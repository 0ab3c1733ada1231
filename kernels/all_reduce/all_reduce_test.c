/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/op/test_support.h"

struct group {
    struct test_group all;
    float *sums[TEST_GROUP_ROUNDS]; /* expected: f32[valid, width], summed as floats in the order of the ranks */
    double *exact[TEST_GROUP_ROUNDS];
    struct test_memory memory;
};

static void group_open(struct group *group, int count, int64_t rows, int64_t width, bool in_place, uint64_t timeout_ns,
                       struct test_random *random)
{
    const int64_t params[ALL_REDUCE_PARAMS] = {rows, 0, width, count};
    group->memory.count = 0;
    test_group_open(&group->all, &op_all_reduce, params, count, width, timeout_ns, random);
    for (int round = 0; round < TEST_GROUP_ROUNDS; round++) {
        const size_t cells = (size_t)(group->all.valid[round] * width);
        float *sums = group->sums[round] = test_take(&group->memory, cells * sizeof *sums);
        double *exact = group->exact[round] = test_take(&group->memory, cells * sizeof *exact);
        for (int rank = 0; rank < count; rank++) {
            void **operands = group->all.cases[rank][round].call.operands;
            float *x = operands[ALL_REDUCE_X];
            test_fill(random, x, cells, DTYPE_F32, -2, 2);
            /* Not poison: what was made of other rows shows. */
            for (size_t i = cells; i < (size_t)(rows * width); i++) x[i] = 1;
            for (size_t i = 0; i < cells; i++) {
                sums[i] = rank ? sums[i] + x[i] : x[i];
                exact[i] = (rank ? exact[i] : 0) + (double)x[i];
            }
            if (in_place) operands[ALL_REDUCE_OUT] = x;
        }
    }
}

static void group_close(struct group *group)
{
    test_group_close(&group->all);
    test_release(&group->memory);
}

static void assert_sums(const struct group *group, bool reference)
{
    const size_t all = (size_t)(group->all.rows * group->all.width);
    for (int round = 0; round < TEST_GROUP_ROUNDS; round++) {
        size_t cells = (size_t)(group->all.valid[round] * group->all.width);
        for (int rank = 0; rank < group->all.ranks.count; rank++) {
            void *const *operands = group->all.cases[rank][round].call.operands;
            const float *out = operands[ALL_REDUCE_OUT];
            if (reference)
                for (size_t i = 0; i < cells; i++) assert_true(out[i] == (float)group->exact[round][i]);
            else
                test_assert_same_bits(out, group->sums[round], cells * sizeof *out, "sum");
            if (out != operands[ALL_REDUCE_X])
                assert_true(test_is_poison(out + cells, (all - cells) * sizeof *out));
            else
                for (size_t i = cells; i < all; i++) assert_true(out[i] == 1);
        }
    }
    test_group_assert_buffers(&group->all);
}

TEST(sums)
{
    static const int counts[] = {2, 3, 8, PLAN_MAX_RANKS};
    static const int64_t widths[] = {1, 17, 640, 5001};
    struct test_random random = {31};
    static struct group group;
    for (int c = 0; c < 4; c++) {
        for (int w = 0; w < 4; w++) {
            for (int variant = 0; variant < 4; variant++) { /* members of a team; 0: the reference */
                group_open(&group, counts[c], test_random_range(&random, 1, 4), widths[w], variant % 2, 0, &random);
                test_group_run(&group.all, variant, w % 2 == 0);
                assert_sums(&group, variant == 0);
                group_close(&group);
            }
        }
    }
}

/* No result: what the outputs held stays, and no rank waits longer than it must. */
TEST(absent_rank_leaves_outputs)
{
    struct test_random random = {32};
    static struct group group;
    for (int reference = 0; reference < 2; reference++) {
        group_open(&group, 3, 2, 4000, false, UINT64_C(20000000), &random);
        group.all.absent = 1;
        for (int which = 0; which < 2; which++)
            memset(test_ranks_buffer(&group.all.ranks, 1, which), 0, group.all.ranks.buffer_bytes);
        test_group_run(&group.all, reference ? 0 : 2, false);
        test_group_assert_stopped(&group.all, ALL_REDUCE_OUT);
        group_close(&group);
    }
}

TEST(hostile_params_are_refused)
{
    const int64_t params[ALL_REDUCE_PARAMS] = {4, 0, 64, 4};
    struct plan_geometry geometry = test_geometry;
    geometry.ranks = 4;
    test_hostile_params(&op_all_reduce, params, &geometry);
    test_refuses(&op_all_reduce, params, &geometry,
                 TEST_CHANGES({ALL_REDUCE_WIDTH, 0}, {ALL_REDUCE_WIDTH, (int64_t)INT32_MAX + 1}));
    test_refuses_other_ranks(&op_all_reduce, params, &geometry, ALL_REDUCE_RANKS);
    uint64_t bytes;
    int64_t small[ALL_REDUCE_PARAMS] = {3, 0, 5, 4};
    assert_true(all_reduce_buffer_bytes(small, TARGET_CPU, &bytes));
    assert_int_equal(bytes, 60);
    small[ALL_REDUCE_ROWS] = INT64_C(1) << 32, small[ALL_REDUCE_WIDTH] = INT64_C(1) << 30;
    assert_false(all_reduce_buffer_bytes(small, TARGET_CPU, &bytes));
}

TEST(cost_counts_what_moves)
{
    const int64_t params[ALL_REDUCE_PARAMS] = {2, 0, 10, 4};
    uint64_t bytes, flops;
    op_all_reduce.cost(params, test_geometry.max_context / 2, &bytes, &flops);
    assert_int_equal(bytes, 20 * 4 * (1 + 1 + 3)); /* x, out, the buffers of three others */
    assert_int_equal(flops, 20 * 3);
}

int main(void) { return test_run(); }
