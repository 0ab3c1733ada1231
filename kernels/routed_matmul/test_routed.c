/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/routed_matmul/test_routed.h"

#include <math.h>

/* Rows of the router's matrix. */
static int64_t routed(const struct test_routed_problem *problem)
{
    return problem->experts - problem->shared + ((problem->flags & GATED) != 0);
}

int64_t test_routed_element(const struct test_routed_problem *problem)
{
    return encoding_is_plain(problem->dtype) ? (int64_t)problem->dtype : DTYPE_BF16;
}

int64_t test_routed_columns(const struct test_routed_problem *problem)
{
    return EPILOGUE_IS_GATED(problem->epilogue) ? problem->n / 2 : problem->n;
}

void test_routed_params(const struct test_routed_problem *problem, int64_t params[PLAN_MAX_PARAMS])
{
    const unsigned flags = problem->flags;
    const int64_t element = test_routed_element(problem);
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

const float *test_routed_fill_matrix(struct test_launch *test, int operand, int64_t encoding, int64_t n, int64_t k,
                                     struct test_random *random)
{
    const float most = 3 / sqrtf((float)k);
    if (!encoding_is_plain((enum encoding_id)encoding))
        return matmul_device_fill_matrix(test, operand, encoding, n, k, random);
    test_launch_fill(test, operand, random, -most, most);
    return test_launch_decode(test, operand);
}

void test_routed_open(struct test_routed_launch *launch, const struct device_kernel *kernel,
                      const struct test_routed_problem *problem, const int64_t *params, struct test_random *random)
{
    struct test_launch *test = &launch->test;
    *random = (struct test_random){(uint64_t)(problem->rows * 7 + problem->n + problem->k + problem->experts)};
    test_launch_open_operands(test, kernel->problem, params, problem->valid);
    test_launch_resize(test, ROUTED_MATMUL_WORKSPACE, kernel->counter_bytes(params), 0);
    memset(test->host[ROUTED_MATMUL_WORKSPACE], 0, test->device[ROUTED_MATMUL_WORKSPACE].bytes);
    test_fill(random, test->host[ROUTED_MATMUL_X], (size_t)(problem->k * problem->valid),
              test_launch_dtype(test, ROUTED_MATMUL_X), -1, 1);
    launch->weights =
        test_routed_fill_matrix(test, ROUTED_MATMUL_W, problem->dtype, params[ROUTED_MATMUL_N], problem->k, random);
    launch->matrix = test_routed_fill_matrix(test, ROUTED_MATMUL_MATRIX, params[ROUTED_MATMUL_MATRIX_DTYPE],
                                             params[ROUTED_MATMUL_ROUTED], problem->k, random);
    static const int ranges[] = {ROUTED_MATMUL_BIAS, ROUTED_MATMUL_ROUTER_BIAS, ROUTED_MATMUL_CLAIM_BIAS};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (test->host[ranges[i]]) test_launch_fill(test, ranges[i], random, -0.5f, 0.5f);
    if (test->host[ROUTED_MATMUL_NORM]) test_launch_fill(test, ROUTED_MATMUL_NORM, random, 0.5f, 1.5f);
    if (test->host[ROUTED_MATMUL_SCALES]) test_launch_fill(test, ROUTED_MATMUL_SCALES, random, 0.5f, 2);
    int32_t *seeds = test->host[ROUTED_MATMUL_SEEDS], *index = test->host[ROUTED_MATMUL_INDEX];
    for (int64_t row = 0; seeds && row < problem->rows + 3; row++) seeds[row] = row % 2 ? (int32_t)row + 1 : 0;
    for (int64_t row = 0; index && row < problem->valid; row++) index[row] = (int32_t)(problem->rows + 2 - row);
}

void test_routed_assert_workspace(const struct test_launch *test)
{
    const uint8_t *workspace = test->found[ROUTED_MATMUL_WORKSPACE];
    for (size_t b = 0; b < test->device[ROUTED_MATMUL_WORKSPACE].bytes; b++) assert_int_equal(workspace[b], 0);
}

/* y[row] . matrix[n]; *error: how far off the sum may be. */
static double dot(const struct test_routed_launch *launch, const float *matrix, int64_t row, int64_t n, double *error)
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

double test_routed_bias(const struct test_launch *test, int operand, int64_t at, enum dtype dtype)
{
    const void *bias = test->host[operand];
    return bias ? (double)op_element(bias, at, dtype) : 0;
}

const float *test_routed_routes(struct test_routed_launch *launch, const struct test_routed_problem *problem)
{
    const int64_t top_k = problem->top_k, count = routed(problem);
    struct test_launch *test = &launch->test;
    int64_t params[PLAN_MAX_PARAMS] = {0};
    float *logits = test_take(&test->memory, (size_t)(problem->valid * count + 1) * sizeof *logits);
    float *routes = test_take(&test->memory, (size_t)(problem->valid * 2 * top_k + 1) * sizeof *routes);
    for (int64_t row = 0; row < problem->valid; row++)
        for (int64_t e = 0; e < count; e++) {
            double error;
            logits[row * count + e] = (float)(dot(launch, launch->matrix, row, e, &error) +
                                              test_routed_bias(test, ROUTED_MATMUL_ROUTER_BIAS, e, DTYPE_F32));
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
    return routes;
}

double test_routed_activation(const struct test_routed_launch *launch, const struct test_routed_problem *problem,
                              const float *routes, int64_t choice, int64_t column, double *error)
{
    const bool gated = EPILOGUE_IS_GATED(problem->epilogue);
    const int64_t top_k = problem->top_k, row = choice / top_k;
    const int64_t expert = (int64_t)routes[row * 2 * top_k + top_k + choice % top_k];
    const int64_t gate_row = expert * problem->n + (gated ? column / 8 * 16 + column % 8 : column);
    const enum activation activation = (enum activation)EPILOGUE_ACTIVATION(problem->epilogue);
    double gate_error, up_error = 0;
    const double gate = dot(launch, launch->weights, row, gate_row, &gate_error) +
                        test_routed_bias(&launch->test, ROUTED_MATMUL_BIAS, gate_row, DTYPE_BF16);
    const double up = !gated ? 0
                             : dot(launch, launch->weights, row, gate_row + 8, &up_error) +
                                   test_routed_bias(&launch->test, ROUTED_MATMUL_BIAS, gate_row + 8, DTYPE_BF16);
    const double slope = gated ? 1.2 * (1 + fabs(up) + up_error) : 2 * fabs(gate) + gate_error; /* or RELU2 */
    *error = gate_error * slope + fabs(gate) * up_error + 0x1p-20;
    return gated ? activate_gated(activation, 1.25f, gate, up) : activate_exactly(activation, gate);
}

bool test_routed_has_gpu(void) { return test_device()->device.facts.capability >= 90; }
