/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul with AMX: its bits, of which the contract says more than of other instruction sets. Without AMX they run on tile
 * registers in plain C. */
#include <math.h>

#include "kernels/matmul/test_matmul.h"

static struct team *team;
static struct test_random numbers = {1};

static void require_amx(enum encoding_id compute)
{
    if (!test_matmul_runs(CPU_AMX) || (compute == ENCODING_BF16 && !cpu_isa_supported(CPU_AVX512BF16))) skip();
}

static void open_launch(struct test_case *launch, int64_t rows, int64_t n, int64_t k, enum encoding_id encoding,
                        enum encoding_id compute, int epilogue)
{
    test_matmul_open(&numbers, launch, rows, n, k, encoding, epilogue, DTYPE_NONE, false);
    launch->params[MATMUL_COMPUTE_DTYPE] = compute;
    test_matmul_tunables(&numbers, launch);
}

static const int64_t row_counts[] = {1, 7, 15, 16, 17, 31, 32, 33, 48, 61, 130};
static const int64_t depths[] = {32, 33, 34, 63, 64, 100, 128, 300, 1024, 1030, 2100};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts, DEPTHS = sizeof depths / sizeof *depths };

/* Every encoding with a kernel, each with some rows and depths. */
static void for_problems(enum encoding_id compute, void (*check)(struct test_case *launch))
{
    require_amx(compute);
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        if (!panel_form(encoding_at(e)->id, &form)) continue;
        for (int i = 0; i < ROW_COUNTS * DEPTHS; i++) {
            const int64_t rows = row_counts[i % ROW_COUNTS], k = depths[i / ROW_COUNTS];
            const bool gated = i % 3 == 0;
            if ((i + (int)e) % 4 != 0 && rows * k > 32 * 128) continue;
            struct test_case launch;
            open_launch(&launch, rows, gated ? 64 : test_random_range(&numbers, 1, 100), k, encoding_at(e)->id, compute,
                        gated ? ACTIVATION_SILU : ACTIVATION_NONE);
            check(&launch);
            test_case_close(&launch);
        }
    }
}

static void assert_same_run(struct test_case *launch, const void *expected, const char *what)
{
    const int64_t *params = launch->params;
    if (memcmp(launch->call.operands[MATMUL_OUT], expected, launch->buffers[MATMUL_OUT].bytes) != 0)
        fail_msg("%s: other bits (rows %d n %d k %d dtype %s)", what, (int)params[MATMUL_ROWS], (int)params[MATMUL_N],
                 (int)params[MATMUL_K], encoding_label(params[MATMUL_DTYPE]));
}

static void *run_and_copy(struct test_case *launch, enum cpu_isa isa)
{
    const size_t bytes = launch->buffers[MATMUL_OUT].bytes;
    void *copy = malloc(bytes);
    assert_non_null(copy);
    test_matmul_run(launch, isa, team);
    memcpy(copy, launch->call.operands[MATMUL_OUT], bytes);
    return copy;
}

static void check_against_vnni(struct test_case *launch)
{
    void *expected = run_and_copy(launch, CPU_AVX512VNNI);
    test_matmul_tunables(&numbers, launch);
    test_matmul_run(launch, CPU_AMX, team);
    assert_same_run(launch, expected, "AMX and VNNI");
    free(expected);
}

/* Sums of a block of 32 are integers, and the same float32 operations follow. */
TEST(int8_gives_the_bits_of_vnni) { for_problems(ENCODING_INT8_G32, check_against_vnni); }

static void check_against_plain_c(struct test_case *launch)
{
    void *expected = run_and_copy(launch, CPU_AMX);
    struct op_descriptor plain = op_matmul;
#if defined(__x86_64__)
    plain.run[CPU_AMX] = test_matmul_run_emulated;
#endif
    test_buffer_poison(&launch->buffers[MATMUL_OUT]);
    test_run_on(team, &plain, CPU_AMX, &launch->call);
    assert_same_run(launch, expected, "the processor's tile registers and those in plain C");
    free(expected);
}

/* On processors with AMX. */
TEST(plain_c_gives_the_bits_of_the_processor)
{
    if (!cpu_isa_supported(CPU_AMX)) skip();
    for_problems(ENCODING_BF16, check_against_plain_c);
    for_problems(ENCODING_INT8_G32, check_against_plain_c);
}

/* The contract's order of additions for BF16 weights: even and odd k of each 32 apart, then both, then the sum so far. */
static float sum_as_amx(const float *x, const float *weights, int64_t k)
{
    float sum = 0;
    for (int64_t first = 0; first < k; first += 32) {
        float chains[2] = {0, 0};
        for (int64_t i = first; i < first + 32 && i < k; i++) chains[i % 2] = fmaf(x[i], weights[i], chains[i % 2]);
        sum += chains[0] + chains[1];
    }
    return sum;
}

TEST(order_of_additions)
{
    enum { N = 70 };
    require_amx(ENCODING_BF16);
    for (int d = 0; d < DEPTHS; d++) {
        const int64_t k = depths[d], rows = row_counts[d % ROW_COUNTS];
        struct test_case launch;
        open_launch(&launch, rows, N, k, ENCODING_BF16, ENCODING_BF16, ACTIVATION_NONE);
        const float *out = launch.call.operands[MATMUL_OUT], *x = launch.call.operands[MATMUL_X];
        float *weights = malloc((size_t)k * sizeof *weights), *rounded = malloc((size_t)k * sizeof *rounded);
        struct panel_form form;
        assert_true(weights && rounded && panel_form(ENCODING_BF16, &form));
        test_matmul_run(&launch, CPU_AMX, team);
        for (uint64_t n = 0; n < N; n++) {
            panel_read(&form, launch.call.operands[MATMUL_W], n, (uint64_t)k, 0, (uint64_t)k, weights);
            for (int64_t row = 0; row < rows; row++) {
                matmul_round(x + row * k, k, ENCODING_BF16, rounded);
                const float expected = sum_as_amx(rounded, weights, k), found = out[row * N + (int64_t)n];
                if (float_to_bits(expected) != float_to_bits(found))
                    fail_msg("[%d, %d] of k %d: %.9g, expected %.9g", (int)row, (int)n, (int)k, (double)found,
                             (double)expected);
            }
        }
        free(weights);
        free(rounded);
        test_case_close(&launch);
    }
}

/* Numbers that are not finite reach their row and no other, also past the padding of K and of rows; subnormal ones are zero. */
TEST(special_values)
{
    enum { ROWS = 37, N = 48, K = 77 };
    require_amx(ENCODING_BF16);
    struct test_case launch;
    open_launch(&launch, ROWS, N, K, ENCODING_BF16, ENCODING_BF16, ACTIVATION_NONE);
    const float *out = launch.call.operands[MATMUL_OUT];
    float *x = launch.call.operands[MATMUL_X];
    uint16_t *weights = launch.call.operands[MATMUL_W];
    for (uint64_t n = 0; n < N; n++)
        for (uint64_t k = 0; k < K; k++)
            weights[panel_index(n, k, panel_depth(K, DTYPE_BF16), DTYPE_BF16)] =
                bf16_from_float(n == 3 ? 0x1p-130f : 2);
    memset(x, 0, ROWS * K * sizeof *x);
    x[0 * K + 5] = INFINITY;
    x[1 * K + 76] = NAN;
    x[2 * K + 40] = -INFINITY;
    x[3 * K + 7] = 0x1p-130f;   /* subnormal */
    x[4 * K + 8] = 0x1p-126f;   /* the smallest normal number */
    x[5 * K + 9] = 0x1.fep127f; /* the largest bf16 */
    x[6 * K + 9] = 1;
    x[36 * K + 76] = 3;
    for (int repeat = 0; repeat < 8; repeat++) {
        test_matmul_tunables(&numbers, &launch);
        test_matmul_run(&launch, CPU_AMX, team);
        for (int n = 0; n < N; n++) {
            const bool subnormal = n == 3; /* the weights: zero, which makes NaN of infinity */
            assert_true(subnormal ? isnan(out[n]) : out[n] == INFINITY);
            assert_true(isnan(out[1 * N + n]));
            assert_true(subnormal ? isnan(out[2 * N + n]) : out[2 * N + n] == -INFINITY);
            assert_true(out[3 * N + n] == 0);
            assert_true(out[4 * N + n] == (subnormal ? 0 : 0x1p-125f));
            assert_true(out[5 * N + n] == (subnormal ? 0 : INFINITY));
            assert_true(out[6 * N + n] == (subnormal ? 0 : 2));
            assert_true(out[7 * N + n] == 0);
            assert_true(out[36 * N + n] == (subnormal ? 0 : 6));
        }
    }
    test_case_close(&launch);
}

#if defined(__x86_64__)
/* State components that are not in their initial state (Intel SDM volume 1, chapter 13.6). */
static uint64_t states_in_use(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    return (uint64_t)high << 32 | low;
}

/* Tile registers in use would be saved at every switch of threads. */
TEST(tile_registers_are_released)
{
    enum { TILES = 0x60000 };
    if (!cpu_isa_supported(CPU_AMX)) skip(); /* in plain C test_matmul_run_emulated checks it */
    struct team *own = team_create(1, NULL);
    struct test_case launch;
    open_launch(&launch, 40, 64, 300, ENCODING_BF16, ENCODING_BF16, ACTIVATION_NONE);
    assert_non_null(own);
    launch.params[MATMUL_THREADS] = 0;
    test_matmul_run(&launch, CPU_AMX, own);
    assert_int_equal(states_in_use() & TILES, 0);
    test_case_close(&launch);
    team_destroy(own);
}
#endif

int main(void)
{
    struct status status;
    team = team_create(TEST_MATMUL_THREADS, &status);
    if (!team) {
        fprintf(stderr, "%s\n", status.message);
        return 1;
    }
    const int failed = test_run();
    team_destroy(team);
    return failed;
}
