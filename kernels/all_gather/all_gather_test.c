/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/all_gather/all_gather.h"
#include "kernels/op/test_support.h"

#include <unistd.h>

#include "kernels/cpu/rendezvous.h"

/* Rounds follow each other without a pause between ranks, with the two buffers in turn. */
enum { ROUNDS = 5 };

struct group {
    struct test_ranks ranks;
    struct plan_geometry geometry;
    int64_t rows, width, out_width, valid[ROUNDS];
    struct test_case cases[PLAN_MAX_RANKS][ROUNDS];
    struct team *teams[PLAN_MAX_RANKS]; /* NULL: the reference */
    int absent;
};

/* What rank has in row r, column c. */
static float value_of(int round, int64_t rank, int64_t r, int64_t c)
{
    return (float)((round * 7919 + rank * 1009 + r * 131 + c * 7) % 100003) * 0.25f;
}

static void group_open(struct group *group, int count, int64_t rows, int64_t width, int64_t out_width,
                       uint64_t timeout_ns, struct test_random *random)
{
    *group = (struct group){.rows = rows, .width = width, .out_width = out_width, .absent = -1};
    group->geometry = test_geometry;
    group->geometry.ranks = (uint64_t)count;
    const int64_t params[ALL_GATHER_PARAMS] = {rows, 1, width, out_width, count};
    uint64_t buffer_bytes;
    assert_true(all_gather_buffer_bytes((uint64_t)rows, (uint64_t)width, 1, &buffer_bytes));
    test_ranks_open(&group->ranks, count, (size_t)buffer_bytes, timeout_ns);
    for (int round = 0; round < ROUNDS; round++) {
        group->valid[round] = test_random_range(random, round == 0, rows);
        for (int rank = 0; rank < count; rank++) {
            struct test_case *test = &group->cases[rank][round];
            test_case_open(test, &op_all_gather, params, &group->geometry, (int32_t)group->valid[round]);
            assert_int_equal(test->demands[ALL_GATHER_BUFFER].bytes, buffer_bytes);
            assert_int_equal(test->demands[ALL_GATHER_HEADER].bytes, sizeof(struct comm_header));
            assert_int_equal(test->demands[ALL_GATHER_OUT].bytes, (uint64_t)(rows * out_width) * sizeof(float));
            float *x = test->call.operands[ALL_GATHER_X];
            /* All rows: what was made of those beyond the valid ones shows. */
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < width; c++) x[r * width + c] = value_of(round, rank, r, c);
            test->call.operands[ALL_GATHER_HEADER] = test_ranks_header(&group->ranks, rank);
            test->call.operands[ALL_GATHER_BUFFER] = test_ranks_buffer(&group->ranks, rank, round % 2);
        }
    }
}

static void group_close(struct group *group)
{
    for (int round = 0; round < ROUNDS; round++)
        for (int rank = 0; rank < group->ranks.count; rank++) test_case_close(&group->cases[rank][round]);
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
            test_run_on(group->teams[rank], &op_all_gather, call);
        else
            op_all_gather.reference(call);
    }
}

static void assert_gathered(const struct group *group)
{
    for (int round = 0; round < ROUNDS; round++) {
        int64_t valid = group->valid[round];
        for (int rank = 0; rank < group->ranks.count; rank++) {
            const float *out = group->cases[rank][round].call.operands[ALL_GATHER_OUT];
            for (int64_t r = 0; r < valid; r++)
                for (int64_t c = 0; c < group->out_width; c++)
                    if (out[r * group->out_width + c] != value_of(round, c / group->width, r, c % group->width))
                        fail_msg("%d ranks of %d columns, out of %d: round %d, rank %d, row %d, column %d",
                                 group->ranks.count, (int)group->width, (int)group->out_width, round, rank, (int)r,
                                 (int)c);
            assert_true(test_is_poison(out + valid * group->out_width,
                                       (size_t)((group->rows - valid) * group->out_width) * sizeof *out));
        }
    }
    /* Nor do rows of the buffers beyond the valid ones change. */
    for (int which = 0; which < 2; which++) {
        int64_t most = 0;
        for (int round = which; round < ROUNDS; round += 2)
            if (group->valid[round] > most) most = group->valid[round];
        for (int rank = 0; rank < group->ranks.count; rank++) {
            const float *buffer = test_ranks_buffer(&group->ranks, rank, which);
            assert_true(test_is_poison(buffer + most * group->width,
                                       (size_t)((group->rows - most) * group->width) * sizeof *buffer));
        }
    }
}

TEST(gathers)
{
    static const int counts[] = {2, 3, 8, PLAN_MAX_RANKS};
    static const int64_t widths[] = {1, 7, 64, 3001};
    struct test_random random = {41};
    static struct group group;
    for (int c = 0; c < 4; c++) {
        for (int w = 0; w < 4; w++) {
            for (int variant = 0; variant < 4; variant++) { /* members of a team; 0: the reference */
                /* All columns; the last rank's in part; the last ranks' not at all; of the first rank alone. */
                int64_t all = counts[c] * widths[w];
                int64_t out_widths[] = {all, all - test_random_range(&random, 0, widths[w] - 1),
                                        test_random_range(&random, 1, all), test_random_range(&random, 1, widths[w])};
                group_open(&group, counts[c], test_random_range(&random, 1, 4), widths[w],
                           out_widths[(variant + w) % 4], 0, &random);
                for (int rank = 0; variant && rank < counts[c]; rank++) {
                    /* Teams of one size, or of all three side by side. */
                    group.teams[rank] = team_create(w % 2 ? variant : 1 + (variant + rank) % 3, NULL);
                    assert_non_null(group.teams[rank]);
                }
                test_ranks_run(counts[c], run_rank, &group);
                assert_gathered(&group);
                group_close(&group);
            }
        }
    }
}

/* No result: what the outputs held stays, and no rank waits longer than it must. */
TEST(absent_rank_leaves_outputs)
{
    struct test_random random = {42};
    static struct group group;
    for (int reference = 0; reference < 2; reference++) {
        group_open(&group, 3, 2, 4000, 12000, UINT64_C(20000000), &random);
        group.absent = 2;
        for (int rank = 0; !reference && rank < 3; rank++) {
            group.teams[rank] = team_create(2, NULL);
            assert_non_null(group.teams[rank]);
        }
        test_ranks_run(3, run_rank, &group);
        for (int rank = 0; rank < 3; rank++) {
            assert_true(test_ranks_header(&group.ranks, rank)->stop != 0);
            for (int round = 0; round < ROUNDS; round++)
                assert_true(test_is_poison(group.cases[rank][round].buffers[ALL_GATHER_OUT].data,
                                           group.cases[rank][round].buffers[ALL_GATHER_OUT].bytes));
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
    const int64_t params[ALL_GATHER_PARAMS] = {4, 1, 64, 250, 4};
    test_hostile_params(&op_all_gather, params, &geometry);
    test_refuses(&op_all_gather, params, &geometry,
                 TEST_CHANGES({ALL_GATHER_WIDTH, 0}, {ALL_GATHER_WIDTH, 62},
                              /* 248 columns in all */ {ALL_GATHER_WIDTH, (int64_t)INT32_MAX + 1},
                              {ALL_GATHER_OUT_WIDTH, 0}, {ALL_GATHER_OUT_WIDTH, 257}));
    for (int64_t ranks = 0; ranks <= PLAN_MAX_RANKS + 1; ranks++)
        if (ranks != 4) test_refuses(&op_all_gather, params, &geometry, TEST_CHANGES({ALL_GATHER_RANKS, ranks}));
    test_refuses(&op_all_gather, params, &geometry, TEST_CHANGES({ALL_GATHER_RANKS, 4 + ((int64_t)1 << 32)}));
    /* An engine with one rank, or too many, has no collective. */
    struct plan_geometry odd = geometry;
    for (odd.ranks = 0; odd.ranks < 2; odd.ranks++)
        for (int64_t ranks = 0; ranks < 5; ranks++)
            test_refuses(&op_all_gather, params, &odd, TEST_CHANGES({ALL_GATHER_RANKS, ranks}));
    odd.ranks = PLAN_MAX_RANKS + 1;
    test_refuses(&op_all_gather, params, &odd, TEST_CHANGES({ALL_GATHER_RANKS, PLAN_MAX_RANKS + 1}));
    uint64_t bytes;
    assert_true(all_gather_buffer_bytes(3, 5, 1, &bytes));
    assert_int_equal(bytes, 60);
    assert_false(all_gather_buffer_bytes(UINT64_C(1) << 32, UINT64_C(1) << 30, 1, &bytes));
}

TEST(cost_counts_what_moves)
{
    uint64_t bytes, flops;
    const int64_t params[ALL_GATHER_PARAMS] = {2, 1, 10, 37, 4};
    op_all_gather.cost(params, geometry.max_context / 2, &bytes, &flops);
    assert_int_equal(bytes, 2 * 4 * (10 + 37 + 27)); /* x, out, what rank 0 reads of the others */
    assert_int_equal(flops, 0);
    const int64_t narrow[ALL_GATHER_PARAMS] = {2, 1, 10, 9, 4};
    op_all_gather.cost(narrow, geometry.max_context / 2, &bytes, &flops);
    assert_int_equal(bytes, 2 * 4 * (10 + 9));
}

int main(void) { return test_run(); }
