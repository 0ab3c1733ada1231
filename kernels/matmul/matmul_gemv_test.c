/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv against a double loop over the same rounded inputs. */
#include <math.h>

#include "kernels/matmul/test_matmul_device.h"

static const float epsilon = 1e-5f;

/* Some problems have a scale. */
static void problem_params(const struct matmul_device_problem *problem, int64_t params[PLAN_MAX_PARAMS])
{
    struct matmul_device_problem scaled = *problem;
    if (problem->n % 4 == 1) scaled.scale = 0.22f;
    matmul_device_problem_params(&scaled, params);
}

/* One problem: its operands, as the device sees them, on the host and on the device; the expected result. */
struct example {
    struct matmul_device_problem problem;
    struct test_launch launch;
    const float *host[MATMUL_OPERANDS];
    size_t outputs;
    double *expected, *tolerance;
};

/* Half a unit in the last place, relative. */
static double roundoff(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 0x1p-24 : dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

/* The product before epilogues that combine columns, and its tolerance. What differs from the device: float32 sums of
 * about K / 16 products of 16 terms, each cut off at 2^-23 of the largest magnitude that occurs, which is at most the
 * sum of the absolute terms; such errors add up like a random walk, of which four standard deviations are allowed. The
 * inputs are rounded as the device rounds them, x * norm included, and the row's factor is off by few 2^-23. int4 codes are
 * multiplied with 16 added, up to 31, and what that adds is subtracted: codes less their zero are about 4. */
static bool has_zeros(enum encoding_id id) { return encoding_find(id)->code == CODE_UINT4; }

static void expect_column(const struct example *example, const float *x, double factor, int64_t row, int64_t column,
                          double *value, double *tolerance)
{
    const int64_t k = example->problem.k;
    const float *w = example->host[MATMUL_W] + column * k, *bias = example->host[MATMUL_BIAS];
    const float *residual = example->host[MATMUL_RESIDUAL];
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < k; i++) {
        const double term = (double)x[i] * (double)w[i];
        sum += term;
        magnitude += fabs(term);
    }
    *value = sum * factor;
    *tolerance = 4 * sqrt((double)k / 16 + 16) * 0x1p-23 * magnitude * factor + 1e-30;
    if (has_zeros((enum encoding_id)example->problem.dtype)) *tolerance *= 8;
    const double scale = (double)op_float_param(example->launch.params, MATMUL_SCALE_BITS);
    if (bias) *value += (double)bias[column];
    *value *= scale;
    *tolerance = *tolerance * scale + 0x1p-23 * fabs(*value);
    if (residual) *value += (double)residual[row * example->problem.n + column];
    *tolerance += 0x1p-22 * fabs(*value);
}

static void expect(struct example *example)
{
    const struct matmul_device_problem *problem = &example->problem;
    const bool gated = matmul_is_gated(example->launch.params);
    const enum activation activation = matmul_activation(example->launch.params);
    const int64_t columns = gated ? problem->n / 2 : problem->n;
    const float *norm = example->host[MATMUL_NORM];
    float *x = test_take(&example->launch.memory, (size_t)problem->k * sizeof *x);
    for (int64_t row = 0; row < problem->rows; row++) {
        double squares = 0, factor = 1;
        for (int64_t i = 0; i < problem->k; i++) {
            x[i] = example->host[MATMUL_X][row * problem->k + i];
            squares += (double)x[i] * (double)x[i];
            if (norm) x[i] *= norm[i];
        }
        if (norm) test_round(x, (size_t)problem->k, (enum dtype)matmul_device_element(example->launch.params));
        if (norm) factor = 1 / sqrt(squares / (double)problem->k + (double)epsilon);
        for (int64_t j = 0; j < columns; j++) {
            double value, tolerance, up, up_tolerance;
            expect_column(example, x, factor, row, gated ? j / 8 * 16 + j % 8 : j, &value, &tolerance);
            /* 2^-20 for the device's functions */
            const double slope = activation == ACTIVATION_RELU2 ? 2 * fabs(value) + 0.1 : 1.2;
            if (gated) {
                expect_column(example, x, factor, row, j / 8 * 16 + 8 + j % 8, &up, &up_tolerance);
                const double activated = activate_exactly(activation, value);
                tolerance = slope * tolerance * (fabs(up) + up_tolerance) + fabs(activated) * up_tolerance;
                value = activated * up;
                tolerance += 0x1p-20 * fabs(value);
            } else if (activation != ACTIVATION_NONE) {
                value = activate_capped(activation, op_float_param(example->launch.params, MATMUL_CAP_BITS), value);
                tolerance = slope * tolerance + 0x1p-20 * fabs(value) + 1e-7;
            }
            example->expected[row * columns + j] = value;
            example->tolerance[row * columns + j] = tolerance + 1.01 * roundoff(problem->out_dtype) * fabs(value);
        }
    }
}

static void example_open(struct example *example, const struct matmul_device_problem *problem)
{
    struct test_random random = {.state = 88172645463325252u + (uint64_t)(problem->n * 31 + problem->k)};
    struct test_launch *launch = &example->launch;
    int64_t params[PLAN_MAX_PARAMS];
    *example = (struct example){.problem = *problem};
    problem_params(problem, params);
    assert_null(matmul_device_illegal(params));
    test_launch_open_operands(launch, &op_matmul, params, problem->rows);
    for (int i = MATMUL_X; i < MATMUL_OPERANDS; i++) {
        if (!launch->host[i]) continue;
        if (i == MATMUL_W && matmul_is_coded(params)) {
            example->host[i] = matmul_device_fill_coded(launch, &random);
            continue;
        }
        test_launch_fill(launch, i, &random, -1, 1);
        if (i != MATMUL_OUT) example->host[i] = test_launch_decode(launch, i);
    }
    example->outputs = test_launch_count(launch, MATMUL_OUT);
    example->expected = test_take(&launch->memory, example->outputs * sizeof(double));
    example->tolerance = test_take(&launch->memory, example->outputs * sizeof(double));
    expect(example);
}

/* Runs it and compares; with a residual twice, the second time in place. Then once more: the same bits. */
static void example_run(struct example *example, const int64_t *params)
{
    struct test_launch *launch = &example->launch;
    const char *what = test_describe(&device_matmul_gemv, params);
    const size_t bytes = launch->device[MATMUL_OUT].bytes;
    uint8_t *found = launch->found[MATMUL_OUT];
    struct test_memory memory = {.count = 0};
    void *first = test_take(&memory, bytes);
    test_kernel_open(&launch->kernel, &device_matmul_gemv, params);
    if (launch->kernel.local_bytes) fail_msg("%s: %d bytes of local memory", what, launch->kernel.local_bytes);
    memset(launch->host[MATMUL_OUT], 0xff, bytes);
    launch->addresses[MATMUL_RESIDUAL] = launch->device[MATMUL_RESIDUAL].data;
    test_launch_run(launch);
    memcpy(first, found, bytes);
    if (launch->host[MATMUL_RESIDUAL]) test_launch_alias(launch, MATMUL_RESIDUAL, MATMUL_OUT);
    test_launch_run(launch);
    test_assert_same_bits(found, first, bytes, "second run");
    for (size_t i = 0; i < example->outputs; i++) {
        const double value = (double)op_element(found, (int64_t)i, example->problem.out_dtype);
        if (!(fabs(value - example->expected[i]) <= example->tolerance[i]))
            fail_msg("%s: output %zu: expected %.9g, found %.9g, tolerance %.3g", what, i, example->expected[i], value,
                     example->tolerance[i]);
    }
    test_kernel_close(&launch->kernel);
    test_release(&memory);
}

/* Under racecheck, which follows every access to shared memory, an example is cut down to what TOOL_PROCESSORS
 * multiprocessors (or one cluster) do in a few turns: hazards are those of a thread block and its cluster, however many
 * there are. The tunables and the tails of N and K stay, and the ring goes round as often, up to twice.
 *
 * Not so in clusters, whose ring gets stages for all that goes through it: every example with a ring that went round in
 * a cluster hung under racecheck, and no other did. It seems to let no thread out of a barrier of the cluster before all
 * are in; our producer warp comes there last, and waits before for room that the others make once they are out. */
enum { TOOL_PROCESSORS = 2, TOOL_K = 2304, TOOL_TURNS = 3 };

static bool is_under_racecheck(void)
{
    const char *tool = getenv("ENG_TEST_SANITIZED"); /* tests/gpu/check.h */
    return tool && strcmp(tool, "racecheck") == 0;
}

static int few_processors(const int64_t *params)
{
    const int64_t split_k = params[MATMUL_GEMV_SPLIT_K];
    return split_k > TOOL_PROCESSORS ? (int)split_k : TOOL_PROCESSORS;
}

/* Stages of the ring that the busiest thread block fills. */
static int64_t stages_filled(const struct matmul_device_problem *problem, const int64_t *params, int multiprocessors)
{
    const int64_t split_k = params[MATMUL_GEMV_SPLIT_K], tile = 8 * params[MATMUL_GEMV_GROUPS],
                  chunk = params[MATMUL_GEMV_CHUNK];
    const int64_t clusters = multiprocessors * params[MATMUL_GEMV_CTAS_PER_SM] / split_k;
    const int64_t turns = ((problem->n + tile - 1) / tile + clusters - 1) / clusters;
    const int64_t part = ((problem->k + split_k - 1) / split_k + 63) / 64 * 64;
    return turns * ((part + chunk - 1) / chunk);
}

/* The problem with `turns` tiles for each cluster of a GPU of few_processors and one more; few: the params of that. */
static struct matmul_device_problem cut_tiles(const struct matmul_device_problem *problem, const int64_t *params,
                                              int64_t turns, int64_t few[PLAN_MAX_PARAMS])
{
    const int64_t split_k = params[MATMUL_GEMV_SPLIT_K], tile = 8 * params[MATMUL_GEMV_GROUPS];
    const int64_t tiles = turns * few_processors(params) * params[MATMUL_GEMV_CTAS_PER_SM] / split_k + 1;
    struct matmul_device_problem small = *problem;
    if (small.n > (tiles + 1) * tile) small.n = tiles * tile + small.n % tile;
    problem_params(&small, few);
    memcpy(few + MATMUL_FIRST_TUNABLE, params + MATMUL_FIRST_TUNABLE,
           (MATMUL_GEMV_PARAMS - MATMUL_FIRST_TUNABLE) * sizeof *few);
    const int64_t filled = stages_filled(&small, few, few_processors(params));
    if (split_k > 1 && few[MATMUL_GEMV_STAGES] < filled) few[MATMUL_GEMV_STAGES] = filled;
    return small;
}

static int64_t cut_half(int64_t k) { return k / 64 * 32 + k % 32; }

/* As many turns as the ring has room for; if it has none for two, with less of K. */
static struct matmul_device_problem cut_cluster(const struct matmul_device_problem *problem, const int64_t *params,
                                                const struct device_facts *gpu, int64_t few[PLAN_MAX_PARAMS])
{
    const int64_t split_k = params[MATMUL_GEMV_SPLIT_K];
    /* A chunk and a short one in each part. */
    const int64_t most_k = split_k * (params[MATMUL_GEMV_CHUNK] + 64) - 64 + problem->k % 32;
    struct device_facts few_gpu = *gpu;
    struct device_geometry geometry;
    struct matmul_device_problem start = *problem, small;
    few_gpu.multiprocessors = few_processors(params);
    if (start.k > most_k) start.k = most_k;
    for (;; start.k = cut_half(start.k))
        for (int64_t turns = TOOL_TURNS; turns > 0; turns--) {
            small = cut_tiles(&start, params, turns, few);
            if (start.k < 64 * split_k || !device_matmul_gemv.launch(few, &few_gpu, &geometry)) return small;
        }
}

static struct matmul_device_problem cut_down(const struct matmul_device_problem *problem, const int64_t *params,
                                             const struct device_facts *gpu, int64_t few[PLAN_MAX_PARAMS])
{
    struct matmul_device_problem small = *problem;
    if (params[MATMUL_GEMV_SPLIT_K] > 1) return cut_cluster(problem, params, gpu, few);
    int64_t wanted = stages_filled(problem, params, gpu->multiprocessors), turns = TOOL_TURNS;
    if (wanted > 2 * params[MATMUL_GEMV_STAGES] + 1) wanted = 2 * params[MATMUL_GEMV_STAGES] + 1;
    while (small.k > TOOL_K) small.k = cut_half(small.k);
    const int64_t chunks = (small.k + params[MATMUL_GEMV_CHUNK] - 1) / params[MATMUL_GEMV_CHUNK];
    if (turns * chunks < wanted) turns = (wanted + chunks - 1) / chunks;
    return cut_tiles(&small, params, turns, few);
}

static void run_cut_down(const struct matmul_device_problem *problem, const int64_t *params)
{
    struct device_facts *facts = &test_device()->device.facts;
    const int processors = facts->multiprocessors;
    int64_t few[PLAN_MAX_PARAMS];
    struct example example;
    const struct matmul_device_problem small = cut_down(problem, params, facts, few);
    example_open(&example, &small);
    facts->multiprocessors = few_processors(params);
    example_run(&example, few);
    facts->multiprocessors = processors;
    test_launch_close(&example.launch);
}

static void run_tactics(const struct matmul_device_problem *problem, int64_t (*params)[PLAN_MAX_PARAMS], int count)
{
    struct example example;
    if (is_under_racecheck() && encoding_is_plain((enum encoding_id)problem->dtype)) {
        for (int i = 0; i < count; i++) run_cut_down(problem, params[i]);
        return;
    }
    example_open(&example, problem);
    for (int i = 0; i < count; i++) example_run(&example, params[i]);
    test_launch_close(&example.launch);
}

enum { MOST_CANDIDATES = 64 };

/* The first `count` candidates, or all of them. */
static void run_candidates(const struct matmul_device_problem *problem, int count)
{
    int64_t params[PLAN_MAX_PARAMS], candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    problem_params(problem, params);
    const int found = device_matmul_gemv.candidates(params, &test_device()->device.facts, candidates, MOST_CANDIDATES);
    assert_true(found > 0);
    static struct test_variants variants;
    variants.count = 0;
    for (int i = 0; i < found && i < count; i++) test_variants_add(&variants, &device_matmul_gemv, candidates[i]);
    test_variants_compile(&variants);
    run_tactics(problem, candidates, found < count ? found : count);
}

/* rows, n, k, dtype, out_dtype, activation, bias, norm, residual */
static const struct matmul_device_problem shapes[] = {
    {1, 1, 8, BF16, F32, 0, NONE, NONE, .residual = false},
    {1, 17, 8, F16, F16, 0, F16, F32, .residual = false},
    {8, 64, 64, BF16, BF16, 0, F32, F16, .residual = false},
    {3, 17, 176, BF16, F32, 0, BF16, BF16, .residual = true},
    {1, 352, 176, BF16, BF16, 1, NONE, BF16, .residual = false},
    {5, 2 * 352, 176, F16, F16, 1, BF16, F32, .residual = false},
    {8, 2 * 352, 168, F16, F32, 1, F32, NONE, .residual = false},
    {2, 33, 24, BF16, F32, 0, F16, NONE, .residual = true},
    {4, 200, 1000, F16, F32, 0, F32, F16, .residual = true},
    {8, 272, 14336, F16, F32, 0, NONE, F32, .residual = true},
    {8, 100, 28672, BF16, F32, 0, NONE, BF16, .residual = false},
    {7, 96, 65536, BF16, BF16, 1, NONE, BF16, .residual = false},
    {8, 40, 65536, BF16, F32, 0, F32, NONE, .residual = true},
};
/* Shapes of models with 1 to 8 billion parameters. */
static const struct matmul_device_problem model_shapes[] = {
    {1, 3072, 2048, BF16, BF16, 0, NONE, BF16, .residual = false},
    {1, 2048, 2048, BF16, F32, 0, NONE, NONE, .residual = true},
    {6, 2048, 2048, F16, F32, 0, F32, NONE, .residual = true},
    {1, 4096, 4096, BF16, F32, 0, BF16, BF16, .residual = true},
    {8, 4096, 14336, BF16, F32, 0, NONE, NONE, .residual = true},
};
static const struct matmul_device_problem vocabulary = {1, 128256, 2048, BF16, F32, 0, NONE, BF16, .residual = false};
static const struct matmul_device_problem plain = {3, 1043, 2056, BF16, F32, 0, F32, BF16, .residual = true};
static const struct matmul_device_problem gated = {8, 2 * 1000, 1536, F16, F16, 1, F16, F16, .residual = false};

/* Corners of the tunables that no candidate takes, and what they are tried on. */
static const int64_t odd_tunables[][MATMUL_GEMV_PARAMS - MATMUL_FIRST_TUNABLE] = {
    {1, 2, 64, 1, 2, 1, 1, 1},   {3, 3, 192, 1, 2, 2, 1, 2}, {2, 64, 64, 1, 2, 4, 0, 2},
    {16, 2, 512, 3, 2, 1, 0, 1}, {8, 2, 256, 5, 2, 2, 1, 2}, {4, 2, 1024, 2, 4, 1, 1, 1},
    {6, 2, 576, 7, 2, 3, 0, 2},  {8, 3, 256, 1, 2, 1, 1, 0}, {4, 2, 128, 2, 4, 4, 0, 0},
};
static const struct matmul_device_problem odd_problems[] = {
    {5, 1043, 2056, BF16, F32, 0, F32, BF16, .residual = true},
    {4, 2 * 1000, 1544, F16, F16, 1, F16, NONE, .residual = false},
};
enum { ODD_TUNABLES = sizeof odd_tunables / sizeof *odd_tunables };

static void odd_params(const struct matmul_device_problem *problem, int i, int64_t params[PLAN_MAX_PARAMS])
{
    problem_params(problem, params);
    memcpy(params + MATMUL_FIRST_TUNABLE, odd_tunables[i], sizeof odd_tunables[i]);
}

TEST(test_shapes)
{
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct matmul_device_problem problem = shapes[i];
        run_candidates(&problem, 1);
        while (problem.activation != ACTIVATION_NONE && ++problem.activation < ACTIVATION_COUNT)
            if (problem.activation != ACTIVATION_SOFTCAP && problem.activation != ACTIVATION_CLAMPED)
                run_candidates(&problem, 1);
        if (shapes[i].activation != ACTIVATION_NONE || shapes[i].residual) continue;
        for (int activation = ACTIVATION_SILU; activation < ACTIVATION_COUNT; activation++) {
            if (activation == ACTIVATION_CLAMPED) continue;
            problem.activation = EPILOGUE_PLAIN + activation;
            run_candidates(&problem, 1);
        }
    }
}

TEST(test_model_shapes)
{
    TEST_NEEDS_DEVICE();
    for (size_t i = 0; i < sizeof model_shapes / sizeof *model_shapes; i++) run_candidates(&model_shapes[i], 1);
}

TEST(test_vocabulary)
{
    TEST_NEEDS_DEVICE();
    run_candidates(&vocabulary, 1);
}

TEST(test_every_row_count)
{
    TEST_NEEDS_DEVICE();
    for (int64_t rows = 1; rows <= MATMUL_GEMV_MOST_ROWS; rows++) {
        const struct matmul_device_problem problems[] = {{rows, 515, 776, BF16, F32, 0, BF16, BF16, .residual = true},
                                                         {rows, 528, 512, F16, F16, 1, NONE, NONE, .residual = false}};
        for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) run_candidates(&problems[i], 1);
    }
}

TEST(test_every_candidate)
{
    TEST_NEEDS_DEVICE();
    run_candidates(&plain, MOST_CANDIDATES);
    run_candidates(&gated, MOST_CANDIDATES);
}

TEST(test_odd_tunables)
{
    TEST_NEEDS_DEVICE();
    int64_t params[ODD_TUNABLES][PLAN_MAX_PARAMS];
    for (size_t p = 0; p < sizeof odd_problems / sizeof *odd_problems; p++) {
        for (int i = 0; i < ODD_TUNABLES; i++) {
            odd_params(&odd_problems[p], i, params[i]);
            if (test_device()->device.facts.capability >= 90) continue;
            params[i][MATMUL_GEMV_SPLIT_K] = 1;
            params[i][MATMUL_GEMV_COPY] = MATMUL_GEMV_COPY_THREADS;
        }
        run_tactics(&odd_problems[p], params, ODD_TUNABLES);
    }
}

/* Problems with this encoding of W. */
static const struct matmul_device_problem coded_problems[] = {
    {1, 1, 8, 0, F32, 0, NONE, NONE, .residual = false},     {8, 64, 128, 0, BF16, 0, F32, F16, .residual = false},
    {3, 17, 176, 0, F32, 0, BF16, BF16, .residual = true},   {1, 352, 1000, 0, BF16, 1, NONE, BF16, .residual = false},
    {8, 336, 2048, 0, F32, 1, F32, NONE, .residual = false}, {5, 1041, 4096, 0, F32, 0, NONE, BF16, .residual = true},
    {2, 272, 14336, 0, F32, 0, F32, NONE, .residual = true},
};
static const struct matmul_device_problem coded_every = {3, 1043, 2056, 0, F32, 0, F32, BF16, .residual = true};
static const struct matmul_device_problem coded_gated = {8, 2 * 1000, 1536, 0, BF16, 1, F16, F16, .residual = false};
static const struct matmul_device_problem coded_deep = {8, 40, 65536, 0, F32, 0, F32, NONE, .residual = true};
/* Corners of the tunables that no candidate takes. */
static const int64_t coded_tunables[][MATMUL_GEMV_PARAMS - MATMUL_FIRST_TUNABLE] = {
    {1, 2, 128, 1, 2, 4, 1, 1},  {3, 3, 384, 1, 4, 2, 1, 1}, {2, 32, 256, 1, 2, 1, 1, 1}, {16, 2, 4096, 1, 2, 1, 1, 1},
    {8, 2, 1024, 5, 2, 1, 1, 1}, {4, 3, 512, 2, 4, 1, 1, 0}, {6, 2, 768, 3, 2, 2, 1, 1},  {8, 3, 1024, 1, 2, 1, 1, 0},
};
enum { CODED_TUNABLES = sizeof coded_tunables / sizeof *coded_tunables };

static struct matmul_device_problem with_encoding(struct matmul_device_problem problem, enum encoding_id encoding)
{
    problem.dtype = (enum dtype)encoding;
    return problem;
}

TEST(test_coded)
{
    TEST_NEEDS_DEVICE();
    enum encoding_id encoding;
    for (size_t e = 0; matmul_device_next_coded(&e, &encoding);)
        for (size_t i = 0; i < sizeof coded_problems / sizeof *coded_problems; i++) {
            const struct matmul_device_problem problem = with_encoding(coded_problems[i], encoding);
            run_candidates(&problem, 1);
        }
}

TEST(test_every_coded_candidate)
{
    TEST_NEEDS_DEVICE();
    static const enum encoding_id encodings[] = {ENCODING_INT4_G128, ENCODING_NVFP4, ENCODING_INT8_CHANNEL};
    for (size_t e = 0; e < sizeof encodings / sizeof *encodings; e++) {
        const struct matmul_device_problem every = with_encoding(coded_every, encodings[e]),
                                           gate = with_encoding(coded_gated, encodings[e]),
                                           deep = with_encoding(coded_deep, encodings[e]);
        run_candidates(e == 0 ? &every : &gate, MOST_CANDIDATES);
        run_candidates(&deep, 1);
    }
}

TEST(test_odd_coded_tunables)
{
    TEST_NEEDS_DEVICE();
    static const enum encoding_id encodings[] = {ENCODING_INT4_G32_ZEROS, ENCODING_E4M3_BLOCK128};
    int64_t params[CODED_TUNABLES][PLAN_MAX_PARAMS];
    for (size_t e = 0; e < sizeof encodings / sizeof *encodings; e++) {
        const struct matmul_device_problem problem = with_encoding(coded_every, encodings[e]);
        for (int i = 0; i < CODED_TUNABLES; i++) {
            problem_params(&problem, params[i]);
            memcpy(params[i] + MATMUL_FIRST_TUNABLE, coded_tunables[i], sizeof coded_tunables[i]);
            if (test_device()->device.facts.capability >= 90) continue;
            params[i][MATMUL_GEMV_SPLIT_K] = 1;
            params[i][MATMUL_GEMV_COPY] = MATMUL_GEMV_COPY_THREADS;
        }
        run_tactics(&problem, params, CODED_TUNABLES);
    }
}

TEST(test_every_problem_has_a_candidate)
{
    static const int64_t ks[] = {8, 64, 176, 2048, 4096, 14336, 28672, 53248, 65528, 65536};
    static const int64_t ns[] = {16, 4096, 128256, MATMUL_DEVICE_MOST_N};
    const struct device_facts *facts[] = {&matmul_test_h200, &matmul_test_a10};
    int64_t params[PLAN_MAX_PARAMS], candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    for (size_t f = 0; f < 2; f++)
        for (int64_t rows = 1; rows <= 8; rows++)
            for (size_t i = 0; i < sizeof ks / sizeof *ks; i++)
                for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
                    const struct matmul_device_problem problem = {rows, ns[j], ks[i],
                                                                  BF16, F32,   (enum activation)(rows % 2),
                                                                  F32,  BF16,  .residual = false};
                    problem_params(&problem, params);
                    const int count = device_matmul_gemv.candidates(params, facts[f], candidates, MOST_CANDIDATES);
                    assert_in_range(count, 1, 32);
                    for (int c = 0; c < count; c++) {
                        const char *illegal = device_matmul_gemv.launch(candidates[c], facts[f], &geometry);
                        if (illegal) fail_msg("%s", illegal);
                        /* No room for one thread block more than CTAS_PER_SM. */
                        assert_true((candidates[c][MATMUL_GEMV_CTAS_PER_SM] + 1) * (geometry.shared_bytes + 1024) >
                                    facts[f]->shared_per_sm);
                        assert_memory_equal(candidates[c], params, MATMUL_FIRST_TUNABLE * sizeof *params);
                    }
                    assert_int_equal(device_matmul_gemv.candidates(params, facts[f], candidates, 1), 1);
                }
}

/* Matrices of models, coded, with every number of rows; what a GPU without clusters has no room for, matmul_mma takes. */
TEST(test_coded_problems_have_candidates)
{
    static const int64_t ks[] = {8, 64, 176, 2048, 4096, 14336, 28672, 65536};
    const struct device_facts *facts[] = {&matmul_test_h200, &matmul_test_a10};
    int64_t params[PLAN_MAX_PARAMS], candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    enum encoding_id encoding;
    for (size_t e = 0; matmul_device_next_coded(&e, &encoding);)
        for (size_t f = 0; f < 2; f++)
            for (int64_t rows = 1; rows <= 8; rows++)
                for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
                    const struct matmul_device_problem problem = {rows,
                                                                  4096,
                                                                  ks[i],
                                                                  (enum dtype)encoding,
                                                                  F32,
                                                                  (enum activation)(rows % 2),
                                                                  F32,
                                                                  BF16,
                                                                  .residual = false};
                    problem_params(&problem, params);
                    const int count = device_matmul_gemv.candidates(params, facts[f], candidates, MOST_CANDIDATES);
                    if (!count && (f == 0 || rows * ks[i] <= 32768))
                        fail_msg("%s: %d rows of %d: no candidate: %s", encoding_name(encoding), (int)rows, (int)ks[i],
                                 matmul_device_illegal(params));
                    for (int c = 0; c < count; c++) {
                        const char *illegal = device_matmul_gemv.launch(candidates[c], facts[f], &geometry);
                        if (illegal) fail_msg("%s", illegal);
                    }
                }
    const struct matmul_device_problem problem = with_encoding(coded_every, ENCODING_INT4_G128);
    problem_params(&problem, params);
    assert_int_equal(device_matmul_gemv.candidates(params, &matmul_test_h200, candidates, 1), 1);
    test_launch_refuses(&device_matmul_gemv, candidates[0],
                        TEST_CHANGES({MATMUL_DTYPE, ENCODING_E4M3_TENSOR}, {MATMUL_DTYPE, 99},
                                     {MATMUL_INPUT_DTYPE, DTYPE_BF16}, {MATMUL_GEMV_GROUPS, 1},
                                     {MATMUL_GEMV_X_SHARED, 0}, {MATMUL_GEMV_COPY, 2}, {MATMUL_GEMV_CHUNK, 64},
                                     {MATMUL_GEMV_CHUNK, 1088}, {MATMUL_K, 2052}));
}

/* What racecheck sees: the same tunables and tails, and the ring goes round or not, on few thread blocks. */
static void assert_cut_down(const struct matmul_device_problem *problem, const int64_t *params)
{
    const int64_t tile = 8 * params[MATMUL_GEMV_GROUPS], stages = params[MATMUL_GEMV_STAGES];
    int64_t few[PLAN_MAX_PARAMS];
    struct device_geometry whole, part;
    struct device_facts few_facts = matmul_test_h200;
    few_facts.multiprocessors = few_processors(params);
    const struct matmul_device_problem small = cut_down(problem, params, &matmul_test_h200, few);
    assert_null(device_matmul_gemv.launch(params, &matmul_test_h200, &whole));
    const char *illegal = device_matmul_gemv.launch(few, &few_facts, &part);
    if (illegal) fail_msg("%s", illegal);
    assert_in_range(part.grid[0], 1, 4 * 8); /* CTAS_PER_SM, SPLIT_K */
    assert_int_equal(part.block[0], whole.block[0]);
    assert_int_equal(part.cluster[0], whole.cluster[0]);
    assert_true(small.k <= problem->k && small.n <= problem->n && small.rows == problem->rows);
    assert_int_equal(small.k % 32, problem->k % 32);
    assert_int_equal(small.n % tile, problem->n % tile);
    if (small.n < problem->n) assert_true(small.n / tile > part.grid[0] / part.cluster[0]); /* more than one turn */
    const int64_t filled = stages_filled(&small, few, few_facts.multiprocessors);
    if (part.cluster[0] > 1)
        assert_true(filled <= few[MATMUL_GEMV_STAGES]);
    else if (stages_filled(problem, params, matmul_test_h200.multiprocessors) > stages)
        assert_true(filled > stages);
}

TEST(test_what_racecheck_sees)
{
    int64_t params[PLAN_MAX_PARAMS], candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        problem_params(&shapes[i], params);
        assert_int_equal(device_matmul_gemv.candidates(params, &matmul_test_h200, candidates, 1), 1);
        assert_cut_down(&shapes[i], candidates[0]);
    }
    for (size_t i = 0; i < sizeof model_shapes / sizeof *model_shapes; i++) {
        problem_params(&model_shapes[i], params);
        assert_int_equal(device_matmul_gemv.candidates(params, &matmul_test_h200, candidates, 1), 1);
        assert_cut_down(&model_shapes[i], candidates[0]);
    }
    const struct matmul_device_problem *const all[] = {&vocabulary, &plain, &gated};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        problem_params(all[i], params);
        const int count = device_matmul_gemv.candidates(params, &matmul_test_h200, candidates, MOST_CANDIDATES);
        for (int c = 0; c < count; c++) assert_cut_down(all[i], candidates[c]);
    }
    for (size_t p = 0; p < sizeof odd_problems / sizeof *odd_problems; p++)
        for (int i = 0; i < ODD_TUNABLES; i++) {
            odd_params(&odd_problems[p], i, params);
            assert_cut_down(&odd_problems[p], params);
        }
}

TEST(test_hostile)
{
    static const int64_t values[] = {INT64_MIN, INT32_MIN, -1, 0, 1, 2, 3, 7, 8, 9, 1 << 20, INT32_MAX, INT64_MAX};
    const struct matmul_device_problem problem = {8, 4096, 4096, BF16, F32, 0, F32, BF16, .residual = true};
    int64_t params[PLAN_MAX_PARAMS], candidate[1][PLAN_MAX_PARAMS];
    struct device_geometry geometry;
    problem_params(&problem, params);
    assert_int_equal(device_matmul_gemv.candidates(params, &matmul_test_h200, candidate, 1), 1);
    for (int i = 0; i < MATMUL_GEMV_PARAMS; i++)
        for (size_t j = 0; j < sizeof values / sizeof *values; j++)
            for (int i2 = 0; i2 < MATMUL_GEMV_PARAMS; i2++)
                for (size_t j2 = 0; j2 < sizeof values / sizeof *values; j2++) {
                    int64_t hostile[PLAN_MAX_PARAMS];
                    memcpy(hostile, candidate[0], sizeof hostile);
                    hostile[i] = values[j];
                    hostile[i2] = values[j2];
                    if (device_matmul_gemv.launch(hostile, &matmul_test_h200, &geometry)) continue;
                    assert_in_range(geometry.grid[0], 1, 4 * 132);
                    assert_in_range(geometry.block[0], 96, 1024);
                    assert_in_range(geometry.shared_bytes, 1, matmul_test_h200.shared_per_block);
                    assert_int_equal(geometry.grid[0] % geometry.cluster[0], 0);
                }
    test_launch_refuses(&device_matmul_gemv, candidate[0],
                        TEST_CHANGES({MATMUL_ROWS, 0}, {MATMUL_ROWS, 9}, {MATMUL_K, 4097}, {MATMUL_K, 65544},
                                     {MATMUL_N, 0}, {MATMUL_DTYPE, DTYPE_F32}, {MATMUL_OUT_DTYPE, 2},
                                     {MATMUL_EPILOGUE, 1}, {MATMUL_EPS_BITS, -1}, {MATMUL_GEMV_STAGES, 1},
                                     {MATMUL_GEMV_CHUNK, 96}, {MATMUL_GEMV_SPLIT_K, 9}, {MATMUL_GEMV_GROUPS, 3},
                                     {MATMUL_GEMV_CTAS_PER_SM, 0}, {MATMUL_GEMV_WARPS, 17}, {MATMUL_GEMV_X_SHARED, 2},
                                     {MATMUL_GEMV_COPY, 3}));
}

int main(void) { return test_run(); }
