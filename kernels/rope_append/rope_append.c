/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_append/rope_append.h"

#include "kernels/cpu/vector_portable.h"
#include "kernels/op/op_check.h"
#include "kernels/rope_append/rope_append_vector.h"

static bool check(const int64_t *params, const struct plan_geometry *geometry,
                  struct op_operand operands[PLAN_MAX_OPERANDS], int *operand_count, struct status *status)
{
    const struct op_descriptor *op = &op_rope_append;
    if (!op_check_rows(op, params, status) || !op_check_range(op, params, ROPE_APPEND_HEADS, 1, OP_MAX_HEADS, status) ||
        !op_check_range(op, params, ROPE_APPEND_KV_HEADS, 1, OP_MAX_HEADS, status) ||
        !op_check_range(op, params, ROPE_APPEND_HEAD_DIM, 2, OP_MAX_HEAD_DIM, status) ||
        !op_check_pages(op, params, ROPE_APPEND_PAGE_TOKENS, geometry, status) ||
        !op_check_float_dtype(op, params, ROPE_APPEND_KV_DTYPE, status) ||
        !op_check_range(op, params, ROPE_APPEND_HAS_NORM, 0, 1, status) ||
        !op_check_float_bits(op, params, ROPE_APPEND_EPS_BITS, status))
        return false;
    if (params[ROPE_APPEND_HEAD_DIM] % 2)
        return status_fail(status, STATUS_CORRUPT, "rope_append: parameter head_dim is %d, expected an even number",
                           (int)params[ROPE_APPEND_HEAD_DIM]);
    bool has_norm = params[ROPE_APPEND_HAS_NORM] != 0;
    if (has_norm && !op_check_float_dtype(op, params, ROPE_APPEND_NORM_DTYPE, status)) return false;

    uint64_t rows = (uint64_t)params[ROPE_APPEND_ROWS], heads = (uint64_t)params[ROPE_APPEND_HEADS];
    uint64_t kv_heads = (uint64_t)params[ROPE_APPEND_KV_HEADS], head_dim = (uint64_t)params[ROPE_APPEND_HEAD_DIM];
    size_t kv_bytes = dtype_bytes((enum dtype)params[ROPE_APPEND_KV_DTYPE]);
    const struct op_operand qkv = {.name = "qkv", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
    const struct op_operand table = {.name = "table", .space_mask = OP_IN_ARENA, .access = ACCESS_READ};
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
    const struct op_operand kv = {.name = "kv", .space_mask = OP_IN_KV, .access = ACCESS_WRITE};
    const struct op_operand q = {.name = "q", .space_mask = OP_IN_ARENA, .access = ACCESS_WRITE};
    const struct op_operand norm_q = {.name = "norm_q", .space_mask = OP_IN_WEIGHTS, .access = ACCESS_READ};
    const struct op_operand norm_k = {.name = "norm_k", .space_mask = OP_IN_WEIGHTS, .access = ACCESS_READ};
    *operand_count = 0;
    bool done =
        op_add_counts(op, operands, operand_count, status) &&
        op_add_operand(op, operands, operand_count, qkv, sizeof(float), rows, heads + 2 * kv_heads, head_dim, status) &&
        op_add_operand(op, operands, operand_count, table, sizeof(float), rows, head_dim, 1, status) &&
        op_add_operand(op, operands, operand_count, slots, sizeof(int32_t), rows, 1, 1, status) &&
        op_add_operand(op, operands, operand_count, positions, sizeof(int32_t), rows, 1, 1, status) &&
        op_add_operand(op, operands, operand_count, page_table, sizeof(int32_t), geometry->slots,
                       geometry->pages_per_slot, 1, status) &&
        op_add_operand(op, operands, operand_count, kv, 2 * kv_bytes, kv_heads, geometry->page_tokens, head_dim,
                       status) &&
        op_add_operand(op, operands, operand_count, q, sizeof(float), rows, heads, head_dim, status);
    if (!done || !has_norm) return done;
    size_t norm_bytes = dtype_bytes((enum dtype)params[ROPE_APPEND_NORM_DTYPE]);
    return op_add_operand(op, operands, operand_count, norm_q, norm_bytes, head_dim, 1, 1, status) &&
           op_add_operand(op, operands, operand_count, norm_k, norm_bytes, head_dim, 1, 1, status);
}

static void cost(const int64_t *params, const struct plan_geometry *geometry, uint64_t *bytes, uint64_t *flops)
{
    enum { FLOPS_ROPE = 3, FLOPS_NORM = 4 /* per element */ };
    (void)geometry;
    uint64_t rows = (uint64_t)params[ROPE_APPEND_ROWS], heads = (uint64_t)params[ROPE_APPEND_HEADS];
    uint64_t kv_heads = (uint64_t)params[ROPE_APPEND_KV_HEADS], head_dim = (uint64_t)params[ROPE_APPEND_HEAD_DIM];
    uint64_t kv_bytes = dtype_bytes((enum dtype)params[ROPE_APPEND_KV_DTYPE]);
    uint64_t elements = (2 * heads + 2 * kv_heads + 1) * head_dim;
    *bytes = rows * (elements * sizeof(float) + 2 * kv_heads * head_dim * kv_bytes + 3 * sizeof(int32_t));
    uint64_t each = params[ROPE_APPEND_HAS_NORM] ? FLOPS_ROPE + FLOPS_NORM : FLOPS_ROPE;
    *flops = rows * (heads + kv_heads) * head_dim * each;
}

static void run_portable(const struct op_call *call, struct team_member *member)
{
    rope_append_vector_run(call, member);
}

static const char *const param_names[ROPE_APPEND_PARAMS] = {
    "rows",       "count_index", "heads",    "kv_heads", "head_dim",   "page_tokens", "pages_per_slot",
    "page_bytes", "slot_count",  "kv_dtype", "has_norm", "norm_dtype", "eps_bits",
};

const struct op_descriptor op_rope_append = {
    .id = OP_ROPE_APPEND,
    .name = "rope_append",
    .param_count = ROPE_APPEND_PARAMS,
    .param_names = param_names,
    .check = check,
    .cost = cost,
    .reference = rope_append_reference,
    .run =
        {
            [CPU_PORTABLE] = run_portable,
#if defined(__x86_64__)
            [CPU_AVX2] = rope_append_run_avx2,
            [CPU_AVX512] = rope_append_run_avx512,
#endif
        },
};
