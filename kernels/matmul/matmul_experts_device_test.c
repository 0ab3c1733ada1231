/* SPDX-License-Identifier: Apache-2.0 */
/* matmul over experts on the GPU: tails, every encoding, candidates, rows that all choose alike, lists that make no sense. */
#include <math.h>

#include "kernels/matmul/matmul_device.h"
#include "kernels/matmul/test_matmul_device.h"

struct problem {
    int64_t rows, valid, experts, top_k, n, k; /* n: of one expert */
    enum encoding_id dtype;
    enum activation activation; /* NONE: the weighted parts */
    enum dtype bias;            /* DTYPE_NONE: none */
    bool alike;                 /* all rows choose the same experts */
};

static void fill_params(const struct problem *problem, int64_t *params)
{
    const int64_t values[MATMUL_FIRST_TUNABLE] = {
        [MATMUL_ROWS] = problem->rows,
        [MATMUL_N] = problem->experts * problem->n,
        [MATMUL_K] = problem->k,
        [MATMUL_DTYPE] = problem->dtype,
        [MATMUL_OUT_DTYPE] = problem->activation ? DTYPE_BF16 : DTYPE_F32,
        [MATMUL_EPILOGUE] = problem->activation,
        [MATMUL_HAS_BIAS] = problem->bias != DTYPE_NONE,
        [MATMUL_BIAS_DTYPE] = problem->bias ? problem->bias : DTYPE_F32,
        [MATMUL_SCALE_BITS] = problem->activation ? OP_FLOAT_ONE_BITS : test_float_bits(0.75f),
        [MATMUL_CAP_BITS] = problem->activation == ACTIVATION_CLAMPED ? test_float_bits(1.25f) : OP_FLOAT_ONE_BITS,
        [MATMUL_COMPUTE_DTYPE] = DTYPE_F32,
        [MATMUL_EXPERTS] = problem->experts,
        [MATMUL_ROUTE_WIDTH] = 2 * problem->top_k,
        [MATMUL_PARTS] = !problem->activation,
    };
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, values, sizeof values);
    params[MATMUL_NORM_DTYPE] = DTYPE_F32;
    params[MATMUL_INPUT_DTYPE] = matmul_device_element(params);
}

/* Routes, and the lists that a router makes of them. */
static void fill_routes(struct test_launch *launch, struct test_random *random, const struct problem *problem)
{
    const int64_t top_k = problem->top_k, experts = problem->experts;
    float *routes = launch->host[MATMUL_ROUTES];
    int32_t *lists = launch->host[MATMUL_LISTS], *choices = lists + experts + 1, order[ROUTER_MAX_EXPERTS], next = 0;
    for (int64_t i = 0; i < experts; i++) order[i] = (int32_t)i;
    for (int64_t row = 0; row < problem->valid; row++) {
        if (row == 0 || !problem->alike) test_shuffle(random, order, (size_t)experts);
        for (int64_t c = 0; c < top_k; c++) {
            test_fill(random, routes + row * 2 * top_k + c, 1, DTYPE_F32, 0.1f, 1);
            routes[row * 2 * top_k + top_k + c] = (float)order[c];
        }
    }
    for (int64_t expert = 0; expert < experts; expert++) {
        lists[expert] = next;
        for (int64_t slot = 0; slot < problem->valid * top_k; slot++)
            if (routes[slot / top_k * 2 * top_k + top_k + slot % top_k] == (float)expert)
                choices[next++] = (int32_t)slot;
    }
    lists[experts] = next;
}

struct launch {
    struct test_launch test;
    const float *weights; /* [experts * n, k] */
};

static void open_launch(struct launch *launch, const struct problem *problem, const int64_t *params)
{
    struct test_random random = {(uint64_t)(problem->rows * 7 + problem->n + problem->k)};
    struct test_launch *test = &launch->test;
    test_launch_open_operands(test, &op_matmul, params, problem->valid);
    const size_t width = test_launch_count(test, MATMUL_X) / (size_t)problem->rows;
    const float most = 3 / sqrtf((float)problem->k);
    test_fill(&random, test->host[MATMUL_X], width * (size_t)problem->valid, test_launch_dtype(test, MATMUL_X), -1, 1);
    if (matmul_is_coded(params)) {
        launch->weights = matmul_device_fill_coded(test, &random);
    } else {
        test_launch_fill(test, MATMUL_W, &random, -most, most);
        launch->weights = test_launch_decode(test, MATMUL_W);
    }
    if (problem->bias) test_launch_fill(test, MATMUL_BIAS, &random, -1, 1);
    fill_routes(test, &random, problem);
}

static double dot(const struct launch *launch, int64_t x_row, int64_t n, double *error)
{
    const int64_t *params = launch->test.params, k_count = params[MATMUL_K];
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < k_count; k++) {
        const double product = (double)op_element(launch->test.host[MATMUL_X], x_row * k_count + k,
                                                  (enum dtype)matmul_device_element(params)) *
                               (double)launch->weights[n * k_count + k];
        sum += product;
        squares += product * product;
    }
    if (launch->test.host[MATMUL_BIAS])
        sum += (double)op_element(launch->test.host[MATMUL_BIAS], n, (enum dtype)params[MATMUL_BIAS_DTYPE]);
    *error = ((double)k_count / 16 + 16) * 0x1p-22 * (6 * sqrt(squares) + fabs(sum)); /* as test_matmul_device.c */
    return sum;
}

static void check_outputs(const struct launch *launch, const struct problem *problem, const char *what)
{
    const int64_t *params = launch->test.params, top_k = problem->top_k;
    const bool gated = problem->activation != ACTIVATION_NONE;
    const int64_t columns = gated ? problem->n / 2 : problem->n;
    const float *routes = launch->test.host[MATMUL_ROUTES];
    for (int64_t slot = 0; slot < problem->valid * top_k; slot++) {
        const float *row = routes + slot / top_k * 2 * top_k;
        const int64_t base = (int64_t)row[top_k + slot % top_k] * problem->n;
        for (int64_t column = 0; column < columns; column++) {
            double want, error, up_error;
            if (gated) {
                const int64_t n = base + column / 8 * 16 + column % 8;
                const double gate = dot(launch, slot / top_k, n, &error),
                             up = dot(launch, slot / top_k, n + 8, &up_error);
                want = activate_gated(problem->activation, 1.25f, gate, up);
                error = 1.2 * error * (1 + fabs(up) + up_error) + fabs(gate) * up_error + fabs(want) * 0x1p-8;
            } else {
                const double factor = (double)row[slot % top_k] * 0.75;
                want = dot(launch, slot, base + column, &error) * factor;
                error = error * factor + fabs(want) * 0x1p-22;
            }
            const double found = (double)op_element(launch->test.found[MATMUL_OUT], slot * columns + column,
                                                    (enum dtype)params[MATMUL_OUT_DTYPE]);
            if (!(fabs(found - want) <= error))
                fail_msg("%s: choice %lld, column %lld: expected %.9g within %.3g, found %.9g", what, (long long)slot,
                         (long long)column, want, error, found);
        }
    }
}

static void check_params(const struct problem *problem, const int64_t *params)
{
    struct launch launch;
    const char *what = test_describe(&device_matmul_mma, params);
    open_launch(&launch, problem, params);
    test_kernel_open(&launch.test.kernel, &device_matmul_mma, params);
    if (launch.test.kernel.local_bytes) fail_msg("%s: %d bytes of local memory", what, launch.test.kernel.local_bytes);
    test_launch_run_twice(&launch.test);
    check_outputs(&launch, problem, what);
    test_launch_assert_rows_untouched(&launch.test, MATMUL_OUT);
    test_launch_close(&launch.test);
}

/* Every `step`-th candidate. */
static void check(const struct problem *problem, int step)
{
    int64_t params[PLAN_MAX_PARAMS], found[32][PLAN_MAX_PARAMS];
    const struct device_facts *gpu = &test_device()->device.facts;
    fill_params(problem, params);
    memset(found, 0, sizeof found);
    const int count = device_matmul_mma.candidates(params, gpu, found, 32);
    assert_true(count > 0);
    for (int i = 0; i < count; i += step) check_params(problem, found[i]);
}

TEST(tails)
{
    static const struct problem problems[] = {
        {1, 1, 8, 2, 80, 64, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, false},
        {1, 1, 8, 2, 72, 88, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, false},
        {5, 4, 6, 3, 48, 40, ENCODING_F16, ACTIVATION_NONE, DTYPE_F16, false},
        {9, 9, 40, 4, 112, 200, ENCODING_BF16, ACTIVATION_GELU_TANH, DTYPE_F32, false},
        {9, 9, 40, 4, 112, 200, ENCODING_BF16, ACTIVATION_CLAMPED, DTYPE_BF16, false},
        {33, 30, 3, 1, 17, 72, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, false},
        {70, 70, 4, 2, 144, 136, ENCODING_BF16, ACTIVATION_SILU, DTYPE_BF16, true},
        {200, 190, 5, 2, 150, 72, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, true},
        {6, 0, 4, 2, 64, 64, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, false},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i], 3);
}

TEST(every_encoding)
{
    enum encoding_id encoding;
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; matmul_device_next_coded(&i, &encoding);) {
        check(&(struct problem){3, 3, 9, 4, 96, 256, encoding, ACTIVATION_SILU, DTYPE_NONE, false}, 5);
        check(&(struct problem){40, 38, 5, 2, 48, 320, encoding, ACTIVATION_NONE, DTYPE_BF16, false}, 5);
    }
}

TEST(candidates)
{
    TEST_NEEDS_DEVICE();
    check(&(struct problem){4, 4, 16, 4, 192, 320, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, false}, 1);
    check(&(struct problem){300, 290, 8, 4, 160, 192, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, false}, 1);
}

/* Lists of another step, or of no router: nothing beside the operands is read or written. */
TEST(lists_are_not_trusted)
{
    static const struct problem problem = {4, 4, 16, 4, 96, 64, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, false};
    static const int32_t values[] = {-1, INT32_MIN, INT32_MAX, 7, 1 << 20};
    int64_t params[PLAN_MAX_PARAMS], found[1][PLAN_MAX_PARAMS];
    TEST_NEEDS_DEVICE();
    fill_params(&problem, params);
    memset(found, 0, sizeof found);
    assert_int_equal(device_matmul_mma.candidates(params, &test_device()->device.facts, found, 1), 1);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        struct launch launch;
        open_launch(&launch, &problem, found[0]);
        int32_t *lists = launch.test.host[MATMUL_LISTS];
        for (size_t i = v % 2; i < test_launch_count(&launch.test, MATMUL_LISTS); i += 2) lists[i] = values[v];
        test_kernel_open(&launch.test.kernel, &device_matmul_mma, found[0]);
        test_launch_run(&launch.test);
        test_launch_close(&launch.test);
    }
}

TEST(other_kernels_refuse_experts)
{
    int64_t params[PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    fill_params(&(struct problem){4, 4, 8, 2, 96, 64, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, false}, params);
    const struct device_kernel *const kernels[] = {&device_matmul_gemv, &device_matmul_wgmma};
    int64_t found[1][PLAN_MAX_PARAMS];
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(kernels[i]->candidates(params, &matmul_test_h200, found, 1), 0);
        assert_non_null(strstr(kernels[i]->launch(params, &matmul_test_h200, &geometry), "experts"));
    }
    params[MATMUL_EPILOGUE] = ACTIVATION_NONE; /* and no parts */
    assert_non_null(strstr(matmul_device_illegal(params), "without parts"));
}

int main(void) { return test_run(); }
