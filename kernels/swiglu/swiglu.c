/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/swiglu/swiglu.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/op_check.h"
#include "kernels/swiglu/swiglu_vector.h"

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    (void)geometry;
    const struct op_descriptor *op = &op_swiglu;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, SWIGLU_WIDTH, 1, OP_MAX_WIDTH, status))
        return false;
    uint64_t rows = (uint64_t)params[SWIGLU_ROWS], width = (uint64_t)params[SWIGLU_WIDTH];
    const struct op_operand gate = {.name = "gate", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand up = {.name = "up", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, gate, sizeof(float), rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, up, sizeof(float), rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, width, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_PER_ELEMENT = 4 /* exponential, addition, division, product */ };
    (void)geometry;
    uint64_t elements = (uint64_t)params[SWIGLU_ROWS] * (uint64_t)params[SWIGLU_WIDTH];
    *bytes = 3 * elements * sizeof(float);
    *flops = FLOPS_PER_ELEMENT * elements;
}

static void run_portable(const struct op_call *call, struct team_member *member) { swiglu_vector_run(call, member); }

static const char *const param_names[SWIGLU_PARAMS] = {"rows", "count_index", "width"};

const struct op_descriptor op_swiglu = {
    .id = OP_SWIGLU,
    .name = "swiglu",
    .param_count = SWIGLU_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = swiglu_reference,
    .run =
        {
            [CPU_PORTABLE] = run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = swiglu_run_avx2,
            [CPU_AVX512] = swiglu_run_avx512,
#endif
        },
};
