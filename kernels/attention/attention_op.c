/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention.h"

#include "formats/base/checked.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/cpu/vector_portable.h"

#include "kernels/attention/attention_vector.h"

bool attention_workspace_bytes(uint64_t rows, uint64_t heads, uint64_t value_dim, const struct plan_geometry *geometry,
                               uint64_t *bytes)
{
    uint64_t tokens, padded, stride;
    if (!checked_mul(geometry->page_tokens, geometry->pages_per_slot, &tokens) ||
        !checked_add(tokens, ATTENTION_BLOCK_TOKENS - 1, &padded) ||
        !checked_align(value_dim, ATTENTION_STRIDE_FLOATS, &stride) ||
        !checked_add(stride, ATTENTION_PARTIAL_VALUES, &stride))
        return false;
    uint64_t split_rows = rows < ATTENTION_SPLIT_ROWS ? rows : ATTENTION_SPLIT_ROWS;
    uint64_t factors[] = {split_rows, padded / ATTENTION_BLOCK_TOKENS, heads, stride, sizeof(float)};
    return checked_product(factors, sizeof factors / sizeof factors[0], bytes);
}

/* Rows count as one sequence each, as in decode; a prefill chunk reads its context once. The parameters do not
 * distinguish the two, so bytes are those of decode and an upper bound for prefill. */
static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    uint64_t rows = (uint64_t)params[ATTENTION_ROWS], heads = (uint64_t)params[ATTENTION_HEADS];
    uint64_t kv_heads = (uint64_t)params[ATTENTION_KV_HEADS], head_dim = (uint64_t)params[ATTENTION_HEAD_DIM];
    const uint64_t window = (uint64_t)params[ATTENTION_WINDOW];
    if (context == 0) context = 1;
    if (window && window < context) context = window;
    const uint64_t value_dim = (uint64_t)attention_value_dim(params), matrices = params[ATTENTION_VALUE_DIM] ? 1 : 2;
    *bytes = rows *
             (matrices * kv_heads * context * op_kv_row_bytes(params) + heads * (head_dim + value_dim) * sizeof(float));
    *flops = 2 * rows * heads * context * (head_dim + value_dim);
}

static bool workspace_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                            uint64_t *bytes)
{
    (void)target;
    return attention_workspace_bytes((uint64_t)params[ATTENTION_ROWS], (uint64_t)params[ATTENTION_HEADS],
                                     (uint64_t)attention_value_dim(params), geometry, bytes);
}

static bool kv_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                     uint64_t *bytes)
{
    (void)geometry, (void)target;
    *bytes = op_latent_layout(params, params[ATTENTION_VALUE_DIM]).bytes;
    return true;
}

static uint64_t out_width(const int64_t *params)
{
    return (uint64_t)params[ATTENTION_HEADS] * (uint64_t)attention_value_dim(params);
}

static const char *illegal(const int64_t *params) { return op_latent_illegal(params, params[ATTENTION_VALUE_DIM]); }

static const struct op_param param_schema[ATTENTION_PARAMS] = {
    OP_PAGED_PARAMS(ATTENTION_Q),
    [ATTENTION_WINDOW] = {"window", 12, PARAM_INTEGER, PARAM_OF_NODE, .most = INT32_MAX},
    [ATTENTION_SCALE_BITS] = {"scale_bits", 13, PARAM_FLOAT, PARAM_OF_NODE, .least = 1, .most = OP_FLOAT_MAX_BITS},
    [ATTENTION_SCATTERED] = {"scattered", OP_LATER_PARAM_ID, PARAM_INTEGER, PARAM_OF_NODE, .most = 1},
    [ATTENTION_CAP_BITS] = {"cap_bits", OP_LATER_PARAM_ID + 1, PARAM_FLOAT, PARAM_OF_NODE, .most = OP_FLOAT_MAX_BITS},
    [ATTENTION_HAS_SINKS] = {"has_sinks", OP_LATER_PARAM_ID + 2, PARAM_INTEGER, PARAM_OF_PRESENT, ATTENTION_SINKS,
                             .most = 1},
    [ATTENTION_SINKS_DTYPE] = {"sinks_dtype", OP_LATER_PARAM_ID + 3, PARAM_DTYPE, PARAM_OF_DTYPE, ATTENTION_SINKS,
                               .fallback = DTYPE_F32},
    [ATTENTION_VALUE_DIM] = {"value_dim", OP_LATER_PARAM_ID + 4, PARAM_INTEGER, PARAM_OF_NODE,
                             .most = OP_MAX_LATENT_DIM},
};
static const struct op_operand operand_schema[ATTENTION_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ATTENTION_Q] = {"q", ROLE_INPUT, .dtype = ATTENTION_X_DTYPE, .rows = ATTENTION_ROWS, .width = op_heads_width},
    [ATTENTION_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, ATTENTION_ROWS),
    [ATTENTION_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, ATTENTION_ROWS),
    [ATTENTION_PAGE_TABLE] = {"page_table", ROLE_STATE, .field = STATE_PAGE_TABLE, .bytes = op_page_table_bytes},
    [ATTENTION_KV] = {"kv", ROLE_KV, .bytes = kv_bytes},
    [ATTENTION_OUT] = {"out", ROLE_OUTPUT, .dtype = ATTENTION_X_DTYPE, .rows = ATTENTION_ROWS, .width = out_width,
                       .replaces_cpu = 1u << ATTENTION_Q},
    [ATTENTION_WORKSPACE] = {"workspace", ROLE_WORKSPACE, .targets = 1u << TARGET_CPU, .bytes = workspace_bytes},
    [ATTENTION_SINKS] = {"sinks", ROLE_WEIGHT, .present = ATTENTION_HAS_SINKS, .dtype = ATTENTION_SINKS_DTYPE,
                         .rows = OP_NONE, .columns = ATTENTION_HEADS},
    [ATTENTION_COUNTERS] = {"counters", ROLE_COUNTERS, .present = ATTENTION_VALUE_DIM, .targets = 1u << TARGET_CUDA,
                            .rows = OP_NONE, .columns = OP_NONE,
                            .element_bytes = PLAN_ALIGNMENT /* with any tunables */},
};

const struct op_descriptor op_attention = {
    .id = OP_ATTENTION,
    .name = "attention",
    OP_SCHEMA(param_schema, operand_schema),
    .window = ATTENTION_WINDOW,
    .illegal = illegal,
    .cost = cost,
    .reference = attention_reference,
    OP_VECTOR_RUN(attention),
};
