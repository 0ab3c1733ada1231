/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor of matmul: its contract as checks on parameters, operands and sizes, its cost, its implementations. */
#include "kernels/matmul/matmul.h"

#include "kernels/matmul/matmul_tile.h"
#include "kernels/op/op_check.h"

static const char *const param_names[MATMUL_PARAMS] = {
    [MATMUL_ROWS] = "rows",
    [MATMUL_COUNT_INDEX] = "count_index",
    [MATMUL_N] = "n",
    [MATMUL_K] = "k",
    [MATMUL_DTYPE] = "dtype",
    [MATMUL_EPILOGUE] = "epilogue",
    [MATMUL_HAS_BIAS] = "has_bias",
    [MATMUL_BIAS_DTYPE] = "bias_dtype",
    [MATMUL_HAS_RESIDUAL] = "has_residual",
    [MATMUL_PANELS_PER_TILE] = "panels_per_tile",
    [MATMUL_ROWS_PER_TILE] = "rows_per_tile",
    [MATMUL_DEPTH_BLOCK] = "depth_block",
    [MATMUL_ROWS_PER_BLOCK] = "rows_per_block",
    [MATMUL_PANELS_PER_TASK] = "panels_per_task",
    [MATMUL_THREADS] = "threads",
};

int matmul_bias_operand(const int64_t *params) { return params[MATMUL_HAS_BIAS] ? MATMUL_OPERANDS : -1; }

int matmul_residual_operand(const int64_t *params)
{
    if (!params[MATMUL_HAS_RESIDUAL]) return -1;
    return params[MATMUL_HAS_BIAS] ? MATMUL_OPERANDS + 1 : MATMUL_OPERANDS;
}

static uint64_t matmul_out_columns(const int64_t *params)
{
    uint64_t n = (uint64_t)params[MATMUL_N];
    return params[MATMUL_EPILOGUE] == MATMUL_EPILOGUE_SWIGLU ? n / 2 : n;
}

/* rows, k < 2^31 keep it below 2^64. */
uint64_t matmul_workspace_bytes(uint64_t rows, uint64_t k) { return rows * (k + k % 2) * sizeof(float); }

static bool check_problem(const int64_t *params, struct status *status)
{
    const struct op_descriptor *op = &op_matmul;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, MATMUL_N, 1, OP_MAX_WIDTH, status) ||
        !op_check_range(op, params, MATMUL_K, 1, OP_MAX_WIDTH, status) ||
        !op_check_float_dtype(op, params, MATMUL_DTYPE, status) ||
        !op_check_range(op, params, MATMUL_EPILOGUE, MATMUL_EPILOGUE_NONE, MATMUL_EPILOGUE_SWIGLU, status) ||
        !op_check_range(op, params, MATMUL_HAS_BIAS, 0, 1, status) ||
        !op_check_range(op, params, MATMUL_HAS_RESIDUAL, 0, 1, status))
        return false;
    if ((params[MATMUL_HAS_BIAS] || params[MATMUL_BIAS_DTYPE] != DTYPE_NONE) &&
        !op_check_float_dtype(op, params, MATMUL_BIAS_DTYPE, status))
        return false;
    if (params[MATMUL_EPILOGUE] == MATMUL_EPILOGUE_SWIGLU) {
        if (params[MATMUL_N] % (2 * PANEL_ROWS) != 0)
            return status_fail(status, STATUS_CORRUPT, "matmul: n is %lld, expected a multiple of %d with SwiGLU",
                               (long long)params[MATMUL_N], 2 * PANEL_ROWS);
        if (params[MATMUL_HAS_RESIDUAL])
            return status_fail(status, STATUS_CORRUPT, "matmul: has_residual is 1, expected 0 with SwiGLU");
    }
    /* The instruction set with the most registers last: its reason is the one that says what is wrong. */
    const char *illegal = NULL;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        illegal = matmul_tunables_illegal(params, (enum cpu_isa)isa);
        if (!illegal) return true;
    }
    return status_fail(status, STATUS_CORRUPT, "matmul: illegal tunables: %s", illegal);
}

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    (void)geometry;
    if (!check_problem(params, status)) return false;
    const struct op_descriptor *op = &op_matmul;
    uint64_t rows = (uint64_t)params[MATMUL_ROWS], n = (uint64_t)params[MATMUL_N], k = (uint64_t)params[MATMUL_K];
    enum dtype dtype = (enum dtype)params[MATMUL_DTYPE], bias_dtype = (enum dtype)params[MATMUL_BIAS_DTYPE];
    const struct op_operand x = {.name = "x", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand weights = {.name = "weights", .space_mask = OP_IN_WEIGHTS, .access = ACCESS_READ};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA | OP_IN_STEP, .access = ACCESS_WRITE};
    const struct op_operand workspace = {.name = "workspace", .space_mask = OP_IN_ARENA, .access = ACCESS_READ_WRITE};
    const struct op_operand bias = {.name = "bias", .space_mask = OP_IN_WEIGHTS, .access = ACCESS_READ};
    const struct op_operand residual = {.name = "residual", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};

    /* In the order of enum matmul_operand. */
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, x, sizeof(float), rows, k, 1, status) &&
           op_add_operand(op, operands, operand_count, weights, 1, panel_count(n), panel_bytes(k, dtype), 1, status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, matmul_out_columns(params), 1,
                          status) &&
           op_add_operand(op, operands, operand_count, workspace, 1, matmul_workspace_bytes(rows, k), 1, 1, status) &&
           (!params[MATMUL_HAS_BIAS] ||
            op_add_operand(op, operands, operand_count, bias, dtype_bytes(bias_dtype), n, 1, 1, status)) &&
           (!params[MATMUL_HAS_RESIDUAL] ||
            op_add_operand(op, operands, operand_count, residual, sizeof(float), rows, n, 1, status));
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t rows = (uint64_t)params[MATMUL_ROWS], n = (uint64_t)params[MATMUL_N], k = (uint64_t)params[MATMUL_K];
    *bytes = panel_count(n) * panel_bytes(k, (enum dtype)params[MATMUL_DTYPE]) +
             rows * (k + matmul_out_columns(params)) * sizeof(float);
    if (params[MATMUL_HAS_BIAS]) *bytes += n * dtype_bytes((enum dtype)params[MATMUL_BIAS_DTYPE]);
    if (params[MATMUL_HAS_RESIDUAL]) *bytes += rows * n * sizeof(float);
    *flops = 2 * rows * n * k;
}

static void reference(const struct op_call *call) { matmul_reference_range(call, 0, call->params[MATMUL_N]); }

const struct op_descriptor op_matmul = {
    .id = OP_MATMUL,
    .name = "matmul",
    .param_count = MATMUL_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = reference,
    .run =
        {
            [CPU_PORTABLE] = matmul_run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = matmul_run_avx2,
            [CPU_AVX512] = matmul_run_avx512,
            [CPU_AVX512BF16] = matmul_run_avx512bf16,
#endif
        },
};
