/* SPDX-License-Identifier: Apache-2.0 */
/* matmul with a block diagonal W on the GPU: tails, every encoding, candidates; kernels without blocks. */
#include <math.h>

#include "kernels/matmul/matmul_device.h"
#include "kernels/matmul/test_matmul_device.h"

struct problem {
    int64_t rows, valid, blocks, n, k; /* n: of one block */
    enum encoding_id dtype;
    enum dtype out_dtype;
    int64_t more; /* elements of a row of x after its parts */
};

static int64_t x_pitch(const struct problem *problem) { return problem->blocks * problem->k + problem->more; }

static int64_t padded(int64_t n) { return (n + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS; }

static void fill_params(const struct problem *problem, int64_t *params)
{
    const int64_t values[MATMUL_FIRST_TUNABLE] = {
        [MATMUL_ROWS] = problem->rows,
        [MATMUL_N] = problem->blocks * padded(problem->n),
        [MATMUL_K] = problem->k,
        [MATMUL_DTYPE] = problem->dtype,
        [MATMUL_OUT_DTYPE] = problem->out_dtype,
        [MATMUL_BIAS_DTYPE] = DTYPE_F32,
        [MATMUL_NORM_DTYPE] = DTYPE_F32,
        [MATMUL_SCALE_BITS] = test_float_bits(0.75f),
        [MATMUL_CAP_BITS] = OP_FLOAT_ONE_BITS,
        [MATMUL_COMPUTE_DTYPE] = DTYPE_F32,
        [MATMUL_BLOCK_N] = problem->n,
        [MATMUL_X_PITCH] = problem->more ? x_pitch(problem) : 0,
    };
    memset(params, 0, PLAN_MAX_PARAMS * sizeof *params);
    memcpy(params, values, sizeof values);
    params[MATMUL_INPUT_DTYPE] = matmul_device_element(params);
}

struct launch {
    struct test_launch test;
    const float *weights, *x; /* [blocks * padded, k], [valid, x_pitch] */
};

/* Padding rows of W have values, too, which nothing may read. */
static void open_launch(struct launch *launch, const struct problem *problem, const int64_t *params)
{
    struct test_random random = {(uint64_t)(problem->rows * 7 + problem->n + problem->k)};
    struct test_launch *test = &launch->test;
    test_launch_open_operands(test, &op_matmul, params, problem->valid);
    const float most = 3 / sqrtf((float)problem->k);
    test_fill(&random, test->host[MATMUL_X], (size_t)(problem->valid * x_pitch(problem)),
              test_launch_dtype(test, MATMUL_X), -1, 1);
    launch->x = test_launch_decode(test, MATMUL_X);
    if (matmul_is_coded(params)) {
        launch->weights = matmul_device_fill_coded(test, &random);
    } else {
        test_launch_fill(test, MATMUL_W, &random, -most, most);
        launch->weights = test_launch_decode(test, MATMUL_W);
    }
}

static void check_outputs(const struct launch *launch, const struct problem *problem, const char *what)
{
    const int64_t k = problem->k, n = problem->n, outputs = problem->valid * problem->blocks * n;
    for (int64_t at = 0; at < outputs; at++) {
        const int64_t part = at / n, row_of_w = part % problem->blocks * padded(n) + at % n;
        const float *x = launch->x + part / problem->blocks * x_pitch(problem) + part % problem->blocks * k,
                    *w = launch->weights + row_of_w * k;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < k; i++) {
            const double product = (double)x[i] * (double)w[i];
            sum += product;
            squares += product * product;
        }
        double error = ((double)k / 16 + 16) * 0x1p-22 * (6 * sqrt(squares) + fabs(sum)); /* as test_matmul_device.c */
        if (problem->out_dtype != DTYPE_F32) error += fabs(sum) * (problem->out_dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8);
        const double found = (double)op_element(launch->test.found[MATMUL_OUT], at, problem->out_dtype);
        if (!(fabs(found - 0.75 * sum) <= 0.75 * error))
            fail_msg("%s: row %lld, block %lld, output %lld: expected %.9g within %.3g, found %.9g", what,
                     (long long)(part / problem->blocks), (long long)(part % problem->blocks), (long long)(at % n),
                     0.75 * sum, 0.75 * error, found);
    }
}

/* Every `step`-th candidate. */
static void check(const struct problem *problem, int step)
{
    int64_t params[PLAN_MAX_PARAMS], found[32][PLAN_MAX_PARAMS];
    fill_params(problem, params);
    memset(found, 0, sizeof found);
    const int count = device_matmul_mma.candidates(params, &test_device()->device.facts, found, 32);
    assert_true(count > 0);
    for (int i = 0; i < count; i += step) {
        struct launch launch;
        const char *what = test_describe(&device_matmul_mma, found[i]);
        open_launch(&launch, problem, found[i]);
        test_kernel_open(&launch.test.kernel, &device_matmul_mma, found[i]);
        if (launch.test.kernel.local_bytes)
            fail_msg("%s: %d bytes of local memory", what, launch.test.kernel.local_bytes);
        test_launch_run_twice(&launch.test);
        check_outputs(&launch, problem, what);
        test_launch_assert_rows_untouched(&launch.test, MATMUL_OUT);
        test_launch_close(&launch.test);
    }
}

TEST(tails)
{
    static const struct problem problems[] = {
        {1, 1, 16, 512, 128, ENCODING_BF16, DTYPE_BF16, 1600}, {1, 1, 16, 128, 512, ENCODING_BF16, DTYPE_BF16, 0},
        {16, 13, 2, 24, 40, ENCODING_BF16, DTYPE_BF16, 0},     {70, 67, 3, 150, 136, ENCODING_F16, DTYPE_F16, 0},
        {5, 4, 7, 17, 72, ENCODING_BF16, DTYPE_F32, 8},        {300, 290, 5, 130, 24, ENCODING_BF16, DTYPE_BF16, 0},
        {4, 0, 3, 64, 64, ENCODING_BF16, DTYPE_BF16, 0},       {9, 9, 1, 48, 200, ENCODING_F16, DTYPE_F32, 0},
        {33, 30, 128, 16, 32, ENCODING_BF16, DTYPE_BF16, 0},
    };
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i], 2);
}

TEST(every_encoding)
{
    enum encoding_id encoding;
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; matmul_device_next_coded(&i, &encoding);) {
        check(&(struct problem){3, 3, 4, 88, 256, encoding, DTYPE_BF16, 0}, 4);
        check(&(struct problem){40, 38, 3, 48, 320, encoding, DTYPE_F32, 72}, 4);
    }
}

TEST(candidates)
{
    TEST_NEEDS_DEVICE();
    check(&(struct problem){8, 8, 16, 512, 128, ENCODING_BF16, DTYPE_BF16, 0}, 1);
    check(&(struct problem){600, 590, 4, 128, 512, ENCODING_BF16, DTYPE_BF16, 0}, 1);
}

TEST(kernels_without_blocks)
{
    int64_t params[PLAN_MAX_PARAMS], found[1][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    fill_params(&(struct problem){4, 4, 3, 64, 64, ENCODING_BF16, DTYPE_BF16, 0}, params);
    const struct device_kernel *const without[] = {&device_matmul_gemv, &device_matmul_wgmma};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        assert_int_equal(without[i]->candidates(params, &matmul_test_h200, found, 1), 0);
        assert_non_null(without[i]->launch(params, &matmul_test_h200, &geometry));
    }
    memset(found, 0, sizeof found);
    assert_int_equal(device_matmul_mma.candidates(params, &matmul_test_h200, found, 1), 1);
    test_launch_refuses(&device_matmul_mma, found[0],
                        TEST_CHANGES({MATMUL_BLOCK_N, -1}, {MATMUL_BLOCK_N, 65}, {MATMUL_N, 190}, {MATMUL_HAS_BIAS, 1},
                                     {MATMUL_K, 63}, {MATMUL_X_PITCH, 184}, {MATMUL_X_PITCH, 196}));
}

int main(void) { return test_run(); }
