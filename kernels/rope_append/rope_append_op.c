/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_append/rope_append.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/mean_squares/mean_squares.h"
#include "kernels/op/op.h"
#include "kernels/rope_append/rope_append_vector.h"

void rope_append_cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_ROPE = 3, FLOPS_NORM = 4 /* per element */ };
    (void)context;
    uint64_t rows = (uint64_t)params[ROPE_APPEND_ROWS], heads = (uint64_t)params[ROPE_APPEND_HEADS];
    uint64_t kv_heads = (uint64_t)params[ROPE_APPEND_KV_HEADS], head_dim = (uint64_t)params[ROPE_APPEND_HEAD_DIM];
    uint64_t x_bytes = dtype_bytes((enum dtype)params[ROPE_APPEND_X_DTYPE]);
    *bytes = rows * (head_dim * (2 * (heads + kv_heads) * x_bytes + sizeof(float)) +
                     2 * kv_heads * op_kv_row_bytes(params) + 3 * sizeof(int32_t));
    uint64_t each = params[ROPE_APPEND_HAS_NORM] ? FLOPS_ROPE + FLOPS_NORM : FLOPS_ROPE;
    *flops = rows * (heads + kv_heads) * head_dim * each;
    if (params[ROPE_APPEND_HAS_MEANS]) *bytes += rows * MEAN_SQUARES_WIDTH * sizeof(float);
}

static const char *illegal(const int64_t *params)
{
    if (params[ROPE_APPEND_NORM_SCOPE] && !params[ROPE_APPEND_HAS_NORM]) return "norm_scope is not 0 without a norm";
    if (params[ROPE_APPEND_CENTRED] &&
        (!params[ROPE_APPEND_HAS_NORM] || params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH))
        return "centred without a norm over each head";
    if (params[ROPE_APPEND_HAS_MEANS] && params[ROPE_APPEND_NORM_SCOPE] != ROPE_APPEND_NORM_WIDTH)
        return "means without a norm over the width";
    const char *why = op_rotary_illegal(params, ROPE_APPEND_ROTARY_DIM);
    if (!why) why = op_kv_scales_illegal(params, ROPE_APPEND_HAS_KV_SCALES);
    return why ? why : op_paged_illegal(params);
}

static uint64_t table_width(const int64_t *params) { return (uint64_t)op_rotary_dim(params, ROPE_APPEND_ROTARY_DIM); }

static uint64_t norm_width(const int64_t *params, int heads)
{
    return (uint64_t)(params[ROPE_APPEND_HEAD_DIM] *
                      (rope_append_own_weights(params[ROPE_APPEND_NORM_SCOPE]) ? params[heads] : 1));
}

static uint64_t norm_q_width(const int64_t *params) { return norm_width(params, ROPE_APPEND_HEADS); }
static uint64_t norm_k_width(const int64_t *params) { return norm_width(params, ROPE_APPEND_KV_HEADS); }

static const struct op_param param_schema[ROPE_APPEND_PARAMS] = {
    OP_PAGED_PARAMS(ROPE_APPEND_QKV),
    [ROPE_APPEND_HAS_NORM] = {"has_norm", 12, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_APPEND_NORM_Q, .most = 1},
    [ROPE_APPEND_NORM_DTYPE] = {"norm_dtype", 13, PARAM_DTYPE, PARAM_OF_DTYPE, ROPE_APPEND_NORM_Q,
                                .fallback = DTYPE_BF16},
    [ROPE_APPEND_EPS_BITS] = {"eps_bits", 14, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ROPE_APPEND_ROTARY_DIM] = {"rotary_dim", 256, PARAM_INTEGER, PARAM_OF_NODE, .most = OP_MAX_HEAD_DIM},
    [ROPE_APPEND_NORM_SCOPE] = {"norm_scope", 257, PARAM_INTEGER, PARAM_OF_NODE, .most = ROPE_APPEND_NORM_SCOPES - 1},
    [ROPE_APPEND_NORM_V] = {"norm_v", 258, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ROPE_APPEND_CENTRED] = {"centred", 259, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ROPE_APPEND_HAS_KV_SCALES] = {"has_kv_scales", 260, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_APPEND_KV_SCALES,
                                   .most = 1},
    [ROPE_APPEND_HAS_MEANS] = {"has_means", 261, PARAM_INTEGER, PARAM_OF_PRESENT, ROPE_APPEND_MEANS, .most = 1},
};
static const struct op_operand operand_schema[ROPE_APPEND_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ROPE_APPEND_QKV] = {"qkv", ROLE_INPUT, .dtype = ROPE_APPEND_X_DTYPE, .rows = ROPE_APPEND_ROWS,
                         .width = op_qkv_width},
    [ROPE_APPEND_TABLE] = {"table", ROLE_INPUT, .fixed = DTYPE_F32, .rows = ROPE_APPEND_ROWS, .width = table_width},
    [ROPE_APPEND_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, ROPE_APPEND_ROWS),
    [ROPE_APPEND_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, ROPE_APPEND_ROWS),
    [ROPE_APPEND_PAGE_TABLE] = {"page_table", ROLE_STATE, .field = STATE_PAGE_TABLE, .bytes = op_page_table_bytes},
    [ROPE_APPEND_KV] = {"kv", ROLE_KV, ACCESS_WRITE, .bytes = op_kv_bytes},
    [ROPE_APPEND_Q] = {"q", ROLE_OUTPUT, .dtype = ROPE_APPEND_X_DTYPE, .rows = ROPE_APPEND_ROWS,
                       .width = op_heads_width},
    [ROPE_APPEND_NORM_Q] = {"norm_q", ROLE_WEIGHT, .present = ROPE_APPEND_HAS_NORM, .dtype = ROPE_APPEND_NORM_DTYPE,
                            .rows = OP_NONE, .width = norm_q_width},
    [ROPE_APPEND_NORM_K] = {"norm_k", ROLE_WEIGHT, .present = ROPE_APPEND_HAS_NORM, .dtype = ROPE_APPEND_NORM_DTYPE,
                            .rows = OP_NONE, .width = norm_k_width},
    [ROPE_APPEND_KV_SCALES] = {"kv_scales", ROLE_WEIGHT, .present = ROPE_APPEND_HAS_KV_SCALES, .fixed = DTYPE_F32,
                               .rows = OP_NONE, .width = op_kv_scales_width},
    [ROPE_APPEND_MEANS] = {"means", ROLE_INPUT, .present = ROPE_APPEND_HAS_MEANS, .fixed = DTYPE_F32,
                           .rows = ROPE_APPEND_ROWS, .width = mean_squares_width},
};

const struct op_descriptor op_rope_append = {
    .id = OP_ROPE_APPEND,
    .name = "rope_append",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = rope_append_cost,
    .reference = rope_append_reference,
    OP_NARROW_VECTOR_RUN(rope_append),
};
