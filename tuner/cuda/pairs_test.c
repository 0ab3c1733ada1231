/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/pairs.h"

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/routed_matmul/routed_matmul.h"

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

/* Some launches of a router on an H200 leave room for the one that follows. */
TEST(candidates_leave_room)
{
    static const struct device_facts h200 = {.capability = 90,
                                             .multiprocessors = 132,
                                             .shared_per_sm = 233472,
                                             .shared_per_block = 232448,
                                             .l2_bytes = 50 << 20};
    const int64_t router[ROUTED_MATMUL_PROBLEM_PARAMS] = {
        [ROUTED_MATMUL_ROWS] = 1,
        [ROUTED_MATMUL_N] = 128 * 1536,
        [ROUTED_MATMUL_K] = 2048,
        [ROUTED_MATMUL_DTYPE] = ENCODING_E4M3_CHANNEL,
        [ROUTED_MATMUL_OUT_DTYPE] = DTYPE_BF16,
        [ROUTED_MATMUL_EPILOGUE] = ACTIVATION_SILU,
        [ROUTED_MATMUL_BIAS_DTYPE] = DTYPE_BF16,
        [ROUTED_MATMUL_NORM_DTYPE] = DTYPE_F32,
        [ROUTED_MATMUL_INPUT_DTYPE] = DTYPE_BF16,
        [ROUTED_MATMUL_CAP_BITS] = OP_FLOAT_ONE_BITS,
        [ROUTED_MATMUL_EXPERTS] = 128,
        [ROUTED_MATMUL_ROUTE_WIDTH] = 16,
        [ROUTED_MATMUL_MATRIX_DTYPE] = DTYPE_BF16,
        [ROUTED_MATMUL_ROUTED] = 128,
        [ROUTED_MATMUL_ROUTER_BIAS_DTYPE] = DTYPE_F32,
        [ROUTED_MATMUL_ROUTER_SCALE_BITS] = OP_FLOAT_ONE_BITS,
        [ROUTED_MATMUL_ROUTER_GROUPS] = 1,
        [ROUTED_MATMUL_TOP_GROUPS] = 1,
        [ROUTED_MATMUL_CLAIM_BIAS_DTYPE] = DTYPE_F32,
        [ROUTED_MATMUL_STEP_ROWS] = 1,
        [ROUTED_MATMUL_SCALES_DTYPE] = DTYPE_BF16,
    };
    struct tuned_problem first = {.shortlist_count = 0}, second = {.shortlist_count = 0};
    struct tactic_pair pairs[MOST_PAIRS];
    int64_t found[DEVICE_MOST_TACTICS][PLAN_MAX_PARAMS] = {{0}}, params[PLAN_MAX_PARAMS] = {0};
    memcpy(params, router, sizeof router);
    const int count = device_routed_matmul.candidates(params, &h200, found, DEVICE_MOST_TACTICS);
    assert_true(count > 2);
    int with_room = 0;
    for (int i = 0; i < count; i++) {
        struct device_tactic tactic = {.kernel = &device_routed_matmul};
        memcpy(tactic.params, found[i], sizeof tactic.params);
        if (!leaves_room(&tactic, &h200)) continue;
        if (first.shortlist_count == 0) first.shortlist[first.shortlist_count++].tactic = tactic;
        with_room++;
    }
    assert_in_range(with_room, 1, count - 1);
    second.shortlist[second.shortlist_count++].tactic.kernel = &kernel;
    second.shortlist[0].tactic.params[0] = matmul_device_second_shared(&h200);
    assert_int_equal(choose_pairs(&first, &second, &h200, pairs), 1);
    second.shortlist[0].tactic.params[0] += 4096;
    first.shortlist[0].tactic.kernel = &kernel;
    first.shortlist[0].tactic.params[0] = matmul_device_least_shared(&h200, 1);
    assert_int_equal(choose_pairs(&first, &second, &h200, pairs), 0);
}

TEST(neighbours)
{
    int64_t params[PLAN_MAX_PARAMS] = {0};
    assert_true(begins_pair(OP_ROUTED_MATMUL, params));
    assert_false(begins_pair(OP_MATMUL, params) || ends_pair(OP_MATMUL, params));
    params[MATMUL_EARLY_ROUTES] = 1;
    assert_true(ends_pair(OP_MATMUL, params));
    params[MATMUL_EARLY_ROUTES] = 0;
    params[MATMUL_EXPERTS] = 8;
    assert_false(begins_pair(OP_MATMUL, params));
    params[MATMUL_EPILOGUE] = ACTIVATION_SILU;
    assert_true(begins_pair(OP_MATMUL, params));
    assert_false(ends_pair(OP_MATMUL, params));
}

int main(void) { return test_run(); }
