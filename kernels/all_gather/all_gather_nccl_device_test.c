/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather_place on a GPU: bit for bit, out of what NCCL would leave. What needs no GPU: all_gather_nccl_test.c. */
#include "kernels/all_gather/all_gather_nccl.h"

#include "kernels/cuda/test_comm.h"
#include "kernels/embed/test_hostile.h"

enum { MOST_TRIALS = 64, ROUNDS = 3 };

static int64_t trials[MOST_TRIALS][PLAN_MAX_PARAMS];
static int trial_count;

static const char *describe(const int64_t *p)
{
    static char text[160];
    snprintf(text, sizeof text, "%d rows of %d columns, out of %d, %d ranks, threads %d",
             (int)p[ALL_GATHER_DEVICE_ROWS], (int)p[ALL_GATHER_DEVICE_WIDTH], (int)p[ALL_GATHER_DEVICE_OUT_WIDTH],
             (int)p[ALL_GATHER_DEVICE_RANKS], (int)p[ALL_GATHER_DEVICE_THREADS]);
    return text;
}

static void add_trial(int64_t rows, int64_t width, int64_t out_width, int64_t ranks, int64_t threads)
{
    assert_in_range(trial_count, 0, MOST_TRIALS - 1);
    const int64_t params[PLAN_MAX_PARAMS] = {rows, trial_count % 2, width, out_width, ranks, threads};
    memcpy(trials[trial_count++], params, sizeof params);
}

static void compile_trials(void)
{
    static const struct device_kernel *kernels[MOST_TRIALS];
    if (!getenv("ENG_TEST_CUBINS")) return;
    for (int t = 0; t < trial_count; t++) kernels[t] = &device_all_gather_place;
    test_kernels_compile(kernels, trials, trial_count);
}

/* What the ranks have, any bits; in rows that are not valid, too, so that they are seen where they are placed. */
static uint32_t *make_gathered(const int64_t *p, uint64_t seed)
{
    const size_t cells = (size_t)(p[ALL_GATHER_DEVICE_RANKS] * p[ALL_GATHER_DEVICE_ROWS] * p[ALL_GATHER_DEVICE_WIDTH]);
    struct test_random random = {2 * seed + 1};
    uint32_t *gathered = malloc(cells * sizeof *gathered);
    assert_non_null(gathered);
    for (size_t i = 0; i < cells; i++) gathered[i] = (uint32_t)(test_random_bits(&random) >> 32);
    return gathered;
}

static void check_out(const int64_t *p, int64_t valid, const uint32_t *gathered, const uint32_t *out)
{
    const size_t rows = (size_t)p[ALL_GATHER_DEVICE_ROWS], width = (size_t)p[ALL_GATHER_DEVICE_WIDTH];
    const size_t out_width = (size_t)p[ALL_GATHER_DEVICE_OUT_WIDTH], done = (size_t)valid * out_width;
    for (size_t r = 0; r < (size_t)valid; r++)
        for (size_t c = 0; c < out_width; c++) {
            const uint32_t expected = gathered[(c / width * rows + r) * width + c % width];
            if (out[r * out_width + c] != expected)
                fail_msg("%s: row %zu, column %zu: expected %08x, found %08x", describe(p), r, c, expected,
                         out[r * out_width + c]);
        }
    assert_true(test_is_poison(out + done, (rows * out_width - done) * sizeof *out));
}

static void run(const int64_t *p)
{
    const int64_t rows = p[ALL_GATHER_DEVICE_ROWS];
    const size_t out_bytes = (size_t)(rows * p[ALL_GATHER_DEVICE_OUT_WIDTH]) * sizeof(float);
    struct test_kernel kernel;
    uint32_t *found = malloc(out_bytes);
    assert_non_null(found);
    test_kernel_open(&kernel, &device_all_gather_place, p);
    assert_int_equal(kernel.local_bytes, 0);
    struct test_device_buffer counts = test_device_buffer_new(2 * sizeof(int32_t));
    struct test_device_buffer from = test_device_buffer_new(all_gather_nccl_bytes(p, ALL_GATHER_CALL_GATHERED));
    struct test_device_buffer out = test_device_buffer_new(out_bytes);
    for (int round = 0; round < ROUNDS; round++) { /* all rows; some of them; none */
        const int64_t valid = round == 0 ? rows : round == 1 ? rows * 2 / 3 : 0;
        int32_t values[2] = {INT32_MAX, INT32_MAX};
        uint32_t *gathered = make_gathered(p, (uint64_t)round + 1);
        values[p[ALL_GATHER_DEVICE_COUNT_INDEX]] = (int32_t)valid;
        test_device_write(&counts, values, sizeof values);
        test_device_write(&from, gathered, from.bytes);
        test_device_buffer_poison(&out);
        const cu_deviceptr operands[ALL_GATHER_PLACE_OPERANDS] = {counts.data, from.data, out.data};
        test_kernel_run(&kernel, operands, ALL_GATHER_PLACE_OPERANDS, 0);
        test_device_read(&out, found, out_bytes);
        check_out(p, valid, gathered, found);
        free(gathered);
    }
    struct test_device_buffer *buffers[] = {&counts, &from, &out};
    for (int b = 0; b < 3; b++) {
        test_device_assert_intact(buffers[b], describe(p));
        test_device_buffer_free(buffers[b]);
    }
    test_kernel_close(&kernel);
    free(found);
}

static void run_trials(void)
{
    compile_trials();
    for (int t = 0; t < trial_count; t++) run(trials[t]);
    trial_count = 0;
}

/* All columns; the last rank's in part, down to one; the last ranks' not at all; of the first rank alone. */
static int64_t pick_out_width(int which, int64_t width, int64_t ranks)
{
    switch (which) {
    case 0: return ranks * width;
    case 1: return (ranks - 1) * width + (width + 1) / 2;
    case 2: return (ranks - 1) * width + 1;
    case 3: return (ranks - 1) * width;
    default: return (width + 2) / 3;
    }
}

TEST(places_every_column)
{
    TEST_NEEDS_DEVICE();
    static const int64_t widths[] = {1, 7, 64, 257, 3001}, ranks[] = {2, 3, 8, 16};
    static const int64_t threads[] = {256, 32, 96, 1024};
    const int step = test_comm_ranks_can_meet() ? 1 : 7; /* tools take long */
    trial_count = 0;
    for (int n = 0; n < 5 * 5; n += step)
        add_trial(1 + n * 7 % 20, widths[n % 5], pick_out_width(n / 5, widths[n % 5], ranks[(n + n / 5) % 4]),
                  ranks[(n + n / 5) % 4], threads[n % 4]);
    run_trials();
}

TEST(places_vocabularies)
{
    TEST_NEEDS_DEVICE();
    trial_count = 0;
    add_trial(5, 128256 / 8, 128256, 8, 256);
    add_trial(2, 19009, 152064 - 3, 8, 256);
    add_trial(64, 75968, 151936, 2, 256);
    run_trials();
}

int main(void) { return test_run(); }
