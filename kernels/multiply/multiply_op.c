/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/multiply/multiply.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/multiply/multiply_vector.h"

void multiply_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t width = (uint64_t)params[MULTIPLY_WIDTH], elements = (uint64_t)params[MULTIPLY_ROWS] * width;
    const bool by_weight = params[MULTIPLY_HAS_WEIGHT] != 0;
    const int factor = by_weight ? MULTIPLY_WEIGHT_DTYPE : MULTIPLY_BY_DTYPE;
    *bytes = (by_weight ? width : elements) * dtype_bytes((enum dtype)params[factor]) +
             elements * (dtype_bytes((enum dtype)params[MULTIPLY_X_DTYPE]) +
                         dtype_bytes((enum dtype)params[MULTIPLY_OUT_DTYPE]));
    *flops = elements;
}

static void reference(const struct op_call *call)
{
    const int64_t width = call->params[MULTIPLY_WIDTH], count = op_valid_rows(call) * width;
    const enum dtype dtype = (enum dtype)call->params[MULTIPLY_WEIGHT_DTYPE];
    const float *x = call->operands[MULTIPLY_X], *by = call->operands[MULTIPLY_BY];
    float *out = call->operands[MULTIPLY_OUT];
    for (int64_t i = 0; i < count; i++)
        out[i] = x[i] * (by ? by[i] : op_element(call->operands[MULTIPLY_WEIGHT], i % width, dtype));
}

static const char *illegal(const int64_t *params)
{
    return params[MULTIPLY_HAS_BY] == params[MULTIPLY_HAS_WEIGHT] ? "expected one of by and weight" : NULL;
}

static const char *cpu_illegal(const int64_t *params)
{
    for (int i = MULTIPLY_X_DTYPE; i <= MULTIPLY_OUT_DTYPE; i++)
        if (params[i] != DTYPE_F32) return "parameter x_dtype, by_dtype or out_dtype is not F32";
    return NULL;
}

static const struct op_param param_schema[MULTIPLY_PARAMS] = {
    OP_ROWS_PARAMS,
    [MULTIPLY_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, MULTIPLY_X, .least = 1, .most = OP_MAX_WIDTH},
    [MULTIPLY_HAS_BY] = {"has_by", 4, PARAM_INTEGER, PARAM_OF_PRESENT, MULTIPLY_BY, .most = 1},
    [MULTIPLY_HAS_WEIGHT] = {"has_weight", 5, PARAM_INTEGER, PARAM_OF_PRESENT, MULTIPLY_WEIGHT, .most = 1},
    [MULTIPLY_WEIGHT_DTYPE] = {"weight_dtype", 6, PARAM_DTYPE, PARAM_OF_DTYPE, MULTIPLY_WEIGHT, .fallback = DTYPE_F32},
    [MULTIPLY_X_DTYPE] = {"x_dtype", OP_LATER_PARAM_ID, PARAM_DTYPE, PARAM_OF_DTYPE, MULTIPLY_X, .fallback = DTYPE_F32},
    [MULTIPLY_BY_DTYPE] = {"by_dtype", OP_LATER_PARAM_ID + 1, PARAM_DTYPE, PARAM_OF_DTYPE, MULTIPLY_BY,
                           .fallback = DTYPE_F32},
    [MULTIPLY_OUT_DTYPE] = {"out_dtype", OP_LATER_PARAM_ID + 2, PARAM_DTYPE, PARAM_OF_DTYPE, MULTIPLY_OUT,
                            .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[MULTIPLY_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [MULTIPLY_X] = {"x", ROLE_INPUT, .dtype = MULTIPLY_X_DTYPE, .rows = MULTIPLY_ROWS, .columns = MULTIPLY_WIDTH},
    [MULTIPLY_OUT] = {"out", ROLE_OUTPUT, .dtype = MULTIPLY_OUT_DTYPE, .rows = MULTIPLY_ROWS, .columns = MULTIPLY_WIDTH,
                      .replaces_cpu = 1u << MULTIPLY_X | 1u << MULTIPLY_BY},
    [MULTIPLY_BY] = {"by", ROLE_INPUT, .present = MULTIPLY_HAS_BY, .dtype = MULTIPLY_BY_DTYPE, .rows = MULTIPLY_ROWS,
                     .columns = MULTIPLY_WIDTH},
    [MULTIPLY_WEIGHT] = {"weight", ROLE_WEIGHT, .present = MULTIPLY_HAS_WEIGHT, .dtype = MULTIPLY_WEIGHT_DTYPE,
                         .rows = OP_NONE, .columns = MULTIPLY_WIDTH},
};

const struct op_descriptor op_multiply = {
    .id = OP_MULTIPLY,
    .name = "multiply",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = multiply_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    OP_NARROW_VECTOR_RUN(multiply),
};
