/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/delta_rule/delta_rule.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/delta_rule/delta_rule_vector.h"
#include "kernels/op/recurrent.h"

static uint64_t layer_bytes(const int64_t *params)
{
    return delta_rule_state_bytes((uint64_t)params[DELTA_RULE_VALUE_HEADS], (uint64_t)params[DELTA_RULE_KEY_DIM],
                                  (uint64_t)params[DELTA_RULE_VALUE_DIM]);
}

static const char *illegal(const int64_t *params)
{
    if (params[DELTA_RULE_VALUE_HEADS] % params[DELTA_RULE_KEY_HEADS])
        return "value_heads is not a multiple of key_heads";
    return layer_bytes(params) > (uint64_t)params[DELTA_RULE_RECURRENT_BYTES]
               ? "recurrent_bytes is less than the state of a layer"
               : NULL;
}

static uint64_t out_width(const int64_t *params)
{
    return (uint64_t)params[DELTA_RULE_VALUE_HEADS] * (uint64_t)params[DELTA_RULE_VALUE_DIM];
}

static uint64_t qkv_width(const int64_t *params)
{
    return 2 * (uint64_t)params[DELTA_RULE_KEY_HEADS] * (uint64_t)params[DELTA_RULE_KEY_DIM] + out_width(params);
}

static uint64_t ba_width(const int64_t *params) { return 2 * (uint64_t)params[DELTA_RULE_VALUE_HEADS]; }

static const char *cpu_illegal(const int64_t *params)
{
    return params[DELTA_RULE_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

/* A chunk's rows keep the state in the cache, but that depends on what the rows are. */
void delta_rule_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS = 8 /* for each element of the state */ };
    (void)context;
    const uint64_t rows = (uint64_t)params[DELTA_RULE_ROWS], state = layer_bytes(params);
    const uint64_t element = dtype_bytes((enum dtype)params[DELTA_RULE_X_DTYPE]);
    *bytes =
        rows * ((qkv_width(params) + 2 * out_width(params)) * element + ba_width(params) * sizeof(float) + 2 * state);
    *flops = rows * state / sizeof(float) * FLOPS;
}

static bool state_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                        uint64_t *bytes)
{
    return op_recurrent_bytes(geometry, target, layer_bytes(params), bytes);
}

#define HEADS(name, id)                                                                                \
    {                                                                                                  \
        name, id, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_HEADS, .least = 1, .most = OP_MAX_HEADS \
    }
static const struct op_param param_schema[DELTA_RULE_PARAMS] = {
    OP_ROWS_PARAMS,
    [DELTA_RULE_KEY_HEADS] = HEADS("key_heads", 3),
    [DELTA_RULE_VALUE_HEADS] = HEADS("value_heads", 4),
    [DELTA_RULE_KEY_DIM] = {"key_dim", 5, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = DELTA_RULE_MAX_DIM},
    [DELTA_RULE_VALUE_DIM] = {"value_dim", 6, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = DELTA_RULE_MAX_DIM},
    [DELTA_RULE_EPS_BITS] = {"eps_bits", 7, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [DELTA_RULE_A_DTYPE] = {"a_dtype", 8, PARAM_DTYPE, PARAM_OF_DTYPE, DELTA_RULE_A_LOG},
    [DELTA_RULE_DT_DTYPE] = {"dt_dtype", 9, PARAM_DTYPE, PARAM_OF_DTYPE, DELTA_RULE_DT_BIAS},
    [DELTA_RULE_NORM_DTYPE] = {"norm_dtype", 10, PARAM_DTYPE, PARAM_OF_DTYPE, DELTA_RULE_NORM},
    OP_RECURRENT_PARAMS(DELTA_RULE_RECURRENT_BYTES, 11, DELTA_RULE_SLOT_COUNT, 12),
    [DELTA_RULE_X_DTYPE] = {"x_dtype", OP_LATER_PARAM_ID, PARAM_DTYPE, PARAM_OF_DTYPE, DELTA_RULE_QKV,
                            .fallback = DTYPE_F32},
    [DELTA_RULE_SCATTERED] = {"scattered", OP_LATER_PARAM_ID + 1, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
#define ROW_OPERAND(name, role, width_)                                                   \
    {                                                                                     \
        name, role, .dtype = DELTA_RULE_X_DTYPE, .rows = DELTA_RULE_ROWS, .width = width_ \
    }
#define VECTOR_OPERAND(name, dtype_, columns_)                                   \
    {                                                                            \
        name, ROLE_WEIGHT, .dtype = dtype_, .rows = OP_NONE, .columns = columns_ \
    }
static const struct op_operand operand_schema[DELTA_RULE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [DELTA_RULE_QKV] = ROW_OPERAND("qkv", ROLE_INPUT, qkv_width),
    [DELTA_RULE_Z] = ROW_OPERAND("z", ROLE_INPUT, out_width),
    [DELTA_RULE_BA] = {"ba", ROLE_INPUT, .fixed = DTYPE_F32, .rows = DELTA_RULE_ROWS, .width = ba_width},
    [DELTA_RULE_A_LOG] = VECTOR_OPERAND("a_log", DELTA_RULE_A_DTYPE, DELTA_RULE_VALUE_HEADS),
    [DELTA_RULE_DT_BIAS] = VECTOR_OPERAND("dt_bias", DELTA_RULE_DT_DTYPE, DELTA_RULE_VALUE_HEADS),
    [DELTA_RULE_NORM] = VECTOR_OPERAND("norm", DELTA_RULE_NORM_DTYPE, DELTA_RULE_VALUE_DIM),
    [DELTA_RULE_OUT] = ROW_OPERAND("out", ROLE_OUTPUT, out_width),
    [DELTA_RULE_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, DELTA_RULE_ROWS),
    [DELTA_RULE_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, DELTA_RULE_ROWS),
    [DELTA_RULE_STATE] = {"state", ROLE_STATE, ACCESS_READ_WRITE, STATE_RECURRENT, .bytes = state_bytes},
};

const struct op_descriptor op_delta_rule = {
    .id = OP_DELTA_RULE,
    .name = "delta_rule",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = delta_rule_cost,
    .cpu_illegal = cpu_illegal,
    .reference = delta_rule_reference,
    OP_VECTOR_RUN(delta_rule),
};
