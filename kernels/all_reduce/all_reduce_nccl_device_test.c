/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce_finish on a GPU: what NCCL would leave, the sum or its terms, is made up, so out's bits are known; the norm is
 * compared with float64. What needs no GPU: all_reduce_nccl_test.c. */
#include "kernels/all_reduce/all_reduce_nccl.h"

#include <math.h>

#include "kernels/cuda/test_comm.h"
#include "kernels/embed/test_hostile.h"

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
static int trial_count;

static const float eps = 1e-5f;
static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

static void add_trial(struct trial trial)
{
    assert_in_range(trial_count, 0, MOST_TRIALS - 1);
    trials[trial_count++] = trial;
}

static int64_t parts_of(const struct trial *trial) { return trial->parts ? trial->parts : 1; }

static void make_params(const struct trial *trial, int64_t *params)
{
    const int64_t filled[PLAN_MAX_PARAMS] = {
        [ALL_REDUCE_DEVICE_ROWS] = trial->rows,
        [ALL_REDUCE_DEVICE_COUNT_INDEX] = trial->count_index,
        [ALL_REDUCE_DEVICE_WIDTH] = trial->width,
        [ALL_REDUCE_DEVICE_RANKS] = 2,
        [ALL_REDUCE_DEVICE_X_DTYPE] = trial->dtype,
        [ALL_REDUCE_DEVICE_HAS_RESIDUAL] = trial->residual != NONE,
        [ALL_REDUCE_DEVICE_HAS_NORM] = trial->norm,
        [ALL_REDUCE_DEVICE_NORM_DTYPE] = trial->norm_dtype,
        [ALL_REDUCE_DEVICE_EPS_BITS] = test_float_bits(eps),
        [ALL_REDUCE_DEVICE_OUT_DTYPE] = trial->out_dtype,
        [ALL_REDUCE_DEVICE_THREADS] = trial->threads,
    };
    memcpy(params, filled, sizeof filled);
    if (trial->parts) params[ALL_REDUCE_DEVICE_RANKS] = trial->parts;
    all_reduce_finish_params(params, parts_of(trial));
    if (trial->threads) params[ALL_REDUCE_DEVICE_THREADS] = trial->threads;
}

static const char *describe(const struct trial *trial, const int64_t *params)
{
    static char text[200];
    snprintf(text, sizeof text, "threads %d: %d parts of %d rows of %d %s%s%s%s%s%s",
             (int)params[ALL_REDUCE_DEVICE_THREADS], (int)parts_of(trial), (int)trial->rows, (int)trial->width,
             dtype_name(trial->dtype),
             trial->residual == NONE       ? ""
             : trial->residual == SEPARATE ? ", residual"
                                           : ", residual in place",
             trial->norm ? ", norm of " : "", trial->norm ? dtype_name(trial->norm_dtype) : "",
             trial->norm ? " to " : "", trial->norm ? dtype_name(trial->out_dtype) : "");
    return text;
}

static size_t cells_of(const struct trial *trial) { return (size_t)(trial->rows * trial->width); }

/* ---- data on the host ---- */

struct host {
    int64_t valid;
    void *sum, *weight;                             /* encoded; sum: [parts, rows, width] */
    float *decoded_sum, *decoded_weight, *residual; /* [rows, width], [width], [rows, width] */
};

static void *must_allocate(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

/* Rows that are not valid have data, too, so that they are seen where they come out. */
static void host_open(struct host *host, const struct trial *trial, int64_t valid, uint64_t seed)
{
    struct test_random random = {2 * seed + 1};
    const size_t cells = cells_of(trial), element = dtype_bytes(trial->dtype);
    const size_t all = cells * (size_t)parts_of(trial);
    float *part = must_allocate(cells * 4);
    *host = (struct host){valid,
                          must_allocate(all * element),
                          must_allocate((size_t)trial->width * 4),
                          must_allocate(cells * 4),
                          must_allocate((size_t)trial->width * 4),
                          must_allocate(cells * 4)};
    if (trial->any_bits)
        for (size_t i = 0; i < all * element; i++)
            ((uint8_t *)host->sum)[i] = (uint8_t)(test_random_bits(&random) >> 40);
    else
        test_fill(&random, host->sum, all, trial->dtype, -3, 3);
    for (size_t i = 0; i < cells; i++) host->decoded_sum[i] = 0;
    for (size_t k = 0; k < (size_t)parts_of(trial); k++) {
        test_decode((const uint8_t *)host->sum + k * cells * element, part, cells, trial->dtype);
        for (size_t i = 0; i < cells; i++) host->decoded_sum[i] += part[i];
    }
    free(part);
    test_fill(&random, host->residual, cells, DTYPE_F32, -3, 3);
    test_fill(&random, host->weight, (size_t)trial->width, trial->norm_dtype, 0.2f, 2);
    test_decode(host->weight, host->decoded_weight, (size_t)trial->width, trial->norm_dtype);
}

static void host_close(struct host *host)
{
    free(host->sum), free(host->weight), free(host->decoded_sum), free(host->decoded_weight), free(host->residual);
}

static double norm_tolerance(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 2e-6 : dtype == DTYPE_F16 ? 5.5e-4 : 4.4e-3;
}

static void check_normed_row(const struct trial *trial, const struct host *host, const float *out, const float *normed,
                             int64_t r, const char *what)
{
    double squares = 0;
    for (int64_t c = 0; c < trial->width; c++) squares += (double)out[c] * (double)out[c];
    const double factor = 1 / sqrt(squares / (double)trial->width + (double)eps);
    for (int64_t c = 0; c < trial->width; c++) {
        const double expected = (double)out[c] * factor * (double)host->decoded_weight[c], found = (double)normed[c];
        if (!(fabs(found - expected) <= 1e-6 + norm_tolerance(trial->out_dtype) * fabs(expected)))
            fail_msg("%s: normed row %d, column %d: expected %.9g, found %.9g", what, (int)r, (int)c, expected, found);
    }
}

static void check_result(const struct trial *trial, const struct host *host, const float *out, const void *normed,
                         const char *what)
{
    const size_t width = (size_t)trial->width, element = dtype_bytes(trial->out_dtype);
    float *decoded = must_allocate(width * 4);
    for (int64_t r = 0; r < host->valid; r++) {
        const float *row = out + r * trial->width;
        for (size_t c = 0; c < width; c++) {
            const size_t cell = (size_t)r * width + c;
            float expected = host->decoded_sum[cell];
            if (trial->residual != NONE) expected += host->residual[cell];
            if (isnan(expected) ? !isnan(row[c]) : float_to_bits(row[c]) != float_to_bits(expected))
                fail_msg("%s: row %d, column %zu: expected %.9g, found %.9g", what, (int)r, c, (double)expected,
                         (double)row[c]);
        }
        if (!trial->norm) continue;
        test_decode((const uint8_t *)normed + (size_t)r * width * element, decoded, width, trial->out_dtype);
        check_normed_row(trial, host, row, decoded, r, what);
    }
    /* Other rows stay as they were. */
    const size_t done = (size_t)host->valid * width, rest = cells_of(trial) - done;
    if (trial->residual == IN_PLACE)
        assert_memory_equal(out + done, host->residual + done, rest * 4);
    else
        assert_true(test_is_poison(out + done, rest * 4));
    assert_true(trial->norm ? test_is_poison((const uint8_t *)normed + done * element, rest * element)
                            : test_is_poison(normed, cells_of(trial) * element));
    free(decoded);
}

/* ---- launches ---- */

static void compile_trials(void)
{
    static const struct device_kernel *kernels[MOST_TRIALS];
    static int64_t params[MOST_TRIALS][PLAN_MAX_PARAMS];
    if (!getenv("ENG_TEST_CUBINS")) return;
    for (int t = 0; t < trial_count; t++) {
        kernels[t] = &device_all_reduce_finish;
        make_params(&trials[t], params[t]);
    }
    test_kernels_compile(kernels, params, trial_count);
}

/* In the order of the contract. */
static int list_operands(const struct trial *trial, const struct test_device_buffer *counts,
                         const struct test_device_buffer *sum, const struct test_device_buffer *out,
                         const struct test_device_buffer *residual, const struct test_device_buffer *weight,
                         const struct test_device_buffer *normed, cu_deviceptr *operands)
{
    int count = 0;
    operands[count++] = counts->data;
    operands[count++] = sum->data;
    operands[count++] = out->data;
    if (trial->residual != NONE) operands[count++] = trial->residual == IN_PLACE ? out->data : residual->data;
    if (trial->norm) operands[count++] = weight->data, operands[count++] = normed->data;
    return count;
}

static void run(const struct trial *trial)
{
    const size_t cells = cells_of(trial), normed_bytes = cells * dtype_bytes(trial->out_dtype);
    struct test_kernel kernel;
    int64_t params[PLAN_MAX_PARAMS];
    make_params(trial, params);
    const char *what = describe(trial, params);
    test_kernel_open(&kernel, &device_all_reduce_finish, params);
    if (kernel.local_bytes) fail_msg("%s: %d bytes of spilled registers", what, kernel.local_bytes);
    struct test_device_buffer counts = test_device_buffer_new(2 * sizeof(int32_t));
    struct test_device_buffer sum = test_device_buffer_new((size_t)parts_of(trial) * cells * dtype_bytes(trial->dtype));
    struct test_device_buffer out = test_device_buffer_new(cells * 4), residual = test_device_buffer_new(cells * 4);
    struct test_device_buffer weight = test_device_buffer_new((size_t)trial->width * dtype_bytes(trial->norm_dtype));
    struct test_device_buffer normed = test_device_buffer_new(normed_bytes);
    float *found = must_allocate(cells * 4);
    void *found_normed = must_allocate(normed_bytes);
    for (int round = 0; round < ROUNDS; round++) { /* all rows; some of them; none */
        const int64_t valid = round == 0 ? trial->rows : round == 1 ? trial->rows * 2 / 3 : 0;
        int32_t values[2] = {INT32_MAX, INT32_MAX};
        struct host host;
        cu_deviceptr operands[ALL_REDUCE_FINISH_OPERANDS];
        host_open(&host, trial, valid, (uint64_t)round + 7);
        values[trial->count_index] = (int32_t)valid;
        test_device_write(&counts, values, sizeof values);
        test_device_write(&sum, host.sum, sum.bytes);
        test_device_write(&residual, host.residual, residual.bytes);
        test_device_write(&weight, host.weight, weight.bytes);
        test_device_buffer_poison(&out);
        if (trial->residual == IN_PLACE) test_device_write(&out, host.residual, out.bytes);
        test_device_buffer_poison(&normed);
        int count = list_operands(trial, &counts, &sum, &out, &residual, &weight, &normed, operands);
        test_kernel_run(&kernel, operands, count, 0);
        test_device_read(&out, found, out.bytes);
        test_device_read(&normed, found_normed, normed.bytes);
        check_result(trial, &host, found, found_normed, what);
        host_close(&host);
    }
    struct test_device_buffer *buffers[] = {&counts, &sum, &out, &residual, &weight, &normed};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        test_device_assert_intact(buffers[i], what);
        test_device_buffer_free(buffers[i]);
    }
    free(found), free(found_normed);
    test_kernel_close(&kernel);
}

static void run_trials(void)
{
    compile_trials();
    for (int t = 0; t < trial_count; t++) run(&trials[t]);
    trial_count = 0;
}

/* ---- tests ---- */

TEST(every_size)
{
    TEST_NEEDS_DEVICE();
    static const int64_t rows[] = {1, 5, 64}, widths[] = {8, 64, 2048, 4096, 5120, 16384};
    const int step = test_comm_ranks_can_meet() ? 1 : 5; /* tools take long */
    trial_count = 0;
    for (int n = 0; n < 3 * 3 * 6; n += step) {
        const int d = n % 3, r = n / 3 % 3, w = n / 9;
        add_trial((struct trial){.rows = rows[r],
                                 .count_index = (r + w) % 2,
                                 .width = widths[w],
                                 .dtype = dtypes[d],
                                 .norm_dtype = dtypes[(d + w) % 3],
                                 .out_dtype = dtypes[(d + r + 1) % 3],
                                 .residual = (enum residual)((r + w) % RESIDUALS),
                                 .norm = (d + r + w) % 4 != 3});
    }
    run_trials();
}

/* All pairs of dtypes of the norm, for each of the sum's; without a norm, all residuals. */
TEST(every_dtype)
{
    TEST_NEEDS_DEVICE();
    trial_count = 0;
    for (int d = 0; d < 3; d++)
        for (int n = 0; n < 9 + RESIDUALS; n++)
            add_trial((struct trial){.rows = 7,
                                     .count_index = 1,
                                     .width = 136,
                                     .dtype = dtypes[d],
                                     .norm_dtype = dtypes[n / 3 % 3],
                                     .out_dtype = dtypes[n % 3],
                                     .residual = (enum residual)((d + n + n / 3) % RESIDUALS),
                                     .norm = n < 9});
    run_trials();
}

/* Whatever bits the sum has come out as they are. */
TEST(any_bits)
{
    TEST_NEEDS_DEVICE();
    trial_count = 0;
    for (int d = 0; d < 3; d++)
        for (int residual = 0; residual < RESIDUALS; residual++)
            add_trial((struct trial){.rows = 9,
                                     .width = 1024,
                                     .dtype = dtypes[d],
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
    trial_count = 0;
    for (int n = 0; n < 4 * 3; n++)
        add_trial((struct trial){.rows = n % 2 ? 1 : 9,
                                 .count_index = n % 2,
                                 .width = widths[n % 3],
                                 .dtype = dtypes[n / 3 % 3],
                                 .norm_dtype = DTYPE_BF16,
                                 .out_dtype = dtypes[n % 3],
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
    trial_count = 0;
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
