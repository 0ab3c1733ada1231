/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/test_matmul_device.h"

#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/matmul/test_coded.h"
#include "kernels/quantise/quantise.h"

const struct device_facts matmul_test_h200 = {
    .capability = 90,
    .multiprocessors = 132,
    .shared_per_sm = 233472,
    .shared_per_block = 232448,
};
const struct device_facts matmul_test_a10 = {
    .capability = 86,
    .multiprocessors = 72,
    .shared_per_sm = 102400,
    .shared_per_block = 101376,
};

/* What the coded weights of the launch under test stand for; NULL: they are not coded. */
static const float *coded_values;

void matmul_device_problem_params(const struct matmul_device_problem *problem, int64_t params[PLAN_MAX_PARAMS])
{
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    params[MATMUL_ROWS] = problem->rows;
    params[MATMUL_COUNT_INDEX] = problem->rows % 2;
    params[MATMUL_N] = problem->n;
    params[MATMUL_K] = problem->k;
    params[MATMUL_DTYPE] = problem->dtype;
    params[MATMUL_OUT_DTYPE] = problem->out_dtype;
    params[MATMUL_EPILOGUE] = problem->activation;
    params[MATMUL_CAP_BITS] =
        problem->activation == EPILOGUE_PLAIN + ACTIVATION_SOFTCAP || problem->activation == ACTIVATION_CLAMPED
            ? test_float_bits(problem->activation == ACTIVATION_CLAMPED ? 1.25f : 2.5f)
            : OP_FLOAT_ONE_BITS;
    params[MATMUL_HAS_BIAS] = problem->bias != NONE;
    params[MATMUL_BIAS_DTYPE] = problem->bias ? problem->bias : F32;
    params[MATMUL_HAS_RESIDUAL] = problem->residual;
    params[MATMUL_HAS_NORM] = problem->norm != NONE;
    params[MATMUL_NORM_DTYPE] = problem->norm ? problem->norm : F32;
    params[MATMUL_EPS_BITS] = problem->norm ? test_float_bits(1e-5f) : 0;
    params[MATMUL_INPUT_DTYPE] = problem->norm ? F32 : (enum dtype)matmul_device_element(params);
    if (problem->codes) params[MATMUL_INPUT_DTYPE] = matmul_codes_of_x(problem->dtype, (uint64_t)problem->k);
    params[MATMUL_HAS_X_SCALES] = problem->codes;
    params[MATMUL_SCALE_BITS] = test_float_bits(problem->scale);
    test_complete_params(&op_matmul, params);
}

/* Element k of a row of x. */
static double x_element(const struct test_launch *launch, int64_t row, int64_t k)
{
    const int64_t *params = launch->params, k_count = params[MATMUL_K];
    if (!params[MATMUL_HAS_X_SCALES])
        return (double)op_element(launch->host[MATMUL_X], row * k_count + k, (enum dtype)matmul_device_element(params));
    int place = 0;
    while (quantise_element(place) != k % QUANTISE_GROUP) place++;
    const uint8_t code =
        ((const uint8_t *)launch->host[MATMUL_X])[row * k_count + k / QUANTISE_GROUP * QUANTISE_GROUP + place];
    const double number = params[MATMUL_INPUT_DTYPE] == DTYPE_I8 ? (double)(int8_t)code : (double)e4m3_to_float(code);
    return number * (double)((const float *)launch->host[MATMUL_X_SCALES])[row];
}

/* A sum, and a bound of the device's error.
 *
 * The tensor cores add 16 products at a time to a float32 sum and may cut off instead of round: at most 2^-22 of the
 * largest partial sum at each of k / 16 additions. Products of random signs add up to a partial sum below 6 sigma,
 * sigma^2 = sum of squares; 16 more additions for the parts of a split.
 *
 * Codes of e4m3: sums lose at most 2^-13 of the largest product or partial sum at each of k / 32 additions. Those of int8 are exact. */
struct bounded {
    double value, error;
};

static struct bounded dot(const struct test_launch *launch, int64_t row, int64_t n)
{
    const int64_t *params = launch->params, k_count = params[MATMUL_K];
    const enum dtype dtype = (enum dtype)matmul_device_element(params);
    const uint16_t *w = (const uint16_t *)launch->host[MATMUL_W] + (coded_values ? 0 : n * k_count);
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < k_count; k++) {
        const double weight = coded_values ? (double)coded_values[n * k_count + k] : (double)op_element(w, k, dtype);
        const double product = x_element(launch, row, k) * weight;
        sum += product;
        squares += product * product;
    }
    double bias = 0;
    if (launch->host[MATMUL_BIAS])
        bias = op_element(launch->host[MATMUL_BIAS], n, (enum dtype)params[MATMUL_BIAS_DTYPE]);
    const double largest = 6 * sqrt(squares) + fabs(bias);
    double error = ((double)k_count / 16 + 16) * 0x1p-22 * largest;
    if (params[MATMUL_INPUT_DTYPE] == DTYPE_F8_E4M3) error += (double)k_count / 32 * 0x1p-13 * 6 * sqrt(squares);
    return (struct bounded){sum + bias, error};
}

/* How many times its argument's error the error of an activation is. */
static double activation_slope(const int64_t *params, double value)
{
    return matmul_activation(params) == ACTIVATION_RELU2 ? 2 * fabs(value) + 0.1 : 1.2;
}

/* Element (row, column) of out, and a bound of the error: of the sum, of the activation (its slope times the gate's error, and
 * 2^-16 for the exponential), of rounding to out's dtype. */
static struct bounded expected(const struct test_launch *launch, int64_t row, int64_t column)
{
    const int64_t *params = launch->params;
    struct bounded result;
    if (matmul_is_gated(params)) {
        const int64_t n = column / 8 * 16 + column % 8;
        const struct bounded gate = dot(launch, row, n), up = dot(launch, row, n + 8);
        const enum activation activation = matmul_activation(params);
        const double factor = activation == ACTIVATION_CLAMPED ? fabs(up.value) + 1 : fabs(up.value);
        const double gated = fabs(activate_exactly(activation, gate.value));
        result.value = activate_gated(activation, op_float_param(params, MATMUL_CAP_BITS), gate.value, up.value);
        result.error = activation_slope(params, gate.value) * gate.error * (factor + up.error) + gated * up.error +
                       fabs(result.value) * 0x1p-16;
    } else {
        const double scale = (double)op_float_param(params, MATMUL_SCALE_BITS);
        result = dot(launch, row, column);
        result.value *= scale;
        result.error = result.error * scale + fabs(result.value) * 0x1p-23;
        if (matmul_activation(params) != ACTIVATION_NONE) {
            result.error *= activation_slope(params, result.value);
            result.value =
                activate_capped(matmul_activation(params), op_float_param(params, MATMUL_CAP_BITS), result.value);
            result.error += fabs(result.value) * 0x1p-16 + 1e-7;
        }
        if (launch->host[MATMUL_RESIDUAL]) {
            const int64_t index = row * params[MATMUL_N] + column;
            result.value += (double)((const float *)launch->host[MATMUL_RESIDUAL])[index];
            result.error += fabs(result.value) * 0x1p-23;
        }
    }
    if (params[MATMUL_OUT_DTYPE] == DTYPE_BF16) result.error += fabs(result.value) * 0x1p-8;
    if (params[MATMUL_OUT_DTYPE] == DTYPE_F16) result.error += fabs(result.value) * 0x1p-11 + 0x1p-24;
    return result;
}

bool matmul_device_next_coded(size_t *index, enum encoding_id *encoding)
{
    struct panel_form form;
    for (; encoding_at(*index); (*index)++)
        if (fragment_form(encoding_at(*index)->id, &form)) {
            *encoding = encoding_at((*index)++)->id;
            return true;
        }
    return false;
}

float *matmul_device_fill_matrix(struct test_launch *launch, int operand, int64_t encoding, int64_t n, int64_t k,
                                 struct test_random *random)
{
    const uint64_t rows = (uint64_t)n, depth = (uint64_t)k;
    struct panel_form form;
    float *values = test_take(&launch->memory, rows * depth * sizeof *values);
    assert_true(fragment_form(encoding, &form));
    test_coded_matrix(random, &form, fragment_bytes(depth, encoding), rows, depth, launch->host[operand], values);
    return values;
}

float *matmul_device_fill_coded(struct test_launch *launch, struct test_random *random)
{
    const int64_t *params = launch->params;
    return matmul_device_fill_matrix(launch, MATMUL_W, params[MATMUL_DTYPE], params[MATMUL_N], params[MATMUL_K],
                                     random);
}

/* Codes and scales with which x is up to 1. Row 0 of int8 has the largest code throughout. */
static void fill_codes(struct test_launch *launch, struct test_random *random)
{
    const size_t count = (size_t)(launch->params[MATMUL_K] * launch->valid);
    const bool integers = launch->params[MATMUL_INPUT_DTYPE] == DTYPE_I8;
    uint8_t *codes = launch->host[MATMUL_X];
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)test_random_range(random, 0, 255);
        if (integers ? codes[i] == 0x80 : (codes[i] & 0x7f) == 0x7f) codes[i] = 0;
        if (integers && i < (size_t)launch->params[MATMUL_K]) codes[i] = 127;
    }
    const float largest = integers ? 127 : 448;
    test_fill(random, launch->host[MATMUL_X_SCALES], (size_t)launch->valid, DTYPE_F32, 0.5f / largest, 1 / largest);
}

static void open_operands(struct test_launch *launch, const int64_t *params, int valid)
{
    coded_values = NULL;
    struct test_random random = {.state = 12345};
    const int64_t rows = params[MATMUL_ROWS];
    test_launch_open_operands(launch, &op_matmul, params, valid < 0 ? 0 : valid == 0 || valid > rows ? rows : valid);
    for (int i = MATMUL_X; i < MATMUL_WORKSPACE; i++) {
        if (!launch->host[i] || i == MATMUL_OUT || i == MATMUL_X_SCALES) continue;
        if (i == MATMUL_X && params[MATMUL_HAS_X_SCALES]) {
            fill_codes(launch, &random);
            continue;
        }
        if (i == MATMUL_W && matmul_is_coded(params)) {
            coded_values = matmul_device_fill_coded(launch, &random);
            continue;
        }
        size_t count = test_launch_count(launch, i);
        if (i == MATMUL_X || i == MATMUL_RESIDUAL) count = count / (size_t)rows * (size_t)launch->valid;
        /* Sums of about 1. */
        const float most = i == MATMUL_W ? 3 / sqrtf((float)params[MATMUL_K]) : 1;
        test_fill(&random, launch->host[i], count, test_launch_dtype(launch, i), -most, most);
    }
    if (launch->host[MATMUL_RESIDUAL]) test_launch_alias(launch, MATMUL_RESIDUAL, MATMUL_OUT);
}

static void check_element(const struct test_launch *launch, int64_t columns, int64_t row, int64_t column,
                          const char *what)
{
    const struct bounded want = expected(launch, row, column);
    const double found = (double)op_element(launch->found[MATMUL_OUT], row * columns + column,
                                            (enum dtype)launch->params[MATMUL_OUT_DTYPE]);
    if (!(fabs(found - want.value) <= want.error))
        fail_msg("%s: out[%lld, %lld]: expected %.9g within %.3g, found %.9g", what, (long long)row, (long long)column,
                 want.value, want.error, found);
}

void matmul_device_check_run(const char *what, const int64_t *params, int valid, int samples, matmul_device_run *run,
                             void *context)
{
    struct test_launch launch;
    cu_deviceptr operands[PLAN_MAX_OPERANDS];
    open_operands(&launch, params, valid);
    const int count = test_launch_list(&launch, operands);
    const size_t out_bytes = launch.device[MATMUL_OUT].bytes, row_bytes = out_bytes / (size_t)params[MATMUL_ROWS];
    void *first = test_take(&launch.memory, out_bytes);
    for (int i = 0; i < 2; i++) {
        test_launch_write(&launch);
        run(context, operands, count);
        test_launch_read(&launch);
        if (i == 0) memcpy(first, launch.found[MATMUL_OUT], out_bytes);
    }
    test_assert_same_bits(launch.found[MATMUL_OUT], first, row_bytes * (size_t)launch.valid, what);
    const int64_t rows = launch.valid, columns = matmul_is_gated(params) ? params[MATMUL_N] / 2 : params[MATMUL_N];
    if (samples && rows > 0) {
        struct test_random random = {.state = 99};
        for (int64_t corner = 0; corner < 4; corner++)
            check_element(&launch, columns, corner / 2 * (rows - 1), corner % 2 * (columns - 1), what);
        for (int i = 0; i < samples; i++) {
            const int64_t row = test_random_range(&random, 0, rows - 1);
            check_element(&launch, columns, row, test_random_range(&random, 0, columns - 1), what);
        }
    } else {
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = 0; column < columns; column++) check_element(&launch, columns, row, column, what);
    }
    test_launch_close(&launch);
}

static void run_kernel(void *context, const cu_deviceptr *operands, int count)
{
    test_kernel_run(context, operands, count, 0);
}

static void check_params(const struct device_kernel *kernel, const int64_t *params, int valid, int samples)
{
    struct test_kernel test;
    const char *what = test_describe(kernel, params);
    test_kernel_open(&test, kernel, params);
    if (test.local_bytes) fail_msg("%s: %d bytes of local memory", what, test.local_bytes);
    matmul_device_check_run(what, params, valid, samples, run_kernel, &test);
    test_kernel_close(&test);
}

static void fill_params(const struct device_kernel *kernel, const struct matmul_device_problem *problem,
                        const struct matmul_device_tunables *tunables, int64_t params[PLAN_MAX_PARAMS])
{
    matmul_device_problem_params(problem, params);
    memcpy(params + MATMUL_FIRST_TUNABLE, tunables->value, (size_t)kernel->own_count * sizeof *params);
}

void matmul_device_check(const struct device_kernel *kernel, const struct matmul_device_problem *problem,
                         struct matmul_device_tunables tunables, int samples)
{
    int64_t params[PLAN_MAX_PARAMS];
    fill_params(kernel, problem, &tunables, params);
    check_params(kernel, params, problem->valid, samples);
}

/* Encodings whose codes take more registers to decode have no room for some tiles. */
static bool has_registers(const struct device_kernel *kernel, const int64_t *params)
{
    struct device_geometry geometry;
    const char *illegal = kernel->launch(params, &test_device()->device.facts, &geometry);
    return !illegal || !strstr(illegal, "does not fit the registers");
}

void matmul_device_check_coded(const struct device_kernel *kernel, const struct matmul_device_case *cases, size_t count)
{
    static struct test_variants variants;
    enum encoding_id encoding;
    for (int check = 0; check < 2; check++) { /* all are compiled first */
        for (size_t e = 0; matmul_device_next_coded(&e, &encoding);) {
            size_t checked = 0;
            for (size_t i = e % 2; i < count; i += 2) {
                struct matmul_device_problem problem = cases[i].problem;
                int64_t params[PLAN_MAX_PARAMS];
                if (problem.codes && !matmul_codes_of_x(encoding, (uint64_t)problem.k)) continue;
                problem.dtype = (enum dtype)encoding;
                fill_params(kernel, &problem, &cases[i].tunables, params);
                if (!has_registers(kernel, params)) continue;
                checked++;
                if (check)
                    check_params(kernel, params, problem.valid, problem.k * problem.n > 1 << 20 ? 5000 : 0);
                else
                    test_variants_add(&variants, kernel, params);
            }
            if (!cases[0].problem.codes) assert_true(checked > 0);
        }
        if (!check) test_variants_compile(&variants);
    }
    variants.count = 0;
}

void matmul_device_check_coded_candidates(const struct device_kernel *kernel, const struct device_facts *gpu,
                                          const struct matmul_device_problem *problem, enum encoding_id encoding)
{
    int64_t params[PLAN_MAX_PARAMS];
    static int64_t found[64][PLAN_MAX_PARAMS];
    static struct test_variants variants;
    struct device_geometry geometry;
    struct matmul_device_problem coded = *problem;
    coded.dtype = (enum dtype)encoding;
    matmul_device_problem_params(&coded, params);
    const int count = kernel->candidates(params, gpu, found, 64);
    assert_in_range(count, 1, 32);
    for (int i = 0; i < count; i++) assert_null(kernel->launch(found[i], gpu, &geometry));
    if (!test_device()) return;
    const int here = kernel->candidates(params, &test_device()->device.facts, found, 64);
    variants.count = 0;
    for (int i = 0; i < here; i += 2) test_variants_add(&variants, kernel, found[i]);
    test_variants_compile(&variants);
    for (int i = 0; i < here; i += 2) check_params(kernel, found[i], 0, 2000);
}

void matmul_device_check_cases(const struct device_kernel *kernel, const struct matmul_device_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) matmul_device_check(kernel, &cases[i].problem, cases[i].tunables, 0);
}

void matmul_device_check_epilogues(const struct device_kernel *kernel, const struct matmul_device_case *cases,
                                   size_t count)
{
    for (const struct matmul_device_case *test = cases; test < cases + count; test++) {
        struct matmul_device_problem problem = test->problem;
        const int samples = problem.k > 1024 ? 10000 : 0;
        matmul_device_check(kernel, &problem, test->tunables, samples);
        while (problem.activation != ACTIVATION_NONE && ++problem.activation < ACTIVATION_COUNT)
            if (problem.activation != ACTIVATION_SOFTCAP)
                matmul_device_check(kernel, &problem, test->tunables, samples);
        if (problem.activation != ACTIVATION_NONE) continue;
        for (int plain = ACTIVATION_SILU; plain < ACTIVATION_COUNT && !problem.residual; plain++) {
            problem.activation = EPILOGUE_PLAIN + plain;
            if (plain != ACTIVATION_CLAMPED) matmul_device_check(kernel, &problem, test->tunables, samples);
        }
        problem.activation = ACTIVATION_NONE;
        problem.scale = 0.22f;
        matmul_device_check(kernel, &problem, test->tunables, samples);
    }
}

void matmul_device_check_candidates(const struct device_kernel *kernel, const struct device_facts *gpu, int least,
                                    struct matmul_device_problem first)
{
    const struct matmul_device_problem problems[] = {
        first,
        {.rows = 16, .n = 1040, .k = 1032, .dtype = BF16, .out_dtype = F32, .residual = true},
        {.rows = 64, .n = 2064, .k = 512, .dtype = BF16, .out_dtype = BF16, .activation = SILU},
        {.rows = 500, .n = 3080, .k = 264, .dtype = F16, .out_dtype = F16, .bias = F16},
    };
    int64_t params[PLAN_MAX_PARAMS];
    static int64_t found[64][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        matmul_device_problem_params(&problems[i], params);
        const int count = kernel->candidates(params, gpu, found, 64);
        assert_in_range(count, least, 32);
        for (int j = 0; j < count; j++) {
            assert_null(kernel->launch(found[j], gpu, &geometry));
            assert_memory_equal(found[j], params, MATMUL_FIRST_TUNABLE * sizeof *params);
            for (int other = 0; other < j; other++) assert_memory_not_equal(found[j], found[other], sizeof found[j]);
        }
        assert_int_equal(kernel->candidates(params, gpu, found, 3), 3);
        if (!test_device()) continue;
        const int here = kernel->candidates(params, &test_device()->device.facts, found, 64);
        for (int j = 0; j < here; j++) check_params(kernel, found[j], 0, 5000);
    }
}

static void check_hostile(const struct device_kernel *kernel, const int64_t *params, const struct device_facts *gpu)
{
    static const int64_t values[] = {
        INT64_MIN,  -(INT64_C(1) << 32),
        -1,         0,
        1,          2,
        3,          7,
        8,          9,
        16,         64,
        65,         100,
        128,        192,
        256,        512,
        65535,      65536,
        1 << 20,    1 << 24,
        INT32_MAX,  INT64_C(1) << 31,
        UINT32_MAX, INT64_MAX,
    };
    struct device_geometry geometry;
    assert_null(kernel->launch(params, gpu, &geometry));
    for (int i = 0; i < device_param_count(kernel); i++)
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++) {
            int64_t changed[PLAN_MAX_PARAMS] = {0};
            memcpy(changed, params, (size_t)device_param_count(kernel) * sizeof *params);
            changed[i] = values[j];
            memset(&geometry, 0, sizeof geometry);
            if (kernel->launch(changed, gpu, &geometry)) continue;
            const uint64_t threads = (uint64_t)geometry.block[0] * geometry.block[1] * geometry.block[2];
            assert_true(threads >= 32 && threads <= 1024);
            assert_true(geometry.grid[0] >= 1 && geometry.grid[0] <= INT32_MAX);
            assert_true(geometry.grid[1] >= 1 && geometry.grid[1] <= 65535 && geometry.grid[2] == 1);
            assert_true(geometry.cluster[0] >= 1 && geometry.cluster[0] <= 8);
            assert_true(geometry.grid[0] % geometry.cluster[0] == 0);
            assert_true(geometry.shared_bytes <= (uint32_t)gpu->shared_per_block);
            uint64_t bytes = 0, flops = 0;
            kernel->cost(changed, 0, &bytes, &flops);
            assert_true(bytes > 0 && flops > 0);
        }
}

void matmul_device_check_hostile(const struct device_kernel *kernel, const struct device_facts *gpu,
                                 const struct matmul_device_problem *problem, struct matmul_device_tunables tunables)
{
    int64_t params[PLAN_MAX_PARAMS];
    fill_params(kernel, problem, &tunables, params);
    check_hostile(kernel, params, gpu);
}

void matmul_device_check_refusals(const struct device_kernel *kernel, const struct device_facts *gpu, int older,
                                  const struct matmul_device_tunables tunables[2])
{
    const struct matmul_device_problem problem =
        {.rows = 64, .n = 4096, .k = 4096, .dtype = BF16, .out_dtype = F32, .residual = true};
    int64_t params[PLAN_MAX_PARAMS], found[1][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    struct device_facts older_gpu = *gpu;
    for (int i = 0; i < 2; i++) {
        fill_params(kernel, &problem, &tunables[i], params);
        check_hostile(kernel, params, gpu);
    }
    params[MATMUL_HAS_NORM] = 1;
    assert_non_null(kernel->launch(params, gpu, &geometry));
    assert_int_equal(kernel->candidates(params, gpu, found, 1), 0);
    params[MATMUL_HAS_NORM] = params[MATMUL_ROWS] = 0;
    assert_int_equal(kernel->candidates(params, gpu, found, 1), 0);
    params[MATMUL_ROWS] = problem.rows;
    older_gpu.capability = older;
    assert_non_null(kernel->launch(params, &older_gpu, &geometry));
}
