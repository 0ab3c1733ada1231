/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/pairs.h"

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/matmul/matmul.h"

/* A kernel whose blocks take as many bytes as its first parameter says; none below 0. */
static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    if (params[0] < 0) return "it cannot";
    *geometry = (struct device_geometry){.shared_bytes = (uint32_t)params[0]};
    return NULL;
}
static const struct device_kernel kernel = {.name = "kernel", .launch = launch};
static const struct device_facts gpu = {.shared_per_sm = 100 << 10};

static void list(struct tuned_problem *problem, int64_t kib, double us)
{
    struct shortlisted *listed = &problem->shortlist[problem->shortlist_count++];
    listed->tactic.kernel = &kernel;
    listed->tactic.params[0] = kib < 0 ? -1 : kib << 10;
    listed->record.median_us = us;
}

TEST(takes_pairs_that_fit_fastest_first)
{
    struct tuned_problem first = {.shortlist_count = 0}, second = {.shortlist_count = 0};
    struct tactic_pair pairs[MOST_PAIRS];
    list(&first, 90, 10), list(&first, 50, 12), list(&first, 40, 11), list(&first, -1, 1);
    list(&second, 80, 5), list(&second, 48, 7), list(&second, 49, 6);
    assert_int_equal(choose_pairs(&first, &second, &gpu, pairs), 3);
    assert_int_equal(pairs[0].first, 2);
    assert_int_equal(pairs[0].second, 2);
    assert_int_equal(pairs[1].first, 2);
    assert_int_equal(pairs[1].second, 1);
    assert_int_equal(pairs[2].first, 1); /* 50 + 48 and one for each block: all that there is */
    assert_int_equal(pairs[2].second, 1);
}

TEST(takes_no_more_than_it_may)
{
    struct tuned_problem first = {.shortlist_count = 0}, second = {.shortlist_count = 0};
    struct tactic_pair pairs[MOST_PAIRS];
    for (int i = 0; i < SHORTLIST; i++) list(&first, 10, 20 - i), list(&second, 10, 40 - 2 * i);
    assert_int_equal(choose_pairs(&first, &second, &gpu, pairs), MOST_PAIRS);
    double before = 0;
    for (int i = 0; i < MOST_PAIRS; i++) {
        const double us =
            first.shortlist[pairs[i].first].record.median_us + second.shortlist[pairs[i].second].record.median_us;
        assert_true(us >= before && us <= 43); /* of sums from 39 on, two of 41 and of 42 and so on */
        before = us;
    }
    first.shortlist_count = 0;
    assert_int_equal(choose_pairs(&first, &second, &gpu, pairs), 0);
}

TEST(halves_and_neighbours)
{
    struct device_tactic tactic = {.kernel = &kernel};
    int64_t params[PLAN_MAX_PARAMS] = {0};
    tactic.params[0] = 49 << 10;
    assert_true(leaves_half(&tactic, &gpu));
    tactic.params[0]++;
    assert_false(leaves_half(&tactic, &gpu));
    tactic.params[0] = -1;
    assert_false(leaves_half(&tactic, &gpu));
    assert_true(pairs_with_neighbour(OP_ROUTED_MATMUL, params));
    assert_false(pairs_with_neighbour(OP_MATMUL, params));
    params[MATMUL_EARLY_ROUTES] = 1;
    assert_true(pairs_with_neighbour(OP_MATMUL, params));
}

int main(void) { return test_run(); }
