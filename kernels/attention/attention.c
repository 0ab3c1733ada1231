/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention/attention.h"

#include "formats/base/checked.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/cpu/vector_portable.h"

#include "kernels/attention/attention_vector.h"

bool attention_workspace_bytes(uint64_t rows, uint64_t heads, uint64_t head_dim, const struct plan_geometry *geometry,
                               uint64_t *bytes)
{
    uint64_t tokens, padded, stride;
    if (!checked_mul(geometry->page_tokens, geometry->pages_per_slot, &tokens) ||
        !checked_add(tokens, ATTENTION_BLOCK_TOKENS - 1, &padded) ||
        !checked_align(head_dim, ATTENTION_STRIDE_FLOATS, &stride) ||
        !checked_add(stride, ATTENTION_PARTIAL_VALUES, &stride))
        return false;
    uint64_t split_rows = rows < ATTENTION_SPLIT_ROWS ? rows : ATTENTION_SPLIT_ROWS;
    uint64_t factors[] = {split_rows, padded / ATTENTION_BLOCK_TOKENS, heads, stride, sizeof(float)};
    return checked_product(factors, sizeof factors / sizeof factors[0], bytes);
}

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    const struct op_descriptor *op = &op_attention;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, ATTENTION_HEADS, 1, OP_MAX_HEADS, status) ||
        !op_check_range(op, params, ATTENTION_KV_HEADS, 1, OP_MAX_HEADS, status) ||
        !op_check_range(op, params, ATTENTION_HEAD_DIM, 1, OP_MAX_HEAD_DIM, status) ||
        !op_check_pages(op, params, ATTENTION_PAGE_TOKENS, geometry, status) ||
        !op_check_float_dtype(op, params, ATTENTION_KV_DTYPE, status) ||
        !op_check_range(op, params, ATTENTION_WINDOW, 0, INT32_MAX, status) ||
        !op_check_float_bits(op, params, ATTENTION_SCALE_BITS, status))
        return false;
    if (params[ATTENTION_HEADS] % params[ATTENTION_KV_HEADS])
        return status_fail(status, STATUS_CORRUPT, "attention: %d heads cannot share %d kv heads evenly",
                           (int)params[ATTENTION_HEADS], (int)params[ATTENTION_KV_HEADS]);
    if (!(op_float_param(params, ATTENTION_SCALE_BITS) > 0))
        return status_fail(status, STATUS_CORRUPT,
                           "attention: parameter scale_bits holds 0, expected a positive float");

    uint64_t rows = (uint64_t)params[ATTENTION_ROWS], heads = (uint64_t)params[ATTENTION_HEADS];
    uint64_t kv_heads = (uint64_t)params[ATTENTION_KV_HEADS], head_dim = (uint64_t)params[ATTENTION_HEAD_DIM];
    size_t kv_bytes = dtype_bytes((enum dtype)params[ATTENTION_KV_DTYPE]);
    uint64_t workspace_bytes;
    if (!attention_workspace_bytes(rows, heads, head_dim, geometry, &workspace_bytes))
        return status_fail(status, STATUS_CORRUPT, "attention: the size of operand workspace overflows 64 bits");
    const struct op_operand q = {.name = "q", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand slots = {.name = "slots",
                                     .space_mask = OP_IN_STEP,
                                     .access = ACCESS_READ,
                                     .field = OP_FIELD(STEP_SLOTS)};
    const struct op_operand positions = {.name = "positions",
                                         .space_mask = OP_IN_STEP,
                                         .access = ACCESS_READ,
                                         .field = OP_FIELD(STEP_POSITIONS)};
    const struct op_operand page_table = {.name = "page_table",
                                          .space_mask = OP_IN_STATE,
                                          .access = ACCESS_READ,
                                          .field = OP_FIELD(STATE_PAGE_TABLE)};
    const struct op_operand kv = {.name = "kv", .space_mask = OP_IN_KV, .access = ACCESS_READ};
    const struct op_operand out = {.name = "out", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    const struct op_operand workspace = {.name = "workspace", .space_mask = OP_IN_ARENA, .access = ACCESS_READ_WRITE};
    *operand_count = 0;
    return op_add_counts(op, operands, operand_count, status) &&
           op_add_operand(op, operands, operand_count, q, sizeof(float), rows, heads, head_dim, status) &&
           op_add_operand(op, operands, operand_count, slots, sizeof(int32_t), rows, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, positions, sizeof(int32_t), rows, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, page_table, sizeof(int32_t), geometry->slots,
                          geometry->pages_per_slot, 1, status) &&
           op_add_operand(op, operands, operand_count, kv, 2 * kv_bytes, kv_heads, geometry->page_tokens, head_dim,
                          status) &&
           op_add_operand(op, operands, operand_count, out, sizeof(float), rows, heads, head_dim, status) &&
           op_add_operand(op, operands, operand_count, workspace, 1, workspace_bytes, 1, 1, status);
}

/* Rows count as one sequence each, as in decode; a prefill chunk reads its context once. The plan does not say which it
 * is, so bytes are those of decode and an upper bound for prefill. */
static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    uint64_t rows = (uint64_t)params[ATTENTION_ROWS], heads = (uint64_t)params[ATTENTION_HEADS];
    uint64_t kv_heads = (uint64_t)params[ATTENTION_KV_HEADS], head_dim = (uint64_t)params[ATTENTION_HEAD_DIM];
    uint64_t kv_bytes = dtype_bytes((enum dtype)params[ATTENTION_KV_DTYPE]);
    uint64_t context = geometry->max_context / 2, window = (uint64_t)params[ATTENTION_WINDOW];
    if (context == 0) context = 1;
    if (window && window < context) context = window;
    *bytes = rows * head_dim * (2 * kv_heads * context * kv_bytes + 2 * heads * sizeof(float));
    *flops = 4 * rows * heads * context * head_dim;
}

static void run_portable(const struct op_call *call, struct team_member *member) { attention_vector_run(call, member); }

static const char *const param_names[ATTENTION_PARAMS] = {
    "rows",           "count_index", "heads",      "kv_heads", "head_dim", "page_tokens",
    "pages_per_slot", "page_bytes",  "slot_count", "kv_dtype", "window",   "scale_bits",
};

const struct op_descriptor op_attention = {
    .id = OP_ATTENTION,
    .name = "attention",
    .param_count = ATTENTION_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = attention_reference,
    .run =
        {
            [CPU_PORTABLE] = run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = attention_run_avx2,
            [CPU_AVX512] = attention_run_avx512,
#endif
        },
};
