/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of matmul: packing, every instruction set against the reference, bits that do not depend on how the work is
 * cut up, refusal of hostile parameters. */
#include <math.h>

#include "formats/encoding/encoding.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/test_coded.h"
#include "kernels/matmul/test_matmul.h"

enum { THREADS = TEST_MATMUL_THREADS };

/* Every so many of the cases of large products run under a sanitizer. */
#ifdef __SANITIZE_ADDRESS__
enum { SAMPLE = 3 };
#else
enum { SAMPLE = 1 };
#endif

static struct team *team, *single; /* THREADS members, 1 member */
static struct test_random numbers = {1};

static int64_t random_below(int64_t limit) { return test_random_range(&numbers, 0, limit - 1); }

static int64_t out_columns(const struct test_case *launch)
{
    return matmul_is_gated(launch->params) ? launch->params[MATMUL_N] / 2 : launch->params[MATMUL_N];
}

/* Largest |out| error relative to `scale`, which bounds the sum of magnitudes of the products. */
static void compare(const struct test_case *launch, const float *expected, enum cpu_isa isa, int64_t valid_rows)
{
    const int64_t *params = launch->params;
    int64_t columns = out_columns(launch), k_count = params[MATMUL_K];
    struct panel_form form;
    float *weights = malloc((size_t)k_count * sizeof(float));
    assert_non_null(weights);
    assert_true(panel_form(params[MATMUL_DTYPE], &form));
    const float *out = launch->call.operands[MATMUL_OUT], *x = launch->call.operands[MATMUL_X];
    bool gated = matmul_is_gated(params);
    /* The hi/lo split alone costs 2^-16; the chain of k additions some more, with signs at random. Sums of codes with a zero
     * point lose what the zero point takes from them. */
    const bool zeros = encoding_find(params[MATMUL_DTYPE])->zeros;
    double relative =
        (zeros ? 4e-6 : 0) +
        (isa >= CPU_AVX512BF16 && (params[MATMUL_DTYPE] == DTYPE_BF16 || encoding_find(params[MATMUL_DTYPE])->bits == 4)
             ? 0x1p-16
             : 0) +
        2e-6;
    for (int64_t row = 0; row < params[MATMUL_ROWS]; row++) {
        for (int64_t column = 0; column < columns; column++) {
            float value = out[row * columns + column];
            if (row >= valid_rows) {
                assert_int_equal(float_to_bits(value), 0xffffffffu);
                continue;
            }
            double scale = 0;
            int64_t n = gated ? column / PANEL_ROWS * 2 * PANEL_ROWS + column % PANEL_ROWS : column;
            for (int half = 0; half <= (gated ? 1 : 0); half++) {
                double sum = 2; /* bias and residual */
                panel_read(&form, launch->call.operands[MATMUL_W], (uint64_t)(n + half * PANEL_ROWS), (uint64_t)k_count,
                           0, (uint64_t)k_count, weights);
                for (int64_t k = 0; k < k_count; k++) sum += fabs((double)x[row * k_count + k] * (double)weights[k]);
                if (half == 0 && matmul_activation(params) == ACTIVATION_RELU2) sum *= 1.5 * sum; /* d g^2 = 2 g dg */
                scale = half == 0 ? sum : scale * sum; /* |d silu(g) u| <= 1.1 |dg| |u| + |g| |du| */
            }
            double error = fabs((double)value - (double)expected[row * columns + column]);
            if (!(error <= 2.2 * relative * scale))
                fail_msg("%s: [%d, %d] is %.9g, expected %.9g, error %.3g of %.3g (rows %d n %d k %d dtype %d)",
                         cpu_isa_name(isa), (int)row, (int)column, (double)value,
                         (double)expected[row * columns + column], error, 2.2 * relative * scale,
                         (int)params[MATMUL_ROWS], (int)params[MATMUL_N], (int)k_count, (int)params[MATMUL_DTYPE]);
        }
    }
    free(weights);
}

static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

TEST(test_pack)
{
    static const uint64_t depths[] = {1, 2, 3, 8, 31, 32, 33, 64, 100, 172, 515};
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
        for (int t = 0; t < 3; t++) {
            uint64_t k = depths[d], element = dtype_bytes(dtypes[t]), depth = panel_depth(k, dtypes[t]);
            size_t bytes = panel_bytes(k, dtypes[t]);
            /* Rows at odd addresses, each in a block of its own so that reading beyond one shows. */
            unsigned char *rows[PANEL_ROWS];
            const void *pointers[PANEL_ROWS];
            for (int i = 0; i < PANEL_ROWS; i++) {
                rows[i] = malloc(k * element + 1);
                assert_non_null(rows[i]);
                for (size_t j = 0; j < k * element + 1; j++) rows[i][j] = (unsigned char)test_random_bits(&numbers);
                pointers[i] = (i + (int)d) % 7 == 3 ? NULL : rows[i] + 1;
            }
            struct test_buffer out = test_buffer_new(bytes);
            unsigned char *expected = calloc(bytes, 1);
            assert_non_null(expected);
            panel_pack(pointers, k, dtypes[t], out.data);
            for (uint64_t i = 0; i < PANEL_ROWS; i++)
                for (uint64_t j = 0; j < k && pointers[i]; j++)
                    memcpy(expected + panel_index(i, j, depth, dtypes[t]) * element,
                           (const unsigned char *)pointers[i] + j * element, element);
            assert_memory_equal(out.data, expected, bytes);
            test_buffer_assert_intact(&out, "panels");
            test_buffer_free(&out);
            free(expected);
            for (int i = 0; i < PANEL_ROWS; i++) free(rows[i]);
        }
    }
}

/* One problem on every instruction set with several tunables: close to the reference, and equal bits. */
static void check_problem(int64_t rows, int64_t n, int64_t k, enum encoding_id encoding, int epilogue,
                          enum dtype bias_dtype, bool residual)
{
    struct test_case launch;
    test_matmul_open(&numbers, &launch, rows, n, k, encoding, epilogue, bias_dtype, residual);
    if (!matmul_is_gated(launch.params) && random_below(2)) launch.params[MATMUL_SCALE_BITS] = test_float_bits(0.22f);
    static const enum encoding_id computes[] = {ENCODING_BF16, ENCODING_INT8_G32};
    if (random_below(3) == 0) launch.params[MATMUL_COMPUTE_DTYPE] = computes[random_below(2)];
    int64_t valid_rows = random_below(4) == 0 ? random_below(rows + 1) : rows;
    test_matmul_set_rows(&launch, valid_rows);
    size_t out_bytes = launch.buffers[MATMUL_OUT].bytes;
    float *out = launch.call.operands[MATMUL_OUT];
    float *expected = malloc(out_bytes), *first = malloc(out_bytes);
    assert_non_null(expected);
    assert_non_null(first);
    memset(out, 0xff, out_bytes);
    op_matmul.reference(&launch.call);
    memcpy(expected, out, out_bytes);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!test_matmul_runs((enum cpu_isa)isa)) continue;
        for (int repeat = 0; repeat < 4; repeat++) {
            test_matmul_tunables(&numbers, &launch);
            test_matmul_run(&launch, (enum cpu_isa)isa, team);
            if (repeat == 0) {
                compare(&launch, expected, (enum cpu_isa)isa, valid_rows);
                memcpy(first, out, out_bytes);
            }
            assert_memory_equal(out, first, out_bytes);
        }
    }
    free(expected);
    free(first);
    test_case_close(&launch);
}

TEST(test_shapes)
{
    static const int64_t depths[] = {1, 2, 3, 31, 33, 64, 65, 172, 700};
    static const int64_t widths[] = {1, 15, 16, 17, 48, 100, 130};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 33, 130};
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
                if (rows[r] * widths[w] * depths[d] > 1000000) continue;
                enum dtype bias_dtype = random_below(2) ? dtypes[random_below(3)] : DTYPE_NONE;
                check_problem(rows[r], widths[w], depths[d], (enum encoding_id)dtypes[(d + w + r) % 3], ACTIVATION_NONE,
                              bias_dtype, random_below(2) != 0);
            }
    check_problem(70, 512, 172, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, false);
    check_problem(2, 33, 9001, ENCODING_BF16, ACTIVATION_NONE, DTYPE_BF16,
                  true); /* more than a private preparation holds */
}

TEST(test_gated)
{
    static const int64_t depths[] = {1, 3, 33, 64, 172, 333};
    static const int64_t rows[] = {1, 2, 3, 5, 6, 13, 70};
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (int t = 3 * ACTIVATION_SILU; t < 3 * ACTIVATION_COUNT; t++)
                if (t / 3 != ACTIVATION_SOFTCAP)
                    check_problem(rows[r], 32 * (1 + random_below(7)), depths[d], (enum encoding_id)dtypes[t % 3],
                                  t / 3, random_below(2) ? dtypes[random_below(3)] : DTYPE_NONE, false);
}

TEST(test_activations_without_gate)
{
    static const int64_t depths[] = {1, 33, 172}, rows[] = {1, 5, 70};
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (int t = 3 * ACTIVATION_SILU; t < 3 * ACTIVATION_COUNT; t++)
                if (t / 3 != ACTIVATION_CLAMPED)
                    check_problem(rows[r], 1 + random_below(100), depths[d], (enum encoding_id)dtypes[t % 3],
                                  EPILOGUE_PLAIN + t / 3, random_below(2) ? dtypes[random_below(3)] : DTYPE_NONE,
                                  false);
}

/* What panels say is what was packed, and padding is zeros. */
static void check_packing(bool (*make_form)(int64_t encoding, struct panel_form *form),
                          uint64_t (*panel_size)(uint64_t k, int64_t encoding))
{
    static const uint64_t depths[] = {1, 7, 8, 31, 33, 128, 129, 200, 515, 1100};
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        const enum encoding_id encoding = encoding_at(e)->id;
        if (encoding_is_plain(encoding) || !make_form(encoding, &form)) continue;
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
            enum { ROWS = 21 };
            const uint64_t k = depths[d], panels = panel_count(ROWS) * panel_size(k, encoding);
            struct test_memory memory = {0};
            struct test_buffer packed = test_buffer_new(panels);
            float *expected = test_take(&memory, ROWS * k * sizeof(float)),
                  *found = test_take(&memory, k * sizeof(float));
            struct coded_row row;
            test_coded_row_open(&memory, k, &row);
            memset(packed.data, 0, panels);
            for (uint64_t n = 0; n < ROWS; n++) {
                test_coded_row(&numbers, &form, k, &row, expected + n * k);
                panel_pack_coded(&form, &row, n % PANEL_ROWS, k,
                                 packed.data + n / PANEL_ROWS * panel_size(k, encoding));
            }
            for (uint64_t n = 0; n < panel_count(ROWS) * PANEL_ROWS; n++) {
                const uint64_t first = (uint64_t)random_below((int64_t)k); /* a read may begin anywhere */
                panel_read(&form, packed.data, n, k, first, k - first, found);
                for (uint64_t i = first; i < k; i++) {
                    const double wanted = n < ROWS ? (double)expected[n * k + i] : 0;
                    if (!(fabs((double)found[i - first] - wanted) <= 1e-6 * fabs(wanted)))
                        fail_msg("%s: [%d, %d] of %d is %g, expected %g", encoding_name(encoding), (int)n, (int)i,
                                 (int)k, (double)found[i - first], wanted);
                }
            }
            test_buffer_assert_intact(&packed, "panels");
            test_buffer_free(&packed);
            test_release(&memory);
        }
    }
}

TEST(test_coded_panels) { check_packing(panel_form, panel_bytes); }

TEST(test_fragments)
{
    struct panel_form form, panels;
    check_packing(fragment_form, fragment_bytes);
    for (size_t e = 0; encoding_at(e); e++) {
        const struct encoding *encoding = encoding_at(e);
        const bool has = fragment_form(encoding->id, &form);
        assert_int_equal(has, !encoding_is_plain(encoding->id) && panel_form(encoding->id, &panels));
        if (!has) continue;
        assert_int_equal(form.group, encoding->block_columns);
        assert_int_equal(form.k_bytes, PANEL_ROWS * encoding->bits / 8);
        assert_int_equal(form.factor_bytes, panels.factor_bytes);
        const uint32_t codes = 128 * form.k_bytes, scales = form.span_groups * form.scale_bytes;
        assert_int_equal(form.head_bytes, scales + (encoding->zeros ? form.span_groups * PANEL_ROWS : 0));
        assert_int_equal(fragment_bytes(129, encoding->id), form.factor_bytes + 2 * (codes + form.head_bytes));
    }
    assert_int_equal(fragment_bytes(128, ENCODING_BF16), 0);
    assert_int_equal(fragment_bytes(128, 99), 0);
}

TEST(test_coded)
{
    static const int64_t depths[] = {1, 9, 32, 100, 128, 300, 1030};
    static const int64_t rows[] = {1, 2, 3, 6, 13, 40};
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        const enum encoding_id encoding = encoding_at(e)->id;
        if (encoding_is_plain(encoding) || !panel_form(encoding, &form)) continue;
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
            for (size_t r = (e + d) % SAMPLE; r < sizeof rows / sizeof *rows; r += SAMPLE) {
                const bool gated = random_below(3) == 0;
                check_problem(rows[r], gated ? 64 : 1 + random_below(100), depths[d], encoding,
                              gated ? ACTIVATION_SILU : ACTIVATION_NONE, random_below(2) ? DTYPE_F32 : DTYPE_NONE,
                              !gated && random_below(2));
            }
    }
}

/* A row alone gives the bits that it gives in a batch, which is large enough for a shared preparation. */
TEST(test_row_alone)
{
    enum { ROWS = 61, N = 80, K = 203, COMPUTES = 3 };
    static const enum encoding_id computes[COMPUTES] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    for (size_t i = 0; encoding_at(i / COMPUTES); i++) {
        struct panel_form form;
        const enum encoding_id encoding = encoding_at(i / COMPUTES)->id;
        struct test_case batch, alone;
        if (!panel_form(encoding, &form)) continue;
        test_matmul_open(&numbers, &batch, ROWS, N, K, encoding, ACTIVATION_NONE, DTYPE_F32, false);
        test_matmul_open(&numbers, &alone, 1, N, K, encoding, ACTIVATION_NONE, DTYPE_F32, false);
        batch.params[MATMUL_COMPUTE_DTYPE] = alone.params[MATMUL_COMPUTE_DTYPE] = computes[i % COMPUTES];
        memcpy(alone.call.operands[MATMUL_W], batch.call.operands[MATMUL_W], batch.buffers[MATMUL_W].bytes);
        memcpy(alone.call.operands[MATMUL_BIAS], batch.call.operands[MATMUL_BIAS], N * sizeof(float));
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!test_matmul_runs((enum cpu_isa)isa)) continue;
            test_matmul_tunables(&numbers, &batch);
            test_matmul_run(&batch, (enum cpu_isa)isa, team);
            for (int64_t row = 0; row < ROWS; row += SAMPLE) {
                memcpy(alone.call.operands[MATMUL_X], (const float *)batch.call.operands[MATMUL_X] + row * K,
                       K * sizeof(float));
                test_matmul_tunables(&numbers, &alone);
                test_matmul_run(&alone, (enum cpu_isa)isa, row % 2 ? single : team);
                assert_memory_equal(alone.call.operands[MATMUL_OUT],
                                    (const float *)batch.call.operands[MATMUL_OUT] + row * N, N * sizeof(float));
            }
        }
        test_case_close(&batch);
        test_case_close(&alone);
    }
}

/* Activations are rounded to bf16 in every instruction set: rounding them beforehand changes nothing. */
TEST(test_rounded_activations)
{
    enum { ROWS = 7, N = 50, K = 301 };
    for (size_t e = 0; encoding_at(e); e++) {
        struct panel_form form;
        struct test_case launch;
        if (!panel_form(encoding_at(e)->id, &form)) continue;
        test_matmul_open(&numbers, &launch, ROWS, N, K, encoding_at(e)->id, ACTIVATION_NONE, DTYPE_NONE, false);
        const size_t bytes = launch.buffers[MATMUL_OUT].bytes;
        float *x = launch.call.operands[MATMUL_X], *out = launch.call.operands[MATMUL_OUT];
        float *given = malloc(ROWS * K * sizeof *given), *expected = malloc(bytes);
        assert_true(given && expected);
        memcpy(given, x, ROWS * K * sizeof *given);
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!test_matmul_runs((enum cpu_isa)isa)) continue;
            memcpy(x, given, ROWS * K * sizeof *given);
            launch.params[MATMUL_COMPUTE_DTYPE] = DTYPE_F32;
            test_matmul_run(&launch, (enum cpu_isa)isa, team);
            memcpy(expected, out, bytes);
            launch.params[MATMUL_COMPUTE_DTYPE] = DTYPE_BF16;
            test_matmul_run(&launch, (enum cpu_isa)isa, team);
            assert_memory_not_equal(out, expected, bytes);
            memcpy(expected, out, bytes);
            test_round(x, ROWS * K, DTYPE_BF16);
            test_matmul_run(&launch, (enum cpu_isa)isa, team);
            assert_memory_equal(out, expected, bytes);
        }
        free(given);
        free(expected);
        test_case_close(&launch);
    }
}

/* Out may be the residual. */
TEST(test_residual_in_place)
{
    enum { ROWS = 9, N = 53, K = 130 };
    struct test_case launch;
    test_matmul_open(&numbers, &launch, ROWS, N, K, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, true);
    size_t bytes = launch.buffers[MATMUL_OUT].bytes;
    float *expected = malloc(bytes), *residual = launch.call.operands[MATMUL_RESIDUAL];
    float *out = launch.call.operands[MATMUL_OUT];
    assert_non_null(expected);
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!test_matmul_runs((enum cpu_isa)isa)) continue;
        test_matmul_run(&launch, (enum cpu_isa)isa, team);
        memcpy(expected, out, bytes);
        test_matmul_tunables(&numbers, &launch);
        memcpy(out, residual, bytes);
        launch.call.operands[MATMUL_RESIDUAL] = out;
        test_run_on(team, test_matmul_op(), (enum cpu_isa)isa, &launch.call);
        launch.call.operands[MATMUL_RESIDUAL] = residual;
        assert_memory_equal(out, expected, bytes);
    }
    free(expected);
    test_case_close(&launch);
}

/* Infinity and NaN in one activation reach that row and no other; the largest numbers stay what they are. */
TEST(test_special_values)
{
    enum { ROWS = 7, N = 32, K = 40 };
    struct test_case launch;
    test_matmul_open(&numbers, &launch, ROWS, N, K, ENCODING_BF16, ACTIVATION_NONE, DTYPE_NONE, false);
    float *x = launch.call.operands[MATMUL_X];
    const float *out = launch.call.operands[MATMUL_OUT];
    uint16_t *weights = launch.call.operands[MATMUL_W];
    for (uint64_t n = 0; n < N; n++) {
        for (uint64_t k = 0; k < K; k++) weights[panel_index(n, k, K, DTYPE_BF16)] = bf16_from_float(0.5f);
    }
    for (int64_t i = 0; i < ROWS * K; i++) x[i] = 0;
    x[0 * K + 5] = INFINITY;
    x[1 * K + 6] = NAN;
    x[2 * K + 7] = 0x1.fffffep127f; /* rounds to infinity in bf16 */
    x[3 * K + 8] = -INFINITY;
    x[4 * K + 9] = 1.0f + 0x1p-12f;
    x[5 * K + 1] = -0x1.fffffep127f;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!test_matmul_runs((enum cpu_isa)isa)) continue;
        for (int repeat = 0; repeat < 5; repeat++) {
            test_matmul_tunables(&numbers, &launch);
            test_matmul_run(&launch, (enum cpu_isa)isa, team);
            for (int n = 0; n < N; n++) {
                assert_true(out[n] == INFINITY);
                assert_true(isnan(out[N + n]));
                assert_true(fabsf(out[2 * N + n] - 0x1.fffffep126f) <= 0x1p110f);
                assert_true(out[3 * N + n] == -INFINITY);
                assert_true(out[4 * N + n] == 0.5f + 0x1p-13f);
                assert_true(fabsf(out[5 * N + n] + 0x1.fffffep126f) <= 0x1p110f);
                assert_true(out[6 * N + n] == 0);
            }
        }
    }
    test_case_close(&launch);
}

/* Activations as int8: what a block of 32 becomes, by hand, with weights of 1. */
TEST(test_int8_activations)
{
    enum { ROWS = 6, N = 48, K = 72 };
    static const enum encoding_id encodings[] = {ENCODING_F32, ENCODING_INT4_G32, ENCODING_INT8_G32,
                                                 ENCODING_INT8_CHANNEL};
    for (size_t e = 0; e < sizeof encodings / sizeof *encodings; e++) {
        const enum encoding_id encoding = encodings[e];
        struct test_case launch;
        test_matmul_open(&numbers, &launch, ROWS, N, K, encoding, ACTIVATION_NONE, DTYPE_NONE, false);
        launch.params[MATMUL_COMPUTE_DTYPE] = ENCODING_INT8_G32;
        float *x = launch.call.operands[MATMUL_X], *weights = launch.call.operands[MATMUL_W];
        const float *out = launch.call.operands[MATMUL_OUT];
        if (encoding == ENCODING_F32) {
            for (int i = 0; i < N * K; i++) weights[i] = 1;
        } else {
            uint8_t codes[K];
            float scales[K];
            struct panel_form form;
            assert_true(panel_form(encoding, &form));
            memset(weights, 0, launch.buffers[MATMUL_W].bytes);
            memset(codes, encoding == ENCODING_INT4_G32 ? 9 : 1, sizeof codes);
            for (int i = 0; i < K; i++) scales[i] = 1;
            for (uint64_t n = 0; n < N; n++)
                panel_pack_coded(&form, &(struct coded_row){codes, scales, NULL, 1}, n % PANEL_ROWS, K,
                                 (uint8_t *)weights + n / PANEL_ROWS * panel_bytes(K, encoding));
        }
        memset(x, 0, ROWS * K * sizeof *x);
        x[0 * K + 3] = 127, x[0 * K + 4] = 0.5f, x[0 * K + 5] = 1.5f, x[0 * K + 31] = -126.5f; /* 127 + 0 + 2 - 126 */
        x[1 * K + 32] = -254, x[1 * K + 33] = 1, x[1 * K + 71] = 5;                            /* -254 + 0 + 5 */
        x[2 * K + 40] = INFINITY;
        x[3 * K + 70] = NAN;
        for (int k = 0; k < K; k++) x[4 * K + k] = 0x1p-101f;
        for (int k = 0; k < K; k++) x[5 * K + k] = 0x1p-100f;
        for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
            if (!test_matmul_runs((enum cpu_isa)isa)) continue;
            test_matmul_tunables(&numbers, &launch);
            test_matmul_run(&launch, (enum cpu_isa)isa, team);
            for (int n = 0; n < N; n++) {
                assert_true(out[0 * N + n] == 3);
                assert_true(fabsf(out[1 * N + n] + 249) <= 1e-4f);
                assert_true(isnan(out[2 * N + n]) && isnan(out[3 * N + n]));
                assert_true(out[4 * N + n] == 0);
                assert_true(fabsf(out[5 * N + n] - K * 0x1p-100f) <= 1e-5f * K * 0x1p-100f);
            }
        }
        test_case_close(&launch);
    }
}

/* Instruction sets that multiply activations in int8 by codes as integers give the same bits. */
TEST(test_int8_bits)
{
    static const int64_t depths[] = {32, 33, 64, 200, 1030}, rows[] = {1, 2, 3, 6, 13, 40};
    for (size_t i = 0; encoding_at(i / 5); i++) {
        struct panel_form form;
        struct test_case launch;
        const struct encoding *encoding = encoding_at(i / 5);
        if ((encoding->code != CODE_UINT4 && encoding->code != CODE_INT8) || !panel_form(encoding->id, &form)) continue;
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            const bool gated = random_below(3) == 0;
            test_matmul_open(&numbers, &launch, rows[r], gated ? 64 : 1 + random_below(100), depths[i % 5],
                             encoding->id, gated ? ACTIVATION_SILU : ACTIVATION_NONE, DTYPE_F32, !gated);
            launch.params[MATMUL_COMPUTE_DTYPE] = ENCODING_INT8_G32;
            const size_t bytes = launch.buffers[MATMUL_OUT].bytes;
            void *expected = malloc(bytes);
            assert_non_null(expected);
            for (int isa = CPU_AVX2; isa < CPU_ISA_COUNT; isa++) {
                if (isa == CPU_AVX512 || !test_matmul_runs((enum cpu_isa)isa)) continue;
                test_matmul_tunables(&numbers, &launch);
                test_matmul_run(&launch, (enum cpu_isa)isa, team);
                if (isa == CPU_AVX2) memcpy(expected, launch.call.operands[MATMUL_OUT], bytes);
                assert_memory_equal(launch.call.operands[MATMUL_OUT], expected, bytes);
            }
            free(expected);
            test_case_close(&launch);
        }
    }
}

/* silu over the whole range of gates, each within a few units in the last place. */
TEST(test_silu)
{
    enum { ROWS = 400, N = 32, K = 2 };
    struct test_case launch;
    test_matmul_open(&numbers, &launch, ROWS, N, K, ENCODING_F32, ACTIVATION_SILU, DTYPE_NONE, false);
    float *x = launch.call.operands[MATMUL_X], *weights = launch.call.operands[MATMUL_W];
    const float *out = launch.call.operands[MATMUL_OUT];
    for (uint64_t n = 0; n < N; n++) {
        weights[panel_index(n, 0, K, DTYPE_F32)] = n < 16; /* gate = x[0], up = x[1] */
        weights[panel_index(n, 1, K, DTYPE_F32)] = n >= 16;
    }
    for (int row = 0; row < ROWS; row++) {
        x[row * K] = (float)(row - ROWS / 2) * 0.53f;
        x[row * K + 1] = 1;
    }
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!test_matmul_runs((enum cpu_isa)isa)) continue;
        test_matmul_run(&launch, (enum cpu_isa)isa, team);
        for (int row = 0; row < ROWS; row++) {
            double gate = (double)x[row * K], expected = gate / (1 + exp(-gate));
            for (int column = 0; column < 16; column++)
                assert_true(fabs((double)out[row * 16 + column] - expected) <= 4e-7 * fabs(expected) + 1e-36);
        }
    }
    test_case_close(&launch);
}

struct hostile {
    int param;
    int64_t value;
    const char *message; /* must occur in the refusal */
};

TEST(hostile_params)
{
    static const int64_t good[MATMUL_PARAMS] = {
        [MATMUL_ROWS] = 4,
        [MATMUL_N] = 64,
        [MATMUL_K] = 64,
        [MATMUL_DTYPE] = DTYPE_BF16,
        [MATMUL_OUT_DTYPE] = DTYPE_F32,
        [MATMUL_BIAS_DTYPE] = DTYPE_BF16,
        [MATMUL_NORM_DTYPE] = DTYPE_BF16,
        [MATMUL_INPUT_DTYPE] = DTYPE_F32,
        [MATMUL_COMPUTE_DTYPE] = DTYPE_F32,
        [MATMUL_SCALE_BITS] = OP_FLOAT_ONE_BITS,
        [MATMUL_CAP_BITS] = OP_FLOAT_ONE_BITS,
        [MATMUL_PANELS_PER_TILE] = 4,
        [MATMUL_ROWS_PER_TILE] = 4,
        [MATMUL_PANELS_PER_TASK] = 4,
    };
    static const struct hostile cases[] = {
        {MATMUL_ROWS, 0, "rows"},
        {MATMUL_ROWS, -1, "rows"},
        {MATMUL_ROWS, INT64_MAX, "rows"},
        {MATMUL_COUNT_INDEX, 2, "count_index"},
        {MATMUL_COUNT_INDEX, -1, "count_index"},
        {MATMUL_N, 0, "parameter n "},
        {MATMUL_N, INT64_MIN, "parameter n "},
        {MATMUL_N, (int64_t)1 << 31, "parameter n "},
        {MATMUL_K, 0, "parameter k "},
        {MATMUL_K, (int64_t)1 << 31, "parameter k "},
        {MATMUL_DTYPE, DTYPE_I8, "dtype"},
        {MATMUL_DTYPE, DTYPE_NONE, "dtype"},
        {MATMUL_DTYPE, ENCODING_E4M3_TENSOR, "matmul: there is no kernel for encoding e4m3_tensor (parameter dtype)"},
        {MATMUL_DTYPE, ((int64_t)1 << 32) + DTYPE_BF16, "dtype"},
        {MATMUL_EPILOGUE, ACTIVATION_COUNT, "epilogue"},
        {MATMUL_EPILOGUE, EPILOGUE_PLAIN, "epilogue"},
        {MATMUL_EPILOGUE, EPILOGUE_COUNT, "epilogue"},
        {MATMUL_EPILOGUE, ACTIVATION_SOFTCAP, "softcap"},
        {MATMUL_EPILOGUE, EPILOGUE_PLAIN + ACTIVATION_CLAMPED, "a clamped SwiGLU without a gate"},
        {MATMUL_CAP_BITS, 0, "cap_bits"},
        {MATMUL_CAP_BITS, 0x41f00000, "cap"},
        {MATMUL_HAS_BIAS, 2, "has_bias"},
        {MATMUL_BIAS_DTYPE, DTYPE_NONE, "bias_dtype"},
        {MATMUL_BIAS_DTYPE, DTYPE_I64, "bias_dtype"},
        {MATMUL_HAS_RESIDUAL, -1, "has_residual"},
        {MATMUL_COMPUTE_DTYPE, DTYPE_F16, "compute_dtype"},
        {MATMUL_COMPUTE_DTYPE, DTYPE_NONE, "compute_dtype"},
        {MATMUL_COMPUTE_DTYPE, ENCODING_INT4_G32, "compute_dtype"},
        {MATMUL_COMPUTE_DTYPE, ENCODING_INT8_CHANNEL, "compute_dtype"},
        {MATMUL_COMPUTE_DTYPE, DTYPE_I8, "compute_dtype"},
        {MATMUL_SCALE_BITS, 0, "scale_bits"},
        {MATMUL_SCALE_BITS, -1, "scale_bits"},
        {MATMUL_SCALE_BITS, OP_FLOAT_MAX_BITS + 1, "scale_bits"},
        {MATMUL_PANELS_PER_TILE, 0, "panels_per_tile"},
        {MATMUL_PANELS_PER_TILE, 5, "panels_per_tile"},
        {MATMUL_PANELS_PER_TILE, 16, "panels_per_tile"},
        {MATMUL_ROWS_PER_TILE, -3, "rows_per_tile"},
        {MATMUL_ROWS_PER_TILE, 5, "rows_per_tile"},
        {MATMUL_ROWS_PER_TILE, 12, "registers"},
        {MATMUL_DEPTH_BLOCK, 32, "depth_block"},
        {MATMUL_DEPTH_BLOCK, -64, "depth_block"},
        {MATMUL_DEPTH_BLOCK, (int64_t)1 << 40, "depth_block"},
        {MATMUL_ROWS_PER_BLOCK, -1, "rows_per_block"},
        {MATMUL_ROWS_PER_BLOCK, 3, "rows_per_block"},
        {MATMUL_ROWS_PER_BLOCK, INT64_MAX, "rows_per_block"},
        {MATMUL_PANELS_PER_TASK, 0, "panels_per_task"},
        {MATMUL_PANELS_PER_TASK, 6, "panels_per_task"},
        {MATMUL_PANELS_PER_TASK, 4100, "panels_per_task"},
        {MATMUL_THREADS, -1, "threads"},
        {MATMUL_THREADS, 257, "threads"},
    };
    int64_t params[MATMUL_PARAMS];
    struct op_demand operands[PLAN_MAX_OPERANDS];
    int count;
    struct status status;
    status_clear(&status);
    assert_true(op_demands(&op_matmul, TARGET_CPU, good, &test_matmul_geometry, operands, &count, &status));
    assert_int_equal(count, 5);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(params, good, sizeof params);
        params[cases[i].param] = cases[i].value;
        status_clear(&status);
        if (op_demands(&op_matmul, TARGET_CPU, params, &test_matmul_geometry, operands, &count, &status))
            fail_msg("case %d is accepted", (int)i);
        assert_int_not_equal(status.code, STATUS_OK);
        if (!strstr(status.message, cases[i].message)) fail_msg("case %d: %s", (int)i, status.message);
    }

    memcpy(params, good, sizeof params);
    params[MATMUL_EPILOGUE] = ACTIVATION_SILU;
    assert_true(op_demands(&op_matmul, TARGET_CPU, params, &test_matmul_geometry, operands, &count, &status));
    params[MATMUL_N] = 48;
    assert_false(op_demands(&op_matmul, TARGET_CPU, params, &test_matmul_geometry, operands, &count, &status));
    assert_non_null(strstr(status.message, "a gate"));
    params[MATMUL_N] = 64;
    params[MATMUL_HAS_RESIDUAL] = 1;
    assert_false(op_demands(&op_matmul, TARGET_CPU, params, &test_matmul_geometry, operands, &count, &status));
    assert_non_null(strstr(status.message, "a residual with an activation"));
    params[MATMUL_HAS_RESIDUAL] = 0;
    params[MATMUL_SCALE_BITS] = test_float_bits(0.22f);
    assert_false(op_demands(&op_matmul, TARGET_CPU, params, &test_matmul_geometry, operands, &count, &status));
    assert_non_null(strstr(status.message, "a gate"));
    params[MATMUL_SCALE_BITS] = OP_FLOAT_ONE_BITS;
    params[MATMUL_PANELS_PER_TILE] = 1;
    assert_false(op_demands(&op_matmul, TARGET_CPU, params, &test_matmul_geometry, operands, &count, &status));
    assert_non_null(strstr(status.message, "a gate"));

    /* The largest sizes neither overflow nor shrink. */
    memcpy(params, good, sizeof params);
    params[MATMUL_N] = params[MATMUL_K] = INT32_MAX;
    params[MATMUL_ROWS] = 1 << 20;
    assert_true(op_demands(&op_matmul, TARGET_CPU, params, &test_matmul_geometry, operands, &count, &status));
    assert_true(operands[MATMUL_X].bytes == (uint64_t)INT32_MAX << 22);
    assert_true(operands[MATMUL_W].bytes == (uint64_t)1 << 63);
}

/* The default and all candidates are legal, differ, and fit the instruction set. */
TEST(test_candidates)
{
    static const enum encoding_id encodings[] = {ENCODING_BF16, ENCODING_F16, ENCODING_F32, ENCODING_INT4_G32},
                                  computes[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_G32};
    static const int64_t rows[] = {1, 2, 4, 8, 16, 128, 512}, widths[] = {1, 64, 512, 2048, 16384, 128256};
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
                for (int t = 0; t < 12; t++)
                    for (int swiglu = 0; swiglu <= (widths[w] % 32 == 0); swiglu++) {
                        int64_t params[MATMUL_PARAMS] = {
                            [MATMUL_ROWS] = rows[r],    [MATMUL_N] = widths[w],
                            [MATMUL_K] = 2048,          [MATMUL_DTYPE] = encodings[t % 4],
                            [MATMUL_EPILOGUE] = swiglu, [MATMUL_COMPUTE_DTYPE] = computes[t / 4],
                        };
                        int64_t candidates[64][MATMUL_TUNABLES];
                        size_t bytes = sizeof candidates[0];
                        matmul_default_tunables(params, (enum cpu_isa)isa, 4, params + MATMUL_FIRST_TUNABLE);
                        assert_null(matmul_tunables_illegal(params, (enum cpu_isa)isa));
                        int count = matmul_candidates(params, (enum cpu_isa)isa, 4, candidates, 64);
                        assert_true(count >= 2 && count <= 64);
                        assert_memory_equal(candidates[0], params + MATMUL_FIRST_TUNABLE, bytes);
                        for (int i = 0; i < count; i++) {
                            memcpy(params + MATMUL_FIRST_TUNABLE, candidates[i], bytes);
                            const char *illegal = matmul_tunables_illegal(params, (enum cpu_isa)isa);
                            if (illegal) fail_msg("candidate %d: %s", i, illegal);
                            for (int j = 0; j < i; j++) assert_memory_not_equal(candidates[i], candidates[j], bytes);
                        }
                        assert_int_equal(matmul_candidates(params, (enum cpu_isa)isa, 4, candidates, 2), 2);
                    }
}

int main(void)
{
    struct status status;
    team = team_create(THREADS, &status);
    single = team_create(1, &status);
    if (!team || !single) {
        fprintf(stderr, "%s\n", status.message);
        return 1;
    }
    int failed = test_run();
    team_destroy(team);
    team_destroy(single);
    return failed;
}
