/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/quantise/quantise.h"

static const char *illegal(const int64_t *params)
{
    const int64_t out = params[QUANTISE_OUT_DTYPE];
    if (out != DTYPE_F8_E4M3 && out != DTYPE_I8) return "parameter out_dtype is not F8_E4M3 or I8";
    return params[QUANTISE_WIDTH] % QUANTISE_GROUP ? "parameter width is not a multiple of 16" : NULL;
}

static const struct op_param param_schema[QUANTISE_PARAMS] = {
    OP_ROWS_PARAMS,
    [QUANTISE_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, QUANTISE_X, .least = QUANTISE_GROUP,
                        .most = OP_MAX_WIDTH},
    [QUANTISE_X_DTYPE] = {"x_dtype", 4, PARAM_DTYPE, PARAM_OF_DTYPE, QUANTISE_X, .fallback = DTYPE_F32},
    [QUANTISE_OUT_DTYPE] = {"out_dtype", OP_LATER_PARAM_ID, PARAM_CODES, PARAM_OF_DTYPE, QUANTISE_OUT,
                            .fallback = DTYPE_F8_E4M3},
};
static const struct op_operand operand_schema[QUANTISE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [QUANTISE_X] = {"x", ROLE_INPUT, .dtype = QUANTISE_X_DTYPE, .rows = QUANTISE_ROWS, .columns = QUANTISE_WIDTH},
    [QUANTISE_OUT] = {"out", ROLE_OUTPUT, .dtype = QUANTISE_OUT_DTYPE, .rows = QUANTISE_ROWS,
                      .columns = QUANTISE_WIDTH},
    [QUANTISE_SCALES] = {"scales", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = QUANTISE_ROWS, .columns = OP_NONE},
};

const struct op_descriptor op_quantise = {
    .id = OP_QUANTISE,
    .name = "quantise",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
