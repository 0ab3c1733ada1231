/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/select_columns/select_columns.h"

#include "kernels/cpu/share.h"

void select_columns_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[SELECT_COLUMNS_ROWS], width = (uint64_t)params[SELECT_COLUMNS_WIDTH];
    *bytes = rows * width *
                 (dtype_bytes((enum dtype)params[SELECT_COLUMNS_X_DTYPE]) +
                  dtype_bytes((enum dtype)params[SELECT_COLUMNS_OUT_DTYPE])) +
             width * sizeof(float);
    *flops = 0;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[SELECT_COLUMNS_X_DTYPE] != DTYPE_F32 || params[SELECT_COLUMNS_OUT_DTYPE] != DTYPE_F32
               ? "parameter x_dtype or out_dtype is not F32"
               : NULL;
}

static void select_columns_of_rows(const struct op_call *call, int64_t first, int64_t last)
{
    const int64_t width = call->params[SELECT_COLUMNS_WIDTH];
    const float *order = call->operands[SELECT_COLUMNS_ORDER], end = (float)width;
    for (int64_t r = first; r < last; r++) {
        const float *x = (const float *)call->operands[SELECT_COLUMNS_X] + r * width;
        float *out = (float *)call->operands[SELECT_COLUMNS_OUT] + r * width;
        for (int64_t i = 0; i < width; i++) out[i] = order[i] >= 0 && order[i] < end ? x[(int64_t)order[i]] : 0;
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    const struct share share = team_share_rows(member, op_valid_rows(call), call->params[SELECT_COLUMNS_WIDTH]);
    select_columns_of_rows(call, share.first, share.last);
}

static void reference(const struct op_call *call) { select_columns_of_rows(call, 0, op_valid_rows(call)); }

static const struct op_param param_schema[SELECT_COLUMNS_PARAMS] = {
    OP_ROWS_PARAMS,
    [SELECT_COLUMNS_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, SELECT_COLUMNS_X, .least = 1,
                              .most = SELECT_COLUMNS_MOST},
    [SELECT_COLUMNS_X_DTYPE] = {"x_dtype", 4, PARAM_DTYPE, PARAM_OF_DTYPE, SELECT_COLUMNS_X, .fallback = DTYPE_F32},
    [SELECT_COLUMNS_OUT_DTYPE] = {"out_dtype", 5, PARAM_DTYPE, PARAM_OF_DTYPE, SELECT_COLUMNS_OUT,
                                  .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[SELECT_COLUMNS_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [SELECT_COLUMNS_X] = {"x", ROLE_INPUT, .dtype = SELECT_COLUMNS_X_DTYPE, .rows = SELECT_COLUMNS_ROWS,
                          .columns = SELECT_COLUMNS_WIDTH},
    [SELECT_COLUMNS_ORDER] = {"order", ROLE_WEIGHT, .fixed = DTYPE_F32, .rows = OP_NONE,
                              .columns = SELECT_COLUMNS_WIDTH},
    [SELECT_COLUMNS_OUT] = {"out", ROLE_OUTPUT, .dtype = SELECT_COLUMNS_OUT_DTYPE, .rows = SELECT_COLUMNS_ROWS,
                            .columns = SELECT_COLUMNS_WIDTH},
};

const struct op_descriptor op_select_columns = {
    .id = OP_SELECT_COLUMNS,
    .name = "select_columns",
    OP_SCHEMA(param_schema, operand_schema),
    .cost = select_columns_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
