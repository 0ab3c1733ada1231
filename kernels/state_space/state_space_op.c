/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/state_space/state_space.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/recurrent.h"
#include "kernels/state_space/state_space_vector.h"

static uint64_t layer_bytes(const int64_t *params)
{
    return state_space_state_bytes((uint64_t)params[STATE_SPACE_HEADS], (uint64_t)params[STATE_SPACE_STATE_DIM],
                                   (uint64_t)params[STATE_SPACE_HEAD_DIM]);
}

static const char *illegal(const int64_t *params)
{
    if (params[STATE_SPACE_HEADS] % params[STATE_SPACE_GROUPS]) return "heads is not a multiple of groups";
    if (params[STATE_SPACE_DT_MIN_BITS] > params[STATE_SPACE_DT_MAX_BITS]) return "dt_min is above dt_max";
    return layer_bytes(params) > (uint64_t)params[STATE_SPACE_RECURRENT_BYTES]
               ? "recurrent_bytes is less than the state of a layer"
               : NULL;
}

static uint64_t out_width(const int64_t *params)
{
    return (uint64_t)params[STATE_SPACE_HEADS] * (uint64_t)params[STATE_SPACE_HEAD_DIM];
}

static uint64_t xbc_width(const int64_t *params)
{
    return out_width(params) + 2 * (uint64_t)params[STATE_SPACE_GROUPS] * (uint64_t)params[STATE_SPACE_STATE_DIM];
}

static const char *cpu_illegal(const int64_t *params)
{
    return params[STATE_SPACE_X_DTYPE] == DTYPE_F32 ? NULL : "parameter x_dtype is not F32";
}

/* A chunk's rows keep the state in the cache, but that depends on what the rows are. */
void state_space_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS = 5 /* for each element of the state */ };
    (void)context;
    const uint64_t rows = (uint64_t)params[STATE_SPACE_ROWS], state = layer_bytes(params);
    const uint64_t element = dtype_bytes((enum dtype)params[STATE_SPACE_X_DTYPE]);
    *bytes = rows * ((xbc_width(params) + 2 * out_width(params)) * element +
                     (uint64_t)params[STATE_SPACE_HEADS] * sizeof(float) + 2 * state);
    *flops = rows * state / sizeof(float) * FLOPS;
}

static bool state_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                        uint64_t *bytes)
{
    return op_recurrent_bytes(geometry, target, layer_bytes(params), bytes);
}

static const struct op_param param_schema[STATE_SPACE_PARAMS] = {
    OP_ROWS_PARAMS,
    [STATE_SPACE_GROUPS] = {"groups", 3, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_KV_HEADS, .least = 1,
                            .most = OP_MAX_HEADS},
    [STATE_SPACE_HEADS] = {"heads", 4, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_HEADS, .least = 1,
                           .most = OP_MAX_HEADS},
    [STATE_SPACE_STATE_DIM] = {"state_dim", 5, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = STATE_SPACE_MAX_DIM},
    [STATE_SPACE_HEAD_DIM] = {"head_dim", 6, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = STATE_SPACE_MAX_DIM},
    [STATE_SPACE_DT_MIN_BITS] = {"dt_min_bits", 7, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [STATE_SPACE_DT_MAX_BITS] = {"dt_max_bits", 8, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [STATE_SPACE_A_DTYPE] = {"a_dtype", 9, PARAM_DTYPE, PARAM_OF_DTYPE, STATE_SPACE_A_LOG},
    [STATE_SPACE_DT_DTYPE] = {"dt_dtype", 10, PARAM_DTYPE, PARAM_OF_DTYPE, STATE_SPACE_DT_BIAS},
    [STATE_SPACE_D_DTYPE] = {"d_dtype", 11, PARAM_DTYPE, PARAM_OF_DTYPE, STATE_SPACE_D},
    OP_RECURRENT_PARAMS(STATE_SPACE_RECURRENT_BYTES, 12, STATE_SPACE_SLOT_COUNT, 13),
    [STATE_SPACE_X_DTYPE] = {"x_dtype", 14, PARAM_DTYPE, PARAM_OF_DTYPE, STATE_SPACE_XBC, .fallback = DTYPE_F32},
    [STATE_SPACE_SCATTERED] = {"scattered", 15, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
};
#define ROW_OPERAND(name, role, width_)                                                     \
    {                                                                                       \
        name, role, .dtype = STATE_SPACE_X_DTYPE, .rows = STATE_SPACE_ROWS, .width = width_ \
    }
#define HEADS_OPERAND(name, dtype_)                                                       \
    {                                                                                     \
        name, ROLE_WEIGHT, .dtype = dtype_, .rows = OP_NONE, .columns = STATE_SPACE_HEADS \
    }
static const struct op_operand operand_schema[STATE_SPACE_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [STATE_SPACE_XBC] = ROW_OPERAND("xbc", ROLE_INPUT, xbc_width),
    [STATE_SPACE_Z] = ROW_OPERAND("z", ROLE_INPUT, out_width),
    [STATE_SPACE_DT] = {"dt", ROLE_INPUT, .fixed = DTYPE_F32, .rows = STATE_SPACE_ROWS, .columns = STATE_SPACE_HEADS},
    [STATE_SPACE_A_LOG] = HEADS_OPERAND("a_log", STATE_SPACE_A_DTYPE),
    [STATE_SPACE_DT_BIAS] = HEADS_OPERAND("dt_bias", STATE_SPACE_DT_DTYPE),
    [STATE_SPACE_D] = HEADS_OPERAND("d", STATE_SPACE_D_DTYPE),
    [STATE_SPACE_OUT] = ROW_OPERAND("out", ROLE_OUTPUT, out_width),
    [STATE_SPACE_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, STATE_SPACE_ROWS),
    [STATE_SPACE_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, STATE_SPACE_ROWS),
    [STATE_SPACE_STATE] = {"state", ROLE_STATE, ACCESS_READ_WRITE, STATE_RECURRENT, .bytes = state_bytes},
};

const struct op_descriptor op_state_space = {
    .id = OP_STATE_SPACE,
    .name = "state_space",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = state_space_cost,
    .cpu_illegal = cpu_illegal,
    .reference = state_space_reference,
    OP_VECTOR_RUN(state_space),
};
