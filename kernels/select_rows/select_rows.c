/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_rows/select_rows.h"

#include "kernels/cpu/share.h"
#include "kernels/op/op_check.h"

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    (void)geometry;
    const struct op_descriptor *op = &op_select_rows;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, SELECT_ROWS_COUNT_INDEX, 1, 1, status) ||
        !op_check_range(op, params, SELECT_ROWS_WIDTH, 1, OP_MAX_WIDTH, status) ||
        !op_check_range(op, params, SELECT_ROWS_IN_ROWS, 1, OP_MAX_ROWS, status))
        return false;
    uint64_t rows = (uint64_t)params[SELECT_ROWS_ROWS], width = (uint64_t)params[SELECT_ROWS_WIDTH];
    uint64_t in_rows = (uint64_t)params[SELECT_ROWS_IN_ROWS];
    const struct op_operand x = {.name = "x", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand index = {.name = "index",
                                     .space_mask = OP_IN_STEP,
                                     .access = ACCESS_READ,
                                     .field = OP_FIELD(STEP_OUT_ROWS)};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, x, sizeof(float), in_rows, width, 1, status) &&
           op_add_operand(op, operands, operand_count, index, sizeof(int32_t), rows, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, width, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    (void)geometry;
    uint64_t rows = (uint64_t)params[SELECT_ROWS_ROWS], width = (uint64_t)params[SELECT_ROWS_WIDTH];
    *bytes = 2 * rows * width * sizeof(float) + rows * sizeof(int32_t);
    *flops = 0;
}

static void copy_rows(const struct op_call *call, int64_t first, int64_t last)
{
    const float *x = call->operands[SELECT_ROWS_X];
    const int32_t *index = call->operands[SELECT_ROWS_INDEX];
    float *out = call->operands[SELECT_ROWS_OUT];
    int64_t width = call->params[SELECT_ROWS_WIDTH], in_rows = call->params[SELECT_ROWS_IN_ROWS];
    size_t row_bytes = (size_t)width * sizeof(float);
    for (int64_t r = first; r < last; r++) {
        /* The submitter vouches for rows of the plan; a hostile plan may declare fewer rows of x than it has. */
        if (index[r] >= 0 && index[r] < in_rows)
            memcpy(out + r * width, x + index[r] * width, row_bytes);
        else
            memset(out + r * width, 0, row_bytes);
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    struct share share = team_share_rows(member, op_valid_rows(call), call->params[SELECT_ROWS_WIDTH]);
    copy_rows(call, share.first, share.last);
}

static void reference(const struct op_call *call) { copy_rows(call, 0, op_valid_rows(call)); }

static const char *const param_names[SELECT_ROWS_PARAMS] = {"rows", "count_index", "width", "in_rows"};

const struct op_descriptor op_select_rows = {
    .id = OP_SELECT_ROWS,
    .name = "select_rows",
    .param_count = SELECT_ROWS_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
