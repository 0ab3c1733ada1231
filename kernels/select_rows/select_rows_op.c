/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_rows/select_rows.h"

#include "kernels/cpu/share.h"
#include "kernels/op/op.h"

void select_rows_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    uint64_t rows = (uint64_t)params[SELECT_ROWS_ROWS], width = (uint64_t)params[SELECT_ROWS_WIDTH];
    *bytes = 2 * rows * width * dtype_bytes((enum dtype)params[SELECT_ROWS_X_DTYPE]) + rows * sizeof(int32_t);
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
        /* The submitter guarantees rows of the plan; a hostile plan may declare fewer rows of x than it has. */
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

static const struct op_param param_schema[SELECT_ROWS_PARAMS] = {
    OP_OUT_ROWS_PARAMS,
    [SELECT_ROWS_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, SELECT_ROWS_X, .least = 1, .most = OP_MAX_WIDTH},
    [SELECT_ROWS_IN_ROWS] = {"in_rows", 4, PARAM_INTEGER, PARAM_OF_STEP, .least = 1, .most = OP_MAX_ROWS},
    [SELECT_ROWS_X_DTYPE] = {"x_dtype", 5, PARAM_DTYPE, PARAM_OF_DTYPE, SELECT_ROWS_X, .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[SELECT_ROWS_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [SELECT_ROWS_X] = {"x", ROLE_INPUT, .dtype = SELECT_ROWS_X_DTYPE, .rows = SELECT_ROWS_IN_ROWS,
                       .columns = SELECT_ROWS_WIDTH},
    [SELECT_ROWS_INDEX] = OP_STEP_OPERAND("index", STEP_OUT_ROWS, SELECT_ROWS_ROWS),
    [SELECT_ROWS_OUT] = {"out", ROLE_OUTPUT, .dtype = SELECT_ROWS_X_DTYPE, .rows = SELECT_ROWS_ROWS,
                         .columns = SELECT_ROWS_WIDTH},
};

const struct op_descriptor op_select_rows = {
    .id = OP_SELECT_ROWS,
    .name = "select_rows",
    OP_SCHEMA(param_schema, operand_schema),
    .cost = select_rows_cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
