/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/latent_append/latent_append.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/latent_append/latent_append_vector.h"

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_ROPE = 3, FLOPS_NORM = 4 /* per element */ };
    (void)context;
    const uint64_t rows = (uint64_t)params[LATENT_APPEND_ROWS], heads = (uint64_t)params[LATENT_APPEND_HEADS];
    const uint64_t head_dim = (uint64_t)params[LATENT_APPEND_HEAD_DIM];
    const uint64_t rope_dim = (uint64_t)latent_append_rope_dim(params);
    *bytes = rows *
             (((2 * heads + 1) * head_dim + rope_dim) * sizeof(float) + op_kv_row_bytes(params) + 3 * sizeof(int32_t));
    *flops = rows * ((heads + 1) * rope_dim * FLOPS_ROPE + (uint64_t)params[LATENT_APPEND_VALUE_DIM] * FLOPS_NORM);
}

static const char *illegal(const int64_t *params)
{
    const int64_t rope_dim = latent_append_rope_dim(params);
    if (rope_dim < 2 || rope_dim % 2) return "value_dim is not below head_dim by an even number";
    const char *why = op_latent_illegal(params, params[LATENT_APPEND_VALUE_DIM]);
    if (why) return why;
    const int64_t q_end = params[LATENT_APPEND_Q_FIRST] + params[LATENT_APPEND_HEADS] * rope_dim;
    if (params[LATENT_APPEND_Q_PITCH] ? params[LATENT_APPEND_Q_PITCH] < q_end : params[LATENT_APPEND_Q_FIRST] > 0)
        return "parameter q_pitch is below the end of q_rope";
    const int64_t kv_pitch = params[LATENT_APPEND_KV_PITCH];
    return kv_pitch && kv_pitch < params[LATENT_APPEND_HEAD_DIM] ? "parameter kv_pitch is below head_dim" : NULL;
}

static uint64_t q_latent_width(const int64_t *params)
{
    return (uint64_t)params[LATENT_APPEND_HEADS] * (uint64_t)params[LATENT_APPEND_VALUE_DIM];
}

static uint64_t rope_width(const int64_t *params) { return (uint64_t)latent_append_rope_dim(params); }
static uint64_t q_rope_width(const int64_t *params)
{
    if (params[LATENT_APPEND_Q_PITCH]) return (uint64_t)params[LATENT_APPEND_Q_PITCH];
    return (uint64_t)params[LATENT_APPEND_HEADS] * rope_width(params);
}
static uint64_t kv_row_width(const int64_t *params)
{
    const int64_t pitch = params[LATENT_APPEND_KV_PITCH];
    return (uint64_t)(pitch ? pitch : params[LATENT_APPEND_HEAD_DIM]);
}

static bool kv_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                     uint64_t *bytes)
{
    (void)geometry, (void)target;
    *bytes = op_latent_layout(params, params[LATENT_APPEND_VALUE_DIM]).bytes;
    return true;
}

static const struct op_param param_schema[LATENT_APPEND_PARAMS] = {
    OP_PAGED_PARAMS(LATENT_APPEND_KV_ROW),
    [LATENT_APPEND_VALUE_DIM] = {"value_dim", 12, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = OP_MAX_LATENT_DIM},
    [LATENT_APPEND_NORM_DTYPE] = {"norm_dtype", 13, PARAM_DTYPE, PARAM_OF_DTYPE, LATENT_APPEND_NORM,
                                  .fallback = DTYPE_BF16},
    [LATENT_APPEND_EPS_BITS] = {"eps_bits", 14, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [LATENT_APPEND_Q_PITCH] = {"q_pitch", OP_LATER_PARAM_ID, PARAM_INTEGER, PARAM_OF_WIDER, LATENT_APPEND_Q_ROPE,
                               .most = OP_MAX_WIDTH},
    [LATENT_APPEND_Q_FIRST] = {"q_first", OP_LATER_PARAM_ID + 1, PARAM_INTEGER, PARAM_OF_NODE, .share = SHARE_HEADS,
                               .most = OP_MAX_WIDTH},
    [LATENT_APPEND_KV_PITCH] = {"kv_pitch", OP_LATER_PARAM_ID + 2, PARAM_INTEGER, PARAM_OF_WIDER, LATENT_APPEND_KV_ROW,
                                .most = OP_MAX_WIDTH},
};
static const struct op_operand operand_schema[LATENT_APPEND_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [LATENT_APPEND_Q_LATENT] = {"q_latent", ROLE_INPUT, .dtype = LATENT_APPEND_X_DTYPE, .rows = LATENT_APPEND_ROWS,
                                .width = q_latent_width},
    [LATENT_APPEND_Q_ROPE] = {"q_rope", ROLE_INPUT, .dtype = LATENT_APPEND_X_DTYPE, .rows = LATENT_APPEND_ROWS,
                              .width = q_rope_width},
    [LATENT_APPEND_KV_ROW] = {"kv_row", ROLE_INPUT, .dtype = LATENT_APPEND_X_DTYPE, .rows = LATENT_APPEND_ROWS,
                              .width = kv_row_width},
    [LATENT_APPEND_TABLE] = {"table", ROLE_INPUT, .fixed = DTYPE_F32, .rows = LATENT_APPEND_ROWS, .width = rope_width},
    [LATENT_APPEND_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, LATENT_APPEND_ROWS),
    [LATENT_APPEND_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, LATENT_APPEND_ROWS),
    [LATENT_APPEND_PAGE_TABLE] = {"page_table", ROLE_STATE, .field = STATE_PAGE_TABLE, .bytes = op_page_table_bytes},
    [LATENT_APPEND_KV] = {"kv", ROLE_KV, ACCESS_WRITE, .bytes = kv_bytes},
    [LATENT_APPEND_Q] = {"q", ROLE_OUTPUT, .dtype = LATENT_APPEND_X_DTYPE, .rows = LATENT_APPEND_ROWS,
                         .width = op_heads_width},
    [LATENT_APPEND_NORM] = {"norm", ROLE_WEIGHT, .dtype = LATENT_APPEND_NORM_DTYPE, .rows = OP_NONE,
                            .columns = LATENT_APPEND_VALUE_DIM},
};

const struct op_descriptor op_latent_append = {
    .id = OP_LATENT_APPEND,
    .name = "latent_append",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
    .cost = cost,
    .reference = latent_append_reference,
    OP_NARROW_VECTOR_RUN(latent_append),
};
