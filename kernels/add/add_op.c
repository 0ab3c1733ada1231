/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/add/add.h"

#include "kernels/cpu/share.h"
#include "kernels/op/op.h"

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    uint64_t elements = (uint64_t)params[ADD_ROWS] * (uint64_t)params[ADD_WIDTH];
    *bytes = 3 * elements * sizeof(float);
    *flops = elements;
}

static void add_range(const struct op_call *call, int64_t first, int64_t last)
{
    /* No restrict: out may be a or b. Bandwidth is the limit, so the compiler's baseline code serves all instruction
     * sets. */
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

static const struct op_param param_schema[ADD_PARAMS] = {
    OP_ROWS_PARAMS,
    [ADD_WIDTH] = {"width", 3, PARAM_INTEGER, PARAM_OF_WIDTH, ADD_A, .least = 1, .most = OP_MAX_WIDTH},
};
static const struct op_operand operand_schema[ADD_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ADD_A] = {"a", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ADD_ROWS, .columns = ADD_WIDTH},
    [ADD_B] = {"b", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ADD_ROWS, .columns = ADD_WIDTH},
    [ADD_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ADD_ROWS, .columns = ADD_WIDTH,
                 .replaces_cpu = 1u << ADD_A},
};

const struct op_descriptor op_add = {
    .id = OP_ADD,
    .name = "add",
    OP_SCHEMA(param_schema, operand_schema),
    .cost = cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
