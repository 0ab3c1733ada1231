/* SPDX-License-Identifier: Apache-2.0 */
/* matmul over experts on the GPU: tails, every encoding, candidates, rows that all choose alike, lists that make no sense. */
#include <math.h>

#include "kernels/matmul/matmul_device.h"
#include "kernels/matmul/test_matmul_device.h"

enum flag {
    ALIKE = 1,  /* all rows choose the same experts */
    SUMMED = 2, /* without an activation: the weighted sum, and a residual */
    NORMED = 4, /* with an activation: the norm of x */
    EARLY = 8   /* without an activation: the routes are there when the launch begins */
};

struct problem {
    int64_t rows, valid, experts, top_k, n, k; /* n: of one expert */
    enum encoding_id dtype;
    int epilogue;    /* NONE: the weighted parts; as MATMUL_EPILOGUE */
    enum dtype bias; /* DTYPE_NONE: none */
    unsigned flags;  /* enum flag */
};

static void fill_params(const struct problem *problem, int64_t *params)
{
    const int64_t values[MATMUL_FIRST_TUNABLE] = {
        [MATMUL_ROWS] = problem->rows,
        [MATMUL_N] = problem->experts * problem->n,
        [MATMUL_K] = problem->k,
        [MATMUL_DTYPE] = problem->dtype,
        [MATMUL_OUT_DTYPE] = problem->epilogue ? DTYPE_BF16 : DTYPE_F32,
        [MATMUL_EPILOGUE] = problem->epilogue,
        [MATMUL_HAS_BIAS] = problem->bias != DTYPE_NONE,
        [MATMUL_BIAS_DTYPE] = problem->bias ? problem->bias : DTYPE_F32,
        [MATMUL_SCALE_BITS] = EPILOGUE_IS_GATED(problem->epilogue) ? OP_FLOAT_ONE_BITS : test_float_bits(0.75f),
        [MATMUL_CAP_BITS] = problem->epilogue == ACTIVATION_CLAMPED ? test_float_bits(1.25f) : OP_FLOAT_ONE_BITS,
        [MATMUL_COMPUTE_DTYPE] = DTYPE_F32,
        [MATMUL_EXPERTS] = problem->experts,
        [MATMUL_ROUTE_WIDTH] = 2 * problem->top_k,
        [MATMUL_PARTS] = !problem->epilogue && !(problem->flags & SUMMED),
        [MATMUL_HAS_RESIDUAL] = (problem->flags & SUMMED) != 0,
        [MATMUL_HAS_NORM] = (problem->flags & NORMED) != 0,
        [MATMUL_EARLY_ROUTES] = (problem->flags & EARLY) != 0,
        [MATMUL_EPS_BITS] = (problem->flags & NORMED) ? test_float_bits(1e-5f) : 0,
    };
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, values, sizeof values);
    params[MATMUL_NORM_DTYPE] = DTYPE_F32;
    params[MATMUL_INPUT_DTYPE] = (problem->flags & NORMED) ? DTYPE_F32 : matmul_device_element(params);
}

/* Routes, and the lists that a router makes of them. */
static void fill_routes(struct test_launch *launch, struct test_random *random, const struct problem *problem)
{
    const int64_t top_k = problem->top_k, experts = problem->experts;
    float *routes = launch->host[MATMUL_ROUTES];
    int32_t *lists = launch->host[MATMUL_LISTS], *choices = lists + experts + 1, order[ROUTER_MAX_EXPERTS], next = 0;
    for (int64_t i = 0; i < experts; i++) order[i] = (int32_t)i;
    for (int64_t row = 0; row < problem->valid; row++) {
        if (row == 0 || !(problem->flags & ALIKE)) test_shuffle(random, order, (size_t)experts);
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
    if ((problem->flags & NORMED)) test_launch_fill(test, MATMUL_NORM, &random, 0.5f, 1.5f);
    if ((problem->flags & SUMMED))
        test_fill(&random, test->host[MATMUL_RESIDUAL], (size_t)(problem->n * problem->valid), DTYPE_F32, -1, 1);
    fill_routes(test, &random, problem);
}

static double dot(const struct launch *launch, int64_t x_row, int64_t n, double *error)
{
    const int64_t *params = launch->test.params, k_count = params[MATMUL_K];
    const enum dtype element = (enum dtype)matmul_device_element(params);
    double sum = 0, squares = 0, x_squares = 0;
    for (int64_t k = 0; k < k_count; k++) {
        const float x =
            op_element(launch->test.host[MATMUL_X], x_row * k_count + k, (enum dtype)params[MATMUL_INPUT_DTYPE]);
        float multiplied = x;
        if (params[MATMUL_HAS_NORM]) {
            multiplied *= op_element(launch->test.host[MATMUL_NORM], k, DTYPE_F32);
            multiplied = element == DTYPE_F16 ? f16_to_float(f16_from_float(multiplied))
                                              : bf16_to_float(bf16_from_float(multiplied));
        }
        const double product = (double)multiplied * (double)launch->weights[n * k_count + k];
        x_squares += (double)x * (double)x;
        sum += product;
        squares += product * product;
    }
    if (params[MATMUL_HAS_NORM]) {
        const double factor = 1 / sqrt(x_squares / (double)k_count + 1e-5f);
        sum *= factor, squares *= factor * factor;
    }
    if (launch->test.host[MATMUL_BIAS])
        sum += (double)op_element(launch->test.host[MATMUL_BIAS], n, (enum dtype)params[MATMUL_BIAS_DTYPE]);
    *error = ((double)k_count / 16 + 16) * 0x1p-22 * (6 * sqrt(squares) + fabs(sum)); /* as test_matmul_device.c */
    return sum;
}

/* Output `column` of a choice; *error: how far off it may be. */
static double choice_output(const struct launch *launch, const struct problem *problem, int64_t choice, int64_t column,
                            double *error)
{
    const int64_t top_k = problem->top_k, slot = choice % top_k;
    const float *row = (const float *)launch->test.host[MATMUL_ROUTES] + choice / top_k * 2 * top_k;
    const int64_t base = (int64_t)row[top_k + slot] * problem->n;
    if (problem->epilogue >= EPILOGUE_PLAIN) {
        const enum activation activation = (enum activation)EPILOGUE_ACTIVATION(problem->epilogue);
        const double sum = 0.75 * dot(launch, choice / top_k, base + column, error);
        const double want = activate_exactly(activation, sum);
        *error = *error * (activation == ACTIVATION_RELU2 ? 2 * fabs(sum) + *error : 1.2) + fabs(want) * 0x1p-8;
        return want;
    }
    if (problem->epilogue != ACTIVATION_NONE) {
        double up_error;
        const int64_t n = base + column / 8 * 16 + column % 8;
        const double gate = dot(launch, choice / top_k, n, error), up = dot(launch, choice / top_k, n + 8, &up_error);
        const double want = activate_gated((enum activation)problem->epilogue, 1.25f, gate, up);
        *error = 1.2 * *error * (1 + fabs(up) + up_error) + fabs(gate) * up_error + fabs(want) * 0x1p-8;
        return want;
    }
    const double factor = (double)row[slot] * 0.75;
    const double want = dot(launch, choice, base + column, error) * factor;
    *error = *error * factor + fabs(want) * 0x1p-22;
    return want;
}

static void check_outputs(const struct launch *launch, const struct problem *problem, const char *what)
{
    const int64_t columns = EPILOGUE_IS_GATED(problem->epilogue) ? problem->n / 2 : problem->n;
    const int64_t terms = (problem->flags & SUMMED) ? problem->top_k : 1;
    const float *residual = launch->test.host[MATMUL_RESIDUAL];
    for (int64_t at = 0; at < problem->valid * problem->top_k / terms * columns; at++) {
        const int64_t first = at / columns * terms, column = at % columns;
        double want = (problem->flags & SUMMED) ? (double)residual[at] : 0, error = 0;
        for (int64_t i = 0; i < terms; i++) {
            double of_choice;
            want += choice_output(launch, problem, first + i, column, &of_choice);
            error += of_choice + (double)terms * 0x1p-23 * fabs(want);
        }
        const double found =
            (double)op_element(launch->test.found[MATMUL_OUT], at, (enum dtype)launch->test.params[MATMUL_OUT_DTYPE]);
        if (!(fabs(found - want) <= error))
            fail_msg("%s: choice %lld, column %lld: expected %.9g within %.3g, found %.9g", what, (long long)first,
                     (long long)column, want, error, found);
    }
}

static void check_params(const struct device_kernel *kernel, const struct problem *problem, const int64_t *params)
{
    struct launch launch;
    const char *what = test_describe(kernel, params);
    open_launch(&launch, problem, params);
    test_kernel_open(&launch.test.kernel, kernel, params);
    if (launch.test.kernel.local_bytes) fail_msg("%s: %d bytes of local memory", what, launch.test.kernel.local_bytes);
    test_launch_run_twice(&launch.test);
    check_outputs(&launch, problem, what);
    test_launch_assert_rows_untouched(&launch.test, MATMUL_OUT);
    test_launch_close(&launch.test);
}

/* Adds every `step`-th candidate of every kernel that has some to `variants`; NULL: checks it. */
static void visit(const struct problem *problem, int step, struct test_variants *variants)
{
    static const struct device_kernel *const kernels[] = {&device_matmul_gemv, &device_matmul_grouped,
                                                          &device_matmul_mma};
    int64_t params[PLAN_MAX_PARAMS], found[32][PLAN_MAX_PARAMS];
    const struct device_facts *gpu = &test_device()->device.facts;
    int visited = 0;
    fill_params(problem, params);
    for (size_t kernel = 0; kernel < sizeof kernels / sizeof *kernels; kernel++) {
        memset(found, 0, sizeof found);
        const int count = kernels[kernel]->candidates(params, gpu, found, 32);
        for (int i = 0; i < count; i += step, visited++)
            if (variants)
                test_variants_add(variants, kernels[kernel], found[i]);
            else
                check_params(kernels[kernel], problem, found[i]);
    }
    assert_true(visited > 0);
}

static void check(const struct problem *problem, int step) { visit(problem, step, NULL); }

TEST(tails)
{
    static const struct problem problems[] = {
        {1, 1, 8, 2, 80, 64, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, 0},
        {1, 1, 8, 2, 72, 88, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, 0},
        {5, 4, 6, 3, 48, 40, ENCODING_F16, ACTIVATION_NONE, DTYPE_F16, 0},
        {9, 9, 40, 4, 112, 200, ENCODING_BF16, ACTIVATION_GELU_TANH, DTYPE_F32, 0},
        {9, 9, 40, 4, 112, 200, ENCODING_BF16, ACTIVATION_CLAMPED, DTYPE_BF16, 0},
        {33, 30, 3, 1, 17, 72, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, 0},
        {70, 70, 4, 2, 144, 136, ENCODING_BF16, ACTIVATION_SILU, DTYPE_BF16, ALIKE},
        {200, 190, 5, 2, 150, 72, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, ALIKE},
        {6, 0, 4, 2, 64, 64, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, 0},
        {16, 16, 9, 3, 144, 1056, ENCODING_BF16, ACTIVATION_SILU, DTYPE_BF16, 0},
        {16, 15, 70, 4, 100, 736, ENCODING_F16, ACTIVATION_NONE, DTYPE_F16, 0},
        {64, 61, 40, 4, 96, 160, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, 0},
        {40, 40, 30, 2, 64, 96, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, ALIKE},
        {1, 1, 8, 3, 72, 88, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, SUMMED},
        {1, 1, 12, 4, 2100, 1032, ENCODING_BF16, ACTIVATION_NONE, DTYPE_BF16, SUMMED},
        {5, 4, 30, 12, 48, 40, ENCODING_F16, ACTIVATION_NONE, DTYPE_F16, SUMMED},
        {8, 8, 9, 8, 112, 200, ENCODING_BF16, ACTIVATION_NONE, DTYPE_F32, ALIKE | SUMMED},
        {4, 0, 4, 2, 64, 64, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, SUMMED},
        {1, 1, 8, 3, 96, 88, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, NORMED},
        {5, 4, 30, 12, 48, 1032, ENCODING_BF16, ACTIVATION_CLAMPED, DTYPE_F32, NORMED},
        {1, 1, 8, 3, 72, 88, ENCODING_BF16, EPILOGUE_PLAIN + ACTIVATION_RELU2, DTYPE_NONE, NORMED},
        {5, 4, 30, 12, 48, 1032, ENCODING_F16, EPILOGUE_PLAIN + ACTIVATION_GELU, DTYPE_F32, 0},
        {9, 9, 40, 4, 100, 200, ENCODING_BF16, EPILOGUE_PLAIN + ACTIVATION_RELU2, DTYPE_BF16, 0},
        {200, 190, 5, 2, 150, 72, ENCODING_BF16, EPILOGUE_PLAIN + ACTIVATION_SILU, DTYPE_NONE, ALIKE},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i], 3);
}

/* Two of three problems with each encoding, other ones with the next: compiled first, by all processors. */
TEST(every_encoding)
{
    static struct test_variants variants;
    static const struct {
        struct problem problem; /* but for its encoding */
        int step;
    } cases[] = {
        {{3, 3, 9, 4, 96, 256, ENCODING_NONE, ACTIVATION_SILU, DTYPE_NONE, 0}, 5},
        {{40, 38, 5, 2, 48, 320, ENCODING_NONE, ACTIVATION_NONE, DTYPE_BF16, 0}, 5},
        {{16, 16, 20, 4, 96, 1440, ENCODING_NONE, ACTIVATION_CLAMPED, DTYPE_BF16, 0}, 4},
        {{16, 13, 40, 4, 112, 768, ENCODING_NONE, ACTIVATION_NONE, DTYPE_NONE, 0}, 4},
        {{4, 3, 9, 4, 96, 1280, ENCODING_NONE, ACTIVATION_SILU, DTYPE_BF16, NORMED}, 5},
        {{1, 1, 7, 3, 80, 1408, ENCODING_NONE, ACTIVATION_NONE, DTYPE_BF16, SUMMED}, 4},
        {{16, 13, 20, 3, 80, 640, ENCODING_NONE, EPILOGUE_PLAIN + ACTIVATION_RELU2, DTYPE_NONE, 0}, 4},
        {{7, 6, 20, 3, 48, 384, ENCODING_NONE, ACTIVATION_NONE, DTYPE_NONE, SUMMED}, 9},
        {{1, 1, 9, 4, 64, 768, ENCODING_NONE, ACTIVATION_NONE, DTYPE_NONE, SUMMED | EARLY}, 11},
        {{16, 15, 20, 3, 80, 640, ENCODING_NONE, ACTIVATION_NONE, DTYPE_BF16, EARLY}, 4},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    TEST_NEEDS_DEVICE();
    for (int pass = 0; pass < 2; pass++) {
        enum encoding_id encoding;
        int turn = 0;
        for (size_t e = 0; matmul_device_next_coded(&e, &encoding); turn++)
            for (int c = 0; c < CASES; c++) {
                if ((c + turn) % 3 == 0) continue;
                struct problem problem = cases[c].problem;
                problem.dtype = encoding;
                visit(&problem, cases[c].step, pass == 0 ? &variants : NULL);
            }
        if (pass == 0) test_variants_compile(&variants);
    }
}

TEST(candidates)
{
    TEST_NEEDS_DEVICE();
    check(&(struct problem){4, 4, 16, 4, 192, 320, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, 0}, 1);
    check(&(struct problem){4, 4, 16, 4, 116, 320, ENCODING_BF16, EPILOGUE_PLAIN + ACTIVATION_RELU2, DTYPE_NONE, 0}, 1);
    check(&(struct problem){2, 2, 16, 4, 192, 1152, ENCODING_BF16, ACTIVATION_NONE, DTYPE_BF16, SUMMED}, 1);
    check(&(struct problem){1, 1, 16, 8, 80, 768, ENCODING_E4M3_CHANNEL, ACTIVATION_NONE, DTYPE_NONE, SUMMED | EARLY},
          1);
    check(&(struct problem){1, 1, 16, 4, 80, 2880, ENCODING_MXFP4, ACTIVATION_NONE, DTYPE_BF16, SUMMED | EARLY}, 1);
    check(&(struct problem){16, 16, 16, 4, 192, 1152, ENCODING_BF16, ACTIVATION_SILU, DTYPE_BF16, 0}, 1);
    check(&(struct problem){16, 16, 16, 4, 192, 2048, ENCODING_MXFP4, ACTIVATION_NONE, DTYPE_BF16, EARLY}, 1);
    check(&(struct problem){300, 290, 8, 4, 160, 192, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, 0}, 1);
}

/* Lists of another step, or of no router: nothing beside the operands is read or written. */
static void check_hostile_lists(const struct device_kernel *kernel)
{
    static const struct problem problem = {4, 4, 16, 4, 96, 64, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, 0};
    static const int32_t values[] = {-1, INT32_MIN, INT32_MAX, 7, 1 << 20};
    int64_t params[PLAN_MAX_PARAMS], found[1][PLAN_MAX_PARAMS];
    fill_params(&problem, params);
    memset(found, 0, sizeof found);
    assert_int_equal(kernel->candidates(params, &test_device()->device.facts, found, 1), 1);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        struct launch launch;
        open_launch(&launch, &problem, found[0]);
        int32_t *lists = launch.test.host[MATMUL_LISTS];
        for (size_t i = v % 2; i < test_launch_count(&launch.test, MATMUL_LISTS); i += 2) lists[i] = values[v];
        test_kernel_open(&launch.test.kernel, kernel, found[0]);
        test_launch_run(&launch.test);
        test_launch_close(&launch.test);
    }
}

TEST(lists_are_not_trusted)
{
    TEST_NEEDS_DEVICE();
    check_hostile_lists(&device_matmul_mma);
    if (test_device()->device.facts.capability >= 90) check_hostile_lists(&device_matmul_grouped);
}

/* Routes that name no expert, on the other hand, are a part of the contract: they count nothing, whatever their x is. */
static void check_no_expert(enum encoding_id encoding)
{
    enum { ROW = 1, TOP_K = 4, K = 320 };
    const struct problem problem = {3, 3, 16, TOP_K, 96, K, encoding, ACTIVATION_NONE, DTYPE_BF16, SUMMED};
    static const float values[] = {-1, 16, NAN, INFINITY, 1e30f};
    int64_t params[PLAN_MAX_PARAMS], found[1][PLAN_MAX_PARAMS];
    fill_params(&problem, params);
    memset(found, 0, sizeof found);
    assert_int_equal(device_matmul_gemv.candidates(params, &test_device()->device.facts, found, 1), 1);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        struct launch launch;
        open_launch(&launch, &problem, found[0]);
        float *route = (float *)launch.test.host[MATMUL_ROUTES] + ROW * 2 * TOP_K + v % TOP_K;
        uint16_t *x = (uint16_t *)launch.test.host[MATMUL_X] + (ROW * TOP_K + v % TOP_K) * K;
        route[TOP_K] = values[v];
        memset(x, 0xff, K * sizeof *x); /* NaN */
        test_kernel_open(&launch.test.kernel, &device_matmul_gemv, found[0]);
        test_launch_run(&launch.test);
        route[0] = route[TOP_K] = 0; /* the reference: an expert with weight 0 */
        memset(x, 0, K * sizeof *x);
        check_outputs(&launch, &problem, "no expert");
        test_launch_close(&launch.test);
    }
}

TEST(choices_of_no_expert)
{
    TEST_NEEDS_DEVICE();
    check_no_expert(ENCODING_BF16);
    check_no_expert(ENCODING_E4M3_CHANNEL);
    check_no_expert(ENCODING_INT4_G64_ZEROS);
}

/* Lists without choices: the launch waits for the one before it, and is as right. */
TEST(early_routes)
{
    TEST_NEEDS_DEVICE();
    check(&(struct problem){3, 3, 16, 4, 96, 320, ENCODING_BF16, ACTIVATION_NONE, DTYPE_BF16, SUMMED | EARLY}, 2);
    check(&(struct problem){2, 0, 16, 4, 96, 320, ENCODING_BF16, ACTIVATION_NONE, DTYPE_BF16, SUMMED | EARLY}, 5);
    check(&(struct problem){16, 13, 16, 4, 96, 320, ENCODING_BF16, ACTIVATION_NONE, DTYPE_BF16, EARLY}, 2);
    check(&(struct problem){9, 0, 16, 4, 96, 320, ENCODING_BF16, ACTIVATION_NONE, DTYPE_BF16, EARLY}, 5);
}

TEST(kernels_without_experts)
{
    int64_t params[PLAN_MAX_PARAMS], found[1][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    struct problem problem = {4, 4, 8, 2, 96, 64, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, 0};
    fill_params(&problem, params);
    assert_int_equal(device_matmul_wgmma.candidates(params, &matmul_test_h200, found, 1), 0);
    assert_non_null(strstr(device_matmul_wgmma.launch(params, &matmul_test_h200, &geometry), "experts"));
    problem.epilogue = ACTIVATION_NONE, problem.flags = SUMMED;
    fill_params(&problem, params);
    assert_int_equal(device_matmul_mma.candidates(params, &matmul_test_h200, found, 1), 0);
    assert_non_null(strstr(device_matmul_mma.launch(params, &matmul_test_h200, &geometry), "sum over experts"));
    assert_int_equal(device_matmul_gemv.candidates(params, &matmul_test_h200, found, 1), 1);
    assert_int_equal(device_matmul_grouped.candidates(params, &matmul_test_h200, found, 1), 0);
    assert_non_null(strstr(device_matmul_grouped.launch(params, &matmul_test_h200, &geometry), "sum over experts"));
    params[MATMUL_ROWS] = 40; /* 80 choices */
    assert_int_equal(device_matmul_gemv.candidates(params, &matmul_test_h200, found, 1), 0);
}

TEST(problems_of_matmul_grouped)
{
    int64_t params[PLAN_MAX_PARAMS], found[32][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    struct problem problem = {16, 16, 32, 4, 96, 64, ENCODING_BF16, ACTIVATION_SILU, DTYPE_NONE, 0};
    fill_params(&problem, params);
    memset(found, 0, sizeof found);
    const int count = device_matmul_grouped.candidates(params, &matmul_test_h200, found, 32);
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        assert_null(device_matmul_grouped.launch(found[i], &matmul_test_h200, &geometry));
        assert_true(geometry.grid[0] <= 4 * (uint32_t)matmul_test_h200.multiprocessors);
    }
    test_hostile_launches(&device_matmul_grouped, found[0]);
    static const struct {
        enum matmul_grouped_param tunable;
        int64_t value;
        const char *says;
    } wrong[] = {{MATMUL_GROUPED_WARPS, 17, "WARPS"},           {MATMUL_GROUPED_STAGES, 1, "STAGES"},
                 {MATMUL_GROUPED_CHUNK, 192, "CHUNK"},          {MATMUL_GROUPED_CHUNK, 128, "32 * WARPS"},
                 {MATMUL_GROUPED_GROUPS, 3, "GROUPS"},          {MATMUL_GROUPED_COLUMNS, 9, "COLUMNS"},
                 {MATMUL_GROUPED_STAGES, 32, "ring"},           {MATMUL_GROUPED_CTAS_PER_SM, 0, "CTAS_PER_SM"},
                 {MATMUL_GROUPED_CTAS_PER_SM, 4, "CTAS_PER_SM"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t changed[PLAN_MAX_PARAMS];
        memcpy(changed, found[0], sizeof changed);
        changed[wrong[i].tunable] = wrong[i].value;
        const char *illegal = device_matmul_grouped.launch(changed, &matmul_test_h200, &geometry);
        if (!illegal || !strstr(illegal, wrong[i].says)) fail_msg("%s: %s", wrong[i].says, illegal ? illegal : "legal");
    }
    assert_int_equal(device_matmul_grouped.candidates(params, &matmul_test_a10, found, 1), 0);
    static const enum encoding_id spilling[] = {ENCODING_INT8_G64, ENCODING_INT8_G64_ZEROS, ENCODING_FP4_G64};
    for (size_t e = 0; e < sizeof spilling / sizeof *spilling; e++) { /* of tiles of 64 rows */
        problem.dtype = spilling[e], problem.k = 1024;
        fill_params(&problem, params);
        const int coded = device_matmul_grouped.candidates(params, &matmul_test_h200, found, 32);
        assert_true(coded > 0);
        for (int i = 0; i < coded; i++) assert_int_not_equal(found[i][MATMUL_GROUPED_GROUPS], 8);
    }
    problem.dtype = ENCODING_MXFP4;
    fill_params(&problem, params);
    assert_true(device_matmul_grouped.candidates(params, &matmul_test_h200, found, 1) == 1);
    assert_int_equal(found[0][MATMUL_GROUPED_GROUPS], 8);
    problem.rows = 300; /* more than eight rows for each matrix */
    fill_params(&problem, params);
    assert_int_equal(device_matmul_grouped.candidates(params, &matmul_test_h200, found, 1), 0);
    problem.rows = 4, problem.k = 40;
    fill_params(&problem, params);
    assert_int_equal(device_matmul_grouped.candidates(params, &matmul_test_h200, found, 1), 0);
}

TEST(problems_of_sums)
{
    /* The second matrix of Qwen3-30B-A3B, gpt-oss-20b, Mixtral-8x7B and DeepSeek-V2-Lite. */
    static const struct problem problems[] = {
        {1, 1, 128, 8, 2048, 768, ENCODING_E4M3_CHANNEL, ACTIVATION_NONE, DTYPE_NONE, SUMMED | EARLY},
        {4, 4, 128, 8, 2048, 768, ENCODING_INT4_G128, ACTIVATION_NONE, DTYPE_NONE, SUMMED | EARLY},
        {1, 1, 32, 4, 2880, 2880, ENCODING_MXFP4, ACTIVATION_NONE, DTYPE_BF16, SUMMED | EARLY},
        {1, 1, 8, 2, 4096, 14336, ENCODING_INT4_G128, ACTIVATION_NONE, DTYPE_NONE, SUMMED},
        {1, 1, 66, 8, 2048, 1408, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, SUMMED | EARLY},
    };
    int64_t params[PLAN_MAX_PARAMS], found[40][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    for (size_t p = 0; p < sizeof problems / sizeof *problems; p++) {
        fill_params(&problems[p], params);
        memset(found, 0, sizeof found);
        const int count = device_matmul_gemv.candidates(params, &matmul_test_h200, found, 40);
        assert_true(count > 2);
        for (int i = 0; i < count; i++) {
            const char *illegal = device_matmul_gemv.launch(found[i], &matmul_test_h200, &geometry);
            if (illegal) fail_msg("%s: %s", test_describe(&device_matmul_gemv, found[i]), illegal);
            assert_true(found[i][MATMUL_GEMV_CHUNK] <= (problems[p].k + 127) / 128 * 128);
            assert_int_equal(found[i][MATMUL_GEMV_X_SHARED], 1);
        }
        test_hostile_launches(&device_matmul_gemv, found[0]);
        static const struct {
            enum matmul_gemv_param tunable;
            int64_t value;
            const char *says;
        } wrong[] = {{MATMUL_GEMV_WARPS, 17, "WARPS"},   {MATMUL_GEMV_CHUNK, 96, "CHUNK"},
                     {MATMUL_GEMV_CHUNK, 8192, "CHUNK"}, {MATMUL_GEMV_X_SHARED, 0, "sum over choices"},
                     {MATMUL_GEMV_STAGES, 64, "shared"}, {MATMUL_GEMV_SPLIT_K, 9, "SPLIT_K"},
                     {MATMUL_GEMV_GROUPS, 8, "GROUPS"},  {MATMUL_GEMV_CTAS_PER_SM, 5, "CTAS_PER_SM"}};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            int64_t changed[PLAN_MAX_PARAMS];
            memcpy(changed, found[0], sizeof changed);
            changed[wrong[i].tunable] = wrong[i].value;
            const char *illegal = device_matmul_gemv.launch(changed, &matmul_test_h200, &geometry);
            if (!illegal || !strstr(illegal, wrong[i].says))
                fail_msg("%s: %s", wrong[i].says, illegal ? illegal : "legal");
        }
    }
}

TEST(when_choices_are_summed)
{
    assert_true(matmul_gemv_sums_choices(1, 128, 8, 768));
    assert_true(matmul_gemv_sums_choices(4, 128, 8, 768));
    assert_false(matmul_gemv_sums_choices(5, 128, 8, 768)); /* more than a quarter of the experts */
    assert_true(matmul_gemv_sums_choices(1, 8, 2, 14336));
    assert_false(matmul_gemv_sums_choices(1, 8, 3, 14336)); /* shared memory */
    assert_false(matmul_gemv_sums_choices(9, 1024, 1, 64));
    assert_false(matmul_gemv_sums_choices(8, 1024, 9, 64));
    assert_false(matmul_gemv_sums_choices(1, 8, 1, 65544));
}

int main(void) { return test_run(); }
