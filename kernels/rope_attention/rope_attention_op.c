/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_attention/rope_attention.h"

#include "kernels/mean_squares/mean_squares.h"

static const char *illegal(const int64_t *params)
{
    const int64_t scope = params[ROPE_ATTENTION_NORM_SCOPE], centred = params[ROPE_ATTENTION_CENTRED];
    const char *why = op_rotary_illegal(params, ROPE_ATTENTION_ROTARY_DIM);
    const bool over_width = scope == ROPE_APPEND_NORM_WIDTH, has_means = params[ROPE_ATTENTION_HAS_MEANS] != 0;
    if (over_width != has_means)
        return over_width ? "norm_scope is the width, without means" : "means without a norm over the width";
    if (over_width && (centred || params[ROPE_ATTENTION_NORM_V])) return "centred or norm_v with a norm over the width";
    if ((scope || centred) && !params[ROPE_ATTENTION_HAS_NORM]) return "norm_scope or centred without a norm";
    if (params[ROPE_ATTENTION_APPENDED] && (scope || centred || params[ROPE_ATTENTION_NORM_V]))
        return "appended with norm_scope, norm_v or centred";
    if (!why) why = op_kv_scales_illegal(params, ROPE_ATTENTION_HAS_KV_SCALES);
    return why ? why : op_paged_illegal(params);
}

static uint64_t table_width(const int64_t *params)
{
    return (uint64_t)op_rotary_dim(params, ROPE_ATTENTION_ROTARY_DIM);
}

static uint64_t qkv_width(const int64_t *params)
{
    return params[ROPE_ATTENTION_APPENDED] ? op_heads_width(params) : op_qkv_width(params);
}

static uint64_t norm_width(const int64_t *params, int heads)
{
    return (uint64_t)(params[ROPE_ATTENTION_HEAD_DIM] *
                      (rope_append_own_weights(params[ROPE_ATTENTION_NORM_SCOPE]) ? params[heads] : 1));
}

static uint64_t norm_q_width(const int64_t *params) { return norm_width(params, ROPE_ATTENTION_HEADS); }
static uint64_t norm_k_width(const int64_t *params) { return norm_width(params, ROPE_ATTENTION_KV_HEADS); }

static const struct op_param param_schema[ROPE_ATTENTION_PROBLEM_PARAMS] = {
    OP_PAGED_PARAMS(ROPE_ATTENTION_QKV),
    [ROPE_ATTENTION_WINDOW] = {"window", 12, PARAM_INTEGER, PARAM_OF_NODE, .most = INT32_MAX},
    [ROPE_ATTENTION_SCALE_BITS] = {"scale_bits", 13, PARAM_FLOAT, PARAM_OF_NODE, .least = 1, .most = OP_FLOAT_MAX_BITS},
    [ROPE_ATTENTION_HAS_NORM] = {"has_norm", 14, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_ATTENTION_NORM_Q, .most = 1},
    [ROPE_ATTENTION_NORM_DTYPE] = {"norm_dtype", 15, PARAM_DTYPE, PARAM_OF_DTYPE, ROPE_ATTENTION_NORM_Q,
                                   .fallback = DTYPE_BF16},
    [ROPE_ATTENTION_EPS_BITS] = {"eps_bits", 16, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ROPE_ATTENTION_ROTARY_DIM] = {"rotary_dim", 256, PARAM_INTEGER, PARAM_OF_NODE, .most = OP_MAX_HEAD_DIM},
    [ROPE_ATTENTION_CAP_BITS] = {"cap_bits", 257, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ROPE_ATTENTION_HAS_SINKS] = {"has_sinks", 258, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_ATTENTION_SINKS, .most = 1},
    [ROPE_ATTENTION_SINKS_DTYPE] = {"sinks_dtype", 259, PARAM_DTYPE, PARAM_OF_DTYPE, ROPE_ATTENTION_SINKS,
                                    .fallback = DTYPE_F32},
    [ROPE_ATTENTION_NORM_SCOPE] = {"norm_scope", 260, PARAM_INTEGER, PARAM_OF_NODE,
                                   .most = ROPE_APPEND_NORM_SCOPES - 1},
    [ROPE_ATTENTION_NORM_V] = {"norm_v", 261, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ROPE_ATTENTION_CENTRED] = {"centred", 262, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ROPE_ATTENTION_APPENDED] = {"appended", 263, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ROPE_ATTENTION_HAS_KV_SCALES] = {"has_kv_scales", 264, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_ATTENTION_KV_SCALES,
                                      .most = 1},
    [ROPE_ATTENTION_HAS_MEANS] = {"has_means", 265, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_ATTENTION_MEANS, .most = 1},
};
static const struct op_operand operand_schema[ROPE_ATTENTION_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ROPE_ATTENTION_QKV] = {"qkv", ROLE_INPUT, .dtype = ROPE_ATTENTION_X_DTYPE, .rows = ROPE_ATTENTION_ROWS,
                            .width = qkv_width},
    [ROPE_ATTENTION_TABLE] = {"table", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ROPE_ATTENTION_ROWS,
                              .width = table_width},
    [ROPE_ATTENTION_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, ROPE_ATTENTION_ROWS),
    [ROPE_ATTENTION_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, ROPE_ATTENTION_ROWS),
    [ROPE_ATTENTION_PAGE_TABLE] = {"page_table", ROLE_STATE, .field = STATE_PAGE_TABLE, .bytes = op_page_table_bytes},
    [ROPE_ATTENTION_KV] = {"kv", ROLE_KV, ACCESS_READ_WRITE, .bytes = op_kv_bytes},
    [ROPE_ATTENTION_OUT] = {"out", ROLE_OUTPUT, .dtype = ROPE_ATTENTION_X_DTYPE, .rows = ROPE_ATTENTION_ROWS,
                            .width = op_heads_width},
    [ROPE_ATTENTION_WORKSPACE] = {"workspace", ROLE_COUNTERS, .rows = OP_NONE, .columns = OP_NONE,
                                  .element_bytes = PLAN_ALIGNMENT /* with any tunables */},
    [ROPE_ATTENTION_NORM_Q] = {"norm_q", ROLE_WEIGHT, .present = ROPE_ATTENTION_HAS_NORM,
                               .dtype = ROPE_ATTENTION_NORM_DTYPE, .rows = OP_NONE, .width = norm_q_width},
    [ROPE_ATTENTION_NORM_K] = {"norm_k", ROLE_WEIGHT, .present = ROPE_ATTENTION_HAS_NORM,
                               .dtype = ROPE_ATTENTION_NORM_DTYPE, .rows = OP_NONE, .width = norm_k_width},
    [ROPE_ATTENTION_SINKS] = {"sinks", ROLE_WEIGHT, .present = ROPE_ATTENTION_HAS_SINKS,
                              .dtype = ROPE_ATTENTION_SINKS_DTYPE, .rows = OP_NONE, .columns = ROPE_ATTENTION_HEADS},
    [ROPE_ATTENTION_KV_SCALES] = {"kv_scales", ROLE_WEIGHT, .present = ROPE_ATTENTION_HAS_KV_SCALES, .fixed = DTYPE_F32,
                                  .rows = OP_NONE, .width = op_kv_scales_width},
    [ROPE_ATTENTION_MEANS] = {"means", ROLE_INPUT, .present = ROPE_ATTENTION_HAS_MEANS, .fixed = DTYPE_F32,
                              .rows = ROPE_ATTENTION_ROWS, .width = mean_squares_width},
};

/* rope_append and attention fused; a CPU runs both ops. */
const struct op_descriptor op_rope_attention = {
    .id = OP_ROPE_ATTENTION,
    .name = "rope_attention",
    OP_SCHEMA(param_schema, operand_schema),
    .window = ROPE_ATTENTION_WINDOW,
    .illegal = illegal,
};
