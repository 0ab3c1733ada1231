/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope_append/rope_append_device.h"

#include "kernels/op/op.h"
#include "kernels/rope_append/rope_append_layout.cuh"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, FLT_MAX_BITS = 0x7f7fffff, MAX_PAGE_TOKENS = 65536 };

static bool is_half(int64_t dtype) { return dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static const char *illegal(const int64_t *params)
{
    const int64_t rows = params[ROPE_APPEND_DEVICE_ROWS], count_index = params[ROPE_APPEND_DEVICE_COUNT_INDEX];
    const int64_t heads = params[ROPE_APPEND_DEVICE_HEADS], kv_heads = params[ROPE_APPEND_DEVICE_KV_HEADS];
    const int64_t head_dim = params[ROPE_APPEND_DEVICE_HEAD_DIM], tokens = params[ROPE_APPEND_DEVICE_PAGE_TOKENS];
    const int64_t pages = params[ROPE_APPEND_DEVICE_PAGES_PER_SLOT], slots = params[ROPE_APPEND_DEVICE_SLOT_COUNT];
    const int64_t page_bytes = params[ROPE_APPEND_DEVICE_PAGE_BYTES], norm = params[ROPE_APPEND_DEVICE_NORM_DTYPE];
    const int64_t has_norm = params[ROPE_APPEND_DEVICE_HAS_NORM], eps = params[ROPE_APPEND_DEVICE_EPS_BITS];
    const int64_t rotary = params[ROPE_APPEND_DEVICE_ROTARY_DIM], scope = params[ROPE_APPEND_DEVICE_NORM_SCOPE];
    if (rows < 1 || rows > OP_MAX_ROWS) return "ROWS is not in 1..2^20";
    if (count_index < 0 || count_index > 1) return "COUNT_INDEX is not 0 or 1";
    if (kv_heads < 1 || kv_heads > OP_MAX_HEADS) return "KV_HEADS is not in 1..65536";
    if (heads < kv_heads || heads > OP_MAX_HEADS || heads % kv_heads)
        return "HEADS is not a multiple of KV_HEADS up to 65536";
    if (head_dim < 2 || head_dim > OP_MAX_HEAD_DIM || head_dim % 2) return "HEAD_DIM is not an even number in 2..256";
    if (tokens < 1 || tokens > MAX_PAGE_TOKENS) return "PAGE_TOKENS is not in 1..65536";
    if (pages < 1 || pages > INT32_MAX / tokens) return "PAGE_TOKENS * PAGES_PER_SLOT is not in 1..2^31-1";
    if (slots < 1 || slots > OP_MAX_ROWS) return "SLOT_COUNT is not in 1..2^20";
    if (page_bytes < 4 * kv_heads * tokens * head_dim || page_bytes > INT32_MAX)
        return "PAGE_BYTES is less than the layer's block or above 2^31-1";
    if (page_bytes % 16) return "PAGE_BYTES is not a multiple of 16";
    if (!is_half(params[ROPE_APPEND_DEVICE_KV_DTYPE])) return "KV_DTYPE is not F16 or BF16";
    if (!is_half(params[ROPE_APPEND_DEVICE_X_DTYPE])) return "X_DTYPE is not F16 or BF16";
    if (has_norm != 0 && has_norm != 1) return "HAS_NORM is not 0 or 1";
    if (!is_half(norm) && norm != DTYPE_F32) return "NORM_DTYPE is not F32, F16 or BF16";
    if (eps < 0 || eps > FLT_MAX_BITS) return "EPS_BITS are not of a finite float >= 0";
    if (rotary < 0 || rotary > head_dim || rotary % 2) return "ROTARY_DIM is not an even number in 0..HEAD_DIM";
    if (scope < 0 || scope >= ROPE_APPEND_NORM_SCOPES) return "NORM_SCOPE is not 0 or 1";
    if (scope && !has_norm) return "NORM_SCOPE is 1 without HAS_NORM";
    return NULL;
}

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = illegal(params);
    if (why) return why;
    const int64_t heads = params[ROPE_APPEND_DEVICE_HEADS] + 2 * params[ROPE_APPEND_DEVICE_KV_HEADS];
    const int64_t rotary_dim = op_rotary_dim(params, ROPE_APPEND_DEVICE_ROTARY_DIM);
    const int64_t groups = THREADS / rope_append_lanes(params[ROPE_APPEND_DEVICE_HEAD_DIM] / 2, rotary_dim / 2);
    const int64_t rows = params[ROPE_APPEND_DEVICE_ROWS];
    const bool a_block_each = params[ROPE_APPEND_DEVICE_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH;
    const int64_t blocks = a_block_each ? rows : (rows * heads + groups - 1) / groups;
    if (blocks > INT32_MAX) return "ROWS * HEADS is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[ROPE_APPEND_DEVICE_ROWS], half_bytes = 2, index_fields = 3;
    const uint64_t heads = (uint64_t)params[ROPE_APPEND_DEVICE_HEADS];
    const uint64_t kv_heads = (uint64_t)params[ROPE_APPEND_DEVICE_KV_HEADS];
    const uint64_t head_dim = (uint64_t)params[ROPE_APPEND_DEVICE_HEAD_DIM];
    const uint64_t flops_per_element = params[ROPE_APPEND_DEVICE_HAS_NORM] ? 7 : 3;
    *bytes = rows * (2 * (heads + 2 * kv_heads) * head_dim * half_bytes + head_dim * sizeof(float) +
                     index_fields * sizeof(int32_t));
    *flops = rows * (heads + kv_heads) * head_dim * flops_per_element;
}

const struct device_kernel device_rope_append = {
    .name = "rope_append",
    .source = "kernels/rope_append/rope_append.cu",
    .op = OP_ROPE_APPEND,
    .least_capability = 80,
    .problem = &op_rope_append,
    .operand_count = ROPE_APPEND_DEVICE_OPERANDS_NORM,
    .launch = launch,
    .cost = cost,
};
