/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/op/paged.h"

/* Below 2^64: heads <= 2^12, page_tokens <= 2^20, head_dim <= 2^8, 4 bytes, K and V. */
static uint64_t block_bytes(const int64_t *params)
{
    return 2 * (uint64_t)params[PAGED_KV_HEADS] * (uint64_t)params[PAGED_PAGE_TOKENS] *
           (uint64_t)params[PAGED_HEAD_DIM] * dtype_bytes((enum dtype)params[PAGED_KV_DTYPE]);
}

const char *op_paged_illegal(const int64_t *params)
{
    if (params[PAGED_HEADS] % params[PAGED_KV_HEADS]) return "heads is not a multiple of kv_heads";
    if (params[PAGED_PAGES_PER_SLOT] > INT32_MAX / params[PAGED_PAGE_TOKENS])
        return "page_tokens times pages_per_slot is above 2^31 - 1";
    if ((uint64_t)params[PAGED_PAGE_BYTES] < block_bytes(params)) return "page_bytes is less than K and V of a layer";
    return NULL;
}

const char *op_rotary_illegal(const int64_t *params, int index)
{
    if (params[PAGED_HEAD_DIM] % 2) return "parameter head_dim is odd";
    if (params[index] % 2) return "parameter rotary_dim is odd";
    return params[index] > params[PAGED_HEAD_DIM] ? "rotary_dim is above head_dim" : NULL;
}

bool op_kv_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                 uint64_t *bytes)
{
    (void)geometry, (void)target;
    *bytes = block_bytes(params);
    return true;
}

uint64_t op_heads_width(const int64_t *params)
{
    return (uint64_t)params[PAGED_HEADS] * (uint64_t)params[PAGED_HEAD_DIM];
}

uint64_t op_qkv_width(const int64_t *params)
{
    return (uint64_t)(params[PAGED_HEADS] + 2 * params[PAGED_KV_HEADS]) * (uint64_t)params[PAGED_HEAD_DIM];
}
