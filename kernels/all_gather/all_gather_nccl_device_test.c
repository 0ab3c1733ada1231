/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather_place on a GPU: bit for bit, out of what NCCL would leave. What needs no GPU: all_gather_nccl_test.c. */
#include "kernels/all_gather/all_gather_nccl.h"

#include "kernels/cuda/test_comm.h"
#include "kernels/cuda/test_launch.h"

enum { ROUNDS = 3 };

static struct test_variants variants;

static void add_trial(int64_t rows, int64_t width, int64_t out_width, int64_t ranks, int64_t threads)
{
    const int64_t params[ALL_GATHER_PLACE_PARAMS] = {rows, variants.count % 2, width, out_width, ranks, threads};
    test_variants_add(&variants, &device_all_gather_place, params);
}

static void check_out(const int64_t *p, int64_t valid, const uint32_t *gathered, const uint32_t *out)
{
    const size_t rows = (size_t)p[ALL_GATHER_ROWS], width = (size_t)p[ALL_GATHER_WIDTH];
    const size_t out_width = (size_t)p[ALL_GATHER_OUT_WIDTH];
    for (size_t r = 0; r < (size_t)valid; r++)
        for (size_t c = 0; c < out_width; c++) {
            const uint32_t expected = gathered[(c / width * rows + r) * width + c % width];
            if (out[r * out_width + c] != expected)
                fail_msg("%s: row %zu, column %zu: expected %08x, found %08x",
                         test_describe(&device_all_gather_place, p), r, c, expected, out[r * out_width + c]);
        }
}

static void run(const int64_t *p)
{
    const int64_t rows = p[ALL_GATHER_ROWS];
    struct test_launch launch;
    test_launch_open(&launch, &device_all_gather_place, p, rows);
    uint32_t *gathered = launch.host[ALL_GATHER_PLACE_GATHERED];
    const size_t cells = test_launch_count(&launch, ALL_GATHER_PLACE_GATHERED);
    for (int round = 0; round < ROUNDS; round++) { /* all rows; some of them; none */
        struct test_random random = {2 * (uint64_t)round + 3};
        test_launch_set_valid(&launch, round == 0 ? rows : round == 1 ? rows * 2 / 3 : 0);
        /* Any bits; in rows that are not valid, too, so that they are seen where they are placed. */
        for (size_t i = 0; i < cells; i++) gathered[i] = (uint32_t)(test_random_bits(&random) >> 32);
        test_launch_run(&launch);
        check_out(p, launch.valid, gathered, launch.found[ALL_GATHER_PLACE_OUT]);
        test_launch_assert_rows_untouched(&launch, ALL_GATHER_PLACE_OUT);
    }
    test_launch_close(&launch);
}

static void run_trials(void)
{
    test_variants_compile(&variants);
    for (int t = 0; t < variants.count; t++) run(variants.params[t]);
    variants.count = 0;
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
    for (int n = 0; n < 5 * 5; n += step)
        add_trial(1 + n * 7 % 20, widths[n % 5], pick_out_width(n / 5, widths[n % 5], ranks[(n + n / 5) % 4]),
                  ranks[(n + n / 5) % 4], threads[n % 4]);
    run_trials();
}

TEST(places_vocabularies)
{
    TEST_NEEDS_DEVICE();
    add_trial(5, 128256 / 8, 128256, 8, 256);
    add_trial(2, 19009, 152064 - 3, 8, 256);
    add_trial(64, 75968, 151936, 2, 256);
    run_trials();
}

int main(void) { return test_run(); }
