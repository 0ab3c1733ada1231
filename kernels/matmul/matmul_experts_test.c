/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul over experts: every encoding and instruction set against a plain sum in double, bits that do not depend on
 * batch, threads and tunables, the same bits of int8 products in all instruction sets that have them, ids that name no expert, refusal of hostile parameters. */
#include <math.h>

#include "kernels/matmul/matmul.h"
#include "kernels/matmul/test_coded.h"
#include "kernels/matmul/test_matmul.h"

enum { THREADS = 3 };

#ifdef __SANITIZE_ADDRESS__
enum { SAMPLE = 4 };
#else
enum { SAMPLE = 1 };
#endif

static const float LIMIT = 1.5f;  /* of a clamped SwiGLU and of a softcap: many products are beyond it */
static const float SCALE = 0.75f; /* without a gate */

static struct team *team;
static struct test_random numbers = {5};

static int64_t random_below(int64_t limit) { return test_random_range(&numbers, 0, limit - 1); }

struct problem {
    int64_t rows, experts, top_k, n, k; /* n: of one expert; padded where it is no multiple of 16 */
    enum encoding_id encoding;
    int epilogue;    /* NONE: the weighted sum; as MATMUL_EPILOGUE */
    enum dtype bias; /* DTYPE_NONE: none */
    bool residual;
    enum encoding_id compute;
};

/* Rows of W of one expert. */
static int64_t rows_each(const struct problem *problem)
{
    return (int64_t)panel_count((uint64_t)problem->n) * PANEL_ROWS;
}

/* A launch, and its weights as floats. */
struct launch {
    struct test_case test;
    struct test_memory memory;
    float *weights; /* [experts * rows_each, k] */
};

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

static bool has_limit(int epilogue)
{
    return epilogue == ACTIVATION_CLAMPED || epilogue == EPILOGUE_PLAIN + ACTIVATION_SOFTCAP;
}

static void open_launch(struct launch *launch, const struct problem *problem)
{
    const int64_t params[MATMUL_PARAMS] = {
        [MATMUL_ROWS] = problem->rows,
        [MATMUL_N] = problem->experts * rows_each(problem),
        [MATMUL_K] = problem->k,
        [MATMUL_DTYPE] = problem->encoding,
        [MATMUL_EPILOGUE] = problem->epilogue,
        [MATMUL_HAS_BIAS] = problem->bias != DTYPE_NONE,
        [MATMUL_BIAS_DTYPE] = problem->bias,
        [MATMUL_HAS_RESIDUAL] = problem->residual,
        [MATMUL_SCALE_BITS] = EPILOGUE_IS_GATED(problem->epilogue) ? OP_FLOAT_ONE_BITS : test_float_bits(SCALE),
        [MATMUL_CAP_BITS] = has_limit(problem->epilogue) ? test_float_bits(LIMIT) : OP_FLOAT_ONE_BITS,
        [MATMUL_COMPUTE_DTYPE] = problem->compute,
        [MATMUL_EXPERTS] = problem->experts,
        [MATMUL_ROUTE_WIDTH] = 2 * problem->top_k,
        [MATMUL_BLOCK_N] = problem->n % PANEL_ROWS ? problem->n : 0,
        [MATMUL_PANELS_PER_TILE] = 2,
        [MATMUL_ROWS_PER_TILE] = 1,
        [MATMUL_PANELS_PER_TASK] = 2,
    };
    const uint64_t n = (uint64_t)(problem->experts * rows_each(problem)), k = (uint64_t)problem->k;
    *launch = (struct launch){0};
    test_case_open(&launch->test, &op_matmul, params, &test_geometry, (int32_t)problem->rows);
    struct test_case *test = &launch->test;
    launch->weights = test_take(&launch->memory, n * k * sizeof(float));
    memset(test->call.operands[MATMUL_W], 0, test->buffers[MATMUL_W].bytes);
    if (encoding_is_plain(problem->encoding)) {
        fill_plain(launch->weights, n, k, (enum dtype)problem->encoding, test->call.operands[MATMUL_W]);
    } else {
        struct panel_form form;
        assert_true(panel_form(problem->encoding, &form));
        test_coded_matrix(&numbers, &form, panel_bytes(k, problem->encoding), n, k, test->call.operands[MATMUL_W],
                          launch->weights);
    }
    const size_t x_rows = (size_t)(problem->rows * (problem->epilogue ? 1 : problem->top_k));
    test_fill(&numbers, test->call.operands[MATMUL_X], x_rows * k, DTYPE_F32, -1, 1);
    if (problem->bias != DTYPE_NONE) test_fill(&numbers, test->call.operands[MATMUL_BIAS], n, problem->bias, -1, 1);
    if (problem->residual)
        test_fill(&numbers, test->call.operands[MATMUL_RESIDUAL], (size_t)(problem->rows * problem->n), DTYPE_F32, -1,
                  1);
    float *routes = test->call.operands[MATMUL_ROUTES];
    int32_t order[ROUTER_MAX_EXPERTS];
    for (int64_t row = 0; row < problem->rows; row++, routes += 2 * problem->top_k) {
        for (int64_t i = 0; i < problem->experts; i++) order[i] = (int32_t)i;
        /* Some experts have no rows: small numbers of rows choose few, and the last expert is chosen only where it must be. */
        test_shuffle(&numbers, order,
                     (size_t)(problem->experts > problem->top_k ? problem->experts - 1 : problem->experts));
        for (int64_t i = 0; i < problem->top_k; i++) {
            routes[i] = test_random_float(&numbers, 0.05f, 1);
            routes[problem->top_k + i] = (float)order[i];
        }
    }
}

static void close_launch(struct launch *launch)
{
    test_case_close(&launch->test);
    test_release(&launch->memory);
}

static void run_launch(struct launch *launch, enum cpu_isa isa)
{
    test_buffer_poison(&launch->test.buffers[MATMUL_OUT]);
    test_buffer_poison(&launch->test.buffers[MATMUL_WORKSPACE]);
    test_run_on(team, test_matmul_op(), isa, &launch->test.call);
}

static void randomize_tunables(int64_t *params)
{
    static const int64_t panels[] = {1, 2, 3, 4, 6, 8}, rows[] = {1, 2, 3, 4, 6, 8, 12};
    static const int64_t depths[] = {0, 64, 128, 640}, blocks[] = {0, 0, 13, 24};
    do {
        params[MATMUL_PANELS_PER_TILE] = panels[random_below(6)];
        params[MATMUL_ROWS_PER_TILE] = rows[random_below(7)];
        params[MATMUL_DEPTH_BLOCK] = depths[random_below(4)];
        params[MATMUL_ROWS_PER_BLOCK] = blocks[random_below(4)];
        params[MATMUL_PANELS_PER_TASK] = params[MATMUL_PANELS_PER_TILE] * (1 + random_below(3));
        params[MATMUL_THREADS] = random_below(THREADS + 1);
    } while (matmul_tunables_illegal(params, CPU_AVX512BF16));
}

/* x . W[n] + bias of an expert, and the sum of magnitudes. */
static double product(const struct launch *launch, const struct problem *problem, const float *x, int64_t expert,
                      int64_t n, double *magnitude)
{
    const int64_t at = expert * rows_each(problem) + n;
    const void *bias = launch->test.call.operands[MATMUL_BIAS];
    double sum = bias ? (double)op_element(bias, at, problem->bias) : 0;
    float rounded[MATMUL_INT8_BLOCK];
    *magnitude = 1 + fabs(sum);
    for (int64_t first = 0; first < problem->k; first += MATMUL_INT8_BLOCK) {
        const int64_t count = problem->k - first < MATMUL_INT8_BLOCK ? problem->k - first : MATMUL_INT8_BLOCK;
        matmul_round(x + first, count, problem->compute, rounded);
        for (int64_t i = 0; i < count; i++) {
            const double term = (double)rounded[i] * (double)launch->weights[at * problem->k + first + i];
            sum += term;
            *magnitude += fabs(term);
        }
    }
    return sum;
}

/* What a gate makes of two products. */
static double gated(int epilogue, double gate, double up)
{
    const double limit = (double)LIMIT;
    if (epilogue != ACTIVATION_CLAMPED) return activate_exactly((enum activation)epilogue, gate) * up;
    const double clamped = fmin(gate, limit);
    return (fmax(-limit, fmin(up, limit)) + 1) * clamped * (0.5 + 0.5 * tanh(1.702 * clamped / 2));
}

static void assert_near(float found, double expected, double magnitude, enum cpu_isa isa, const struct problem *problem)
{
    if (!(fabs((double)found - expected) <= 5e-5 * magnitude))
        fail_msg("%s: found %.9g, expected %.9g (rows %d experts %d of %d n %d k %d encoding %s)", cpu_isa_name(isa),
                 (double)found, expected, (int)problem->rows, (int)problem->top_k, (int)problem->experts,
                 (int)problem->n, (int)problem->k, encoding_name(problem->encoding));
}

/* The parts of a row of out that the choices have, with an activation alone. */
static void compare_activated(const struct launch *launch, const struct problem *problem, int64_t row, enum cpu_isa isa)
{
    const int64_t top_k = problem->top_k, n = problem->n;
    const float *x = (const float *)launch->test.call.operands[MATMUL_X] + row * problem->k;
    const float *out = (const float *)launch->test.call.operands[MATMUL_OUT] + row * top_k * n;
    const float *routes = (const float *)launch->test.call.operands[MATMUL_ROUTES] + row * 2 * top_k;
    const enum activation activation = (enum activation)EPILOGUE_ACTIVATION(problem->epilogue);
    for (int64_t at = 0; at < top_k * n; at++) {
        double magnitude;
        const int64_t expert = router_expert(routes, top_k, at / n, problem->experts);
        const double sum = product(launch, problem, x, expert, at % n, &magnitude) * (double)SCALE;
        const double slope = activation == ACTIVATION_RELU2 ? 2 * fabs(sum) + 1 : 1.2;
        assert_near(out[at], activate_capped(activation, LIMIT, sum), slope * magnitude, isa, problem);
    }
}

/* A row of out against sums in double. */
static void compare_row(const struct launch *launch, const struct problem *problem, int64_t row, enum cpu_isa isa)
{
    const int64_t top_k = problem->top_k, n = problem->n, k = problem->k;
    const float *x = launch->test.call.operands[MATMUL_X], *out = launch->test.call.operands[MATMUL_OUT];
    const float *routes = (const float *)launch->test.call.operands[MATMUL_ROUTES] + row * 2 * top_k;
    const float *residual = launch->test.call.operands[MATMUL_RESIDUAL];
    double magnitude, other;
    if (problem->epilogue >= EPILOGUE_PLAIN) {
        compare_activated(launch, problem, row, isa);
        return;
    }
    for (int64_t column = 0; problem->epilogue && column < top_k * (n / 2); column++) {
        const int64_t choice = column / (n / 2), j = column % (n / 2);
        const int64_t at = j / PANEL_ROWS * 2 * PANEL_ROWS + j % PANEL_ROWS;
        const int64_t expert = router_expert(routes, top_k, choice, problem->experts);
        const double gate = product(launch, problem, x + row * k, expert, at, &magnitude);
        const double up = product(launch, problem, x + row * k, expert, at + PANEL_ROWS, &other);
        assert_near(out[row * top_k * (n / 2) + column], gated(problem->epilogue, gate, up),
                    2 * magnitude * (other + (problem->epilogue == ACTIVATION_CLAMPED)), isa, problem);
    }
    for (int64_t column = 0; !problem->epilogue && column < n; column++) {
        double sum = residual ? (double)residual[row * n + column] : 0, all = 1;
        for (int64_t choice = 0; choice < top_k; choice++) {
            const int64_t expert = router_expert(routes, top_k, choice, problem->experts);
            sum += (double)SCALE * (double)router_weight(routes, choice) *
                   product(launch, problem, x + (row * top_k + choice) * k, expert, column, &magnitude);
            all += magnitude;
        }
        assert_near(out[row * n + column], sum, all, isa, problem);
    }
}

static void check(const struct problem *problem)
{
    struct launch launch;
    open_launch(&launch, problem);
    const size_t bytes = launch.test.buffers[MATMUL_OUT].bytes;
    const int64_t valid = problem->rows > 2 && random_below(3) == 0 ? problem->rows - 2 : problem->rows;
    const size_t row_bytes = bytes / (size_t)problem->rows;
    uint8_t *out = launch.test.call.operands[MATMUL_OUT], *first = test_take(&launch.memory, bytes);
    ((int32_t *)launch.test.call.operands[MATMUL_COUNTS])[0] = (int32_t)valid;
    test_buffer_poison(&launch.test.buffers[MATMUL_OUT]);
    op_matmul.reference(&launch.test.call);
    for (int64_t row = 0; row<valid; row += problem->rows> 40 ? 29 : 1)
        compare_row(&launch, problem, row, CPU_ISA_COUNT);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!test_matmul_runs((enum cpu_isa)isa)) continue;
        for (int repeat = 0; repeat < 3; repeat++) {
            randomize_tunables(launch.test.params);
            run_launch(&launch, (enum cpu_isa)isa);
            test_case_assert_intact(&launch.test);
            for (int64_t row = 0; repeat == 0 && row<valid; row += problem->rows> 40 ? 29 : 1)
                compare_row(&launch, problem, row, (enum cpu_isa)isa);
            if (repeat == 0) memcpy(first, out, bytes);
            test_assert_same_bits(out, first, bytes, "tunables");
            assert_true(test_is_poison(out + (size_t)valid * row_bytes, (size_t)(problem->rows - valid) * row_bytes));
        }
    }
    close_launch(&launch);
}

TEST(encodings)
{
    static const int64_t depths[] = {1, 33, 128, 300, 1100}, rows[] = {1, 3, 17};
    static const enum encoding_id computes[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        if (!panel_form(encoding_at(e)->id, &form)) continue;
        for (size_t i = e % SAMPLE; i < 30; i += SAMPLE) {
            const bool gated = i % 2, plain = i % 4 == 2;
            check(&(struct problem){.rows = rows[i % 3],
                                    .experts = 5,
                                    .top_k = 2,
                                    .n = gated ? 64 : 48,
                                    .k = depths[i % 5],
                                    .encoding = encoding_at(e)->id,
                                    .epilogue = gated   ? ACTIVATION_SILU + (int)(i / 2 % 2)
                                                : plain ? EPILOGUE_PLAIN + ACTIVATION_RELU2
                                                        : ACTIVATION_NONE,
                                    .bias = i % 4 < 2 ? DTYPE_NONE : DTYPE_F32,
                                    .residual = !gated && !plain && i % 3 == 0,
                                    .compute = computes[i / 10]});
        }
    }
}

/* What Nemotron 3 has, and every other activation: a matrix without a gate on the first side, biases, a scale. */
TEST(without_a_gate)
{
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_F32, ENCODING_INT4_G32, ENCODING_MXFP4};
    static const enum encoding_id computes[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    static const enum activation activations[] = {ACTIVATION_RELU2, ACTIVATION_SILU, ACTIVATION_GELU,
                                                  ACTIVATION_GELU_TANH, ACTIVATION_SOFTCAP};
    for (size_t i = 0; i < 120; i += SAMPLE)
        check(&(struct problem){.rows = 1 + (int64_t)(i % 11) * 3,
                                .experts = 7,
                                .top_k = 3,
                                .n = i % 2 ? 112 : 16,
                                .k = i % 3 ? 96 : 71,
                                .encoding = encodings[i / 2 % 4],
                                .epilogue = EPILOGUE_PLAIN + (int)activations[i % 5],
                                .bias = i % 4 ? DTYPE_NONE : DTYPE_BF16,
                                .compute = computes[i / 40]});
}

/* What gpt-oss has: a clamped SwiGLU, a bias of each expert on both sides of it, matrices of MXFP4. */
TEST(clamped_swiglu_and_biases)
{
    static const enum encoding_id encodings[] = {ENCODING_MXFP4, ENCODING_BF16, ENCODING_F32, ENCODING_INT4_G32};
    static const enum encoding_id computes[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    static const enum dtype biases[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16, DTYPE_NONE};
    for (size_t i = 0; i < 96; i += SAMPLE)
        check(&(struct problem){.rows = 1 + (int64_t)(i % 7),
                                .experts = 6,
                                .top_k = 3,
                                .n = i % 2 ? 96 : 80,
                                .k = i % 5 ? 96 : 64,
                                .encoding = encodings[i / 2 % 4],
                                .epilogue = i % 2 ? ACTIVATION_CLAMPED : ACTIVATION_NONE,
                                .bias = biases[i / 8 % 4],
                                .compute = computes[i / 32]});
}

/* What pads an expert's rows is in no output. */
TEST(padded_rows)
{
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_F32, ENCODING_INT8_G32, ENCODING_MXFP4};
    static const enum encoding_id computes[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    static const int64_t sizes[] = {72, 1, 15, 33, 136};
    for (size_t i = 0; i < 120; i += SAMPLE)
        check(&(struct problem){.rows = 1 + (int64_t)(i % 7),
                                .experts = i % 3 ? 6 : 1,
                                .top_k = i % 3 ? 3 : 1,
                                .n = sizes[i % 5],
                                .k = i % 4 ? 96 : 64,
                                .encoding = encodings[i / 2 % 4],
                                .bias = i / 8 % 2 ? DTYPE_BF16 : DTYPE_NONE,
                                .residual = i / 16 % 2,
                                .compute = computes[i / 40]});
}

/* Values beyond the limit, and NaN, which stays. */
TEST(clamped_swiglu_of_extremes)
{
    enum { N = 32 };
    const struct problem problem = {.rows = 1,
                                    .experts = 2,
                                    .top_k = 1,
                                    .n = N,
                                    .k = 1,
                                    .encoding = ENCODING_F32,
                                    .epilogue = ACTIVATION_CLAMPED,
                                    .bias = DTYPE_F32,
                                    .compute = ENCODING_F32};
    static const float extremes[] = {-3e38f, -1e4f, -1.5f, -1, 0, 1, 1.5f, 1e4f, 3e38f, NAN};
    enum { EXTREMES = sizeof extremes / sizeof *extremes };
    struct launch launch;
    open_launch(&launch, &problem);
    *(float *)launch.test.call.operands[MATMUL_X] = 0; /* products are biases */
    float *bias = launch.test.call.operands[MATMUL_BIAS];
    for (int isa = 0; isa <= CPU_ISA_COUNT; isa++) {
        if (isa < CPU_ISA_COUNT && !test_matmul_runs((enum cpu_isa)isa)) continue;
        for (int first = 0; first < EXTREMES; first++) {
            for (int i = 0; i < 2 * N; i++)
                bias[i] = extremes[(i % PANEL_ROWS + i / PANEL_ROWS % 2 * first) % EXTREMES];
            if (isa == CPU_ISA_COUNT)
                op_matmul.reference(&launch.test.call);
            else
                run_launch(&launch, (enum cpu_isa)isa);
            const float *out = launch.test.call.operands[MATMUL_OUT];
            for (int i = 0; i < N / 2; i++) {
                const float gate = bias[i], up = bias[PANEL_ROWS + i];
                if (isnan(gate) || isnan(up))
                    assert_true(isnan(out[i]));
                else
                    assert_near(out[i], gated(ACTIVATION_CLAMPED, (double)gate, (double)up), 1, (enum cpu_isa)isa,
                                &problem);
            }
        }
    }
    close_launch(&launch);
}

TEST(numbers_of_rows_and_experts)
{
    static const int64_t rows[] = {1, 2, 5, 16, 61, 300}, experts[][2] = {{1, 1}, {4, 4}, {8, 3}, {64, 6}, {257, 8}};
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_INT4_G32, ENCODING_F32};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t e = 0; e < sizeof experts / sizeof *experts; e++)
            for (int gated = 0; gated < 2; gated++)
                check(&(struct problem){.rows = rows[r],
                                        .experts = experts[e][0],
                                        .top_k = experts[e][1],
                                        .n = gated ? 32 : 16,
                                        .k = 64 + 31 * (int64_t)(r % 3),
                                        .encoding = encodings[(r + e) % 3],
                                        .epilogue = gated ? ACTIVATION_SILU : ACTIVATION_NONE,
                                        .bias = e == 2 ? DTYPE_BF16 : DTYPE_NONE,
                                        .compute = ENCODING_F32});
}

/* Instruction sets that multiply activations in int8 by codes as integers give the same bits: one row for an expert and some, with a
 * gate and of the weighted sum. */
TEST(int8_bits)
{
    static const int64_t depths[] = {32, 45, 128, 300, 1030}, rows[] = {1, 5, 40};
    for (size_t i = 0; encoding_at(i / 3); i++) {
        const struct encoding *encoding = encoding_at(i / 3);
        struct panel_form form;
        if ((encoding->code != CODE_UINT4 && encoding->code != CODE_INT8) || !panel_form(encoding->id, &form)) continue;
        for (size_t d = i % SAMPLE; d < 2 * sizeof depths / sizeof *depths; d += SAMPLE) {
            const bool gated = d % 2;
            struct launch launch;
            open_launch(&launch, &(struct problem){.rows = rows[i % 3],
                                                   .experts = 4,
                                                   .top_k = 2,
                                                   .n = gated ? 64 : 80,
                                                   .k = depths[d / 2],
                                                   .encoding = encoding->id,
                                                   .epilogue = gated ? ACTIVATION_SILU : ACTIVATION_NONE,
                                                   .bias = d % 3 == 0 ? DTYPE_F32 : DTYPE_NONE,
                                                   .residual = !gated,
                                                   .compute = ENCODING_INT8_G32});
            const size_t bytes = launch.test.buffers[MATMUL_OUT].bytes;
            void *expected = test_take(&launch.memory, bytes);
            for (int isa = CPU_AVX2; isa < CPU_ISA_COUNT; isa++) {
                if (isa == CPU_AVX512 || !test_matmul_runs((enum cpu_isa)isa)) continue;
                randomize_tunables(launch.test.params);
                run_launch(&launch, (enum cpu_isa)isa);
                test_case_assert_intact(&launch.test);
                if (isa == CPU_AVX2) memcpy(expected, launch.test.call.operands[MATMUL_OUT], bytes);
                test_assert_same_bits(launch.test.call.operands[MATMUL_OUT], expected, bytes,
                                      cpu_isa_name((enum cpu_isa)isa));
            }
            close_launch(&launch);
        }
    }
}

/* A row alone gives the bits that it gives in a batch. */
TEST(row_alone)
{
    enum { ROWS = 33 };
    static const enum encoding_id computes[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    for (int i = 0; i < 6; i++) {
        const bool gated = i % 2;
        struct problem problem = {.rows = ROWS,
                                  .experts = 6,
                                  .top_k = 3,
                                  .n = 64,
                                  .k = 203,
                                  .encoding = i / 2 == 2 ? ENCODING_INT4_G32 : ENCODING_BF16,
                                  .epilogue = gated ? ACTIVATION_SILU : ACTIVATION_NONE,
                                  .compute = computes[i / 2]};
        struct launch batch, alone;
        open_launch(&batch, &problem);
        problem.rows = 1;
        open_launch(&alone, &problem);
        struct op_call *of_batch = &batch.test.call, *of_one = &alone.test.call;
        memcpy(of_one->operands[MATMUL_W], of_batch->operands[MATMUL_W], batch.test.buffers[MATMUL_W].bytes);
        const size_t x = alone.test.buffers[MATMUL_X].bytes, out = alone.test.buffers[MATMUL_OUT].bytes,
                     routes = alone.test.buffers[MATMUL_ROUTES].bytes;
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!test_matmul_runs((enum cpu_isa)isa)) continue;
            randomize_tunables(batch.test.params);
            run_launch(&batch, (enum cpu_isa)isa);
            for (size_t row = 0; row < ROWS; row++) {
                memcpy(of_one->operands[MATMUL_X], (const uint8_t *)of_batch->operands[MATMUL_X] + row * x, x);
                memcpy(of_one->operands[MATMUL_ROUTES],
                       (const uint8_t *)of_batch->operands[MATMUL_ROUTES] + row * routes, routes);
                randomize_tunables(alone.test.params);
                run_launch(&alone, (enum cpu_isa)isa);
                test_assert_same_bits(of_one->operands[MATMUL_OUT],
                                      (const uint8_t *)of_batch->operands[MATMUL_OUT] + row * out, out, "row");
            }
        }
        close_launch(&batch);
        close_launch(&alone);
    }
}

/* Where registers are few, a tile has no more rows than an expert is likely to have, and more panels instead. */
TEST(tiles_by_the_rows_of_an_expert)
{
    static const int64_t rows[] = {1, 8, 16, 128}, expected[][2] = {{4, 1}, {4, 3}, {4, 3}, {2, 6}};
    for (int i = 0; i < 4; i++) {
        const int64_t params[MATMUL_PARAMS] = {
            [MATMUL_ROWS] = rows[i],
            [MATMUL_N] = 64 * 1536,
            [MATMUL_K] = 2048,
            [MATMUL_DTYPE] = ENCODING_INT4_G32,
            [MATMUL_EPILOGUE] = ACTIVATION_SILU,
            [MATMUL_COMPUTE_DTYPE] = ENCODING_INT8_G32,
            [MATMUL_EXPERTS] = 64,
            [MATMUL_ROUTE_WIDTH] = 2 * 8,
        };
        int64_t tunables[MATMUL_TUNABLES];
        matmul_default_tunables(params, CPU_AVX512VNNI, 2, tunables);
        assert_int_equal(tunables[MATMUL_PANELS_PER_TILE - MATMUL_FIRST_TUNABLE], expected[i][0]);
        assert_int_equal(tunables[MATMUL_ROWS_PER_TILE - MATMUL_FIRST_TUNABLE], expected[i][1]);
    }
}

/* Choices of experts that there are not give zeros, and read nothing. */
TEST(ids_that_name_no_expert)
{
    const float bad[] = {-1, 4, 1e30f, -INFINITY, NAN};
    static const int epilogues[] = {ACTIVATION_NONE, ACTIVATION_SILU, EPILOGUE_PLAIN + ACTIVATION_RELU2};
    for (int e = 0; e < 3; e++) {
        const bool divided = epilogues[e] != ACTIVATION_NONE; /* each choice has a part of a row of out */
        const struct problem problem = {.rows = 5,
                                        .experts = 4,
                                        .top_k = 2,
                                        .n = 32,
                                        .k = 40,
                                        .encoding = ENCODING_F32,
                                        .epilogue = epilogues[e],
                                        .compute = ENCODING_F32};
        struct launch launch;
        open_launch(&launch, &problem);
        float *routes = launch.test.call.operands[MATMUL_ROUTES];
        for (int row = 0; row < 5; row++) {
            routes[row * 4 + 3] = bad[row];
            if (row < 2) routes[row * 4 + 2] = bad[row];
        }
        const int64_t columns = (int64_t)(launch.test.buffers[MATMUL_OUT].bytes / sizeof(float)) / 5;
        for (int isa = 0; isa <= CPU_ISA_COUNT; isa++) {
            if (isa < CPU_ISA_COUNT && !test_matmul_runs((enum cpu_isa)isa)) continue;
            if (isa == CPU_ISA_COUNT)
                op_matmul.reference(&launch.test.call);
            else
                run_launch(&launch, (enum cpu_isa)isa);
            test_case_assert_intact(&launch.test);
            const float *out = launch.test.call.operands[MATMUL_OUT];
            for (int64_t i = 0; i < 5 * columns; i++) {
                const bool is_zero = i / columns < 2 || (divided && i % columns >= columns / 2);
                assert_true(is_zero ? out[i] == 0 : isfinite(out[i]));
            }
        }
        close_launch(&launch);
    }
}

TEST(hostile_params_are_refused)
{
    const struct problem problem = {.rows = 4,
                                    .experts = 4,
                                    .top_k = 2,
                                    .n = 32,
                                    .k = 40,
                                    .encoding = ENCODING_F32,
                                    .epilogue = ACTIVATION_SILU,
                                    .compute = ENCODING_F32};
    struct launch launch;
    open_launch(&launch, &problem);
    int64_t params[MATMUL_PARAMS];
    memcpy(params, launch.test.params, sizeof params);
    close_launch(&launch);
    test_hostile_params(&op_matmul, params, &test_geometry);
    test_refuses(&op_matmul, params, &test_geometry,
                 TEST_CHANGES({MATMUL_SCALE_BITS, (int64_t)test_float_bits(SCALE)}, {MATMUL_HAS_RESIDUAL, 1}));
    params[MATMUL_EPILOGUE] = EPILOGUE_PLAIN + ACTIVATION_RELU2;
    test_hostile_params(&op_matmul, params, &test_geometry);
    test_refuses(&op_matmul, params, &test_geometry,
                 TEST_CHANGES({MATMUL_HAS_RESIDUAL, 1}, {MATMUL_EPILOGUE, EPILOGUE_PLAIN},
                              {MATMUL_EPILOGUE, EPILOGUE_PLAIN + ACTIVATION_CLAMPED}));
    params[MATMUL_EPILOGUE] = ACTIVATION_SILU;
    test_refuses(&op_matmul, params, &test_geometry,
                 TEST_CHANGES({MATMUL_EXPERTS, 0}, {MATMUL_EXPERTS, 3}, {MATMUL_EXPERTS, 1}, {MATMUL_EXPERTS, 8},
                              {MATMUL_EXPERTS, ROUTER_MAX_EXPERTS + 1}, {MATMUL_EXPERTS, -4}, {MATMUL_ROUTE_WIDTH, 0},
                              {MATMUL_ROUTE_WIDTH, 3}, {MATMUL_ROUTE_WIDTH, 10}, {MATMUL_ROUTE_WIDTH, INT64_MAX},
                              {MATMUL_HAS_NORM, 1}, {MATMUL_N, 64}, {MATMUL_BLOCK_N, 32}, {MATMUL_BLOCK_N, 24}));
    params[MATMUL_EPILOGUE] = ACTIVATION_NONE;
    params[MATMUL_BLOCK_N] = 24;
    test_hostile_params(&op_matmul, params, &test_geometry);
    test_refuses(&op_matmul, params, &test_geometry,
                 TEST_CHANGES({MATMUL_BLOCK_N, 16}, {MATMUL_BLOCK_N, 33}, {MATMUL_BLOCK_N, INT64_MAX},
                              {MATMUL_X_PITCH, 80}, {MATMUL_N, 124}, {MATMUL_EXPERTS, 2}, {MATMUL_HAS_NORM, 1}));
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
