/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/swiglu/swiglu.h"

static const char *illegal(const int64_t *params)
{
    if (params[SWIGLU_ACTIVATION] == ACTIVATION_SOFTCAP || params[SWIGLU_ACTIVATION] == ACTIVATION_CLAMPED)
        return "an activation with a parameter of its own";
    return params[SWIGLU_WIDTH] % 8 ? "parameter width is not a multiple of 8" : NULL;
}

static uint64_t gate_up_width(const int64_t *params) { return 2 * (uint64_t)params[SWIGLU_WIDTH]; }

static const struct op_param param_schema[SWIGLU_PARAMS] = {
    OP_ROWS_PARAMS,
    [SWIGLU_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, SWIGLU_OUT, .least = 8, .most = OP_MAX_WIDTH},
    [SWIGLU_X_DTYPE] = {"x_dtype", 4, PARAM_DTYPE, PARAM_OF_DTYPE, SWIGLU_GATE_UP, .fallback = DTYPE_F32},
    [SWIGLU_ACTIVATION] = {"activation", OP_LATER_PARAM_ID, PARAM_INTEGER, PARAM_OF_NODE, .least = ACTIVATION_SILU,
                           .most = ACTIVATION_COUNT - 1, .fallback = ACTIVATION_SILU},
};
static const struct op_operand operand_schema[SWIGLU_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [SWIGLU_GATE_UP] = {"gate_up", ROLE_INPUT, .dtype = SWIGLU_X_DTYPE, .rows = SWIGLU_ROWS, .width = gate_up_width},
    [SWIGLU_OUT] = {"out", ROLE_OUTPUT, .dtype = SWIGLU_X_DTYPE, .rows = SWIGLU_ROWS, .columns = SWIGLU_WIDTH},
};

/* On the CPU every matmul has this epilogue. */
const struct op_descriptor op_swiglu = {
    .id = OP_SWIGLU,
    .name = "swiglu",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
