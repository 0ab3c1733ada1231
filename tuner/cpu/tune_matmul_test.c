/* SPDX-License-Identifier: Apache-2.0 */

#include "tuner/cpu/tune_matmul.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

static void fill_params(int64_t *params, int64_t rows, int64_t n, int64_t k, enum dtype dtype, bool swiglu)
{
    memset(params, 0, MATMUL_PARAMS * sizeof *params);
    params[MATMUL_ROWS] = rows;
    params[MATMUL_N] = n;
    params[MATMUL_K] = k;
    params[MATMUL_DTYPE] = dtype;
    params[MATMUL_EPILOGUE] = swiglu ? ACTIVATION_SILU : ACTIVATION_NONE;
    matmul_default_tunables(params, cpu_isa_best(), 2, params + MATMUL_FIRST_TUNABLE);
}

/* N is then that of one expert. */
static void fill_experts(int64_t *params, int64_t experts, int64_t top_k)
{
    params[MATMUL_EXPERTS] = experts;
    params[MATMUL_ROUTE_WIDTH] = 2 * top_k;
    params[MATMUL_N] *= experts;
    params[MATMUL_SCALE_BITS] = params[MATMUL_CAP_BITS] = OP_FLOAT_ONE_BITS;
    matmul_default_tunables(params, cpu_isa_best(), 2, params + MATMUL_FIRST_TUNABLE);
}

static struct machine fake_machine(void)
{
    struct machine machine = {.name = "test", .threads = 2, .read_gb_s = 20, .peak_gflops = 200};
    machine.isa = cpu_isa_best();
    return machine;
}

TEST(keys_name_everything_that_matters)
{
    struct machine machine = fake_machine();
    int64_t a[MATMUL_PARAMS], b[MATMUL_PARAMS];
    char key[TUNING_KEY_BYTES], other[TUNING_KEY_BYTES];
    fill_params(a, 1, 64, 32, DTYPE_BF16, false);
    matmul_tuning_key(a, &machine, key);
    assert_non_null(strstr(key, "matmul rows=1 n=64 k=32 dtype=BF16 epilogue=none"));
    const enum matmul_param varied[] = {MATMUL_ROWS,     MATMUL_N,        MATMUL_K,
                                        MATMUL_DTYPE,    MATMUL_HAS_BIAS, MATMUL_HAS_RESIDUAL,
                                        MATMUL_EPILOGUE, MATMUL_EXPERTS};
    for (size_t i = 0; i < sizeof varied / sizeof *varied; i++) {
        memcpy(b, a, sizeof b);
        b[varied[i]] = varied[i] == MATMUL_DTYPE ? DTYPE_F32 : b[varied[i]] + 1;
        matmul_tuning_key(b, &machine, other);
        assert_string_not_equal(key, other);
    }
    fill_experts(a, 8, 2);
    fill_experts(b, 8, 3);
    matmul_tuning_key(a, &machine, key);
    matmul_tuning_key(b, &machine, other);
    assert_string_not_equal(key, other);
    /* Tunables are the result and no part of the key. */
    memcpy(b, a, sizeof b);
    b[MATMUL_PANELS_PER_TASK] += 8;
    matmul_tuning_key(b, &machine, other);
    assert_string_equal(key, other);
    machine.threads = 3;
    matmul_tuning_key(a, &machine, other);
    assert_string_not_equal(key, other);
}

TEST(off_measures_nothing_and_repeats)
{
    struct machine machine = fake_machine();
    struct status status = {0};
    struct tuning_record first, second;
    int64_t params[MATMUL_PARAMS];
    fill_params(params, 4, 256, 128, DTYPE_BF16, false);
    struct matmul_problem problem = {.params = params};
    assert_true(tune_matmul(&problem, &machine, NULL, TUNE_OFF, &first, &status));
    machine.read_gb_s = 7;
    assert_true(tune_matmul(&problem, &machine, NULL, TUNE_OFF, &second, &status));
    assert_memory_equal(&first, &second, sizeof first);
    assert_string_equal(first.level, "model");
    assert_true(first.median_us == 0 && first.value_count == MATMUL_TUNABLES);
    assert_true(matmul_apply_record(&first, params));
}

static struct tuning_record tune_params(int64_t *params)
{
    struct status status = {0};
    struct team *team = team_create(2, &status);
    assert_non_null(team);
    struct machine machine;
    machine_describe(&machine, team);
    machine.read_gb_s = 20;
    machine.peak_gflops = 200;
    const int64_t n = params[MATMUL_N], k = params[MATMUL_K];
    uint64_t bytes = panel_count((uint64_t)n) * panel_bytes((uint64_t)k, params[MATMUL_DTYPE]);
    uint8_t *weights = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(weights);
    /* Numbers of ordinary size in both dtypes: processors take a hundred cycles for a subnormal. */
    for (uint64_t i = 0; i < bytes; i++) weights[i] = (uint8_t)(0x3c + i % 4);
    const void *sites[] = {weights};
    struct matmul_problem problem = {.params = params, .weights = sites, .site_count = 1};
    struct tuning_record record;
    assert_true(tune_matmul(&problem, &machine, team, TUNE_QUICK, &record, &status));
    assert_string_equal(record.level, "quick");
    assert_true(record.median_us > 0 && record.spread_us >= 0 && record.candidates >= 1);
    assert_int_equal(record.runner_up_count, record.candidates > 1 ? MATMUL_TUNABLES : 0);
    assert_int_equal(record.runner_up_us > 0, record.candidates > 1);
    if (record.runner_up_count) assert_memory_not_equal(record.runner_up, record.values, sizeof record.values);
    const uint64_t read = bytes / (uint64_t)(params[MATMUL_EXPERTS] > 0 ? params[MATMUL_EXPERTS] : 1) *
                          (uint64_t)matmul_matrices_read(params);
    assert_true(record.bytes > read && record.bytes < 2 * read + (64 << 10));
    assert_true(record.flops ==
                (uint64_t)(2 * matmul_slots(params, params[MATMUL_ROWS]) * matmul_expert_n(params) * k));
    assert_true(matmul_apply_record(&record, params));
    assert_null(matmul_tunables_illegal(params, machine.isa));
    free(weights);
    team_destroy(team);
    return record;
}

static struct tuning_record tune_one(enum dtype dtype, bool swiglu, int64_t rows, int64_t n, int64_t k)
{
    int64_t params[MATMUL_PARAMS];
    fill_params(params, rows, n, k, dtype, swiglu);
    return tune_params(params);
}

TEST(quick_gives_a_legal_measured_record)
{
    tune_one(DTYPE_BF16, false, 1, 512, 256);
    tune_one(DTYPE_BF16, true, 16, 512, 256);
    tune_one(DTYPE_F32, false, 3, 100, 33);
}

/* A problem too large for one call: two slices of 96 panels are measured in turn (the last of the 193 panels is in
 * neither), and the time is scaled to the whole. */
TEST(large_problems_are_sliced)
{
    if (test_sanitized()) skip(); /* the code is that of small problems, the time is that of products */
    struct tuning_record record = tune_one(DTYPE_BF16, false, 192, 3088, 1024);
    /* Lower bound: two slices at 4 TFLOP/s. */
    assert_true(record.median_us > 2.0 * 192 * 3088 * 1024 / 4e6);
}

static struct tuning_record tune_experts(bool swiglu, int64_t rows, int64_t experts, int64_t top_k, int64_t n,
                                         int64_t k)
{
    int64_t params[MATMUL_PARAMS];
    fill_params(params, rows, n, k, DTYPE_BF16, swiglu);
    fill_experts(params, experts, top_k);
    return tune_params(params);
}

/* Few rows leave experts out; all experts; one choice; a residual adds to the sum over choices. */
TEST(experts_are_raced)
{
    tune_experts(true, 1, 16, 4, 64, 96);
    tune_experts(false, 1, 16, 4, 64, 96);
    tune_experts(true, 24, 16, 4, 64, 96);
    tune_experts(false, 24, 5, 5, 48, 96);
    tune_experts(true, 3, 3, 1, 32, 64);
    int64_t params[MATMUL_PARAMS];
    fill_params(params, 4, 64, 96, DTYPE_F32, false);
    fill_experts(params, 8, 2);
    params[MATMUL_HAS_RESIDUAL] = 1;
    tune_params(params);
}

/* Rows that choose at random read fewer experts than they have choices. */
TEST(experts_read_are_those_with_rows)
{
    static const int64_t rows[] = {1, 4, 16, 128, OP_MAX_ROWS}, expected[] = {8, 29, 82, 128, 128};
    int64_t params[MATMUL_PARAMS];
    struct machine machine = fake_machine();
    double before = 0;
    for (int i = 0; i < 5; i++) {
        uint64_t bytes, flops;
        fill_params(params, rows[i], 1536, 2048, DTYPE_BF16, true);
        fill_experts(params, 128, 8);
        assert_int_equal(matmul_matrices_read(params), expected[i]);
        op_matmul.cost(params, 0, &bytes, &flops);
        const uint64_t matrices = (uint64_t)expected[i] * 1536 * 2048 * 2;
        const uint64_t row_bytes = (uint64_t)(2048 + 8 * 768 + 2 * 8) * sizeof(float);
        assert_true(bytes == matrices + (uint64_t)rows[i] * row_bytes);
        const double us = matmul_model_us(params, &machine);
        assert_true(us >= roofline_us(&machine, bytes, flops) && us > before);
        before = us;
    }
    fill_params(params, 7, 64, 64, DTYPE_BF16, false);
    assert_int_equal(matmul_matrices_read(params), 1);
}

/* A problem too large for one call is measured with a quarter of its experts, of which each row chooses a quarter, and one whose rows
 * choose once with a part of each matrix: the time is scaled to the whole. */
TEST(large_problems_over_experts_are_sliced)
{
    if (test_sanitized()) skip(); /* as above */
    /* Lower bound: 4 TFLOP/s. */
    struct tuning_record record = tune_experts(true, 128, 16, 4, 1536, 4096);
    assert_true(record.median_us > 2.0 * 128 * 4 * 1536 * 4096 / 4e6);
    record = tune_experts(false, 64, 4, 1, 9216, 2048);
    assert_true(record.median_us > 2.0 * 64 * 9216 * 2048 / 4e6);
}

TEST(foreign_records_are_refused)
{
    struct machine machine = fake_machine();
    struct status status = {0};
    struct tuning_record record;
    int64_t params[MATMUL_PARAMS], before[MATMUL_PARAMS];
    fill_params(params, 1, 64, 64, DTYPE_BF16, true);
    memcpy(before, params, sizeof before);
    struct matmul_problem problem = {.params = params};
    assert_true(tune_matmul(&problem, &machine, NULL, TUNE_OFF, &record, &status));
    struct tuning_record damaged = record;
    snprintf(damaged.values[0].name, sizeof damaged.values[0].name, "no_such_tunable");
    assert_false(matmul_apply_record(&damaged, params));
    damaged = record;
    damaged.value_count--;
    assert_false(matmul_apply_record(&damaged, params));
    damaged = record;
    damaged.values[0].value = 3; /* panels per tile must be even with SwiGLU */
    assert_false(matmul_apply_record(&damaged, params));
    damaged = record;
    damaged.values[4].value = -8;
    assert_false(matmul_apply_record(&damaged, params));
    assert_memory_equal(before, params, sizeof before);
}

TEST(model_knows_the_directions)
{
    struct machine machine = fake_machine();
    int64_t params[MATMUL_PARAMS];
    fill_params(params, 1, 4096, 4096, DTYPE_BF16, false);
    double one = matmul_model_us(params, &machine);
    assert_true(one >= 4096.0 * 4096 * 2 / 20e3); /* never below the roofline */
    params[MATMUL_THREADS] = 1;
    assert_true(matmul_model_us(params, &machine) > 1.5 * one);
    fill_params(params, 256, 4096, 4096, DTYPE_BF16, false);
    double whole = matmul_model_us(params, &machine);
    assert_true(whole >= 2.0 * 256 * 4096 * 4096 / 200e3);
    params[MATMUL_ROWS_PER_TILE] = 1;
    assert_true(matmul_model_us(params, &machine) > whole);
}

TEST(space_is_printable_with_reasons)
{
    struct machine machine = fake_machine();
    int64_t params[MATMUL_PARAMS];
    char *text;
    size_t size;
    fill_params(params, 16, 512, 256, DTYPE_BF16, true);
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    matmul_print_space(params, &machine, out);
    fclose(out);
    assert_non_null(strstr(text, "legal, predicted"));
    assert_non_null(strstr(text, "illegal: "));
    free(text);
}

TEST(probe_measures_plausible_ceilings)
{
    struct status status = {0};
    struct team *team = team_create(0, &status);
    assert_non_null(team);
    struct machine machine;
    assert_true(machine_probe(&machine, team, &status));
    assert_true(machine.read_gb_s > 0.1 && machine.read_gb_s < 10000);
    assert_true(machine.peak_gflops > 0.1 && machine.peak_gflops < 1e6);
    assert_true(machine.name[0] != '\0');
    assert_true(roofline_us(&machine, 1000000, 0) > 0);
    assert_true(roofline_us(&machine, 1000000, 1) <= roofline_us(&machine, 1000000, UINT64_C(1) << 40));
    team_destroy(team);
}

int main(void) { return test_run(); }
