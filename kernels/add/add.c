/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/add/add.h"

#include "kernels/cpu/share.h"
#include "kernels/op/op_check.h"

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    (void)geometry;
    const struct op_descriptor *op = &op_add;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, ADD_WIDTH, 1, OP_MAX_WIDTH, status))
        return false;
    uint64_t rows = (uint64_t)params[ADD_ROWS], width = (uint64_t)params[ADD_WIDTH];
    const struct op_operand a = {.name = "a", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand b = {.name = "b", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, a, sizeof(float), rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, b, sizeof(float), rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, width, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t elements = (uint64_t)params[ADD_ROWS] * (uint64_t)params[ADD_WIDTH];
    *bytes = 3 * elements * sizeof(float);
    *flops = elements;
}

static void add_range(const struct op_call *call, int64_t first, int64_t last)
{
    /* No restrict: out may be a or b. Memory is the limit, so the compiler's code for the baseline will do for all
     * instruction sets. */
    const float *a = call->operands[ADD_A], *b = call->operands[ADD_B];
    float *out = call->operands[ADD_OUT];
    for (int64_t i = first; i < last; i++) out[i] = a[i] + b[i];
}

static void run(const struct op_call *call, struct team_member *member)
{
    int64_t width = call->params[ADD_WIDTH];
    struct share share = team_share_rows(member, op_valid_rows(call) * width, 1);
    add_range(call, share.first, share.last);
}

static void reference(const struct op_call *call) { add_range(call, 0, op_valid_rows(call) * call->params[ADD_WIDTH]); }

static const char *const param_names[ADD_PARAMS] = {"rows", "count_index", "width"};

const struct op_descriptor op_add = {
    .id = OP_ADD,
    .name = "add",
    .param_count = ADD_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
