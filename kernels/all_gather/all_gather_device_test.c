/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather on GPUs: bit for bit, but that a word of COMM_EMPTY becomes another NaN. */
#include "kernels/all_gather/all_gather.h"

#include "kernels/cuda/test_comm.h"
#include "kernels/cuda/test_launch.h"

enum { MOST_CANDIDATES = 16, MOST_TRIALS = 256 };
#define EMPTY       UINT32_C(0xffffffff)
#define EMPTY_CLEAN UINT32_C(0x7fffffff)

struct trial {
    int64_t params[PLAN_MAX_PARAMS];
    int64_t valid;
};
static struct trial trials[MOST_TRIALS];
static struct test_variants variants;

static void add_trials(int64_t rows, int64_t valid, int64_t width, int64_t out_width, int64_t ranks, int most)
{
    int64_t candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    const int64_t params[PLAN_MAX_PARAMS] = {rows, 1, width, out_width, ranks};
    int count = device_all_gather.candidates(params, &test_device()->device.facts, candidates,
                                             most < MOST_CANDIDATES ? most : MOST_CANDIDATES);
    assert_in_range(count, 1, most);
    for (int c = 0; c < count; c++) {
        const int added = test_variants_add(&variants, &device_all_gather, candidates[c]);
        assert_in_range(added, 0, MOST_TRIALS - 1);
        trials[added].valid = valid;
        memcpy(trials[added].params, candidates[c], sizeof candidates[c]);
    }
}

/* Any bits, now and then COMM_EMPTY; rows that are not valid are poison. */
static uint32_t *make_x(const struct trial *trial, uint64_t seed)
{
    const size_t width = (size_t)trial->params[ALL_GATHER_WIDTH], valid = (size_t)trial->valid * width;
    const size_t cells = (size_t)trial->params[ALL_GATHER_ROWS] * width;
    struct test_random random = {seed * 2 + 1};
    uint32_t *x = malloc(cells * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < cells; i++) {
        uint32_t bits = (uint32_t)(test_random_bits(&random) >> 32);
        x[i] = i >= valid || bits % 101 == 0 ? EMPTY : bits;
    }
    return x;
}

/* Input of rank k. With one x a rank exchanges with itself and has all of them. */
static void check_out(const struct trial *trial, uint32_t *const *x, int count, const uint32_t *out)
{
    const size_t width = (size_t)trial->params[ALL_GATHER_WIDTH];
    const size_t out_width = (size_t)trial->params[ALL_GATHER_OUT_WIDTH];
    for (size_t r = 0; r < (size_t)trial->valid; r++)
        for (size_t c = 0; c < out_width; c++) {
            uint32_t expected = x[count > 1 ? c / width : 0][r * width + c % width], found = out[r * out_width + c];
            if (expected == EMPTY) expected = EMPTY_CLEAN;
            if (found != expected)
                fail_msg("%s: row %zu, column %zu: expected %08x, found %08x",
                         test_describe(&device_all_gather, trial->params), r, c, expected, found);
        }
    const size_t done = (size_t)trial->valid * out_width;
    const size_t all = (size_t)trial->params[ALL_GATHER_ROWS] * out_width;
    assert_true(test_is_poison(out + done, (all - done) * sizeof *out));
}

static size_t exchange_bytes(const struct trial *trial)
{
    const int64_t *p = trial->params;
    uint64_t bytes;
    assert_true(all_gather_buffer_bytes((uint64_t)p[ALL_GATHER_ROWS], (uint64_t)p[ALL_GATHER_WIDTH],
                                        (uint64_t)p[ALL_GATHER_RANKS], &bytes));
    return (size_t)bytes;
}

static size_t cells_of(const struct trial *trial, int width)
{
    return (size_t)(trial->params[ALL_GATHER_ROWS] * trial->params[width]);
}

static void run_alone(const struct trial *trial)
{
    struct test_launch launch;
    struct test_comm comm;
    test_launch_open(&launch, &device_all_gather, trial->params, trial->valid);
    test_comm_open_alone(&comm, (int)trial->params[ALL_GATHER_RANKS], exchange_bytes(trial));
    launch.addresses[ALL_GATHER_HEADER] = test_comm_header(&comm, 0);
    for (int round = 0; round < 4; round++) {
        uint32_t *own = make_x(trial, (uint64_t)round + 1);
        memcpy(launch.host[ALL_GATHER_X], own, launch.device[ALL_GATHER_X].bytes);
        launch.addresses[ALL_GATHER_BUFFER] = test_comm_buffer(&comm, 0, round % TEST_COMM_BUFFERS);
        test_launch_run(&launch);
        test_comm_assert_done(&comm, test_describe(&device_all_gather, trial->params));
        check_out(trial, &own, 1, launch.found[ALL_GATHER_OUT]);
        free(own);
    }
    test_comm_close(&comm);
    test_launch_close(&launch);
}

/* All columns; the last rank's in part; the last ranks' not at all; of the first rank alone. */
static int64_t pick_out_width(struct test_random *random, int which, int64_t width, int64_t ranks)
{
    switch (which % 4) {
    case 0: return ranks * width;
    case 1: return ranks * width - test_random_range(random, 0, width - 1);
    case 2: return test_random_range(random, 1, ranks * width);
    default: return test_random_range(random, 1, width);
    }
}

TEST(alone_equals_reference)
{
    TEST_NEEDS_DEVICE();
    static const int64_t ranks[] = {2, 3, 4, 8, 16}, widths[] = {1, 7, 64, 3001, 4096};
    struct test_random random = {5};
    const int step = test_comm_ranks_can_meet() ? 1 : 5; /* tools take long */
    for (int n = 0; n < 25; n += step) {
        int64_t rows = test_random_range(&random, 1, 20), width = widths[n % 5];
        add_trials(rows, n % 4 ? test_random_range(&random, 0, rows) : rows, width,
                   pick_out_width(&random, n, width, ranks[n / 5]), ranks[n / 5], 1);
    }
    add_trials(5, 5, 128256 / 8, 128256, 8, step == 1 ? MOST_CANDIDATES : 1);
    add_trials(2, 2, 19009, 152064 - 3, 8, 1); /* rows do not begin at vectors */
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) run_alone(&trials[t]);
    variants.count = 0;
}

/* ---- several ranks ---- */

enum { SETS = 4 };

/* launches 0: one at a time, each looked at; else so many in a graph, and `replays` of it, of which the last results
 * are looked at. */
static void run_ranks(const struct trial *trial, int gpus, int launches, int replays)
{
    const int ranks = (int)trial->params[ALL_GATHER_RANKS];
    const size_t x_bytes = 4 * cells_of(trial, ALL_GATHER_WIDTH);
    const size_t out_bytes = 4 * cells_of(trial, ALL_GATHER_OUT_WIDTH);
    const int32_t counts[2] = {INT32_MAX, (int32_t)trial->valid};
    cu_deviceptr operands[PLAN_MAX_RANKS][SETS][ALL_GATHER_OPERANDS];
    uint32_t *x[SETS][PLAN_MAX_RANKS], *found = malloc(out_bytes);
    cu_graph_exec execs[PLAN_MAX_RANKS];
    struct test_kernel kernel;
    struct test_comm comm;
    struct test_comm_kernel bound;
    assert_non_null(found);
    test_kernel_open(&kernel, &device_all_gather, trial->params);
    test_comm_open(&comm, ranks, gpus, exchange_bytes(trial), 0);
    test_comm_kernel_open(&comm, &bound, &kernel);
    for (int r = 0; r < ranks; r++) {
        cu_deviceptr count = test_comm_memory(&comm, r, counts, sizeof counts);
        for (int s = 0; s < SETS; s++) {
            x[s][r] = make_x(trial, (uint64_t)(100 * s + r + 1));
            const cu_deviceptr set[] = {count, test_comm_memory(&comm, r, x[s][r], x_bytes), test_comm_header(&comm, r),
                                        test_comm_buffer(&comm, r, s % TEST_COMM_BUFFERS),
                                        test_comm_memory(&comm, r, NULL, out_bytes)};
            memcpy(operands[r][s], set, sizeof set);
        }
        if (launches) execs[r] = test_comm_graph(&comm, r, &bound, operands[r][0], SETS, ALL_GATHER_OPERANDS, launches);
    }
    for (int i = 0; i < (launches ? replays : SETS); i++)
        for (int n = 0; n < ranks; n++) {
            int r = (n + i) % ranks;
            if (launches)
                test_comm_replay(&comm, r, execs[r]);
            else
                test_comm_launch(&comm, r, &bound, operands[r][i], ALL_GATHER_OPERANDS);
        }
    test_comm_wait(&comm);
    test_comm_assert_done(&comm, test_describe(&device_all_gather, trial->params));
    for (int r = 0; r < ranks; r++)
        for (int s = 0; s < SETS; s++) {
            test_comm_read(&comm, r, operands[r][s][ALL_GATHER_OUT], found, out_bytes);
            check_out(trial, x[s], ranks, found);
        }
    for (int r = 0; r < ranks; r++) {
        for (int s = 0; s < SETS; s++) free(x[s][r]);
        if (launches) test_comm_graph_free(&comm, r, execs[r]);
    }
    test_comm_close(&comm);
    test_kernel_close(&kernel);
    free(found);
}

/* The ranks' blocks are so few that all of them run side by side. */
TEST(ranks_on_one_gpu)
{
    TEST_NEEDS_DEVICE();
    if (!test_comm_ranks_can_meet()) skip();
    for (int64_t ranks = 2; ranks <= 4; ranks++) {
        add_trials(3, 2, 1500, ranks * 1500, ranks, 1);
        add_trials(2, 2, 77, ranks * 77 - 5, ranks, 1);
    }
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) {
        run_ranks(&trials[t], 1, 0, 0);
        run_ranks(&trials[t], 1, 20, 50);
    }
    variants.count = 0;
}

TEST(several_gpus)
{
    TEST_NEEDS_DEVICE();
    if (!test_comm_ranks_can_meet() || test_comm_gpus() < 2) skip();
    for (int gpus = 2; gpus <= test_comm_gpus(); gpus *= 2) {
        add_trials(1, 1, 128256 / gpus, 128256, gpus, 2);
        add_trials(32, 27, 128256 / gpus, 128256, gpus, 1); /* more blocks than run at once */
        add_trials(3, 2, 3001, 3001 * gpus - 7, gpus, 1);
        test_variants_compile(&variants);
        for (int t = 0; t < variants.count; t++) {
            run_ranks(&trials[t], gpus, 0, 0);
            run_ranks(&trials[t], gpus, 100, 20);
        }
        variants.count = 0;
    }
}

/* ---- without a GPU ---- */

TEST(hostile_params_are_refused)
{
    const int64_t params[ALL_GATHER_DEVICE_PARAMS] = {4, 1, 64, 250, 4, 256};
    int64_t candidates[MOST_CANDIDATES][PLAN_MAX_PARAMS];
    const struct device_facts facts = test_facts(90);
    uint64_t bytes;
    test_hostile_launches(&device_all_gather, params);
    test_launch_refuses(&device_all_gather, params,
                        TEST_CHANGES({ALL_GATHER_ROWS, 0}, {ALL_GATHER_COUNT_INDEX, -1},
                                     {ALL_GATHER_WIDTH, 62} /* 248 columns in all */, {ALL_GATHER_OUT_WIDTH, 0},
                                     {ALL_GATHER_OUT_WIDTH, 257}, {ALL_GATHER_RANKS, 1},
                                     {ALL_GATHER_RANKS, PLAN_MAX_RANKS + 1}, {ALL_GATHER_DEVICE_THREADS, 48},
                                     {ALL_GATHER_DEVICE_THREADS, 1056}));
    assert_in_range(device_all_gather.candidates(params, &facts, candidates, MOST_CANDIDATES), 1, MOST_CANDIDATES);
    assert_int_equal(device_all_gather.candidates(params, &facts, candidates, 1), 1);
    assert_true(all_gather_buffer_bytes(3, 5, 2, &bytes));
    assert_int_equal(bytes, 3 * 5 * 2 * 4);
    assert_false(all_gather_buffer_bytes(UINT64_C(1) << 32, UINT64_C(1) << 30, 2, &bytes));
}

int main(void) { return test_run(); }
