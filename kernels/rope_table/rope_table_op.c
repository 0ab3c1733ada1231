/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_table/rope_table.h"

#include <math.h>

#include "formats/base/checked.h"
#include "kernels/cpu/share.h"
#include "kernels/op/op.h"

void rope_table_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_PER_ELEMENT = 20 /* a polynomial with its range reduction */ };
    (void)context;
    uint64_t rows = (uint64_t)params[ROPE_TABLE_ROWS], head_dim = (uint64_t)params[ROPE_TABLE_HEAD_DIM];
    const uint64_t sets = 1 + (uint64_t)params[ROPE_TABLE_SWITCHES];
    *bytes = rows * (head_dim * sizeof(float) + sizeof(int32_t)) + sets * (head_dim / 2) * sizeof(float);
    *flops = FLOPS_PER_ELEMENT * rows * head_dim;
}

/* Sine and cosine in double, rounded once to float: the same bits with every instruction set and, but for one case in
 * some 10^8, with every C library. */
static void fill_rows(const struct op_call *call, int64_t first, int64_t last)
{
    const int32_t *positions = call->operands[ROPE_TABLE_POSITIONS];
    const float *inv_freq = call->operands[ROPE_TABLE_INV_FREQ];
    int64_t head_dim = call->params[ROPE_TABLE_HEAD_DIM], half = head_dim / 2;
    float scaling = op_float_param(call->params, ROPE_TABLE_SCALING_BITS);
    const bool switches = call->params[ROPE_TABLE_SWITCHES] != 0;
    const int32_t *slots = call->operands[ROPE_TABLE_SLOTS], *rope_set = call->operands[ROPE_TABLE_ROPE_SET];
    for (int64_t r = first; r < last; r++) {
        float *out = (float *)call->operands[ROPE_TABLE_OUT] + r * head_dim;
        float position = (float)positions[r];
        const float *frequencies = inv_freq + (switches && rope_set[slots[r]] ? half : 0);
        for (int64_t i = 0; i < half; i++) {
            float angle = position * frequencies[i];
            out[i] = (float)cos((double)angle) * scaling;
            out[half + i] = (float)sin((double)angle) * scaling;
        }
    }
}

static void run(const struct op_call *call, struct team_member *member)
{
    enum { ROWS_PER_MEMBER = 2 };
    struct share share = team_share(member, op_valid_rows(call), ROWS_PER_MEMBER);
    fill_rows(call, share.first, share.last);
}

static void reference(const struct op_call *call) { fill_rows(call, 0, op_valid_rows(call)); }

static const char *illegal(const int64_t *params)
{
    return params[ROPE_TABLE_HEAD_DIM] % 2 ? "parameter head_dim is odd" : NULL;
}

static const char *misfit(const int64_t *params, const struct plan_geometry *geometry)
{
    if ((params[ROPE_TABLE_SWITCHES] != 0) == (geometry->rope_original != 0)) return NULL;
    return geometry->rope_original ? "parameter switches is 0, but the engine has two sets of rotary frequencies"
                                   : "parameter switches is 1, but the engine has one set of rotary frequencies";
}

static uint64_t frequencies(const int64_t *params)
{
    return (uint64_t)((1 + params[ROPE_TABLE_SWITCHES]) * (params[ROPE_TABLE_HEAD_DIM] / 2));
}

static bool rope_set_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                           uint64_t *bytes)
{
    (void)params, (void)target;
    return checked_mul(geometry->slots, sizeof(int32_t), bytes);
}

static const struct op_param param_schema[ROPE_TABLE_PARAMS] = {
    OP_ROWS_PARAMS,
    [ROPE_TABLE_HEAD_DIM] = {"head_dim", 3, PARAM_INTEGER, PARAM_OF_WIDTH, ROPE_TABLE_OUT, .least = 2,
                             .most = OP_MAX_HEAD_DIM},
    [ROPE_TABLE_SCALING_BITS] = {"scaling_bits", 4, PARAM_FLOAT, PARAM_OF_NODE, .most = 0x5f800000 /* 2^64 */},
    [ROPE_TABLE_SWITCHES] = {"switches", 256, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
static const struct op_operand operand_schema[ROPE_TABLE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ROPE_TABLE_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, ROPE_TABLE_ROWS),
    [ROPE_TABLE_INV_FREQ] = {"inv_freq", ROLE_WEIGHT, .fixed = DTYPE_F32, .rows = OP_NONE, .width = frequencies},
    [ROPE_TABLE_OUT] = {"out", ROLE_OUTPUT, .fixed = DTYPE_F32, .rows = ROPE_TABLE_ROWS,
                        .columns = ROPE_TABLE_HEAD_DIM},
    [ROPE_TABLE_SLOTS] = {"slots", ROLE_STEP, .field = STEP_SLOTS, .present = ROPE_TABLE_SWITCHES, .fixed = DTYPE_I32,
                          .rows = ROPE_TABLE_ROWS, .columns = OP_NONE},
    [ROPE_TABLE_ROPE_SET] = {"rope_set", ROLE_STATE, .field = STATE_ROPE_SET, .present = ROPE_TABLE_SWITCHES,
                             .bytes = rope_set_bytes},
};

const struct op_descriptor op_rope_table = {
    .id = OP_ROPE_TABLE,
    .name = "rope_table",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .misfit = misfit,
    .cost = rope_table_cost,
    .reference = reference,
    .run = {[CPU_PORTABLE] = run},
};
