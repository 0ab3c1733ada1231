/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce_finish on a GPU: what NCCL would leave, the sum or its terms, is made up, so out's bits are known; the norm is
 * compared with float64. What needs no GPU: all_reduce_nccl_test.c. */
#include "kernels/all_reduce/all_reduce_nccl.h"

#include "kernels/all_reduce/test_all_reduce.h"
#include "kernels/cuda/test_comm.h"

enum { MOST_TRIALS = 128, ROUNDS = 3 };

enum residual { NONE, SEPARATE, IN_PLACE, RESIDUALS };
struct trial {
    int64_t rows, count_index, width;
    enum dtype dtype, norm_dtype, out_dtype;
    enum residual residual;
    bool norm;
    bool any_bits;   /* of the sum, NaN and infinities among them */
    int64_t threads; /* 0: as all_reduce_finish_params has it */
    int64_t parts;   /* 0: the sum; else its terms, of as many ranks */
};
static struct trial trials[MOST_TRIALS];
static struct test_variants variants;

static int64_t parts_of(const struct trial *trial) { return trial->parts ? trial->parts : 1; }

static void add_trial(struct trial trial)
{
    int64_t params[PLAN_MAX_PARAMS] = {
        [ALL_REDUCE_ROWS] = trial.rows,
        [ALL_REDUCE_COUNT_INDEX] = trial.count_index,
        [ALL_REDUCE_WIDTH] = trial.width,
        [ALL_REDUCE_RANKS] = trial.parts ? trial.parts : 2,
        [ALL_REDUCE_X_DTYPE] = trial.dtype,
        [ALL_REDUCE_HAS_RESIDUAL] = trial.residual != NONE,
        [ALL_REDUCE_HAS_NORM] = trial.norm,
        [ALL_REDUCE_NORM_DTYPE] = trial.norm_dtype,
        [ALL_REDUCE_EPS_BITS] = test_float_bits(all_reduce_test_eps),
        [ALL_REDUCE_OUT_DTYPE] = trial.out_dtype,
    };
    all_reduce_finish_params(params, parts_of(&trial));
    if (trial.threads) params[ALL_REDUCE_FINISH_THREADS] = trial.threads;
    const int added = test_variants_add(&variants, &device_all_reduce_finish, params);
    assert_in_range(added, 0, MOST_TRIALS - 1);
    trials[added] = trial;
}

/* Rows that are not valid have data, too, so that they are seen where they come out. */
static void fill(struct test_launch *launch, const struct trial *trial, uint64_t seed)
{
    struct test_random random = {2 * seed + 1};
    uint8_t *sum = launch->host[ALL_REDUCE_FINISH_SUM];
    if (trial->any_bits)
        for (size_t i = 0; i < launch->device[ALL_REDUCE_FINISH_SUM].bytes; i++)
            sum[i] = (uint8_t)(test_random_bits(&random) >> 40);
    else
        test_launch_fill(launch, ALL_REDUCE_FINISH_SUM, &random, -3, 3);
    if (trial->residual != NONE) test_launch_fill(launch, ALL_REDUCE_FINISH_RESIDUAL, &random, -3, 3);
    if (trial->residual == IN_PLACE) test_launch_alias(launch, ALL_REDUCE_FINISH_RESIDUAL, ALL_REDUCE_FINISH_OUT);
    if (trial->norm) test_launch_fill(launch, ALL_REDUCE_FINISH_NORM, &random, 0.2f, 2);
}

static void check_result(struct test_launch *launch, const struct trial *trial, const char *what)
{
    const int64_t width = trial->width, cells = trial->rows * width;
    const float *sum = test_launch_decode(launch, ALL_REDUCE_FINISH_SUM);
    const float *residual = launch->host[ALL_REDUCE_FINISH_RESIDUAL], *out = launch->found[ALL_REDUCE_FINISH_OUT];
    const float *weight = trial->norm ? test_launch_decode(launch, ALL_REDUCE_FINISH_NORM) : NULL;
    const uint8_t *normed = launch->found[ALL_REDUCE_FINISH_NORMED];
    float *expected = test_take(&launch->memory, (size_t)width * sizeof *expected);
    for (int64_t r = 0; r < launch->valid; r++) {
        for (int64_t c = 0; c < width; c++) {
            expected[c] = 0;
            for (int64_t k = 0; k < parts_of(trial); k++) expected[c] += sum[k * cells + r * width + c];
            if (residual) expected[c] += residual[r * width + c];
        }
        all_reduce_check_row(expected, out + r * width, width, r, what);
        if (trial->norm)
            all_reduce_check_normed_row(out + r * width, weight,
                                        normed + (size_t)(r * width) * dtype_bytes(trial->out_dtype), trial->out_dtype,
                                        width, r, what);
    }
    test_launch_assert_rows_untouched(launch, ALL_REDUCE_FINISH_OUT);
    if (trial->norm) test_launch_assert_rows_untouched(launch, ALL_REDUCE_FINISH_NORMED);
}

static void run(const struct trial *trial, const int64_t *params)
{
    struct test_launch launch;
    test_launch_open(&launch, &device_all_reduce_finish, params, trial->rows);
    for (int round = 0; round < ROUNDS; round++) { /* all rows; some of them; none */
        test_launch_set_valid(&launch, round == 0 ? trial->rows : round == 1 ? trial->rows * 2 / 3 : 0);
        fill(&launch, trial, (uint64_t)round + 7);
        test_launch_run(&launch);
        check_result(&launch, trial, test_describe(&device_all_reduce_finish, params));
    }
    test_launch_close(&launch);
}

static void run_trials(void)
{
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) run(&trials[t], variants.params[t]);
    variants.count = 0;
}

TEST(every_size)
{
    TEST_NEEDS_DEVICE();
    static const int64_t rows[] = {1, 5, 64}, widths[] = {8, 64, 2048, 4096, 5120, 16384};
    const int step = test_comm_ranks_can_meet() ? 1 : 5; /* tools take long */
    for (int n = 0; n < 3 * 3 * 6; n += step) {
        const int d = n % 3, r = n / 3 % 3, w = n / 9;
        add_trial((struct trial){.rows = rows[r],
                                 .count_index = (r + w) % 2,
                                 .width = widths[w],
                                 .dtype = all_reduce_test_dtypes[d],
                                 .norm_dtype = all_reduce_test_dtypes[(d + w) % 3],
                                 .out_dtype = all_reduce_test_dtypes[(d + r + 1) % 3],
                                 .residual = (enum residual)((r + w) % RESIDUALS),
                                 .norm = (d + r + w) % 4 != 3});
    }
    run_trials();
}

/* All pairs of dtypes of the norm, for each of the sum's; without a norm, all residuals. */
TEST(every_dtype)
{
    TEST_NEEDS_DEVICE();
    for (int d = 0; d < 3; d++)
        for (int n = 0; n < 9 + RESIDUALS; n++)
            add_trial((struct trial){.rows = 7,
                                     .count_index = 1,
                                     .width = 136,
                                     .dtype = all_reduce_test_dtypes[d],
                                     .norm_dtype = all_reduce_test_dtypes[n / 3 % 3],
                                     .out_dtype = all_reduce_test_dtypes[n % 3],
                                     .residual = (enum residual)((d + n + n / 3) % RESIDUALS),
                                     .norm = n < 9});
    run_trials();
}

/* Whatever bits the sum has come out as they are. */
TEST(any_bits)
{
    TEST_NEEDS_DEVICE();
    for (int d = 0; d < 3; d++)
        for (int residual = 0; residual < RESIDUALS; residual++)
            add_trial((struct trial){.rows = 9,
                                     .width = 1024,
                                     .dtype = all_reduce_test_dtypes[d],
                                     .norm_dtype = DTYPE_BF16,
                                     .out_dtype = DTYPE_BF16,
                                     .residual = (enum residual)residual,
                                     .any_bits = true});
    run_trials();
}

/* The terms of few ranks and of many. */
TEST(terms)
{
    TEST_NEEDS_DEVICE();
    static const int64_t parts[] = {2, 3, 8, 16}, widths[] = {64, 4096, 16384};
    for (int n = 0; n < 4 * 3; n++)
        add_trial((struct trial){.rows = n % 2 ? 1 : 9,
                                 .count_index = n % 2,
                                 .width = widths[n % 3],
                                 .dtype = all_reduce_test_dtypes[n / 3 % 3],
                                 .norm_dtype = DTYPE_BF16,
                                 .out_dtype = all_reduce_test_dtypes[n % 3],
                                 .residual = (enum residual)(n % RESIDUALS),
                                 .norm = n % 4 != 3,
                                 .parts = parts[n / 3]});
    run_trials();
}

/* Warps that no row's end falls on, fewer threads than vectors, many more. */
TEST(other_threads)
{
    TEST_NEEDS_DEVICE();
    static const struct {
        int64_t width, threads;
    } shapes[] = {{1024, 32}, {1024, 96}, {3000, 160}, {8, 1024}, {3000, 992}};
    for (int s = 0; s < 5; s++)
        add_trial((struct trial){.rows = 6,
                                 .count_index = 1,
                                 .width = shapes[s].width,
                                 .dtype = DTYPE_BF16,
                                 .norm_dtype = DTYPE_BF16,
                                 .out_dtype = DTYPE_F32,
                                 .residual = IN_PLACE,
                                 .norm = true,
                                 .threads = shapes[s].threads});
    run_trials();
}

int main(void) { return test_run(); }
