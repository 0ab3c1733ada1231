/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/matmul/test_matmul.h"

#include "kernels/matmul/test_coded.h"

const struct plan_geometry test_matmul_geometry =
    {.slots = 8, .max_context = 64, .page_tokens = 16, .pages_per_slot = 4, .page_bytes = 4096, .vocab_size = 512};

static void fill_weights(struct test_random *random, uint8_t *weights, uint64_t n, uint64_t k,
                         enum encoding_id encoding)
{
    struct panel_form form;
    struct test_memory memory = {0};
    struct coded_row row;
    assert_true(panel_form(encoding, &form));
    if (!encoding_is_plain(encoding)) {
        test_coded_row_open(&memory, k, &row);
        for (uint64_t i = 0; i < n; i++) {
            test_coded_row(random, &form, k, &row, NULL);
            panel_pack_coded(&form, &row, i % PANEL_ROWS, k, weights + i / PANEL_ROWS * panel_bytes(k, encoding));
        }
        test_release(&memory);
        return;
    }
    const enum dtype dtype = (enum dtype)encoding;
    const uint64_t depth = panel_depth(k, dtype), element = dtype_bytes(dtype);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < k; j++)
            test_fill(random, weights + panel_index(i, j, depth, dtype) * element, 1, dtype, -1, 1);
}

void test_matmul_open(struct test_random *random, struct test_case *launch, int64_t rows, int64_t n, int64_t k,
                      enum encoding_id encoding, int epilogue, enum dtype bias_dtype, bool residual)
{
    const int64_t params[MATMUL_PARAMS] = {
        [MATMUL_ROWS] = rows,
        [MATMUL_N] = n,
        [MATMUL_K] = k,
        [MATMUL_DTYPE] = encoding,
        [MATMUL_EPILOGUE] = epilogue,
        [MATMUL_CAP_BITS] = test_float_bits(
            epilogue == EPILOGUE_PLAIN + ACTIVATION_SOFTCAP || epilogue == ACTIVATION_CLAMPED ? 2.5f : 1),
        [MATMUL_HAS_BIAS] = bias_dtype != DTYPE_NONE,
        [MATMUL_BIAS_DTYPE] = bias_dtype,
        [MATMUL_HAS_RESIDUAL] = residual,
        [MATMUL_PANELS_PER_TILE] = 2,
        [MATMUL_ROWS_PER_TILE] = 1,
        [MATMUL_PANELS_PER_TASK] = 2,
    };
    test_case_open(launch, &op_matmul, params, &test_matmul_geometry, (int32_t)rows);
    void *const *operands = launch->call.operands;
    uint8_t *weights = operands[MATMUL_W];
    memset(weights, 0, launch->buffers[MATMUL_W].bytes);
    fill_weights(random, weights, (uint64_t)n, (uint64_t)k, encoding);
    test_fill(random, operands[MATMUL_X], (size_t)(rows * k), DTYPE_F32, -1, 1);
    if (bias_dtype != DTYPE_NONE) test_fill(random, operands[MATMUL_BIAS], (size_t)n, bias_dtype, -1, 1);
    if (residual) test_fill(random, operands[MATMUL_RESIDUAL], (size_t)(rows * n), DTYPE_F32, -1, 1);
}

void test_matmul_set_rows(struct test_case *launch, int64_t rows)
{
    ((int32_t *)launch->call.operands[MATMUL_COUNTS])[0] = (int32_t)rows;
}

void test_matmul_tunables(struct test_random *random, struct test_case *launch)
{
    static const int64_t panels[] = {1, 2, 3, 4, 6, 8}, rows[] = {1, 2, 3, 4, 6, 8, 12};
    static const int64_t depths[] = {0, 64, 128, 192, 640}, blocks[] = {0, 0, 13, 24, 100};
    int64_t *params = launch->params;
    do {
        params[MATMUL_PANELS_PER_TILE] = panels[test_random_range(random, 0, 5)];
        params[MATMUL_ROWS_PER_TILE] = rows[test_random_range(random, 0, 6)];
        params[MATMUL_DEPTH_BLOCK] = depths[test_random_range(random, 0, 4)];
        params[MATMUL_ROWS_PER_BLOCK] = blocks[test_random_range(random, 0, 4)];
        params[MATMUL_PANELS_PER_TASK] = params[MATMUL_PANELS_PER_TILE] * test_random_range(random, 1, 4);
        params[MATMUL_THREADS] = test_random_range(random, 0, TEST_MATMUL_THREADS);
    } while (matmul_tunables_illegal(params, CPU_AVX512BF16));
}

void test_matmul_run(struct test_case *launch, enum cpu_isa isa, struct team *with)
{
    test_buffer_poison(&launch->buffers[MATMUL_OUT]);
    test_buffer_poison(&launch->buffers[MATMUL_WORKSPACE]);
    test_run_on(with, test_matmul_op(), isa, &launch->call);
}

static bool emulates_amx(void)
{
#if defined(__x86_64__)
    return cpu_isa_best() == CPU_AVX512VNNI || cpu_isa_best() == CPU_AVX512BF16;
#else
    return false;
#endif
}

bool test_matmul_runs(enum cpu_isa isa) { return cpu_isa_supported(isa) || (isa == CPU_AMX && emulates_amx()); }

const struct op_descriptor *test_matmul_op(void)
{
#if defined(__x86_64__)
    static struct op_descriptor emulated;
    if (emulates_amx()) {
        emulated = op_matmul;
        emulated.run[CPU_AMX] = test_matmul_run_emulated;
        return &emulated;
    }
#endif
    return &op_matmul;
}
