/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/xielu/xielu.h"

#include <math.h>

#include "kernels/cpu/vector_portable.h"
#include "kernels/xielu/xielu_vector.h"

void xielu_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_PER_ELEMENT = 30 };
    (void)context;
    const uint64_t elements = (uint64_t)params[XIELU_ROWS] * (uint64_t)params[XIELU_WIDTH];
    *bytes = 2 * elements * dtype_bytes((enum dtype)params[XIELU_X_DTYPE]);
    *flops = FLOPS_PER_ELEMENT * elements;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[XIELU_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

static void reference(const struct op_call *call)
{
    const int64_t count = op_valid_rows(call) * call->params[XIELU_WIDTH];
    const struct xielu_numbers by =
        xielu_numbers(call->operands[XIELU_NUMBERS], (enum dtype)call->params[XIELU_NUMBERS_DTYPE]);
    const float *in = call->operands[XIELU_X];
    float *out = call->operands[XIELU_OUT];
    for (int64_t i = 0; i < count; i++) {
        const double x = (double)in[i], least = x < (double)by.eps ? x : (double)by.eps;
        const double bent = in[i] > 0 ? (double)by.positive * x * x : (expm1(least) - x) * (double)by.negative;
        out[i] = (float)(bent + (double)by.beta * x);
    }
}

static uint64_t number_count(const int64_t *params)
{
    (void)params;
    return XIELU_NUMBER_COUNT;
}

static const struct op_param param_schema[XIELU_PARAMS] = {
    OP_ROWS_PARAMS,
    [XIELU_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, XIELU_X, .least = 1, .most = OP_MAX_WIDTH},
    [XIELU_NUMBERS_DTYPE] = {"numbers_dtype", 4, PARAM_DTYPE, PARAM_OF_DTYPE, XIELU_NUMBERS, .fallback = DTYPE_F32},
    [XIELU_X_DTYPE] = {"x_dtype", 5, PARAM_DTYPE, PARAM_OF_DTYPE, XIELU_X, .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[XIELU_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [XIELU_X] = {"x", ROLE_INPUT, .dtype = XIELU_X_DTYPE, .rows = XIELU_ROWS, .columns = XIELU_WIDTH},
    [XIELU_NUMBERS] = {"numbers", ROLE_WEIGHT, .dtype = XIELU_NUMBERS_DTYPE, .rows = OP_NONE, .width = number_count},
    [XIELU_OUT] = {"out", ROLE_OUTPUT, .dtype = XIELU_X_DTYPE, .rows = XIELU_ROWS, .columns = XIELU_WIDTH,
                   .replaces = 1u << XIELU_X},
};

const struct op_descriptor op_xielu = {
    .id = OP_XIELU,
    .name = "xielu",
    OP_SCHEMA(param_schema, operand_schema),
    .cost = xielu_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    OP_NARROW_VECTOR_RUN(xielu),
};
