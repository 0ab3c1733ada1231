/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sigmoid_gate/sigmoid_gate.h"

#include <math.h>

#include "kernels/cpu/share.h"

void sigmoid_gate_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t elements = (uint64_t)params[SIGMOID_GATE_ROWS] * (uint64_t)params[SIGMOID_GATE_WIDTH];
    *bytes = 3 * elements * dtype_bytes((enum dtype)params[SIGMOID_GATE_X_DTYPE]);
    *flops = 4 * elements;
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[SIGMOID_GATE_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

static void run_elements(const struct op_call *call, int64_t first, int64_t last)
{
    const float *x = call->operands[SIGMOID_GATE_X], *gate = call->operands[SIGMOID_GATE_GATE];
    float *out = call->operands[SIGMOID_GATE_OUT];
    for (int64_t i = first; i < last; i++) out[i] = x[i] / (1 + expf(-gate[i]));
}

static void run(const struct op_call *call, struct team_member *member)
{
    const int64_t width = call->params[SIGMOID_GATE_WIDTH];
    const struct share share = team_share_rows(member, op_valid_rows(call), width);
    run_elements(call, share.first * width, share.last * width);
}

static void reference(const struct op_call *call)
{
    run_elements(call, 0, op_valid_rows(call) * call->params[SIGMOID_GATE_WIDTH]);
}

static const struct op_param param_schema[SIGMOID_GATE_PARAMS] = {
    OP_ROWS_PARAMS,
    [SIGMOID_GATE_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, SIGMOID_GATE_X, .least = 1,
                            .most = OP_MAX_WIDTH},
    [SIGMOID_GATE_X_DTYPE] = {"x_dtype", OP_LATER_PARAM_ID, PARAM_DTYPE, PARAM_OF_DTYPE, SIGMOID_GATE_X,
                              .fallback = DTYPE_F32},
};
static const struct op_operand operand_schema[SIGMOID_GATE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [SIGMOID_GATE_X] = {"x", ROLE_INPUT, .dtype = SIGMOID_GATE_X_DTYPE, .rows = SIGMOID_GATE_ROWS,
                        .columns = SIGMOID_GATE_WIDTH},
    [SIGMOID_GATE_GATE] = {"gate", ROLE_INPUT, .dtype = SIGMOID_GATE_X_DTYPE, .rows = SIGMOID_GATE_ROWS,
                           .columns = SIGMOID_GATE_WIDTH},
    [SIGMOID_GATE_OUT] = {"out", ROLE_OUTPUT, .dtype = SIGMOID_GATE_X_DTYPE, .rows = SIGMOID_GATE_ROWS,
                          .columns = SIGMOID_GATE_WIDTH, .replaces = 1u << SIGMOID_GATE_X | 1u << SIGMOID_GATE_GATE},
};

const struct op_descriptor op_sigmoid_gate = {
    .id = OP_SIGMOID_GATE,
    .name = "sigmoid_gate",
    OP_SCHEMA(param_schema, operand_schema),
    .cost = sigmoid_gate_cost,
    .cpu_illegal = cpu_illegal,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
