/* SPDX-License-Identifier: Apache-2.0 */
/* norm_router on the GPU: y as rms_norm's reference has it, routes and lists as router's reference makes them of y, and what a launch
 * refuses. */
#include "kernels/norm_router/norm_router.h"

#include <math.h>

#include "kernels/cuda/test_launch.h"
#include "kernels/rms_norm/rms_norm.h"

enum { BIASED = 1, CLAIMED = 2, SCALED = 4, SEEDED = 8, OF_OUT_ROWS = 16, GATED = 32, HALF = 64 /* F16 */ };

struct problem {
    int64_t rows, valid, k, experts, top_k; /* routed ones */
    int64_t score, renormalise, groups, top_groups;
    unsigned flags;
    int64_t shared;
};

static const float eps = 1e-5f;

static int64_t logits_of(const struct problem *problem) { return problem->experts + ((problem->flags & GATED) != 0); }

static void fill_params(const struct problem *problem, int64_t *params)
{
    const unsigned flags = problem->flags;
    const int64_t values[NORM_ROUTER_PROBLEM_PARAMS] = {
        [NORM_ROUTER_ROWS] = problem->rows,
        [NORM_ROUTER_COUNT_INDEX] = (flags & OF_OUT_ROWS) != 0,
        [NORM_ROUTER_K] = problem->k,
        [NORM_ROUTER_NORM_DTYPE] = problem->k % 3 ? DTYPE_BF16 : DTYPE_F32,
        [NORM_ROUTER_EPS_BITS] = test_float_bits(eps),
        [NORM_ROUTER_OUT_DTYPE] = flags & HALF ? DTYPE_F16 : DTYPE_BF16,
        [NORM_ROUTER_MATRIX_DTYPE] = flags & HALF ? DTYPE_F16 : DTYPE_BF16,
        [NORM_ROUTER_ROUTED] = logits_of(problem),
        [NORM_ROUTER_HAS_ROUTER_BIAS] = (flags & BIASED) != 0,
        [NORM_ROUTER_ROUTER_BIAS_DTYPE] = DTYPE_BF16,
        [NORM_ROUTER_ROUTE_WIDTH] = 2 * (problem->top_k + problem->shared),
        [NORM_ROUTER_SCORE] = problem->score,
        [NORM_ROUTER_RENORMALISE] = problem->renormalise,
        [NORM_ROUTER_ROUTER_EPS_BITS] = test_float_bits(problem->rows % 3 ? 1e-20f : 1e-3f),
        [NORM_ROUTER_ROUTER_SCALE_BITS] = test_float_bits(2.5f),
        [NORM_ROUTER_ROUTER_GROUPS] = problem->groups,
        [NORM_ROUTER_TOP_GROUPS] = problem->top_groups,
        [NORM_ROUTER_GROUP_SCORE] = problem->groups > 1 ? ROUTER_GROUP_BEST_TWO : ROUTER_GROUP_BEST,
        [NORM_ROUTER_HAS_CLAIM_BIAS] = (flags & CLAIMED) != 0,
        [NORM_ROUTER_CLAIM_BIAS_DTYPE] = DTYPE_F32,
        [NORM_ROUTER_HAS_SEEDS] = (flags & SEEDED) != 0,
        [NORM_ROUTER_STEP_ROWS] = problem->rows + 3,
        [NORM_ROUTER_HAS_SCALES] = (flags & SCALED) != 0,
        [NORM_ROUTER_SCALES_DTYPE] = DTYPE_BF16,
        [NORM_ROUTER_SHARED] = problem->shared,
        [NORM_ROUTER_SHARED_GATE] = (flags & GATED) != 0,
    };
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, values, sizeof values);
}

/* Some rows of the matrix are equal, and so are their logits; some rows of x have a NaN. */
static void fill_operands(struct test_launch *test, const struct problem *problem)
{
    struct test_random random = {(uint64_t)(problem->rows * 7 + problem->k + problem->experts)};
    const float most = 3 / sqrtf((float)problem->k);
    float *x = test->host[NORM_ROUTER_X];
    test_fill(&random, x, (size_t)(problem->valid * problem->k), DTYPE_F32, -3, 3);
    for (int64_t row = 5; row < problem->valid; row += 11) x[row * problem->k + row % problem->k] = NAN;
    test_launch_fill(test, NORM_ROUTER_NORM, &random, 0.5f, 1.5f);
    test_launch_fill(test, NORM_ROUTER_MATRIX, &random, -most, most);
    uint16_t *matrix = test->host[NORM_ROUTER_MATRIX];
    for (int64_t e = 3; e < problem->experts; e += 7)
        memcpy(matrix + e * problem->k, matrix + (e - 1) * problem->k, (size_t)problem->k * sizeof *matrix);
    if (test->host[NORM_ROUTER_ROUTER_BIAS]) {
        uint16_t *bias = test->host[NORM_ROUTER_ROUTER_BIAS];
        test_launch_fill(test, NORM_ROUTER_ROUTER_BIAS, &random, -0.5f, 0.5f);
        for (int64_t e = 3; e < problem->experts; e += 7) bias[e] = bias[e - 1];
    }
    if (test->host[NORM_ROUTER_CLAIM_BIAS]) test_launch_fill(test, NORM_ROUTER_CLAIM_BIAS, &random, -0.5f, 0.5f);
    if (test->host[NORM_ROUTER_SCALES]) test_launch_fill(test, NORM_ROUTER_SCALES, &random, 0.5f, 2);
    int32_t *seeds = test->host[NORM_ROUTER_SEEDS], *index = test->host[NORM_ROUTER_INDEX];
    for (int64_t row = 0; seeds && row < problem->rows + 3; row++) seeds[row] = row % 2 ? (int32_t)row + 1 : 0;
    for (int64_t row = 0; index && row < problem->valid; row++) index[row] = (int32_t)(problem->rows + 2 - row);
}

static void check_y(struct test_launch *test, const struct problem *problem)
{
    const int64_t cells = problem->valid * problem->k;
    int64_t params[RMS_NORM_PARAMS] = {
        [RMS_NORM_PARTS] = 1,
        [RMS_NORM_ROWS] = problem->rows,
        [RMS_NORM_COUNT_INDEX] = test->params[NORM_ROUTER_COUNT_INDEX],
        [RMS_NORM_HIDDEN] = problem->k,
        [RMS_NORM_WEIGHT_DTYPE] = test->params[NORM_ROUTER_NORM_DTYPE],
        [RMS_NORM_EPS_BITS] = test_float_bits(eps),
        [RMS_NORM_OUT_DTYPE] = DTYPE_F32,
    };
    float *expected = test_take(&test->memory, (size_t)(cells + 1) * sizeof *expected);
    const struct op_call own = test_launch_call(test);
    struct op_call call = {.params = params};
    call.operands[RMS_NORM_COUNTS] = own.operands[NORM_ROUTER_COUNTS];
    call.operands[RMS_NORM_X] = own.operands[NORM_ROUTER_X];
    call.operands[RMS_NORM_WEIGHT] = own.operands[NORM_ROUTER_NORM];
    call.operands[RMS_NORM_OUT] = expected;
    rms_norm_reference(&call);
    const float *found = test_launch_found(test, NORM_ROUTER_OUT);
    for (int64_t i = 0; i < cells; i++)
        if (isnan(expected[i]) ? !isnan(found[i])
                               : !(fabsf(found[i] - expected[i]) <= 1e-7f + 4.4e-3f * fabsf(expected[i])))
            fail_msg("y of row %lld, element %lld: expected %g, found %g", (long long)(i / problem->k),
                     (long long)(i % problem->k), (double)expected[i], (double)found[i]);
}

/* Logits of the y that the launch wrote. */
static float *make_logits(struct test_launch *test, const struct problem *problem)
{
    const int64_t count = logits_of(problem);
    const float *y = test_launch_found(test, NORM_ROUTER_OUT), *matrix = test_launch_decode(test, NORM_ROUTER_MATRIX);
    const void *bias = test->host[NORM_ROUTER_ROUTER_BIAS];
    float *logits = test_take(&test->memory, (size_t)(problem->valid * count + 1) * sizeof *logits);
    for (int64_t row = 0; row < problem->valid; row++)
        for (int64_t e = 0; e < count; e++) {
            double sum = bias ? (double)op_element(bias, e, DTYPE_BF16) : 0;
            for (int64_t k = 0; k < problem->k; k++)
                sum += (double)y[row * problem->k + k] * (double)matrix[e * problem->k + k];
            logits[row * count + e] = (float)sum;
        }
    return logits;
}

static float claim_of(const struct test_launch *test, const float *logits, int expert)
{
    const void *bias = test->host[NORM_ROUTER_CLAIM_BIAS];
    return bias ? 1 / (1 + expf(-logits[expert])) + op_element(bias, expert, DTYPE_F32) : logits[expert];
}

/* Experts whose claims differ by what the order of sums may change are chosen in either order; those with equal claims are not. */
static bool may_be_chosen(const struct test_launch *test, const float *logits, float expected, float found,
                          int64_t count)
{
    if (expected == found) return true;
    if (!(expected >= 0 && expected < (float)count && found >= 0 && found < (float)count)) return false;
    const float difference = fabsf(claim_of(test, logits, (int)expected) - claim_of(test, logits, (int)found));
    return difference > 0 && difference < 2e-5f;
}

static void check_routes(struct test_launch *test, const struct problem *problem)
{
    const int64_t top_k = problem->top_k + problem->shared, width = 2 * top_k;
    int64_t params[PLAN_MAX_PARAMS] = {0};
    const float *logits = make_logits(test, problem), *found = test->found[NORM_ROUTER_ROUTES];
    float *expected = test_take(&test->memory, (size_t)(problem->rows * width) * sizeof *expected);
    const struct op_call own = test_launch_call(test);
    struct op_call call = {.params = params};
    norm_router_as_router(test->params, params);
    call.operands[ROUTER_COUNTS] = own.operands[NORM_ROUTER_COUNTS];
    call.operands[ROUTER_LOGITS] = (void *)(uintptr_t)logits;
    call.operands[ROUTER_OUT] = expected;
    call.operands[ROUTER_BIAS] = own.operands[NORM_ROUTER_CLAIM_BIAS];
    call.operands[ROUTER_SEEDS] = own.operands[NORM_ROUTER_SEEDS];
    call.operands[ROUTER_INDEX] = own.operands[NORM_ROUTER_INDEX];
    call.operands[ROUTER_SCALES] = own.operands[NORM_ROUTER_SCALES];
    op_router.reference(&call);
    for (int64_t row = 0; row < problem->valid; row++)
        for (int64_t c = 0; c < top_k; c++) {
            const float want = expected[row * width + c], got = found[row * width + c];
            const float id = expected[row * width + top_k + c], found_id = found[row * width + top_k + c];
            if (!may_be_chosen(test, logits + row * logits_of(problem), id, found_id, problem->experts))
                fail_msg("row %lld, choice %lld: expected expert %g, found %g", (long long)row, (long long)c,
                         (double)id, (double)found_id);
            if (isnan(want) ? !isnan(got) : !(fabsf(want - got) <= 2e-5f + 1e-4f * fabsf(want)))
                fail_msg("row %lld, weight %lld: expected %g, found %g", (long long)row, (long long)c, (double)want,
                         (double)got);
        }
}

static void check_lists(const struct test_launch *test, const struct problem *problem)
{
    const int64_t experts = problem->experts + problem->shared, top_k = problem->top_k + problem->shared;
    const float *routes = test->found[NORM_ROUTER_ROUTES];
    const int32_t *lists = test->found[NORM_ROUTER_LISTS], *choices = lists + experts + 1;
    int32_t next = 0;
    for (int64_t expert = 0; expert < experts; expert++) {
        assert_int_equal(lists[expert], next);
        for (int64_t row = 0; row < problem->valid; row++)
            for (int64_t c = 0; c < top_k; c++)
                if (router_expert(routes + row * 2 * top_k, top_k, c, experts) == expert)
                    assert_int_equal(choices[next++], row * top_k + c);
    }
    assert_int_equal(lists[experts], next);
    assert_int_equal(next, problem->valid * top_k);
}

/* Every candidate. */
static void check(const struct problem *problem)
{
    enum { MOST = 8 };
    int64_t params[PLAN_MAX_PARAMS], found[MOST][PLAN_MAX_PARAMS];
    fill_params(problem, params);
    memset(found, 0, sizeof found);
    const int count = device_norm_router.candidates(params, &test_device()->device.facts, found, MOST);
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        struct test_launch test;
        test_launch_open(&test, &device_norm_router, found[i], problem->valid);
        fill_operands(&test, problem);
        test_launch_run_twice(&test);
        check_y(&test, problem);
        check_routes(&test, problem);
        check_lists(&test, problem);
        test_launch_assert_rows_untouched(&test, NORM_ROUTER_OUT);
        test_launch_assert_rows_untouched(&test, NORM_ROUTER_ROUTES);
        test_launch_close(&test);
    }
}

TEST(equals_reference)
{
    static const struct problem problems[] = {
        {16, 16, 2048, 128, 8, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, 0},
        {64, 61, 2048, 128, 8, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, SEEDED, 0},
        {32, 32, 2880, 32, 4, ROUTER_SOFTMAX_CHOSEN, ROUTER_AS_THEY_ARE, 1, 1, BIASED | SEEDED, 0},
        {9, 9, 4096, 8, 2, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, HALF, 0},
        {40, 33, 1032, 60, 4, ROUTER_SIGMOID, ROUTER_SUM_OR_EPS, 1, 1, CLAIMED | SEEDED | OF_OUT_ROWS, 0},
        {16, 13, 2048, 64, 6, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, SCALED, 2},
        {24, 24, 4096, 128, 8, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4, CLAIMED, 1},
        {17, 17, 2048, 60, 4, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, GATED, 4},
        {20, 20, 1024, 512, 10, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, GATED, 1},
        {24, 24, 256, 1000, 64, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, SEEDED, 0},
        {12, 0, 512, 32, 4, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, 0},
        {1, 1, 64, 1, 1, ROUTER_SIGMOID, ROUTER_AS_THEY_ARE, 1, 1, 0, 0},
    };
    TEST_NEEDS_DEVICE();
    if (test_device()->device.facts.capability < device_norm_router.least_capability) skip();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i]);
}

TEST(hostile_params_are_refused)
{
    static const struct problem problem =
        {16, 16, 2048, 128, 8, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4, BIASED | CLAIMED | SCALED | SEEDED, 1};
    const struct device_facts gpu = test_facts(90), older = test_facts(80);
    int64_t params[PLAN_MAX_PARAMS], found[2][PLAN_MAX_PARAMS];
    fill_params(&problem, params);
    memset(found, 0, sizeof found);
    assert_int_equal(device_norm_router.candidates(params, &gpu, found, 2), 2);
    test_hostile_launches(&device_norm_router, found[0]);
    test_launch_refuses(&device_norm_router, found[0],
                        TEST_CHANGES({NORM_ROUTER_ROWS, 65}, {NORM_ROUTER_K, 2044}, {NORM_ROUTER_K, 1 << 17},
                                     {NORM_ROUTER_MATRIX_DTYPE, DTYPE_F32}, {NORM_ROUTER_OUT_DTYPE, DTYPE_F16},
                                     {NORM_ROUTER_OUT_DTYPE, DTYPE_F8_E4M3}, {NORM_ROUTER_ROUTED, 127},
                                     {NORM_ROUTER_ROUTE_WIDTH, 7}, {NORM_ROUTER_TOP_GROUPS, 9}, {NORM_ROUTER_BLOCKS, 1},
                                     {NORM_ROUTER_BLOCKS, 3}, {NORM_ROUTER_BLOCKS, 16}, {NORM_ROUTER_WARPS, 2},
                                     {NORM_ROUTER_WARPS, 12}, {NORM_ROUTER_WARPS, 32}));
    params[NORM_ROUTER_ROWS] = 64; /* more rows than a block of so few has warps */
    memcpy(found[0], params, sizeof params);
    found[0][NORM_ROUTER_BLOCKS] = 4, found[0][NORM_ROUTER_WARPS] = 8;
    assert_false(test_launch_accepts(&device_norm_router, found[0], 90));
    assert_int_equal(device_norm_router.candidates(params, &older, found, 2), 0);
    params[NORM_ROUTER_ROUTED] = 256, params[NORM_ROUTER_K] = 7168; /* 3.5 MiB */
    assert_int_equal(device_norm_router.candidates(params, &gpu, found, 2), 0);
}

int main(void) { return test_run(); }
