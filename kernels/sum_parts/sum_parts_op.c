/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sum_parts/sum_parts.h"

static uint64_t x_width(const int64_t *params)
{
    return (uint64_t)params[SUM_PARTS_PARTS] * (uint64_t)params[SUM_PARTS_WIDTH];
}

static const char *illegal(const int64_t *params)
{
    if (params[SUM_PARTS_WIDTH] > OP_MAX_WIDTH / params[SUM_PARTS_PARTS])
        return "parameter parts times width is above 2^31";
    return params[SUM_PARTS_HAS_RESIDUAL] && params[SUM_PARTS_OUT_DTYPE] != DTYPE_F32
               ? "a residual with an out_dtype that is not F32"
               : NULL;
}

static const struct op_param param_schema[SUM_PARTS_PARAMS] = {
    OP_ROWS_PARAMS,
    [SUM_PARTS_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, SUM_PARTS_OUT, .least = 1, .most = OP_MAX_WIDTH},
    [SUM_PARTS_PARTS] = {"parts", 4, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = SUM_PARTS_MOST, .fallback = 1},
    [SUM_PARTS_OUT_DTYPE] = {"out_dtype", 5, PARAM_DTYPE, PARAM_OF_DTYPE, SUM_PARTS_OUT, .fallback = DTYPE_F32},
    [SUM_PARTS_HAS_RESIDUAL] = {"has_residual", 6, PARAM_INTEGER, PARAM_OF_PRESENT, SUM_PARTS_RESIDUAL, .most = 1},
};
static const struct op_operand operand_schema[SUM_PARTS_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [SUM_PARTS_X] = {"x", ROLE_INPUT, .fixed = DTYPE_F32, .rows = SUM_PARTS_ROWS, .width = x_width},
    [SUM_PARTS_OUT] = {"out", ROLE_OUTPUT, .dtype = SUM_PARTS_OUT_DTYPE, .rows = SUM_PARTS_ROWS,
                       .columns = SUM_PARTS_WIDTH, .replaces = 1u << SUM_PARTS_RESIDUAL},
    [SUM_PARTS_RESIDUAL] = {"residual", ROLE_INPUT, .present = SUM_PARTS_HAS_RESIDUAL, .fixed = DTYPE_F32,
                            .rows = SUM_PARTS_ROWS, .columns = SUM_PARTS_WIDTH},
};

const struct op_descriptor op_sum_parts = {
    .id = OP_SUM_PARTS,
    .name = "sum_parts",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
