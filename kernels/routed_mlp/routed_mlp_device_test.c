/* SPDX-License-Identifier: Apache-2.0 */
/* routed_mlp on the GPU: outputs as plain code has them, which candidates there are, and what a launch refuses. */
#include "kernels/routed_mlp/routed_mlp.h"

#include <math.h>

#include "kernels/routed_matmul/test_routed.h"

enum flag {
    SUMMED = 1,      /* with a residual */
    DOWN_BIASED = 2, /* a bias of the second matmul */
    IN_PLACE = 4,    /* SUMMED: out is the residual's memory */
    X_IN_PLACE = 8   /* out is the memory of x, and x the residual where there is one */
};

struct problem {
    struct test_routed_problem routed;
    struct {
        int64_t width; /* of out */
        enum encoding_id down;
        float scale;
        enum dtype out_dtype;
        unsigned flags; /* enum flag */
    };
};

static const struct problem problems[] = {
    {{1, 1, 128, 8, 192, 2048, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
     {2048, ENCODING_BF16, 1, F32, SUMMED | IN_PLACE | X_IN_PLACE}},
    {{1, 1, 32, 4, 192, 2880, ENCODING_MXFP4, ACTIVATION_CLAMPED, ROUTER_SOFTMAX_CHOSEN, ROUTER_AS_THEY_ARE, 1, 1,
      NORMED | BIASED | SEEDED, 0},
     {2880, ENCODING_MXFP4, 1, F32, SUMMED | DOWN_BIASED | IN_PLACE}},
    {{1, 1, 64, 6, 160, 1000, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, NORMED | SCALED,
      0},
     {1000, ENCODING_BF16, 0.75f, BF16, 0}},
    {{4, 3, 60, 4, 144, 1032, ENCODING_F16, ACTIVATION_GELU_TANH, ROUTER_SIGMOID, ROUTER_SUM_OR_EPS, 1, 1,
      CLAIMED | SEEDED | OF_OUT_ROWS, 0},
     {520, ENCODING_F16, 0.75f, F32, SUMMED | DOWN_BIASED}},
    {{5, 5, 64, 4, 128, 512, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4,
      NORMED | CLAIMED, 0},
     {512, ENCODING_BF16, 1, F32, SUMMED | IN_PLACE | X_IN_PLACE}},
    {{5, 3, 40, 2, 256, 1152, ENCODING_E4M3_CHANNEL, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1,
      NORMED | SEEDED, 0},
     {1152, ENCODING_E4M3_CHANNEL, 1, F32, SUMMED | IN_PLACE | X_IN_PLACE}},
    {{2, 0, 16, 2, 128, 256, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, NORMED, 0},
     {256, ENCODING_BF16, 1, F32, SUMMED | IN_PLACE}},
    {{1, 1, 66, 8, 192, 2048, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, NORMED | SEEDED,
      2},
     {2048, ENCODING_BF16, 1, F32, SUMMED | IN_PLACE}},
    {{3, 3, 41, 5, 64, 1152, ENCODING_INT4_G32, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1,
      NORMED | GATED, 1},
     {640, ENCODING_E4M3_CHANNEL, 0.75f, F32, SUMMED}},
    {{1, 1, 513, 11, 208, 256, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1,
      NORMED | GATED, 1},
     {256, ENCODING_BF16, 1, F32, SUMMED | IN_PLACE | X_IN_PLACE}},
    {{2, 2, 258, 10, 160, 1024, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4,
      NORMED | CLAIMED, 2},
     {328, ENCODING_BF16, 1, BF16, DOWN_BIASED}},
    {{1, 1, 130, 8, 120, 2688, ENCODING_BF16, EPILOGUE_PLAIN + ACTIVATION_RELU2, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 1,
      1, NORMED | CLAIMED, 2},
     {2688, ENCODING_BF16, 1, F32, SUMMED | IN_PLACE | X_IN_PLACE}},
    {{4, 3, 33, 5, 48, 1152, ENCODING_INT4_G32, EPILOGUE_PLAIN + ACTIVATION_RELU2, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS,
      1, 1, NORMED | BIASED | CLAIMED, 1},
     {1152, ENCODING_INT4_G128_ZEROS, 1, F32, SUMMED | DOWN_BIASED}},
    /* Activations that are smaller than a box. */
    {{1, 1, 5, 5, 32, 64, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, 0},
     {64, ENCODING_BF16, 1, BF16, X_IN_PLACE}},
    {{3, 2, 64, 4, 96, 1024, ENCODING_F16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
     {1024, ENCODING_F16, 1, F32, SUMMED | IN_PLACE | X_IN_PLACE}},
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

/* Without the encodings of the experts. */
static const struct problem coded_problems[] = {
    {{1, 1, 24, 4, 96, 1280, ENCODING_NONE, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, NORMED | BIASED,
      0},
     {1280, ENCODING_NONE, 1, F32, SUMMED | DOWN_BIASED | IN_PLACE | X_IN_PLACE}},
    {{3, 3, 40, 4, 320, 1408, ENCODING_NONE, ACTIVATION_SILU, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 1, 1, CLAIMED, 0},
     {464, ENCODING_NONE, 0.75f, BF16, 0}},
};
enum { CODED_PROBLEMS = sizeof coded_problems / sizeof *coded_problems };

static struct problem with_codes(const struct problem *problem, enum encoding_id up, enum encoding_id down)
{
    struct problem coded = *problem;
    coded.routed.dtype = up;
    coded.down = down;
    return coded;
}

static void fill_params(const struct problem *problem, int64_t params[PLAN_MAX_PARAMS])
{
    test_routed_params(&problem->routed, params);
    params[ROUTED_MLP_DOWN_N] = problem->routed.experts * problem->width;
    params[ROUTED_MLP_DOWN_K] = test_routed_columns(&problem->routed);
    params[ROUTED_MLP_DOWN_DTYPE] = problem->down;
    params[ROUTED_MLP_DOWN_OUT_DTYPE] = problem->out_dtype;
    params[ROUTED_MLP_DOWN_SCALE_BITS] = test_float_bits(problem->scale);
    params[ROUTED_MLP_HAS_DOWN_BIAS] = (problem->flags & DOWN_BIASED) != 0;
    params[ROUTED_MLP_DOWN_BIAS_DTYPE] = DTYPE_BF16;
    params[ROUTED_MLP_HAS_RESIDUAL] = (problem->flags & SUMMED) != 0;
}

struct launch {
    struct test_routed_launch routed;
    const float *down; /* [experts * width, activations] */
};

static void open_launch(struct launch *launch, const struct problem *problem, const int64_t *params)
{
    const size_t outputs = (size_t)(problem->width * problem->routed.valid);
    struct test_launch *test = &launch->routed.test;
    struct test_random random;
    test_routed_open(&launch->routed, &device_routed_mlp, &problem->routed, params, &random);
    launch->down = test_routed_fill_matrix(test, ROUTED_MLP_DOWN, problem->down, params[ROUTED_MLP_DOWN_N],
                                           params[ROUTED_MLP_DOWN_K], &random);
    if (problem->flags & DOWN_BIASED) test_launch_fill(test, ROUTED_MLP_DOWN_BIAS, &random, -0.5f, 0.5f);
    float *residual = test->host[ROUTED_MLP_RESIDUAL];
    if (residual && problem->flags & X_IN_PLACE)
        memcpy(residual, test->host[ROUTED_MATMUL_X], outputs * sizeof *residual);
    else if (residual)
        test_fill(&random, residual, outputs, DTYPE_F32, -1, 1);
    if (problem->flags & IN_PLACE) test_launch_alias(test, ROUTED_MLP_RESIDUAL, ROUTED_MLP_OUT);
    if (problem->flags & X_IN_PLACE) test_launch_alias(test, ROUTED_MATMUL_X, ROUTED_MLP_OUT);
}

struct bounded {
    double value, error;
};

/* What the launch must have, to compare with every candidate. */
struct expected {
    struct test_memory memory;
    const float *routes;
    struct bounded *activations; /* [valid * top_k, activations]: rounded, and how far off they may be then */
    struct bounded *out;         /* [valid, width] */
};

static void expect_activations(struct expected *expected, const struct launch *launch, const struct problem *problem)
{
    const int64_t inner = test_routed_columns(&problem->routed),
                  choices = problem->routed.valid * problem->routed.top_k;
    const enum dtype dtype = (enum dtype)test_routed_element(&problem->routed);
    for (int64_t at = 0; at < choices * inner; at++) {
        struct bounded *activation = &expected->activations[at];
        const double exact = test_routed_activation(&launch->routed, &problem->routed, expected->routes, at / inner,
                                                    at % inner, &activation->error);
        float rounded = (float)exact;
        test_round(&rounded, 1, dtype);
        activation->value = (double)rounded;
        activation->error += fabs(exact) * (dtype == DTYPE_F16 ? 0x1p-12 : 0x1p-9);
    }
}

/* A choice's product with a row of the second matrix. *spread: sum of the squares of what errors of its activations may change in it; they
 * have no common sign. */
static struct bounded dot(const struct bounded *activations, const float *down, int64_t inner, double *spread)
{
    double sum = 0, squares = 0;
    *spread = 0;
    for (int64_t k = 0; k < inner; k++) {
        const double weight = (double)down[k], product = activations[k].value * weight;
        sum += product, squares += product * product;
        *spread += activations[k].error * weight * activations[k].error * weight;
    }
    return (struct bounded){sum, ((double)inner / 16 + 16) * 0x1p-22 * (6 * sqrt(squares) + fabs(sum))};
}

static struct bounded expect_output(const struct expected *expected, const struct launch *launch,
                                    const struct problem *problem, int64_t row, int64_t column)
{
    const int64_t inner = test_routed_columns(&problem->routed), top_k = problem->routed.top_k;
    const float *residual = launch->routed.test.host[ROUTED_MLP_RESIDUAL];
    struct bounded out = {residual ? (double)residual[row * problem->width + column] : 0, 0};
    double spreads = 0;
    for (int64_t c = 0; c < top_k; c++) {
        const float *routes = expected->routes + row * 2 * top_k + c;
        const int64_t down_row = (int64_t)routes[top_k] * problem->width + column;
        const double weight = (double)routes[0], factor = weight * (double)problem->scale;
        double spread;
        const struct bounded product =
            dot(expected->activations + (row * top_k + c) * inner, launch->down + down_row * inner, inner, &spread);
        const double sum =
            product.value + test_routed_bias(&launch->routed.test, ROUTED_MLP_DOWN_BIAS, down_row, DTYPE_BF16);
        spreads += spread * factor * factor;
        out.value += sum * factor;
        /* The weight is as far off as routed_matmul's test allows. */
        out.error += product.error * fabs(factor) + fabs(sum) * (double)problem->scale * (2e-5 + 1e-4 * fabs(weight)) +
                     (fabs(sum * factor) + fabs(out.value)) * 0x1p-22;
    }
    out.error += 6 * sqrt(spreads) + (problem->out_dtype == BF16 ? fabs(out.value) * 0x1p-8 : 0);
    return out;
}

static void expect(struct expected *expected, struct launch *launch, const struct problem *problem)
{
    const struct test_routed_problem *routed = &problem->routed;
    const int64_t rows = routed->valid, inner = test_routed_columns(routed), width = problem->width;
    const size_t route_bytes = (size_t)(rows * 2 * routed->top_k + 1) * sizeof(float);
    const float *routes = test_routed_routes(&launch->routed, routed);
    *expected = (struct expected){.memory.count = 0};
    expected->routes = memcpy(test_take(&expected->memory, route_bytes), routes, route_bytes);
    expected->activations =
        test_take(&expected->memory, (size_t)(rows * routed->top_k * inner + 1) * sizeof *expected->activations);
    expected->out = test_take(&expected->memory, (size_t)(rows * width + 1) * sizeof *expected->out);
    expect_activations(expected, launch, problem);
    for (int64_t at = 0; at < rows * width; at++)
        expected->out[at] = expect_output(expected, launch, problem, at / width, at % width);
}

static void check_outputs(const struct launch *launch, const struct problem *problem, const struct bounded *want,
                          const char *what)
{
    const struct test_launch *test = &launch->routed.test;
    for (int64_t at = 0; at < problem->routed.valid * problem->width; at++) {
        const double found = (double)op_element(test->found[ROUTED_MLP_OUT], at, problem->out_dtype);
        if (!(fabs(found - want[at].value) <= want[at].error))
            fail_msg("%s: row %lld, column %lld: expected %.9g within %.3g, found %.9g", what,
                     (long long)(at / problem->width), (long long)(at % problem->width), want[at].value, want[at].error,
                     found);
    }
}

static void check_params(const struct problem *problem, const int64_t *params, struct expected *expected)
{
    struct launch launch;
    struct test_launch *test = &launch.routed.test;
    const char *what = test_describe(&device_routed_mlp, params);
    open_launch(&launch, problem, params);
    if (!expected->out) expect(expected, &launch, problem);
    test_kernel_open(&test->kernel, &device_routed_mlp, params);
    if (test->kernel.local_bytes) fail_msg("%s: %d bytes of local memory", what, test->kernel.local_bytes);
    test_launch_run_twice(test);
    test_routed_assert_workspace(test);
    check_outputs(&launch, problem, expected->out, what);
    test_launch_assert_rows_untouched(test, ROUTED_MLP_OUT);
    test_launch_close(test);
}

enum { MOST_CANDIDATES = 40 };

/* Legal ones, which differ and are of the problem. */
static int find_candidates(const struct problem *problem, const struct device_facts *gpu,
                           int64_t (*found)[PLAN_MAX_PARAMS])
{
    int64_t params[PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    fill_params(problem, params);
    memset(found, 0, MOST_CANDIDATES * sizeof *found);
    const int count = device_routed_mlp.candidates(params, gpu, found, MOST_CANDIDATES);
    assert_in_range(count, 0, MOST_CANDIDATES - 1);
    for (int i = 0; i < count; i++) {
        assert_null(device_routed_mlp.launch(found[i], gpu, &geometry));
        assert_in_range(geometry.shared_bytes, 1, gpu->shared_per_block);
        assert_in_range(geometry.grid[0], 1, gpu->multiprocessors); /* all resident at the same time */
        assert_memory_equal(found[i], params, ROUTED_MLP_PROBLEM_PARAMS * sizeof *params);
        for (int other = 0; other < i; other++) assert_memory_not_equal(found[i], found[other], sizeof found[i]);
    }
    return count;
}

/* Adds every `step`-th candidate to `variants`; NULL: checks it. */
static void visit(const struct problem *problem, int step, struct test_variants *variants)
{
    static int64_t found[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    struct expected expected = {.out = NULL};
    const int count = find_candidates(problem, &test_device()->device.facts, found);
    assert_true(count > 0);
    for (int i = 0; i < count; i += step)
        if (variants)
            test_variants_add(variants, &device_routed_mlp, found[i]);
        else
            check_params(problem, found[i], &expected);
    test_release(&expected.memory);
}

TEST(equals_reference)
{
    static struct test_variants variants;
    TEST_NEEDS_DEVICE();
    if (!test_routed_has_gpu()) skip();
    for (int i = 0; i < PROBLEMS; i++) visit(&problems[i], 5, &variants);
    test_variants_compile(&variants);
    for (int i = 0; i < PROBLEMS; i++) visit(&problems[i], 5, NULL);
}

/* Each with the next one as that of the second matrix, too. */
TEST(every_encoding)
{
    static struct test_variants variants;
    TEST_NEEDS_DEVICE();
    if (!test_routed_has_gpu()) skip();
    for (int pass = 0; pass < 2; pass++) {
        enum encoding_id encoding, last = ENCODING_E4M3_CHANNEL;
        for (size_t e = 0; matmul_device_next_coded(&e, &encoding); last = encoding)
            for (int i = 0; i < CODED_PROBLEMS; i++) {
                const struct problem problem = with_codes(&coded_problems[i], i ? last : encoding, encoding);
                visit(&problem, i ? 16 : 8, pass == 0 ? &variants : NULL);
            }
        if (pass == 0) test_variants_compile(&variants);
    }
}

static const struct problem plain_problem = {{2, 2, 48, 4, 256, 768, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX,
                                              ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
                                             {768, ENCODING_BF16, 1, F32, SUMMED | IN_PLACE}};
/* Qwen3-30B-A3B. */
static const struct problem qwen3 = {{1, 1, 128, 8, 1536, 2048, ENCODING_E4M3_CHANNEL, ACTIVATION_SILU, ROUTER_SOFTMAX,
                                      ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
                                     {2048, ENCODING_E4M3_CHANNEL, 1, F32, SUMMED | IN_PLACE | X_IN_PLACE}};

TEST(candidates)
{
    static struct test_variants variants;
    struct problem coded = with_codes(&plain_problem, ENCODING_E4M3_CHANNEL, ENCODING_E4M3_CHANNEL);
    coded.routed.rows = coded.routed.valid = 4;
    coded.routed.k = coded.width = 2048;
    coded.flags |= X_IN_PLACE;
    TEST_NEEDS_DEVICE();
    if (!test_routed_has_gpu()) skip();
    for (int pass = 0; pass < 2; pass++) {
        visit(&plain_problem, 1, pass == 0 ? &variants : NULL);
        visit(&coded, 1, pass == 0 ? &variants : NULL);
        if (pass == 0) test_variants_compile(&variants);
    }
}

TEST(problems_have_candidates)
{
    static int64_t found[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    int64_t params[PLAN_MAX_PARAMS];
    enum encoding_id encoding;
    assert_true(find_candidates(&qwen3, &matmul_test_h200, found) >= 8);
    assert_int_equal(find_candidates(&qwen3, &matmul_test_a10, found), 0);
    fill_params(&qwen3, params);
    assert_int_equal(device_routed_mlp.candidates(params, &matmul_test_h200, found, 3), 3);
    for (int i = 0; i < PROBLEMS; i++) assert_true(find_candidates(&problems[i], &matmul_test_h200, found) > 0);
    for (size_t e = 0; matmul_device_next_coded(&e, &encoding);)
        for (int i = 0; i < CODED_PROBLEMS; i++) {
            const struct problem problem = with_codes(&coded_problems[i], encoding, encoding);
            assert_true(find_candidates(&problem, &matmul_test_h200, found) > 0);
        }
}

/* A builder decides by routed_mlp_fits whether a graph has the op: there must be a kernel then. */
TEST(what_fits_has_candidates)
{
    static const int64_t widths[] = {64, 1024, 2880, 4096, 7168}, inner[] = {16, 48, 352, 768, 2048, 2880, 8192};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_E4M3_CHANNEL, ENCODING_MXFP4,
                                                 ENCODING_INT4_G32_ZEROS, ENCODING_INT8_G32};
    static int64_t found[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    struct device_facts gpu = matmul_test_h200;
    int fitting = 0, others = 0;
    for (int turn = 0; turn < 9; turn++) {
        gpu.multiprocessors = (const int[]){20, 78, 132}[turn % 3];
        gpu.shared_per_block = (const int[]){160 << 10, 198144, 232448}[turn / 3];
        for (size_t i = 0; i < 5 * 7 * 5; i++)
            for (int64_t rows = 1; rows <= 4; rows += 3)
                for (int64_t top_k = 1; top_k <= 8; top_k++) {
                    struct problem problem = with_codes(&qwen3, encodings[i / 35], encodings[i / 35]);
                    problem.routed.rows = problem.routed.valid = rows;
                    problem.routed.top_k = top_k;
                    problem.routed.experts = widths[i / 7 % 5] < 1024 ? 16 : 512; /* the blocks take 8 each at most */
                    problem.routed.k = problem.width = widths[i / 7 % 5];
                    problem.routed.n = 2 * inner[i % 7];
                    const int64_t matrix_rows =
                        (problem.routed.experts + gpu.multiprocessors - 1) / gpu.multiprocessors;
                    const bool fits =
                        routed_mlp_fits(rows, problem.width, matrix_rows, top_k, inner[i % 7], gpu.shared_per_block);
                    if (fits)
                        fitting++;
                    else
                        others++;
                    if (!fits || find_candidates(&problem, &gpu, found) > 0) continue;
                    fail_msg("%lld rows, top %lld, k %lld, %lld activations, encoding %d, %lld bytes: no candidate",
                             (long long)rows, (long long)top_k, (long long)problem.width, (long long)inner[i % 7],
                             (int)encodings[i / 35], (long long)gpu.shared_per_block);
                }
    }
    assert_true(fitting > 500 && others > 500);
}

TEST(hostile_parameters)
{
    static const struct test_change refused[] = {
        {ROUTED_MATMUL_ROWS, 9},
        {ROUTED_MATMUL_EPILOGUE, ACTIVATION_NONE},
        {ROUTED_MATMUL_EPILOGUE, EPILOGUE_PLAIN + ACTIVATION_RELU2}, /* twice as many activations */
        {ROUTED_MATMUL_ROUTED, 47},
        {ROUTED_MATMUL_ROUTE_WIDTH, 7},
        {ROUTED_MATMUL_MATRIX_DTYPE, DTYPE_F16},
        {ROUTED_MATMUL_OUT_DTYPE, DTYPE_F32},
        {ROUTED_MATMUL_OUT_DTYPE, DTYPE_F16},
        {ROUTED_MATMUL_DTYPE, ENCODING_E4M3_CHANNEL},
        {ROUTED_MATMUL_DTYPE, DTYPE_F16},
        {ROUTED_MATMUL_INPUT_DTYPE, DTYPE_BF16},
        {ROUTED_MATMUL_SHARED, 1},
        {ROUTED_MLP_DOWN_DTYPE, ENCODING_E4M3_CHANNEL},
        {ROUTED_MLP_DOWN_DTYPE, DTYPE_F16},
        {ROUTED_MLP_DOWN_K, 120},
        {ROUTED_MLP_DOWN_K, 256},
        {ROUTED_MLP_DOWN_N, 48 * 768 + 1},
        {ROUTED_MLP_DOWN_OUT_DTYPE, DTYPE_BF16}, /* with a residual */
        {ROUTED_MLP_COPY, 0},
        {ROUTED_MLP_COPY, 3},
        {ROUTED_MLP_SHARE, 0},
        {ROUTED_MLP_SHARE, 9},
        {ROUTED_MLP_WARPS, 0},
        {ROUTED_MLP_STAGES, 1},
        {ROUTED_MLP_STAGES, 64}, /* shared memory */
        {ROUTED_MLP_CHUNK, 96},
        {ROUTED_MLP_TILE_GROUPS, 1}, /* parts gate and up */
        {ROUTED_MLP_DOWN_STAGES, 1},
        {ROUTED_MLP_DOWN_STAGES, 64}, /* shared memory */
        {ROUTED_MLP_DOWN_CHUNK, 96},
        {ROUTED_MLP_DOWN_GROUPS, 3},
    };
    static int64_t found[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    struct device_facts gpu = matmul_test_h200;
    struct device_geometry geometry;
    assert_true(find_candidates(&plain_problem, &gpu, found) > 0);
    test_hostile_launches(&device_routed_mlp, found[0]);
    test_launch_refuses(&device_routed_mlp, found[0], refused, sizeof refused / sizeof *refused);
    const struct problem coded = with_codes(&plain_problem, ENCODING_MXFP4, ENCODING_E4M3_CHANNEL);
    assert_true(find_candidates(&coded, &gpu, found) > 0);
    test_launch_refuses(&device_routed_mlp, found[0],
                        TEST_CHANGES({ROUTED_MATMUL_DTYPE, DTYPE_BF16}, {ROUTED_MLP_DOWN_DTYPE, DTYPE_BF16},
                                     {ROUTED_MLP_COPY, 2}, {ROUTED_MLP_DOWN_GROUPS, 1}));
    gpu.shared_per_block = 64 << 10;
    assert_non_null(device_routed_mlp.launch(found[0], &gpu, &geometry));
    gpu = matmul_test_h200;
    gpu.capability = 86;
    assert_non_null(device_routed_mlp.launch(found[0], &gpu, &geometry));
}

int main(void) { return test_run(); }
