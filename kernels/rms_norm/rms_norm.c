/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rms_norm/rms_norm.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/op_check.h"
#include "kernels/rms_norm/rms_norm_vector.h"

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    (void)geometry;
    const struct op_descriptor *op = &op_rms_norm;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, RMS_NORM_HIDDEN, 1, OP_MAX_WIDTH, status) ||
        !op_check_float_dtype(op, params, RMS_NORM_DTYPE, status) ||
        !op_check_float_bits(op, params, RMS_NORM_EPS_BITS, status) ||
        !op_check_range(op, params, RMS_NORM_HAS_RESIDUAL, 0, 1, status))
        return false;
    uint64_t rows = (uint64_t)params[RMS_NORM_ROWS], width = (uint64_t)params[RMS_NORM_HIDDEN];
    size_t weight_bytes = dtype_bytes((enum dtype)params[RMS_NORM_DTYPE]);
    const struct op_operand x = {.name = "x", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand weight = {.name = "weight", .space_mask = OP_IN_WEIGHTS, .access = ACCESS_READ};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    const struct op_operand residual = {.name = "residual", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand sum = {.name = "sum", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    *operand_count = 0;
    bool done = op_add_counts(op, operands, operand_count, status) &&
                op_add_operand(op, operands, operand_count, x, sizeof(float), rows, width, 1, status) &&
                op_add_operand(op, operands, operand_count, weight, weight_bytes, width, 1, 1, status) &&
                op_add_operand(op, operands, operand_count, out, sizeof(float), rows, width, 1, status);
    if (!done || !params[RMS_NORM_HAS_RESIDUAL]) return done;
    return op_add_operand(op, operands, operand_count, residual, sizeof(float), rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, sum, sizeof(float), rows, width, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t rows = (uint64_t)params[RMS_NORM_ROWS], width = (uint64_t)params[RMS_NORM_HIDDEN];
    uint64_t arrays = params[RMS_NORM_HAS_RESIDUAL] ? 4 : 2;
    *bytes = arrays * rows * width * sizeof(float) + width * dtype_bytes((enum dtype)params[RMS_NORM_DTYPE]);
    *flops = (params[RMS_NORM_HAS_RESIDUAL] ? 5u : 4u) * rows * width;
}

static void run_portable(const struct op_call *call, struct team_member *member) { rms_norm_vector_run(call, member); }

static const char *const param_names[RMS_NORM_PARAMS] = {"rows",  "count_index", "hidden",
                                                         "dtype", "eps_bits",    "has_residual"};

const struct op_descriptor op_rms_norm = {
    .id = OP_RMS_NORM,
    .name = "rms_norm",
    .param_count = RMS_NORM_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = rms_norm_reference,
    .run =
        {
            [CPU_PORTABLE] = run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = rms_norm_run_avx2,
            [CPU_AVX512] = rms_norm_run_avx512,
#endif
        },
};
