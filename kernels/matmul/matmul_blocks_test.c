/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul with a block diagonal W: every encoding and instruction set against a plain sum in double, bits that do not depend
 * on batch, threads and tunables, refusal of hostile parameters. */
#include <math.h>

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/test_coded.h"
#include "kernels/matmul/test_matmul.h"

enum { THREADS = 3 };

static struct team *team;
static struct test_random numbers = {6};

struct problem {
    int64_t rows, valid, blocks, n, k; /* n: rows of a block */
    enum encoding_id encoding, compute;
    int64_t more; /* elements of a row of x after its parts */
};

static int64_t x_pitch(const struct problem *problem) { return problem->blocks * problem->k + problem->more; }

/* A launch, and its weights as floats. */
struct launch {
    struct test_case test;
    struct test_memory memory;
    float *weights; /* [blocks * padded, k] */
};

static int64_t padded(int64_t n) { return (n + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS; }

static void fill_plain(float *values, uint64_t n, uint64_t k, enum dtype dtype, uint8_t *panels)
{
    const uint64_t depth = panel_depth(k, dtype), element = dtype_bytes(dtype);
    struct panel_form form;
    panel_form((int64_t)dtype, &form);
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t j = 0; j < k; j++)
            test_fill(&numbers, panels + panel_index(i, j, depth, dtype) * element, 1, dtype, -1, 1);
        panel_read(&form, panels, i, k, 0, k, values + i * k);
    }
}

static void open_launch(struct launch *launch, const struct problem *problem)
{
    const int64_t params[MATMUL_PARAMS] = {
        [MATMUL_ROWS] = problem->rows,
        [MATMUL_N] = problem->blocks * padded(problem->n),
        [MATMUL_K] = problem->k,
        [MATMUL_DTYPE] = problem->encoding,
        [MATMUL_BIAS_DTYPE] = DTYPE_F32,
        [MATMUL_SCALE_BITS] = test_float_bits(0.75f),
        [MATMUL_COMPUTE_DTYPE] = problem->compute,
        [MATMUL_BLOCK_N] = problem->n,
        [MATMUL_X_PITCH] = problem->more ? x_pitch(problem) : 0,
        [MATMUL_PANELS_PER_TILE] = 2,
        [MATMUL_ROWS_PER_TILE] = 1,
        [MATMUL_PANELS_PER_TASK] = 2,
    };
    const uint64_t n = (uint64_t)params[MATMUL_N], k = (uint64_t)problem->k;
    *launch = (struct launch){0};
    test_case_open(&launch->test, &op_matmul, params, &test_geometry, (int32_t)problem->valid);
    struct test_case *test = &launch->test;
    assert_int_equal(test->buffers[MATMUL_X].bytes, problem->rows * x_pitch(problem) * 4);
    assert_int_equal(test->buffers[MATMUL_OUT].bytes, problem->rows * problem->blocks * problem->n * 4);
    launch->weights = test_take(&launch->memory, n * k * sizeof(float));
    memset(test->call.operands[MATMUL_W], 0, test->buffers[MATMUL_W].bytes);
    /* Padding rows have values, too, which nothing may read. */
    if (encoding_is_plain(problem->encoding)) {
        fill_plain(launch->weights, n, k, (enum dtype)problem->encoding, test->call.operands[MATMUL_W]);
    } else {
        struct panel_form form;
        assert_true(panel_form(problem->encoding, &form));
        test_coded_matrix(&numbers, &form, panel_bytes(k, problem->encoding), n, k, test->call.operands[MATMUL_W],
                          launch->weights);
    }
    test_fill(&numbers, test->call.operands[MATMUL_X], (size_t)(problem->valid * x_pitch(problem)), DTYPE_F32, -1, 1);
}

static void close_launch(struct launch *launch)
{
    test_case_close(&launch->test);
    test_release(&launch->memory);
}

static void randomize_tunables(int64_t *params)
{
    static const int64_t panels[] = {1, 2, 3, 4, 6, 8}, rows[] = {1, 2, 3, 4, 6, 8, 12};
    static const int64_t depths[] = {0, 64, 128, 640}, blocks[] = {0, 0, 13, 24};
    do {
        params[MATMUL_PANELS_PER_TILE] = panels[test_random_range(&numbers, 0, 5)];
        params[MATMUL_ROWS_PER_TILE] = rows[test_random_range(&numbers, 0, 6)];
        params[MATMUL_DEPTH_BLOCK] = depths[test_random_range(&numbers, 0, 3)];
        params[MATMUL_ROWS_PER_BLOCK] = blocks[test_random_range(&numbers, 0, 3)];
        params[MATMUL_PANELS_PER_TASK] = params[MATMUL_PANELS_PER_TILE] * test_random_range(&numbers, 1, 3);
        params[MATMUL_THREADS] = test_random_range(&numbers, 0, THREADS);
    } while (matmul_tunables_illegal(params, CPU_AVX512BF16));
}

static void run_launch(struct launch *launch, enum cpu_isa isa)
{
    test_buffer_poison(&launch->test.buffers[MATMUL_OUT]);
    test_buffer_poison(&launch->test.buffers[MATMUL_WORKSPACE]);
    test_run_on(team, test_matmul_op(), isa, &launch->test.call);
    test_case_assert_intact(&launch->test);
}

/* The plain sum in double, of activations as they are rounded, and how far from it an output may be. */
static void expect_row(const struct launch *launch, const struct problem *problem, int64_t row, double *sums,
                       double *bounds)
{
    const int64_t k = problem->k;
    float *x = malloc((size_t)k * sizeof *x);
    for (int64_t block = 0; block < problem->blocks; block++) {
        matmul_round((const float *)launch->test.call.operands[MATMUL_X] + row * x_pitch(problem) + block * k, k,
                     problem->compute, x);
        for (int64_t n = 0; n < problem->n; n++) {
            const float *w = launch->weights + (block * padded(problem->n) + n) * k;
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < k; i++) {
                sum += (double)x[i] * (double)w[i];
                magnitude += fabs((double)x[i] * (double)w[i]);
            }
            sums[block * problem->n + n] = 0.75 * sum;
            bounds[block * problem->n + n] = 5e-5 * (1 + magnitude);
        }
    }
    free(x);
}

static void compare_row(const struct launch *launch, const struct problem *problem, int64_t row, int isa)
{
    const size_t columns = (size_t)(problem->blocks * problem->n);
    const float *out = (const float *)launch->test.call.operands[MATMUL_OUT] + (size_t)row * columns;
    double *sums = malloc(columns * sizeof *sums), *bounds = malloc(columns * sizeof *bounds);
    expect_row(launch, problem, row, sums, bounds);
    for (size_t i = 0; i < columns; i++)
        if (!(fabs((double)out[i] - sums[i]) <= bounds[i]))
            fail_msg("isa %d: row %d, output %d: %.9g, expected %.9g (rows %d blocks %d n %d k %d encoding %s)", isa,
                     (int)row, (int)i, (double)out[i], sums[i], (int)problem->rows, (int)problem->blocks,
                     (int)problem->n, (int)problem->k, encoding_name(problem->encoding));
    free(sums);
    free(bounds);
}

static void check(const struct problem *problem)
{
    enum { FEW = 20, STRIDE = 29 };
    struct launch launch;
    open_launch(&launch, problem);
    const size_t bytes = launch.test.buffers[MATMUL_OUT].bytes, row_bytes = bytes / (size_t)problem->rows;
    const int64_t stride = problem->rows > FEW ? STRIDE : 1;
    uint8_t *out = launch.test.call.operands[MATMUL_OUT], *first = test_take(&launch.memory, bytes);
    test_buffer_poison(&launch.test.buffers[MATMUL_OUT]);
    op_matmul.reference(&launch.test.call);
    for (int64_t row = 0; row < problem->valid; row += stride) compare_row(&launch, problem, row, CPU_ISA_COUNT);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!test_matmul_runs((enum cpu_isa)isa)) continue;
        for (int repeat = 0; repeat < 3; repeat++) {
            randomize_tunables(launch.test.params);
            run_launch(&launch, (enum cpu_isa)isa);
            for (int64_t row = 0; repeat == 0 && row < problem->valid; row += stride)
                compare_row(&launch, problem, row, isa);
            if (repeat == 0) memcpy(first, out, bytes);
            test_assert_same_bits(out, first, bytes, "tunables");
            assert_true(test_is_poison(out + (size_t)problem->valid * row_bytes,
                                       (size_t)(problem->rows - problem->valid) * row_bytes));
        }
    }
    close_launch(&launch);
}

TEST(every_encoding_and_instruction_set)
{
    static const int64_t rows[] = {1, 3, 18}, widths[] = {24, 16, 50};
    static const enum encoding_id computes[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        if (!panel_form(encoding_at(e)->id, &form)) continue;
        for (size_t i = 0; i < 9; i++)
            check(&(struct problem){.rows = rows[i % 3] + 1,
                                    .valid = rows[i % 3],
                                    .blocks = 3,
                                    .n = widths[i / 3],
                                    .k = i % 2 ? 96 : 128,
                                    .encoding = encoding_at(e)->id,
                                    .compute = computes[(i + e) % 3],
                                    .more = (int64_t)(i % 4) * 5});
    }
}

TEST(numbers_of_rows_and_blocks)
{
    static const int64_t rows[] = {1, 2, 7, 33, 130}, blocks[] = {1, 2, 5, 128};
    static const int64_t shapes[][2] = {{1, 1}, {32, 24}, {24, 32}, {17, 203}, {512, 128}, {128, 512}};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_F32, ENCODING_F16};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                if (rows[r] * blocks[b] * shapes[s][0] * shapes[s][1] > 40000000) continue;
                check(&(struct problem){.rows = rows[r],
                                        .valid = rows[r],
                                        .blocks = blocks[b],
                                        .n = shapes[s][0],
                                        .k = shapes[s][1],
                                        .encoding = encodings[(r + b + s) % 3],
                                        .compute = ENCODING_F32,
                                        .more = (int64_t)(r + s) % 3 * 7});
            }
}

/* A row alone gives the bits that it gives in a batch. */
TEST(row_alone)
{
    enum { ROWS = 29 };
    struct problem problem = {.rows = ROWS,
                              .valid = ROWS,
                              .blocks = 6,
                              .n = 40,
                              .k = 203,
                              .encoding = ENCODING_BF16,
                              .compute = ENCODING_F32};
    struct launch batch, alone;
    open_launch(&batch, &problem);
    problem.rows = problem.valid = 1;
    open_launch(&alone, &problem);
    struct op_call *of_batch = &batch.test.call, *of_one = &alone.test.call;
    memcpy(of_one->operands[MATMUL_W], of_batch->operands[MATMUL_W], batch.test.buffers[MATMUL_W].bytes);
    const size_t x = alone.test.buffers[MATMUL_X].bytes, out = alone.test.buffers[MATMUL_OUT].bytes;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!test_matmul_runs((enum cpu_isa)isa)) continue;
        randomize_tunables(batch.test.params);
        run_launch(&batch, (enum cpu_isa)isa);
        for (size_t row = 0; row < ROWS; row++) {
            memcpy(of_one->operands[MATMUL_X], (const uint8_t *)of_batch->operands[MATMUL_X] + row * x, x);
            randomize_tunables(alone.test.params);
            run_launch(&alone, (enum cpu_isa)isa);
            test_assert_same_bits(of_one->operands[MATMUL_OUT],
                                  (const uint8_t *)of_batch->operands[MATMUL_OUT] + row * out, out, "row");
        }
    }
    close_launch(&batch);
    close_launch(&alone);
}

TEST(hostile_params_are_refused)
{
    const struct problem problem =
        {.rows = 4, .valid = 4, .blocks = 3, .n = 24, .k = 40, .encoding = ENCODING_F32, .compute = ENCODING_F32};
    struct launch launch;
    open_launch(&launch, &problem);
    int64_t params[MATMUL_PARAMS];
    memcpy(params, launch.test.params, sizeof params);
    close_launch(&launch);
    test_hostile_params(&op_matmul, params, &test_geometry);
    test_refuses(&op_matmul, params, &test_geometry,
                 TEST_CHANGES({MATMUL_BLOCK_N, -1}, {MATMUL_BLOCK_N, 65}, {MATMUL_BLOCK_N, 97}, {MATMUL_N, 95},
                              {MATMUL_N, 16}, {MATMUL_BLOCK_N, INT64_MAX}, {MATMUL_HAS_BIAS, 1},
                              {MATMUL_HAS_RESIDUAL, 1}, {MATMUL_EPILOGUE, ACTIVATION_SILU},
                              {MATMUL_EPILOGUE, EPILOGUE_PLAIN + ACTIVATION_GELU}, {MATMUL_X_PITCH, 119},
                              {MATMUL_X_PITCH, -1}, {MATMUL_X_PITCH, INT64_MAX}));
    params[MATMUL_BLOCK_N] = 0;
    test_refuses(&op_matmul, params, &test_geometry, TEST_CHANGES({MATMUL_X_PITCH, 120}));
    params[MATMUL_BLOCK_N] = 24;
    params[MATMUL_ROWS] = 1 << 20;
    test_refuses(&op_matmul, params, &test_geometry, TEST_CHANGES({MATMUL_N, 32 * 4096}));
}

int main(void)
{
    struct status status;
    team = team_create(THREADS, &status);
    if (!team) {
        fprintf(stderr, "%s\n", status.message);
        return 1;
    }
    const int failed = test_run();
    team_destroy(team);
    return failed;
}
