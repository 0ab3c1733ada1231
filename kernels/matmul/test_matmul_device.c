/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/test_matmul_device.h"

#include <math.h>

#include "kernels/op/op.h"

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
    params[MATMUL_HAS_BIAS] = problem->bias != DTYPE_NONE;
    params[MATMUL_BIAS_DTYPE] = problem->bias != DTYPE_NONE ? problem->bias : DTYPE_F32;
    params[MATMUL_HAS_RESIDUAL] = problem->residual;
    params[MATMUL_NORM_DTYPE] = DTYPE_F32;
    params[MATMUL_INPUT_DTYPE] = problem->dtype;
    params[MATMUL_SCALE_BITS] = test_float_bits(problem->scale);
    test_complete_params(&op_matmul, params);
}

/* Host copies of the operands. */
struct operands {
    void *data[MATMUL_DEVICE_MOST_OPERANDS];
    struct test_device_buffer device[MATMUL_DEVICE_MOST_OPERANDS];
    cu_deviceptr addresses[MATMUL_DEVICE_MOST_OPERANDS];
    int count, bias, residual;
    int64_t rows;
};

/* A sum, and a bound of the device's error.
 *
 * The tensor cores add 16 products at a time to a float32 sum and may cut off instead of round: at most 2^-22 of the
 * largest partial sum at each of k / 16 additions. Products of random signs add up to a partial sum below 6 sigma,
 * sigma^2 = sum of squares; 16 more additions for the parts of a split. */
struct bounded {
    double value, error;
};

static struct bounded dot(const int64_t *params, const struct operands *operands, int64_t row, int64_t n)
{
    const int64_t k_count = params[MATMUL_K];
    const enum dtype dtype = (enum dtype)params[MATMUL_DTYPE];
    const uint16_t *x = (const uint16_t *)operands->data[MATMUL_X] + row * k_count;
    const uint16_t *w = (const uint16_t *)operands->data[MATMUL_W] + n * k_count;
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < k_count; k++) {
        const double product = (double)op_element(x, k, dtype) * (double)op_element(w, k, dtype);
        sum += product;
        squares += product * product;
    }
    double bias = 0;
    if (operands->bias >= 0)
        bias = op_element(operands->data[operands->bias], n, (enum dtype)params[MATMUL_BIAS_DTYPE]);
    const double largest = 6 * sqrt(squares) + fabs(bias);
    return (struct bounded){sum + bias, ((double)k_count / 16 + 16) * 0x1p-22 * largest};
}

/* Element (row, column) of out, and a bound of the error: of the sum, of the activation (at most 1.2 times the gate's error, and
 * 2^-16 for the exponential), of rounding to out's dtype. */
static struct bounded expected(const int64_t *params, const struct operands *operands, int64_t row, int64_t column)
{
    struct bounded result;
    if (matmul_is_gated(params)) {
        const int64_t n = column / 8 * 16 + column % 8;
        const struct bounded gate = dot(params, operands, row, n), up = dot(params, operands, row, n + 8);
        const double gated = activate_exactly((enum activation)params[MATMUL_EPILOGUE], gate.value);
        result.value = gated * up.value;
        result.error =
            1.2 * gate.error * (fabs(up.value) + up.error) + fabs(gated) * up.error + fabs(result.value) * 0x1p-16;
    } else {
        const double scale = (double)op_float_param(params, MATMUL_SCALE_BITS);
        result = dot(params, operands, row, column);
        result.value *= scale;
        result.error = result.error * scale + fabs(result.value) * 0x1p-23;
        if (operands->residual >= 0) {
            const int64_t index = row * params[MATMUL_N] + column;
            result.value += (double)((const float *)operands->data[operands->residual])[index];
            result.error += fabs(result.value) * 0x1p-23;
        }
    }
    if (params[MATMUL_OUT_DTYPE] == DTYPE_BF16) result.error += fabs(result.value) * 0x1p-8;
    if (params[MATMUL_OUT_DTYPE] == DTYPE_F16) result.error += fabs(result.value) * 0x1p-11 + 0x1p-24;
    return result;
}

static enum dtype operand_dtype(const int64_t *params, const struct operands *operands, int operand)
{
    if (operand == operands->bias) return (enum dtype)params[MATMUL_BIAS_DTYPE];
    if (operand == operands->residual) return DTYPE_F32;
    return (enum dtype)params[MATMUL_DTYPE];
}

static void open_operands(struct operands *operands, const int64_t *params, int valid)
{
    struct test_random random = {.state = 12345};
    const int64_t rows = params[MATMUL_ROWS], k = params[MATMUL_K];
    *operands = (struct operands){.count = matmul_device_operand_count(params),
                                  .bias = matmul_device_bias_operand(params),
                                  .residual = matmul_device_residual_operand(params)};
    operands->rows = valid < 0 ? 0 : valid == 0 || valid > rows ? rows : valid;
    for (int i = 0; i < operands->count; i++) {
        const uint64_t bytes = matmul_device_operand_bytes(params, i);
        operands->data[i] = malloc(bytes);
        assert_non_null(operands->data[i]);
        memset(operands->data[i], 0xff, bytes);
        if (i == MATMUL_COUNTS) {
            int32_t *counts = operands->data[i];
            counts[params[MATMUL_COUNT_INDEX]] = (int32_t)operands->rows;
            counts[!params[MATMUL_COUNT_INDEX]] = INT32_MAX;
        } else if (i != MATMUL_OUT) {
            const enum dtype dtype = operand_dtype(params, operands, i);
            uint64_t count = bytes / dtype_bytes(dtype);
            if (i == MATMUL_X || i == operands->residual) count = count / (uint64_t)rows * (uint64_t)operands->rows;
            /* Sums of about 1. */
            const float most = i == MATMUL_W ? 3 / sqrtf((float)k) : 1;
            test_fill(&random, operands->data[i], count, dtype, -most, most);
        }
        if (i == operands->residual) {
            operands->addresses[i] = operands->addresses[MATMUL_OUT];
            continue;
        }
        operands->device[i] = test_device_buffer_new(bytes);
        operands->addresses[i] = operands->device[i].data;
        if (i != MATMUL_OUT) test_device_write(&operands->device[i], operands->data[i], bytes);
    }
}

static void close_operands(struct operands *operands)
{
    for (int i = 0; i < operands->count; i++) {
        free(operands->data[i]);
        test_device_buffer_free(&operands->device[i]);
    }
}

static void describe(char *text, size_t size, const struct device_kernel *kernel, const int64_t *params)
{
    int used = snprintf(text, size, "%s", kernel->name);
    for (int i = 0; i < device_param_count(kernel) && used > 0 && (size_t)used < size; i++)
        used +=
            snprintf(text + used, size - (size_t)used, " %s=%lld", device_param_name(kernel, i), (long long)params[i]);
}

static void check_element(const int64_t *params, const struct operands *operands, const void *out, int64_t columns,
                          int64_t row, int64_t column, const char *what)
{
    const struct bounded want = expected(params, operands, row, column);
    const double found = op_element(out, row * columns + column, (enum dtype)params[MATMUL_OUT_DTYPE]);
    if (!(fabs(found - want.value) <= want.error))
        fail_msg("%s: out[%lld, %lld]: expected %.9g within %.3g, found %.9g", what, (long long)row, (long long)column,
                 want.value, want.error, found);
}

void matmul_device_check_run(const char *what, const int64_t *params, int valid, int samples, matmul_device_run *run,
                             void *context)
{
    struct operands operands;
    void *found[2];
    const int64_t n = params[MATMUL_N];
    const int64_t columns = matmul_is_gated(params) ? n / 2 : n;
    open_operands(&operands, params, valid);
    struct test_device_buffer *out = &operands.device[MATMUL_OUT];
    for (int i = 0; i < 2; i++) {
        found[i] = malloc(out->bytes);
        assert_non_null(found[i]);
        test_device_buffer_poison(out);
        if (operands.residual >= 0) test_device_write(out, operands.data[operands.residual], out->bytes);
        run(context, operands.addresses, operands.count);
        for (int o = 0; o < operands.count; o++)
            if (o != operands.residual) test_device_assert_intact(&operands.device[o], what);
        test_device_read(out, found[i], out->bytes);
    }
    const size_t row_bytes = out->bytes / (size_t)params[MATMUL_ROWS];
    test_assert_same_bits(found[0], found[1], row_bytes * (size_t)operands.rows, what);
    if (samples && operands.rows > 0) {
        struct test_random random = {.state = 99};
        for (int64_t corner = 0; corner < 4; corner++)
            check_element(params, &operands, found[0], columns, corner / 2 * (operands.rows - 1),
                          corner % 2 * (columns - 1), what);
        for (int i = 0; i < samples; i++)
            check_element(params, &operands, found[0], columns, test_random_range(&random, 0, operands.rows - 1),
                          test_random_range(&random, 0, columns - 1), what);
    } else {
        for (int64_t row = 0; row < operands.rows; row++)
            for (int64_t column = 0; column < columns; column++)
                check_element(params, &operands, found[0], columns, row, column, what);
    }
    free(found[0]);
    free(found[1]);
    close_operands(&operands);
}

static void run_kernel(void *context, const cu_deviceptr *operands, int count)
{
    test_kernel_run(context, operands, count, 0);
}

void matmul_device_check(const struct device_kernel *kernel, const int64_t *params, int valid, int samples)
{
    char what[1024];
    struct test_kernel test;
    describe(what, sizeof what, kernel, params);
    test_kernel_open(&test, kernel, params);
    if (test.local_bytes) fail_msg("%s: %d bytes of local memory", what, test.local_bytes);
    matmul_device_check_run(what, params, valid, samples, run_kernel, &test);
    test_kernel_close(&test);
}

void matmul_device_check_hostile(const struct device_kernel *kernel, const int64_t *params,
                                 const struct device_facts *gpu)
{
    static const int64_t values[] = {INT64_MIN,  -(INT64_C(1) << 32),
                                     -1,         0,
                                     1,          2,
                                     3,          7,
                                     8,          9,
                                     16,         64,
                                     65,         128,
                                     256,        512,
                                     1 << 20,    1 << 24,
                                     INT32_MAX,  INT64_C(1) << 31,
                                     100,        192,
                                     65536,      65535,
                                     UINT32_MAX, INT64_MAX};
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
