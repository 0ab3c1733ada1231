/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of router: choices and weights against a plain computation in double, equal claims, NaN, refusal of hostile parameters. */
#include <math.h>

#include "kernels/op/test_support.h"
#include "kernels/router/router.h"

static struct test_random numbers = {7};

/* Whether expert `a` comes before `b`. */
static bool before(const double *claims, int64_t a, int64_t b)
{
    return claims[a] > claims[b] || (claims[a] == claims[b] && a < b);
}

static int64_t rank_of(const double *claims, int64_t expert, int64_t first, int64_t count)
{
    int64_t rank = 0;
    for (int64_t i = first; i < first + count; i++) rank += i != expert && before(claims, i, expert);
    return rank;
}

struct expected_row {
    double weights[ROUTER_MAX_TOP_K];
    int64_t ids[ROUTER_MAX_TOP_K];
};

static void expect_row(const int64_t *params, const float *logits, const float *bias, const float *scales, int32_t seed,
                       struct expected_row *row)
{
    const int64_t experts = params[ROUTER_EXPERTS] - params[ROUTER_SHARED_GATE], shared = params[ROUTER_SHARED];
    const int64_t top_k = params[ROUTER_ROUTE_WIDTH] / 2 - shared;
    const int64_t groups = params[ROUTER_GROUPS], size = experts / groups;
    const bool chosen_only = params[ROUTER_SCORE] == ROUTER_SOFTMAX_CHOSEN;
    double scores[ROUTER_MAX_EXPERTS], claims[ROUTER_MAX_EXPERTS], group_claims[ROUTER_MAX_EXPERTS], sum = 0;
    for (int64_t i = 0; i < experts; i++) sum += exp((double)logits[i]);
    for (int64_t i = 0; i < experts; i++) {
        const double logit = (double)logits[i];
        scores[i] = chosen_only                              ? logit
                    : params[ROUTER_SCORE] == ROUTER_SIGMOID ? 1 / (1 + exp(-logit))
                                                             : exp(logit) / sum;
        claims[i] = seed ? (double)router_seeded_claim(seed, (int)i) : scores[i] + (bias ? (double)bias[i] : 0);
    }
    for (int64_t g = 0; g < groups; g++) {
        group_claims[g] = 0;
        for (int64_t i = g * size; i < (g + 1) * size; i++)
            if (rank_of(claims, i, g * size, size) < (params[ROUTER_GROUP_SCORE] == ROUTER_GROUP_BEST ? 1 : 2))
                group_claims[g] += claims[i];
    }
    for (int64_t i = 0; groups > 1 && i < experts; i++)
        if (rank_of(group_claims, i / size, 0, groups) >= params[ROUTER_TOP_GROUPS]) claims[i] = -1e30;
    sum = 0;
    for (int64_t i = 0; i < experts; i++) {
        const int64_t rank = rank_of(claims, i, 0, experts);
        if (rank >= top_k) continue;
        row->ids[rank] = i;
        row->weights[rank] = chosen_only ? exp(scores[i]) : scores[i];
        sum += row->weights[rank];
    }
    const double eps = (double)op_float_param(params, ROUTER_EPS_BITS);
    if (params[ROUTER_RENORMALISE] == ROUTER_SUM_PLUS_EPS && !chosen_only) sum += eps;
    if (params[ROUTER_RENORMALISE] == ROUTER_SUM_OR_EPS && sum < eps) sum = eps;
    const bool divide = chosen_only || params[ROUTER_RENORMALISE] != ROUTER_AS_THEY_ARE;
    for (int64_t i = 0; i < top_k; i++)
        row->weights[i] = row->weights[i] / (divide ? sum : 1) * (double)op_float_param(params, ROUTER_SCALE_BITS) *
                          (scales ? (double)scales[row->ids[i]] : 1);
    for (int64_t i = 0; i < shared; i++) {
        row->ids[top_k + i] = experts + i;
        row->weights[top_k + i] = params[ROUTER_SHARED_GATE] ? 1 / (1 + exp(-(double)logits[experts])) : 1;
    }
}

/* Logits that differ by more than rounding, in random order. */
static void fill_logits(float *logits, int64_t rows, int64_t experts)
{
    int32_t order[ROUTER_MAX_EXPERTS];
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < experts; i++) order[i] = (int32_t)i;
        test_shuffle(&numbers, order, (size_t)experts);
        for (int64_t i = 0; i < experts; i++) logits[row * experts + i] = 6.0f * (float)order[i] / (float)experts - 3;
    }
}

/* `experts`: logits of a row; `top_k`: choices of a row. */
static void check(int64_t rows, int64_t experts, int64_t top_k, const int64_t *changes)
{
    int64_t params[ROUTER_PARAMS];
    memcpy(params, changes, sizeof params);
    params[ROUTER_ROWS] = rows;
    params[ROUTER_STEP_ROWS] = rows + 5;
    params[ROUTER_COUNT_INDEX] = params[ROUTER_HAS_SEEDS] && experts % 3 == 0;
    params[ROUTER_EXPERTS] = experts;
    params[ROUTER_ROUTE_WIDTH] = 2 * top_k;
    const int64_t all_experts = experts - params[ROUTER_SHARED_GATE] + params[ROUTER_SHARED];
    const int64_t valid = test_random_range(&numbers, rows > 3 ? rows - 3 : 1, rows);
    struct test_case test;
    test_case_open(&test, &op_router, params, &test_geometry, (int32_t)valid);
    float *bias = test.call.operands[ROUTER_BIAS], *scales = test.call.operands[ROUTER_SCALES];
    int32_t *seeds = test.call.operands[ROUTER_SEEDS], *index = test.call.operands[ROUTER_INDEX];
    for (int64_t row = 0; seeds && row < rows + 5; row++)
        seeds[row] = row % 3 ? (int32_t)row + 1 : 0; /* some have none */
    for (int64_t row = 0; index && row < valid; row++) index[row] = (int32_t)((row * 7 + 2) % (rows + 5));
    const float *out = test.call.operands[ROUTER_OUT], *logits = test.call.operands[ROUTER_LOGITS];
    fill_logits(test.call.operands[ROUTER_LOGITS], rows, experts);
    for (int64_t i = 0; scales && i < experts; i++) scales[i] = 0.5f + 0.25f * (float)(i % 7);
    for (int64_t i = 0; bias && i < experts; i++) bias[i] = 0.37f * (float)(i % 5) - 0.61f;
    for (int run = 0; run <= TEST_TEAMS; run++) {
        test_case_run(&test, ROUTER_OUT, run);
        for (int64_t row = 0; row < valid; row++) {
            struct expected_row expected;
            expect_row(params, logits + row * experts, bias, scales, seeds ? seeds[index ? index[row] : row] : 0,
                       &expected);
            const float *routes = out + row * 2 * top_k;
            for (int64_t i = 0; i < top_k; i++) {
                assert_int_equal(router_expert(routes, top_k, i, all_experts), expected.ids[i]);
                if (!(fabs((double)router_weight(routes, i) - expected.weights[i]) <= 2e-6 * fabs(expected.weights[i])))
                    fail_msg("row %d choice %d: weight %.9g, expected %.9g", (int)row, (int)i,
                             (double)router_weight(routes, i), expected.weights[i]);
            }
        }
        assert_true(test_is_poison(out + valid * 2 * top_k, (size_t)((rows - valid) * 2 * top_k) * sizeof *out));
    }
    test_case_close(&test);
}

static void plain_params(int64_t params[ROUTER_PARAMS])
{
    memset(params, 0, ROUTER_PARAMS * sizeof *params);
    params[ROUTER_SCALE_BITS] = OP_FLOAT_ONE_BITS;
    params[ROUTER_GROUPS] = params[ROUTER_TOP_GROUPS] = 1;
    params[ROUTER_BIAS_DTYPE] = params[ROUTER_SCALES_DTYPE] = DTYPE_F32;
}

TEST(chooses_as_a_plain_computation_does)
{
    static const int64_t sizes[][2] = {{1, 1}, {4, 2}, {8, 8}, {60, 4}, {128, 8}, {256, 64}, {1024, 6}};
    int64_t params[ROUTER_PARAMS];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int score = 0; score < ROUTER_SCORES; score++)
            for (int renormalise = 0; renormalise < ROUTER_RENORMALISES; renormalise++) {
                plain_params(params);
                params[ROUTER_SCORE] = score;
                params[ROUTER_RENORMALISE] = score == ROUTER_SOFTMAX_CHOSEN ? 0 : renormalise;
                params[ROUTER_EPS_BITS] = test_float_bits(renormalise == ROUTER_SUM_OR_EPS ? 0.4f : 1e-3f);
                params[ROUTER_SCALE_BITS] = test_float_bits(2.5f);
                params[ROUTER_HAS_BIAS] = score == ROUTER_SIGMOID && renormalise > 0;
                params[ROUTER_HAS_SEEDS] = renormalise != ROUTER_SUM_PLUS_EPS;
                params[ROUTER_HAS_SCALES] = (score + renormalise) % 2;
                check(s == 6 ? 3 : 17, sizes[s][0], sizes[s][1], params);
            }
}

TEST(chooses_from_the_best_groups)
{
    int64_t params[ROUTER_PARAMS];
    for (int score = ROUTER_SOFTMAX; score <= ROUTER_SIGMOID; score++)
        for (int of_group = 0; of_group < ROUTER_GROUP_SCORES; of_group++)
            for (int64_t best = 1; best <= 8; best++) {
                plain_params(params);
                params[ROUTER_HAS_SEEDS] = best % 2;
                params[ROUTER_SCORE] = score;
                params[ROUTER_GROUPS] = 8;
                params[ROUTER_TOP_GROUPS] = best;
                params[ROUTER_GROUP_SCORE] = of_group;
                params[ROUTER_HAS_BIAS] = of_group;
                check(9, 64, best < 4 ? 5 : 8, params);
            }
}

TEST(shared_experts_are_chosen_by_all_rows)
{
    static const int64_t sizes[][2] = {{1, 1}, {6, 2}, {64, 6}, {257, 8}, {1000, 40}};
    int64_t params[ROUTER_PARAMS];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int score = 0; score < ROUTER_SCORES; score++)
            for (int64_t shared = 1; shared <= 24; shared = shared < 4 ? shared + 1 : 6 * shared) {
                const int64_t gate = (shared + score) % 2;
                plain_params(params);
                params[ROUTER_SHARED] = shared;
                params[ROUTER_SHARED_GATE] = gate;
                params[ROUTER_SCORE] = score;
                params[ROUTER_RENORMALISE] = score == ROUTER_SOFTMAX_CHOSEN ? 0 : ROUTER_SUM_PLUS_EPS;
                params[ROUTER_EPS_BITS] = test_float_bits(1e-3f);
                params[ROUTER_SCALE_BITS] = test_float_bits(2.5f);
                params[ROUTER_HAS_BIAS] = score == ROUTER_SIGMOID && !gate;
                params[ROUTER_HAS_SCALES] = score == ROUTER_SOFTMAX && !gate;
                params[ROUTER_HAS_SEEDS] = shared > 1;
                check(9, sizes[s][0] + gate, sizes[s][1] + shared, params);
            }
    plain_params(params);
    params[ROUTER_SHARED] = 2;
    params[ROUTER_SCORE] = ROUTER_SIGMOID;
    params[ROUTER_GROUPS] = 8;
    params[ROUTER_TOP_GROUPS] = 3;
    params[ROUTER_GROUP_SCORE] = ROUTER_GROUP_BEST_TWO;
    params[ROUTER_HAS_BIAS] = params[ROUTER_HAS_SEEDS] = 1;
    check(9, 64, 8, params);
}

/* Every expert has its turn, for every seed others. */
TEST(seeds_reach_every_expert)
{
    enum { EXPERTS = 64, SEEDS = 2000 };
    int counts[EXPERTS] = {0};
    for (int seed = 1; seed <= SEEDS; seed++) {
        int best = 0;
        for (int expert = 1; expert < EXPERTS; expert++)
            if (router_seeded_claim(seed, expert) > router_seeded_claim(seed, best)) best = expert;
        counts[best]++;
    }
    for (int expert = 0; expert < EXPERTS; expert++) assert_in_range(counts[expert], 10, 70);
}

TEST(equal_claims_and_nan)
{
    enum { EXPERTS = 9, TOP_K = 3, ROWS = 5 };
    int64_t params[ROUTER_PARAMS];
    struct test_case test;
    plain_params(params);
    params[ROUTER_ROWS] = ROWS;
    params[ROUTER_EXPERTS] = EXPERTS;
    params[ROUTER_ROUTE_WIDTH] = 2 * TOP_K;
    for (int score = 0; score < ROUTER_SCORES; score++) {
        params[ROUTER_SCORE] = score;
        test_case_open(&test, &op_router, params, &test_geometry, ROWS);
        float *logits = test.call.operands[ROUTER_LOGITS];
        const float *out = test.call.operands[ROUTER_OUT];
        for (int i = 0; i < EXPERTS; i++) {
            logits[i] = 1.5f;                          /* all alike: the first ones */
            logits[EXPERTS + i] = i % 2 ? 2.0f : 1.0f; /* the first of the better ones */
            logits[2 * EXPERTS + i] = NAN;
            logits[3 * EXPERTS + i] = i == 5 ? NAN : (float)i;
            logits[4 * EXPERTS + i] = i ? (float)i - 300 : 0; /* scores of nearly all are 0, logits differ */
        }
        test_run_op(&op_router, CPU_PORTABLE, &test.call, 2);
        for (int i = 0; i < TOP_K; i++) {
            assert_int_equal(router_expert(out, TOP_K, i, EXPERTS), i);
            assert_int_equal(router_expert(out + 2 * TOP_K, TOP_K, i, EXPERTS), 2 * i + 1);
            assert_true(isnan(router_weight(out + 4 * TOP_K, i)));
            assert_in_range(router_expert(out + 4 * TOP_K, TOP_K, i, EXPERTS), 0, EXPERTS - 1);
            assert_in_range(router_expert(out + 6 * TOP_K, TOP_K, i, EXPERTS), 0, EXPERTS - 1);
            assert_int_equal(router_expert(out + 8 * TOP_K, TOP_K, i, EXPERTS),
                             score == ROUTER_SIGMOID || i == 0 ? i : EXPERTS - i);
        }
        assert_true(isnan(router_weight(out + 6 * TOP_K, 0)));
        test_case_close(&test);
    }
    const float routes[] = {1, 1, 1, 1, NAN, -1, 4, INFINITY};
    for (int i = 0; i < 4; i++) assert_int_equal(router_expert(routes, 4, i, 4), -1);
}

TEST(hostile_params_are_refused)
{
    int64_t params[ROUTER_PARAMS];
    plain_params(params);
    params[ROUTER_ROWS] = 4;
    params[ROUTER_EXPERTS] = 16;
    params[ROUTER_ROUTE_WIDTH] = 8;
    params[ROUTER_GROUPS] = 4;
    params[ROUTER_TOP_GROUPS] = 2;
    test_hostile_params(&op_router, params, &test_geometry);
    test_refuses(&op_router, params, &test_geometry,
                 TEST_CHANGES({ROUTER_EXPERTS, 0}, {ROUTER_EXPERTS, 15}, {ROUTER_EXPERTS, ROUTER_MAX_EXPERTS + 1},
                              {ROUTER_ROUTE_WIDTH, 0}, {ROUTER_ROUTE_WIDTH, 7}, {ROUTER_ROUTE_WIDTH, 18},
                              {ROUTER_GROUPS, 0}, {ROUTER_GROUPS, 3}, {ROUTER_TOP_GROUPS, 5}, {ROUTER_TOP_GROUPS, 0},
                              {ROUTER_SCORE, ROUTER_SCORES}, {ROUTER_SCORE, ROUTER_SOFTMAX_CHOSEN},
                              {ROUTER_RENORMALISE, ROUTER_RENORMALISES}, {ROUTER_GROUP_SCORE, ROUTER_GROUP_SCORES},
                              {ROUTER_SHARED, 4}, {ROUTER_SHARED, -1}, {ROUTER_SHARED, ROUTER_MAX_TOP_K},
                              {ROUTER_SHARED_GATE, 1}, {ROUTER_SHARED_GATE, 2}));
    plain_params(params);
    params[ROUTER_ROWS] = 4;
    params[ROUTER_EXPERTS] = 2;
    params[ROUTER_ROUTE_WIDTH] = 8;
    params[ROUTER_SHARED] = 3;
    params[ROUTER_SHARED_GATE] = 1;
    test_hostile_params(&op_router, params, &test_geometry);
    test_refuses(&op_router, params, &test_geometry,
                 TEST_CHANGES({ROUTER_EXPERTS, 1}, {ROUTER_SHARED, 0}, {ROUTER_SHARED, 2}, {ROUTER_HAS_BIAS, 1},
                              {ROUTER_HAS_SCALES, 1}, {ROUTER_GROUPS, 2}));
    params[ROUTER_EXPERTS] = ROUTER_MAX_EXPERTS - 3;
    params[ROUTER_SHARED_GATE] = 0;
    test_refuses(&op_router, params, &test_geometry, TEST_CHANGES({ROUTER_EXPERTS, ROUTER_MAX_EXPERTS - 2}));
    params[ROUTER_RENORMALISE] = ROUTER_SUM_PLUS_EPS;
    test_refuses(&op_router, params, &test_geometry, TEST_CHANGES({ROUTER_SCORE, ROUTER_SOFTMAX_CHOSEN}));
}

int main(void) { return test_run(); }
