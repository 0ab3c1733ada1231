/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul on the GPU: routes and lists as router's reference has them, products as plain code has them, and what a launch
 * refuses. */
#include "kernels/routed_matmul/routed_matmul.h"

#include <math.h>

#include "kernels/matmul/test_matmul_device.h"

enum { NORMED = 1, BIASED = 2, CLAIMED = 4, SCALED = 8, SEEDED = 16, OF_OUT_ROWS = 32, GATED = 64 };

struct problem {
    int64_t rows, valid, experts, top_k, n, k; /* n: of one expert; with a gate, gate and up */
    enum encoding_id dtype;
    int epilogue; /* as MATMUL_EPILOGUE, an activation */
    int64_t score, renormalise, groups, top_groups;
    unsigned flags;
    int64_t shared; /* of the experts and of top_k */
};

/* Rows of the router's matrix. */
static int64_t routed(const struct problem *problem)
{
    return problem->experts - problem->shared + ((problem->flags & GATED) != 0);
}

static void fill_params(const struct problem *problem, int64_t *params)
{
    const unsigned flags = problem->flags;
    const int64_t element = encoding_is_plain(problem->dtype) ? (int64_t)problem->dtype : DTYPE_BF16;
    const int64_t values[ROUTED_MATMUL_PROBLEM_PARAMS] = {
        [ROUTED_MATMUL_ROWS] = problem->rows,
        [ROUTED_MATMUL_COUNT_INDEX] = (flags & OF_OUT_ROWS) != 0,
        [ROUTED_MATMUL_N] = problem->experts * problem->n,
        [ROUTED_MATMUL_K] = problem->k,
        [ROUTED_MATMUL_DTYPE] = problem->dtype,
        [ROUTED_MATMUL_OUT_DTYPE] = element,
        [ROUTED_MATMUL_EPILOGUE] = problem->epilogue,
        [ROUTED_MATMUL_HAS_BIAS] = (flags & BIASED) != 0,
        [ROUTED_MATMUL_BIAS_DTYPE] = DTYPE_BF16,
        [ROUTED_MATMUL_HAS_NORM] = (flags & NORMED) != 0,
        [ROUTED_MATMUL_NORM_DTYPE] = DTYPE_F32,
        [ROUTED_MATMUL_EPS_BITS] = (flags & NORMED) ? test_float_bits(1e-5f) : 0,
        [ROUTED_MATMUL_INPUT_DTYPE] = (flags & NORMED) ? DTYPE_F32 : element,
        [ROUTED_MATMUL_CAP_BITS] = problem->epilogue == ACTIVATION_CLAMPED ? test_float_bits(1.25f) : OP_FLOAT_ONE_BITS,
        [ROUTED_MATMUL_EXPERTS] = problem->experts,
        [ROUTED_MATMUL_ROUTE_WIDTH] = 2 * problem->top_k,
        [ROUTED_MATMUL_MATRIX_DTYPE] = element,
        [ROUTED_MATMUL_ROUTED] = routed(problem),
        [ROUTED_MATMUL_SHARED] = problem->shared,
        [ROUTED_MATMUL_SHARED_GATE] = (flags & GATED) != 0,
        [ROUTED_MATMUL_HAS_ROUTER_BIAS] = (flags & BIASED) != 0,
        [ROUTED_MATMUL_ROUTER_BIAS_DTYPE] = DTYPE_F32,
        [ROUTED_MATMUL_SCORE] = problem->score,
        [ROUTED_MATMUL_RENORMALISE] = problem->renormalise,
        [ROUTED_MATMUL_ROUTER_EPS_BITS] = test_float_bits(1e-3f),
        [ROUTED_MATMUL_ROUTER_SCALE_BITS] = test_float_bits(2.5f),
        [ROUTED_MATMUL_ROUTER_GROUPS] = problem->groups,
        [ROUTED_MATMUL_TOP_GROUPS] = problem->top_groups,
        [ROUTED_MATMUL_HAS_CLAIM_BIAS] = (flags & CLAIMED) != 0,
        [ROUTED_MATMUL_CLAIM_BIAS_DTYPE] = DTYPE_F32,
        [ROUTED_MATMUL_HAS_SEEDS] = (flags & SEEDED) != 0,
        [ROUTED_MATMUL_STEP_ROWS] = problem->rows + 3,
        [ROUTED_MATMUL_HAS_SCALES] = (flags & SCALED) != 0,
        [ROUTED_MATMUL_SCALES_DTYPE] = DTYPE_BF16,
    };
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, values, sizeof values);
}

struct launch {
    struct test_launch test;
    const float *weights, *matrix; /* [experts * n, k], [experts, k] */
};

static void open_launch(struct launch *launch, const struct problem *problem, const int64_t *params)
{
    struct test_random random = {(uint64_t)(problem->rows * 7 + problem->n + problem->k + problem->experts)};
    struct test_launch *test = &launch->test;
    const float most = 3 / sqrtf((float)problem->k);
    test_launch_open_operands(test, &op_routed_matmul, params, problem->valid);
    test_launch_resize(test, ROUTED_MATMUL_WORKSPACE, device_routed_matmul.counter_bytes(params), 0);
    memset(test->host[ROUTED_MATMUL_WORKSPACE], 0, test->device[ROUTED_MATMUL_WORKSPACE].bytes);
    test_fill(&random, test->host[ROUTED_MATMUL_X], (size_t)(problem->k * problem->valid),
              test_launch_dtype(test, ROUTED_MATMUL_X), -1, 1);
    if (encoding_is_plain(problem->dtype)) {
        test_launch_fill(test, ROUTED_MATMUL_W, &random, -most, most);
        launch->weights = test_launch_decode(test, ROUTED_MATMUL_W);
    } else {
        launch->weights = matmul_device_fill_coded(test, &random);
    }
    test_launch_fill(test, ROUTED_MATMUL_MATRIX, &random, -most, most);
    launch->matrix = test_launch_decode(test, ROUTED_MATMUL_MATRIX);
    static const int ranges[] = {ROUTED_MATMUL_BIAS, ROUTED_MATMUL_ROUTER_BIAS, ROUTED_MATMUL_CLAIM_BIAS};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (test->host[ranges[i]]) test_launch_fill(test, ranges[i], &random, -0.5f, 0.5f);
    if (test->host[ROUTED_MATMUL_NORM]) test_launch_fill(test, ROUTED_MATMUL_NORM, &random, 0.5f, 1.5f);
    if (test->host[ROUTED_MATMUL_SCALES]) test_launch_fill(test, ROUTED_MATMUL_SCALES, &random, 0.5f, 2);
    int32_t *seeds = test->host[ROUTED_MATMUL_SEEDS], *index = test->host[ROUTED_MATMUL_INDEX];
    for (int64_t row = 0; seeds && row < problem->rows + 3; row++) seeds[row] = row % 2 ? (int32_t)row + 1 : 0;
    for (int64_t row = 0; index && row < problem->valid; row++) index[row] = (int32_t)(problem->rows + 2 - row);
}

/* y[row] . matrix[n]; *error: how far off the sum may be. */
static double dot(const struct launch *launch, const float *matrix, int64_t row, int64_t n, double *error)
{
    const int64_t *params = launch->test.params, count = params[ROUTED_MATMUL_K];
    double sum = 0, squares = 0, x_squares = 0;
    for (int64_t k = 0; k < count; k++) {
        const float x = op_element(launch->test.host[ROUTED_MATMUL_X], row * count + k,
                                   (enum dtype)params[ROUTED_MATMUL_INPUT_DTYPE]);
        float y = x;
        if (params[ROUTED_MATMUL_HAS_NORM]) {
            y *= op_element(launch->test.host[ROUTED_MATMUL_NORM], k, DTYPE_F32);
            y = params[ROUTED_MATMUL_MATRIX_DTYPE] == DTYPE_F16 ? f16_to_float(f16_from_float(y))
                                                                : bf16_to_float(bf16_from_float(y));
        }
        const double product = (double)y * (double)matrix[n * count + k];
        x_squares += (double)x * (double)x, sum += product, squares += product * product;
    }
    const double factor = params[ROUTED_MATMUL_HAS_NORM] ? 1 / sqrt(x_squares / (double)count + 1e-5f) : 1;
    *error = ((double)count / 16 + 16) * 0x1p-22 * (6 * sqrt(squares) + fabs(sum)) * factor;
    return sum * factor;
}

static double biased(const struct launch *launch, int operand, int64_t at, enum dtype dtype)
{
    const void *bias = launch->test.host[operand];
    return bias ? (double)op_element(bias, at, dtype) : 0;
}

static void check_routes(struct launch *launch, const struct problem *problem, const char *what)
{
    const int64_t experts = problem->experts, top_k = problem->top_k, count = routed(problem);
    struct test_launch *test = &launch->test;
    int64_t params[PLAN_MAX_PARAMS] = {0};
    float *logits = test_take(&test->memory, (size_t)(problem->valid * count + 1) * sizeof *logits);
    float *routes = test_take(&test->memory, (size_t)(problem->valid * 2 * top_k + 1) * sizeof *routes);
    for (int64_t row = 0; row < problem->valid; row++)
        for (int64_t e = 0; e < count; e++) {
            double error;
            logits[row * count + e] = (float)(dot(launch, launch->matrix, row, e, &error) +
                                              biased(launch, ROUTED_MATMUL_ROUTER_BIAS, e, DTYPE_F32));
        }
    const struct op_call own = test_launch_call(test);
    struct op_call call = own;
    routed_matmul_as_router(test->params, params);
    call.params = params;
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) call.operands[i] = NULL;
    call.operands[ROUTER_COUNTS] = own.operands[ROUTED_MATMUL_COUNTS];
    call.operands[ROUTER_LOGITS] = logits;
    call.operands[ROUTER_OUT] = routes;
    call.operands[ROUTER_BIAS] = test->host[ROUTED_MATMUL_CLAIM_BIAS];
    call.operands[ROUTER_SEEDS] = test->host[ROUTED_MATMUL_SEEDS];
    call.operands[ROUTER_INDEX] = test->host[ROUTED_MATMUL_INDEX];
    call.operands[ROUTER_SCALES] = test->host[ROUTED_MATMUL_SCALES];
    op_router.reference(&call);
    const float *found = test->found[ROUTED_MATMUL_ROUTES];
    for (int64_t i = 0; i < problem->valid * 2 * top_k; i++) {
        const bool is_weight = i % (2 * top_k) < top_k;
        if (is_weight ? fabsf(found[i] - routes[i]) > 2e-5f + 1e-4f * fabsf(routes[i]) : found[i] != routes[i])
            fail_msg("%s: row %lld, %s of choice %lld: expected %g, found %g", what, (long long)(i / (2 * top_k)),
                     is_weight ? "weight" : "expert", (long long)(i % top_k), (double)routes[i], (double)found[i]);
    }
    const size_t numbers = (size_t)(experts + 1 + problem->valid * top_k);
    int32_t *lists = test_take(&test->memory, numbers * sizeof *lists);
    matmul_fill_expert_lists(found, problem->valid, top_k, &(struct expert_lists){experts, lists, lists + experts + 1});
    assert_memory_equal(test->found[ROUTED_MATMUL_LISTS], lists, numbers * sizeof *lists);
}

static void check_products(const struct launch *launch, const struct problem *problem, const char *what)
{
    const bool gated = EPILOGUE_IS_GATED(problem->epilogue);
    const int64_t columns = gated ? problem->n / 2 : problem->n, top_k = problem->top_k;
    const float *routes = launch->test.found[ROUTED_MATMUL_ROUTES];
    for (int64_t at = 0; at < problem->valid * top_k * columns; at++) {
        const int64_t choice = at / columns, column = at % columns, row = choice / top_k;
        const int64_t expert = (int64_t)routes[row * 2 * top_k + top_k + choice % top_k];
        const int64_t gate_row = expert * problem->n + (gated ? column / 8 * 16 + column % 8 : column);
        double gate_error, up_error = 0;
        const double gate = dot(launch, launch->weights, row, gate_row, &gate_error) +
                            biased(launch, ROUTED_MATMUL_BIAS, gate_row, DTYPE_BF16);
        const double up = !gated ? 0
                                 : dot(launch, launch->weights, row, gate_row + 8, &up_error) +
                                       biased(launch, ROUTED_MATMUL_BIAS, gate_row + 8, DTYPE_BF16);
        const enum activation activation = (enum activation)EPILOGUE_ACTIVATION(problem->epilogue);
        const double want = gated ? activate_gated(activation, 1.25f, gate, up) : activate_exactly(activation, gate);
        const double slope = gated ? 1.2 * (1 + fabs(up) + up_error) : 2 * fabs(gate) + gate_error; /* or RELU2 */
        const double error = gate_error * slope + fabs(gate) * up_error + fabs(want) * 0x1p-8 + 0x1p-20;
        const double found = (double)op_element(launch->test.found[ROUTED_MATMUL_OUT], at,
                                                (enum dtype)launch->test.params[ROUTED_MATMUL_OUT_DTYPE]);
        if (!(fabs(found - want) <= error))
            fail_msg("%s: choice %lld, column %lld: expected %.9g within %.3g, found %.9g", what, (long long)choice,
                     (long long)column, want, error, found);
    }
}

/* Every `step`-th candidate. */
static void check(const struct problem *problem, int step)
{
    int64_t params[PLAN_MAX_PARAMS], found[40][PLAN_MAX_PARAMS];
    fill_params(problem, params);
    memset(found, 0, sizeof found);
    const int count = device_routed_matmul.candidates(params, &test_device()->device.facts, found, 40);
    assert_true(count > 0);
    for (int i = 0; i < count; i += step) {
        struct launch launch;
        const char *what = test_describe(&device_routed_matmul, found[i]);
        open_launch(&launch, problem, found[i]);
        test_kernel_open(&launch.test.kernel, &device_routed_matmul, found[i]);
        if (launch.test.kernel.local_bytes)
            fail_msg("%s: %d bytes of local memory", what, launch.test.kernel.local_bytes);
        test_launch_run_twice(&launch.test);
        const uint8_t *workspace = launch.test.found[ROUTED_MATMUL_WORKSPACE];
        for (size_t b = 0; b < launch.test.device[ROUTED_MATMUL_WORKSPACE].bytes; b++)
            assert_int_equal(workspace[b], 0);
        check_routes(&launch, problem, what);
        check_products(&launch, problem, what);
        test_launch_assert_rows_untouched(&launch.test, ROUTED_MATMUL_OUT);
        test_launch_close(&launch.test);
    }
}

static bool is_there(void) { return test_device()->device.facts.capability >= 90; }

TEST(equals_reference)
{
    static const struct problem problems[] = {
        {1, 1, 128, 8, 96, 2048, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
        {1, 1, 32, 4, 192, 2880, ENCODING_MXFP4, ACTIVATION_CLAMPED, ROUTER_SOFTMAX_CHOSEN, ROUTER_AS_THEY_ARE, 1, 1,
         NORMED | BIASED | SEEDED, 0},
        {1, 1, 64, 6, 96, 1000, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1,
         NORMED | SCALED, 0},
        {4, 3, 60, 4, 48, 1032, ENCODING_F16, ACTIVATION_GELU_TANH, ROUTER_SIGMOID, ROUTER_SUM_OR_EPS, 1, 1,
         CLAIMED | SEEDED | OF_OUT_ROWS, 0},
        {8, 8, 64, 8, 32, 512, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4,
         NORMED | CLAIMED, 0},
        {7, 5, 8, 2, 64, 4096, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1,
         NORMED | SEEDED, 0},
        {2, 0, 16, 2, 32, 256, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1, NORMED, 0},
        {1, 1, 66, 8, 96, 2048, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_AS_THEY_ARE, 1, 1,
         NORMED | SEEDED, 2},
        {3, 3, 41, 5, 64, 1152, ENCODING_INT4_G32, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1,
         NORMED | GATED, 1},
        {1, 1, 513, 11, 208, 256, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1,
         NORMED | GATED, 1},
        {4, 4, 258, 10, 32, 1024, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS, 8, 4,
         NORMED | CLAIMED, 2},
        {1, 1, 5, 5, 32, 64, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, 0, 0},
        {1, 1, 130, 8, 116, 2688, ENCODING_BF16, EPILOGUE_PLAIN + ACTIVATION_RELU2, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS,
         1, 1, NORMED | CLAIMED, 2},
        {4, 3, 33, 5, 48, 1152, ENCODING_INT4_G32, EPILOGUE_PLAIN + ACTIVATION_RELU2, ROUTER_SIGMOID,
         ROUTER_SUM_PLUS_EPS, 1, 1, NORMED | BIASED | CLAIMED, 1},
    };
    TEST_NEEDS_DEVICE();
    if (!is_there()) skip();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i], 3);
}

TEST(every_encoding)
{
    enum encoding_id encoding;
    TEST_NEEDS_DEVICE();
    if (!is_there()) skip();
    for (size_t i = 0; matmul_device_next_coded(&i, &encoding);) {
        check(&(struct problem){1, 1, 24, 4, 96, 1280, encoding, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS,
                                1, 1, NORMED | BIASED, 0},
              11);
        check(&(struct problem){3, 3, 40, 4, 64, 1408, encoding, ACTIVATION_SILU, ROUTER_SIGMOID, ROUTER_SUM_PLUS_EPS,
                                1, 1, CLAIMED, 0},
              13);
    }
}

TEST(candidates)
{
    TEST_NEEDS_DEVICE();
    if (!is_there()) skip();
    check(&(struct problem){1, 1, 48, 4, 160, 768, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS,
                            1, 1, NORMED, 0},
          1);
    check(&(struct problem){4, 4, 48, 4, 160, 2048, ENCODING_E4M3_CHANNEL, ACTIVATION_SILU, ROUTER_SOFTMAX,
                            ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
          1);
}

TEST(hostile_parameters)
{
    const struct problem problem =
        {4, 4, 48, 4, 160, 768, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX, ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0};
    static const struct test_change refused[] = {
        {ROUTED_MATMUL_ROWS, 9},
        {ROUTED_MATMUL_EPILOGUE, ACTIVATION_NONE},
        {ROUTED_MATMUL_EPILOGUE, EPILOGUE_PLAIN},
        {ROUTED_MATMUL_EPILOGUE, EPILOGUE_PLAIN + ACTIVATION_CLAMPED},
        {ROUTED_MATMUL_ROUTED, 47},
        {ROUTED_MATMUL_ROUTE_WIDTH, 98},
        {ROUTED_MATMUL_ROUTE_WIDTH, 7},
        {ROUTED_MATMUL_MATRIX_DTYPE, DTYPE_F16},
        {ROUTED_MATMUL_SHARE, 0},
        {ROUTED_MATMUL_SHARE, 9},
        {ROUTED_MATMUL_SHARED, 1},
        {ROUTED_MATMUL_SHARED_GATE, 1},
        {ROUTED_MATMUL_COPY, 0},
        {ROUTED_MATMUL_STAGES, 1},
        {ROUTED_MATMUL_INPUT_DTYPE, DTYPE_BF16},
    };
    int64_t params[PLAN_MAX_PARAMS], found[1][PLAN_MAX_PARAMS];
    fill_params(&problem, params);
    memset(found, 0, sizeof found);
    assert_int_equal(device_routed_matmul.candidates(params, &matmul_test_h200, found, 1), 1);
    test_hostile_launches(&device_routed_matmul, found[0]);
    test_launch_refuses(&device_routed_matmul, found[0], refused, sizeof refused / sizeof *refused);
    assert_int_equal(device_routed_matmul.candidates(params, &matmul_test_a10, found, 1), 0);
}

int main(void) { return test_run(); }
