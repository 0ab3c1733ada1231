/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention_cudnn_inputs/attention_cudnn_inputs.h"

#include "kernels/attention/attention_cudnn_layout.cuh"
#include "kernels/op/paged.h"

enum { VECTOR_ELEMENTS = 8, VECTOR_BYTES = 16, MOST_TOKENS = 1 << 30 /* of a slot */ };

/* Below 2^64: kv_heads <= 2^12, page_tokens <= 2^20, head_dim <= 2^8, 2 bytes, K and V. */
static uint64_t block_bytes(const int64_t *params)
{
    return 2 * sizeof(uint16_t) * (uint64_t)params[ATTENTION_CUDNN_INPUTS_KV_HEADS] *
           (uint64_t)params[ATTENTION_CUDNN_INPUTS_PAGE_TOKENS] * (uint64_t)params[ATTENTION_CUDNN_INPUTS_HEAD_DIM];
}

static bool kv_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                     uint64_t *bytes)
{
    (void)geometry, (void)target;
    *bytes = block_bytes(params);
    return true;
}

static bool workspace_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                            uint64_t *bytes)
{
    (void)geometry, (void)target;
    const uint64_t pages = ATTENTION_CUDNN_PADDED_PAGES((uint64_t)params[ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT],
                                                        (uint64_t)params[ATTENTION_CUDNN_INPUTS_PAGE_TOKENS]);
    *bytes = ATTENTION_CUDNN_PAGES_AT + pages * sizeof(int32_t);
    return true;
}

static const char *illegal(const int64_t *params)
{
    if (params[ATTENTION_CUDNN_INPUTS_HEAD_DIM] % VECTOR_ELEMENTS) return "parameter head_dim is not a multiple of 8";
    if (params[ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT] > MOST_TOKENS / params[ATTENTION_CUDNN_INPUTS_PAGE_TOKENS])
        return "page_tokens times pages_per_slot is above 2^30";
    if (params[ATTENTION_CUDNN_INPUTS_PAGE_BYTES] % VECTOR_BYTES) return "parameter page_bytes is not a multiple of 16";
    return (uint64_t)params[ATTENTION_CUDNN_INPUTS_PAGE_BYTES] < block_bytes(params)
               ? "page_bytes is less than K and V of a layer"
               : NULL;
}

static const struct op_param param_schema[ATTENTION_CUDNN_INPUTS_PARAMS] = {
    OP_ROWS_PARAMS,
    [ATTENTION_CUDNN_INPUTS_KV_HEADS] = {"kv_heads", 3, PARAM_INTEGER, PARAM_OF_NODE, .least = 1, .most = OP_MAX_HEADS},
    [ATTENTION_CUDNN_INPUTS_HEAD_DIM] = {"head_dim", 4, PARAM_INTEGER, PARAM_OF_NODE, .least = VECTOR_ELEMENTS,
                                         .most = OP_MAX_HEAD_DIM},
    [ATTENTION_CUDNN_INPUTS_PAGE_TOKENS] = {"page_tokens", 5, PARAM_INTEGER, PARAM_OF_ENGINE,
                                            .field = PAGED_FIELD(page_tokens), .least = 1, .most = 1 << 20},
    [ATTENTION_CUDNN_INPUTS_PAGES_PER_SLOT] = {"pages_per_slot", 6, PARAM_INTEGER, PARAM_OF_ENGINE,
                                               .field = PAGED_FIELD(pages_per_slot), .least = 1, .most = MOST_TOKENS},
    [ATTENTION_CUDNN_INPUTS_PAGE_BYTES] = {"page_bytes", 7, PARAM_INTEGER, PARAM_OF_ENGINE,
                                           .field = PAGED_FIELD(page_bytes), .least = 1, .most = INT64_C(1) << 40},
    [ATTENTION_CUDNN_INPUTS_SLOT_COUNT] = {"slot_count", 8, PARAM_INTEGER, PARAM_OF_ENGINE, .field = PAGED_FIELD(slots),
                                           .least = 1, .most = OP_MAX_ROWS},
};
static const struct op_operand operand_schema[ATTENTION_CUDNN_INPUTS_OPERANDS] = {
    OP_COUNTS_OPERAND,
    [ATTENTION_CUDNN_INPUTS_SLOTS] = OP_STEP_OPERAND("slots", STEP_SLOTS, ATTENTION_CUDNN_INPUTS_ROWS),
    [ATTENTION_CUDNN_INPUTS_POSITIONS] = OP_STEP_OPERAND("positions", STEP_POSITIONS, ATTENTION_CUDNN_INPUTS_ROWS),
    [ATTENTION_CUDNN_INPUTS_PAGE_TABLE] = {"page_table", ROLE_STATE, .field = STATE_PAGE_TABLE,
                                           .bytes = op_page_table_bytes},
    [ATTENTION_CUDNN_INPUTS_KV] = {"kv", ROLE_KV, ACCESS_READ_WRITE, .bytes = kv_bytes},
    [ATTENTION_CUDNN_INPUTS_WORKSPACE] = {"workspace", ROLE_WORKSPACE, ACCESS_WRITE, .bytes = workspace_bytes},
};

const struct op_descriptor op_attention_cudnn_inputs = {
    .id = OP_ATTENTION_CUDNN_INPUTS,
    .name = "attention_cudnn_inputs",
    OP_SCHEMA(param_schema, operand_schema),
    .illegal = illegal,
};
