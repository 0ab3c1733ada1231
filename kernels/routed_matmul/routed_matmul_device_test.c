/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul on the GPU: routes and lists as router's reference has them, products as plain code has them, and what a launch
 * refuses. */
#include <math.h>

#include "kernels/routed_matmul/test_routed.h"

static void check_routes(struct test_routed_launch *launch, const struct test_routed_problem *problem, const char *what)
{
    const int64_t experts = problem->experts, top_k = problem->top_k;
    struct test_launch *test = &launch->test;
    const float *routes = test_routed_routes(launch, problem), *found = test->found[ROUTED_MATMUL_ROUTES];
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

static void check_products(const struct test_routed_launch *launch, const struct test_routed_problem *problem,
                           const char *what)
{
    const int64_t columns = test_routed_columns(problem);
    const float *routes = launch->test.found[ROUTED_MATMUL_ROUTES];
    for (int64_t at = 0; at < problem->valid * problem->top_k * columns; at++) {
        double error;
        const double want = test_routed_activation(launch, problem, routes, at / columns, at % columns, &error);
        const double found = (double)op_element(launch->test.found[ROUTED_MATMUL_OUT], at,
                                                (enum dtype)launch->test.params[ROUTED_MATMUL_OUT_DTYPE]);
        error += fabs(want) * 0x1p-8;
        if (!(fabs(found - want) <= error))
            fail_msg("%s: choice %lld, column %lld: expected %.9g within %.3g, found %.9g", what,
                     (long long)(at / columns), (long long)(at % columns), want, error, found);
    }
}

/* Every `step`-th candidate. */
static void check(const struct test_routed_problem *problem, int step)
{
    int64_t params[PLAN_MAX_PARAMS], found[40][PLAN_MAX_PARAMS];
    test_routed_params(problem, params);
    memset(found, 0, sizeof found);
    const int count = device_routed_matmul.candidates(params, &test_device()->device.facts, found, 40);
    assert_true(count > 0);
    for (int i = 0; i < count; i += step) {
        struct test_routed_launch launch;
        struct test_random random;
        const char *what = test_describe(&device_routed_matmul, found[i]);
        test_routed_open(&launch, &device_routed_matmul, problem, found[i], &random);
        test_kernel_open(&launch.test.kernel, &device_routed_matmul, found[i]);
        if (launch.test.kernel.local_bytes)
            fail_msg("%s: %d bytes of local memory", what, launch.test.kernel.local_bytes);
        test_launch_run_twice(&launch.test);
        test_routed_assert_workspace(&launch.test);
        check_routes(&launch, problem, what);
        check_products(&launch, problem, what);
        test_launch_assert_rows_untouched(&launch.test, ROUTED_MATMUL_OUT);
        test_launch_close(&launch.test);
    }
}

TEST(equals_reference)
{
    static const struct test_routed_problem problems[] = {
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
    if (!test_routed_has_gpu()) skip();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i], 3);
}

TEST(every_encoding)
{
    enum encoding_id encoding;
    TEST_NEEDS_DEVICE();
    if (!test_routed_has_gpu()) skip();
    for (size_t i = 0; matmul_device_next_coded(&i, &encoding);) {
        check(&(struct test_routed_problem){1, 1, 24, 4, 96, 1280, encoding, ACTIVATION_SILU, ROUTER_SOFTMAX,
                                            ROUTER_SUM_PLUS_EPS, 1, 1, NORMED | BIASED, 0},
              11);
        check(&(struct test_routed_problem){3, 3, 40, 4, 64, 1408, encoding, ACTIVATION_SILU, ROUTER_SIGMOID,
                                            ROUTER_SUM_PLUS_EPS, 1, 1, CLAIMED, 0},
              13);
    }
}

TEST(candidates)
{
    TEST_NEEDS_DEVICE();
    if (!test_routed_has_gpu()) skip();
    check(&(struct test_routed_problem){1, 1, 48, 4, 160, 768, ENCODING_BF16, ACTIVATION_SILU, ROUTER_SOFTMAX,
                                        ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
          1);
    check(&(struct test_routed_problem){4, 4, 48, 4, 160, 2048, ENCODING_E4M3_CHANNEL, ACTIVATION_SILU, ROUTER_SOFTMAX,
                                        ROUTER_SUM_PLUS_EPS, 1, 1, NORMED, 0},
          1);
}

TEST(hostile_parameters)
{
    const struct test_routed_problem problem =
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
    test_routed_params(&problem, params);
    memset(found, 0, sizeof found);
    assert_int_equal(device_routed_matmul.candidates(params, &matmul_test_h200, found, 1), 1);
    test_hostile_launches(&device_routed_matmul, found[0]);
    test_launch_refuses(&device_routed_matmul, found[0], refused, sizeof refused / sizeof *refused);
    assert_int_equal(device_routed_matmul.candidates(params, &matmul_test_a10, found, 1), 0);
}

int main(void) { return test_run(); }
