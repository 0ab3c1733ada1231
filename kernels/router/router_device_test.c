/* SPDX-License-Identifier: Apache-2.0 */
/* router on the GPU: choices and weights as the reference has them, and the lists of the choices of each expert. */
#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/router/router.h"

struct problem {
    int64_t rows, valid, experts, top_k, score, renormalise, groups, top_groups, group_score;
    enum dtype bias, scales; /* DTYPE_NONE: none */
    int64_t shared, gate;
};

static int64_t logits_of(const struct problem *problem) { return problem->experts + problem->gate; }

static void fill_params(const struct problem *problem, int64_t *params)
{
    const int64_t values[ROUTER_PARAMS] = {
        [ROUTER_ROWS] = problem->rows,
        [ROUTER_EXPERTS] = logits_of(problem),
        [ROUTER_ROUTE_WIDTH] = 2 * (problem->top_k + problem->shared),
        [ROUTER_SCORE] = problem->score,
        [ROUTER_RENORMALISE] = problem->renormalise,
        [ROUTER_EPS_BITS] = test_float_bits(problem->rows % 3 ? 1e-20f : 1e-3f),
        [ROUTER_SCALE_BITS] = test_float_bits(2.5f),
        [ROUTER_GROUPS] = problem->groups,
        [ROUTER_TOP_GROUPS] = problem->top_groups,
        [ROUTER_GROUP_SCORE] = problem->group_score,
        [ROUTER_HAS_BIAS] = problem->bias != DTYPE_NONE,
        [ROUTER_BIAS_DTYPE] = problem->bias ? problem->bias : DTYPE_F32,
        [ROUTER_HAS_SCALES] = problem->scales != DTYPE_NONE,
        [ROUTER_SCALES_DTYPE] = problem->scales ? problem->scales : DTYPE_F32,
        [ROUTER_SHARED] = problem->shared,
        [ROUTER_SHARED_GATE] = problem->gate,
        [ROUTER_HAS_SEEDS] = problem->experts % 3 != 0,
        [ROUTER_STEP_ROWS] = problem->rows + 3,
        [ROUTER_COUNT_INDEX] = problem->experts % 3 == 1,
    };
    memcpy(params, values, sizeof values);
}

/* Each row has random logits in steps that rounding does not reorder; some rows with equal ones, some with a NaN, some of which most are so
 * small that their scores are 0. */
static void fill_logits(struct test_launch *launch, struct test_random *random, int64_t rows, int64_t experts)
{
    float *logits = launch->host[ROUTER_LOGITS];
    int32_t order[ROUTER_MAX_EXPERTS];
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < experts; i++) order[i] = (int32_t)i;
        test_shuffle(random, order, (size_t)experts);
        const int64_t step = row % 5 == 3 ? 3 : 1; /* several experts alike */
        for (int64_t i = 0; i < experts; i++)
            logits[row * experts + i] = 6.0f * (float)(order[i] / step) / (float)experts - 3;
        for (int64_t i = 0; row % 9 == 4 && i < experts; i++)
            if (order[i] != experts - 1) logits[row * experts + i] -= 200;
        if (row % 7 == 6) logits[row * experts + row % experts] = NAN;
    }
}

static void expect_lists(const struct test_launch *launch, const float *routes, int64_t rows)
{
    const int64_t *params = launch->params, top_k = params[ROUTER_ROUTE_WIDTH] / 2;
    const int64_t experts = params[ROUTER_EXPERTS] - params[ROUTER_SHARED_GATE] + params[ROUTER_SHARED];
    const int32_t *lists = launch->found[ROUTER_LISTS], *choices = lists + experts + 1;
    int32_t next = 0;
    for (int64_t expert = 0; expert < experts; expert++) {
        assert_int_equal(lists[expert], next);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t choice = 0; choice < top_k; choice++)
                if (router_expert(routes + row * 2 * top_k, top_k, choice, experts) == expert)
                    assert_int_equal(choices[next++], row * top_k + choice);
    }
    assert_int_equal(lists[experts], next);
    assert_int_equal(next, rows * top_k);
}

static void check(const struct problem *problem)
{
    int64_t params[ROUTER_PARAMS];
    struct test_random random = {(uint64_t)(problem->rows * 31 + problem->experts)};
    struct test_launch launch;
    fill_params(problem, params);
    test_launch_open(&launch, &device_router, params, problem->valid);
    fill_logits(&launch, &random, problem->valid, logits_of(problem));
    if (problem->bias) test_launch_fill(&launch, ROUTER_BIAS, &random, -0.5f, 0.5f);
    if (problem->scales) test_launch_fill(&launch, ROUTER_SCALES, &random, 0.5f, 2);
    int32_t *seeds = launch.host[ROUTER_SEEDS], *index = launch.host[ROUTER_INDEX];
    for (int64_t row = 0; seeds && row < problem->rows + 3; row++) seeds[row] = row % 2 ? (int32_t)row + 1 : 0;
    for (int64_t row = 0; index && row < problem->valid; row++) index[row] = (int32_t)(problem->rows + 2 - row);
    test_launch_run(&launch);
    const int64_t top_k = problem->top_k + problem->shared, width = 2 * top_k;
    const float *found = launch.found[ROUTER_OUT];
    struct op_call call = test_launch_call(&launch);
    float *expected = test_take(&launch.memory, (size_t)(problem->rows * width) * sizeof *expected);
    call.operands[ROUTER_OUT] = expected;
    op_router.reference(&call);
    for (int64_t row = 0; row < problem->valid; row++)
        for (int64_t c = 0; c < top_k; c++) {
            const float want = expected[row * width + c], got = found[row * width + c];
            if (found[row * width + top_k + c] != expected[row * width + top_k + c])
                fail_msg("row %lld, choice %lld of %lld experts: expected %g, found %g", (long long)row, (long long)c,
                         (long long)problem->experts, (double)expected[row * width + top_k + c],
                         (double)found[row * width + top_k + c]);
            if (!(isnan(want) && isnan(got)) && !(fabsf(want - got) <= 2e-6f + 2e-5f * fabsf(want)))
                fail_msg("row %lld, weight %lld of %lld experts: expected %g, found %g", (long long)row, (long long)c,
                         (long long)problem->experts, (double)want, (double)got);
        }
    expect_lists(&launch, found, problem->valid);
    test_launch_assert_rows_untouched(&launch, ROUTER_OUT);
    test_launch_close(&launch);
}

TEST(equals_reference)
{
    static const struct problem problems[] = {
        {1, 1, 8, 2, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {1, 1, 1, 1, ROUTER_SIGMOID, ROUTER_AS_THEY_ARE, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {16, 13, 128, 8, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {17, 17, 60, 4, ROUTER_SOFTMAX_CHOSEN, ROUTER_AS_THEY_ARE, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {40, 33, 64, 6, ROUTER_SOFTMAX, ROUTER_SUM_OR_EPS, 1, 1, 0, DTYPE_F32, DTYPE_NONE, 0, 0},
        {70, 70, 256, 8, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4, ROUTER_GROUP_BEST_TWO, DTYPE_F32, DTYPE_NONE, 0, 0},
        {5, 5, 160, 6, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 8, 3, ROUTER_GROUP_BEST, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {9, 9, 96, 2, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 48, 20, ROUTER_GROUP_BEST_TWO, DTYPE_BF16, DTYPE_NONE, 0, 0},
        {300, 299, 512, 10, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {3, 3, 1024, 64, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, DTYPE_F16, DTYPE_NONE, 0, 0},
        {2048, 2000, 128, 8, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {4, 0, 32, 4, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 0, 0},
        {40, 37, 128, 8, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, DTYPE_NONE, DTYPE_BF16, 0, 0},
        {3, 3, 64, 40, ROUTER_SIGMOID, ROUTER_AS_THEY_ARE, 1, 1, 0, DTYPE_F32, DTYPE_F32, 0, 0},
        {1, 1, 64, 6, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 2, 0},
        {40, 39, 256, 8, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4, ROUTER_GROUP_BEST_TWO, DTYPE_F32, DTYPE_NONE, 1, 0},
        {19, 17, 60, 4, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 4, 1},
        {300, 290, 512, 10, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, DTYPE_NONE, DTYPE_NONE, 1, 1},
        {5, 5, 31, 3, ROUTER_SOFTMAX_CHOSEN, ROUTER_AS_THEY_ARE, 1, 1, 0, DTYPE_NONE, DTYPE_BF16, 40, 0},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i]);
}

TEST(hostile_params_are_refused)
{
    int64_t params[ROUTER_PARAMS];
    fill_params(&(struct problem){4, 4, 64, 4, ROUTER_SIGMOID, 1, 8, 4, ROUTER_GROUP_BEST_TWO, DTYPE_F32, DTYPE_NONE, 0,
                                  0},
                params);
    test_hostile_launches(&device_router, params);
    test_launch_refuses(&device_router, params,
                        TEST_CHANGES({ROUTER_ROUTE_WIDTH, 7}, {ROUTER_ROUTE_WIDTH, 80}, {ROUTER_GROUPS, 7},
                                     {ROUTER_TOP_GROUPS, 9}, {ROUTER_EXPERTS, 2048}, {ROUTER_HAS_SCALES, 2},
                                     {ROUTER_SCALES_DTYPE, DTYPE_F8_E4M3}, {ROUTER_SHARED, 4},
                                     {ROUTER_SHARED_GATE, 1}));
}

int main(void) { return test_run(); }
