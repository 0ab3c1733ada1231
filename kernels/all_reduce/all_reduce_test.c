/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/op/test_support.h"

#include <unistd.h>

#include "kernels/cpu/rendezvous.h"

/* Rounds follow each other without a pause between ranks, with the two buffers in turn. */
enum { ROUNDS = 5 };

struct group {
    struct test_ranks ranks;
    struct plan_geometry geometry;
    int64_t rows, width, valid[ROUNDS];
    struct test_case cases[PLAN_MAX_RANKS][ROUNDS];
    float *sums[ROUNDS]; /* expected: f32[valid, width], summed as floats in the order of the ranks */
    double *exact[ROUNDS];
    struct team *teams[PLAN_MAX_RANKS]; /* NULL: the reference */
    int absent;
};

static void group_open(struct group *group, int count, int64_t rows, int64_t width, bool in_place, uint64_t timeout_ns,
                       struct test_random *random)
{
    *group = (struct group){.rows = rows, .width = width, .absent = -1};
    group->geometry = test_geometry;
    group->geometry.ranks = (uint64_t)count;
    const int64_t params[ALL_REDUCE_PARAMS] = {rows, 0, width, count};
    uint64_t buffer_bytes;
    assert_true(all_reduce_buffer_bytes(params, TARGET_CPU, &buffer_bytes));
    test_ranks_open(&group->ranks, count, (size_t)buffer_bytes, timeout_ns);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t valid = group->valid[round] = test_random_range(random, round == 0, rows);
        size_t cells = (size_t)(valid * width);
        float *sums = group->sums[round] = calloc(cells + 1, sizeof *sums);
        double *exact = group->exact[round] = calloc(cells + 1, sizeof *exact);
        for (int rank = 0; rank < count; rank++) {
            struct test_case *test = &group->cases[rank][round];
            test_case_open(test, &op_all_reduce, params, &group->geometry, (int32_t)valid);
            assert_int_equal(test->demands[ALL_REDUCE_BUFFER].bytes, buffer_bytes);
            assert_int_equal(test->demands[ALL_REDUCE_HEADER].bytes, sizeof(struct comm_header));
            float *x = test->call.operands[ALL_REDUCE_X];
            test_fill(random, x, cells, DTYPE_F32, -2, 2);
            /* Not poison: what was made of other rows shows. */
            for (size_t i = cells; i < (size_t)(rows * width); i++) x[i] = 1;
            for (size_t i = 0; i < cells; i++) {
                sums[i] = rank ? sums[i] + x[i] : x[i];
                exact[i] += (double)x[i];
            }
            test->call.operands[ALL_REDUCE_HEADER] = test_ranks_header(&group->ranks, rank);
            test->call.operands[ALL_REDUCE_BUFFER] = test_ranks_buffer(&group->ranks, rank, round % 2);
            if (in_place) test->call.operands[ALL_REDUCE_OUT] = x;
        }
    }
}

static void group_close(struct group *group)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int rank = 0; rank < group->ranks.count; rank++) test_case_close(&group->cases[rank][round]);
        free(group->sums[round]);
        free(group->exact[round]);
    }
    for (int rank = 0; rank < group->ranks.count; rank++) team_destroy(group->teams[rank]);
    test_ranks_close(&group->ranks);
}

static void run_rank(void *argument, int rank)
{
    struct group *group = argument;
    if (rank == group->absent) return;
    for (int round = 0; round < ROUNDS; round++) {
        if (round % group->ranks.count == rank) usleep(200); /* each is the last one now and then */
        const struct op_call *call = &group->cases[rank][round].call;
        if (group->teams[rank])
            test_run_on(group->teams[rank], &op_all_reduce, call);
        else
            op_all_reduce.reference(call);
    }
}

static void assert_sums(const struct group *group, bool reference)
{
    for (int round = 0; round < ROUNDS; round++) {
        size_t cells = (size_t)(group->valid[round] * group->width);
        for (int rank = 0; rank < group->ranks.count; rank++) {
            const float *out = group->cases[rank][round].call.operands[ALL_REDUCE_OUT];
            if (reference)
                for (size_t i = 0; i < cells; i++) assert_true(out[i] == (float)group->exact[round][i]);
            else
                test_assert_same_bits(out, group->sums[round], cells * sizeof *out, "sum");
            size_t all = (size_t)(group->rows * group->width);
            if (out != group->cases[rank][round].call.operands[ALL_REDUCE_X])
                assert_true(test_is_poison(out + cells, (all - cells) * sizeof *out));
            else
                for (size_t i = cells; i < all; i++) assert_true(out[i] == 1);
        }
    }
    /* Nor do rows of the buffers beyond the valid ones change. */
    for (int which = 0; which < 2; which++) {
        size_t most = 0;
        for (int round = which; round < ROUNDS; round += 2)
            if ((size_t)(group->valid[round] * group->width) > most)
                most = (size_t)(group->valid[round] * group->width);
        for (int rank = 0; rank < group->ranks.count; rank++) {
            const float *buffer = test_ranks_buffer(&group->ranks, rank, which);
            assert_true(test_is_poison(buffer + most, group->ranks.buffer_bytes - most * sizeof *buffer));
        }
    }
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
                for (int rank = 0; variant && rank < counts[c]; rank++) {
                    /* Teams of one size, or of all three side by side. */
                    group.teams[rank] = team_create(w % 2 ? variant : 1 + (variant + rank) % 3, NULL);
                    assert_non_null(group.teams[rank]);
                }
                test_ranks_run(counts[c], run_rank, &group);
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
        group.absent = 1;
        for (int which = 0; which < 2; which++)
            memset(test_ranks_buffer(&group.ranks, 1, which), 0, group.ranks.buffer_bytes);
        for (int rank = 0; !reference && rank < 3; rank++) {
            group.teams[rank] = team_create(2, NULL);
            assert_non_null(group.teams[rank]);
        }
        test_ranks_run(3, run_rank, &group);
        for (int rank = 0; rank < 3; rank++) {
            assert_true(test_ranks_header(&group.ranks, rank)->stop != 0);
            for (int round = 0; round < ROUNDS; round++)
                assert_true(test_is_poison(group.cases[rank][round].buffers[ALL_REDUCE_OUT].data,
                                           group.cases[rank][round].buffers[ALL_REDUCE_OUT].bytes));
        }
        group_close(&group);
    }
}

static const struct plan_geometry geometry = {.slots = 1,
                                              .max_context = 8,
                                              .page_tokens = 8,
                                              .pages_per_slot = 1,
                                              .page_bytes = 64,
                                              .vocab_size = 10,
                                              .ranks = 4};

TEST(hostile_params_are_refused)
{
    const int64_t params[ALL_REDUCE_PARAMS] = {4, 0, 64, 4};
    test_hostile_params(&op_all_reduce, params, &geometry);
    test_refuses(&op_all_reduce, params, &geometry,
                 TEST_CHANGES({ALL_REDUCE_WIDTH, 0}, {ALL_REDUCE_WIDTH, (int64_t)INT32_MAX + 1}));
    for (int64_t ranks = 0; ranks <= PLAN_MAX_RANKS + 1; ranks++)
        if (ranks != 4) test_refuses(&op_all_reduce, params, &geometry, TEST_CHANGES({ALL_REDUCE_RANKS, ranks}));
    test_refuses(&op_all_reduce, params, &geometry, TEST_CHANGES({ALL_REDUCE_RANKS, 4 + ((int64_t)1 << 32)}));
    /* An engine with one rank, or too many, has no collective. */
    struct plan_geometry odd = geometry;
    for (odd.ranks = 0; odd.ranks < 2; odd.ranks++)
        for (int64_t ranks = 0; ranks < 5; ranks++)
            test_refuses(&op_all_reduce, params, &odd, TEST_CHANGES({ALL_REDUCE_RANKS, ranks}));
    odd.ranks = PLAN_MAX_RANKS + 1;
    test_refuses(&op_all_reduce, params, &odd, TEST_CHANGES({ALL_REDUCE_RANKS, PLAN_MAX_RANKS + 1}));
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
    op_all_reduce.cost(params, geometry.max_context / 2, &bytes, &flops);
    assert_int_equal(bytes, 20 * 4 * (1 + 1 + 3)); /* x, out, the buffers of three others */
    assert_int_equal(flops, 20 * 3);
}

int main(void) { return test_run(); }
