/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/op/paged.h"

#include <math.h>
#include <string.h>

#include "formats/encoding/encoding.h"

_Static_assert((int)ENCODING_INT8_CHANNEL == 16 && (int)ENCODING_E4M3_CHANNEL == 24,
               "as kernels/cuda/include/kv.cuh says");

static bool has_row_scales(enum encoding_id encoding)
{
    return encoding == ENCODING_INT8_CHANNEL || encoding == ENCODING_E4M3_CHANNEL;
}

/* Below 2^64: heads <= 2^12, page_tokens <= 2^20, head_dim <= 2^10, 4 bytes, K and V. */
struct op_kv_layout op_latent_layout(const int64_t *params, int64_t value_dim)
{
    const enum encoding_id encoding = (enum encoding_id)params[PAGED_KV_DTYPE];
    const uint64_t kv_heads = (uint64_t)params[PAGED_KV_HEADS], page_tokens = (uint64_t)params[PAGED_PAGE_TOKENS];
    const uint64_t head_dim = (uint64_t)params[PAGED_HEAD_DIM];
    struct op_kv_layout layout = {0};
    struct encoding_layout matrix;
    if (!encoding_is_plain(encoding) && !has_row_scales(encoding)) return layout;
    if (!encoding_layout(encoding, kv_heads * page_tokens, head_dim, &matrix) ||
        !kv_block_bytes(encoding, kv_heads, page_tokens, head_dim, (uint64_t)value_dim, &layout.bytes))
        return (struct op_kv_layout){0};
    layout.row_bytes = matrix.planes[PLANE_CODES].pitch;
    layout.scales = matrix.planes[PLANE_SCALES].offset;
    layout.values = value_dim ? 0 : layout.bytes / 2;
    return layout;
}

struct op_kv_layout op_kv_layout(const int64_t *params) { return op_latent_layout(params, 0); }

uint64_t op_kv_row_bytes(const int64_t *params)
{
    const struct op_kv_layout layout = op_kv_layout(params);
    return layout.row_bytes + (layout.scales ? sizeof(float) : 0);
}

const char *op_latent_illegal(const int64_t *params, int64_t value_dim)
{
    const struct encoding *encoding = encoding_find(params[PAGED_KV_DTYPE]);
    if (!encoding_is_plain(encoding->id) && !has_row_scales(encoding->id)) return op_no_kernel(encoding, "kv_dtype");
    if (params[PAGED_HEADS] % params[PAGED_KV_HEADS]) return "heads is not a multiple of kv_heads";
    if (params[PAGED_PAGES_PER_SLOT] > INT32_MAX / params[PAGED_PAGE_TOKENS])
        return "page_tokens times pages_per_slot is above 2^31 - 1";
    if (value_dim > params[PAGED_HEAD_DIM]) return "value_dim is above head_dim";
    if (value_dim && params[PAGED_KV_HEADS] != 1) return "value_dim with more than one KV head";
    if (!value_dim && params[PAGED_HEAD_DIM] > OP_MAX_HEAD_DIM) return "head_dim is above 512 without value_dim";
    if ((uint64_t)params[PAGED_PAGE_BYTES] < op_latent_layout(params, value_dim).bytes)
        return "page_bytes is less than K and V of a layer";
    return NULL;
}

const char *op_paged_illegal(const int64_t *params) { return op_latent_illegal(params, 0); }

const char *op_paged_codes_illegal(const int64_t *params)
{
    if (!has_row_scales((enum encoding_id)params[PAGED_KV_DTYPE])) return NULL;
    if (params[PAGED_HEAD_DIM] % 16) return "codes in KV pages: HEAD_DIM is not a multiple of 16";
    return params[PAGED_PAGE_TOKENS] % 16 ? "codes in KV pages: PAGE_TOKENS is not a multiple of 16" : NULL;
}

const char *op_rotary_illegal(const int64_t *params, int index)
{
    if (params[PAGED_HEAD_DIM] % 2) return "parameter head_dim is odd";
    if (params[index] % 2) return "parameter rotary_dim is odd";
    return params[index] > params[PAGED_HEAD_DIM] ? "rotary_dim is above head_dim" : NULL;
}

const char *op_kv_scales_illegal(const int64_t *params, int present)
{
    return params[present] && params[PAGED_KV_DTYPE] != ENCODING_E4M3_CHANNEL
               ? "static scales of KV pages whose codes are not e4m3"
               : NULL;
}

uint64_t op_kv_scales_width(const int64_t *params) { return 2 * (uint64_t)params[PAGED_KV_HEADS]; }

/* Codes of e4m3 with a static scale. */
static void store_row_given(const float *row, int64_t width, float given, uint8_t *codes, void *scale)
{
    bool is_finite = true;
    for (int64_t i = 0; i < width; i++) is_finite = is_finite && isfinite(row[i]);
    for (int64_t i = 0; i < width; i++) codes[i] = is_finite ? e4m3_from_float(row[i] / given) : 0;
    if (!is_finite) given = NAN;
    memcpy(scale, &given, sizeof given);
}

void op_kv_store_row(const float *row, int64_t width, enum encoding_id encoding, const float *given, void *codes,
                     void *scale)
{
    if (given) {
        store_row_given(row, width, *given, codes, scale);
        return;
    }
    uint8_t encoded[OP_MAX_LATENT_DIM * sizeof(float)];
    struct encoding_layout layout;
    uint64_t refused;
    if (!encoding_layout(encoding, 1, (uint64_t)width, &layout)) return;
    const bool is_finite = encoding_from_float(encoding, 1, (uint64_t)width, row, encoded, &refused);
    const float none = NAN;
    if (layout.planes[PLANE_SCALES].bytes) {
        memcpy(scale, is_finite ? (const void *)(encoded + layout.planes[PLANE_SCALES].offset) : &none, sizeof none);
        if (!is_finite) memset(encoded, 0, sizeof encoded);
    }
    memcpy(codes, encoded, layout.planes[PLANE_CODES].bytes);
}

bool op_kv_bytes(const int64_t *params, const struct plan_geometry *geometry, enum engine_target target,
                 uint64_t *bytes)
{
    (void)geometry, (void)target;
    *bytes = op_kv_layout(params).bytes;
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
