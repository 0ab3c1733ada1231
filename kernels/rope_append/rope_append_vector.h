/* SPDX-License-Identifier: Apache-2.0 */
/* The body of rope_append over the vectors of one instruction set. The unit of work is one head of one row. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_VECTOR_H
#define KERNELS_ROPE_APPEND_ROPE_APPEND_VECTOR_H

#include <math.h>

#include "kernels/cpu/pages.h"
#include "kernels/cpu/share.h"
#include "kernels/op/op.h"
#include "kernels/rope_append/rope_append.h"

op_run rope_append_run_avx2;

/* 1 / sqrt(mean(x^2) + eps) */
static inline float rope_append_scale(const float *x, int64_t count, float eps)
{
    vec squares = vec_set(0);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        vec value = vec_load_dtype(x, i, count - i, DTYPE_F32);
        squares = vec_fma(value, value, squares);
    }
    return 1.0f / sqrtf(vec_sum(squares) / (float)count + eps);
}

/* out[i] = x[i] * scale * weight[first + i] */
static inline void rope_append_norm(const float *x, float scale, const void *weight, int64_t first, enum dtype dtype,
                                    int64_t head_dim, float *out)
{
    for (int64_t i = 0; i < head_dim; i += VEC_WIDTH) {
        vec value = vec_load_dtype(x, i, head_dim - i, DTYPE_F32) * vec_set(scale);
        vec_store_dtype(out, i, head_dim - i, DTYPE_F32,
                        value * vec_load_dtype(weight, first + i, head_dim - i, dtype));
    }
}

static inline void rope_append_rotate(const float *x, const float *table, int64_t head_dim, int64_t rotary_dim,
                                      float *out)
{
    int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < half; i += VEC_WIDTH) {
        int64_t count = half - i;
        vec low = vec_load_dtype(x, i, count, DTYPE_F32), high = vec_load_dtype(x, half + i, count, DTYPE_F32);
        vec cosine = vec_load_dtype(table, i, count, DTYPE_F32);
        vec sine = vec_load_dtype(table, half + i, count, DTYPE_F32);
        vec_store_dtype(out, i, count, DTYPE_F32, vec_fma(low, cosine, -(high * sine)));
        vec_store_dtype(out, half + i, count, DTYPE_F32, vec_fma(high, cosine, low * sine));
    }
    for (int64_t i = rotary_dim; i < head_dim; i += VEC_WIDTH)
        vec_store_dtype(out, i, head_dim - i, DTYPE_F32, vec_load_dtype(x, i, head_dim - i, DTYPE_F32));
}

/* A row of keys (`offset` 0) or of values (their offset) of a token to its place in the pages. */
VEC_INLINE void rope_append_store(const struct pages *pages, int64_t slot, int64_t position, int64_t kv_head,
                                  int64_t offset, const float *row, int64_t head_dim, enum encoding_id encoding)
{
    uint8_t *codes = pages_key(pages, slot, position, kv_head) + offset;
    if (encoding == ENCODING_INT8_CHANNEL || encoding == ENCODING_E4M3_CHANNEL) {
        float scale;
        vec_store_scaled(row, head_dim, encoding, codes, &scale);
        memcpy(pages_key_scale(pages, slot, position, kv_head) + offset, &scale, sizeof scale);
        return;
    }
    for (int64_t i = 0; i < head_dim; i += VEC_WIDTH)
        vec_store_dtype(codes, i, head_dim - i, (enum dtype)encoding, vec_load_dtype(row, i, head_dim - i, DTYPE_F32));
}

VEC_INLINE void rope_append_units(const struct op_call *call, struct share share, enum encoding_id encoding)
{
    const int64_t *params = call->params;
    const int64_t heads = params[ROPE_APPEND_HEADS], kv_heads = params[ROPE_APPEND_KV_HEADS];
    const int64_t head_dim = params[ROPE_APPEND_HEAD_DIM], units = heads + 2 * kv_heads;
    const int32_t *slots = call->operands[ROPE_APPEND_SLOTS], *positions = call->operands[ROPE_APPEND_POSITIONS];
    const int64_t rotary_dim = op_rotary_dim(params, ROPE_APPEND_ROTARY_DIM);
    const bool has_norm = params[ROPE_APPEND_HAS_NORM] != 0;
    const bool over_width = params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH;
    const enum dtype norm_dtype = (enum dtype)params[ROPE_APPEND_NORM_DTYPE];
    const float eps = op_float_param(params, ROPE_APPEND_EPS_BITS);
    const struct pages pages = pages_of(call->operands[ROPE_APPEND_KV], call->operands[ROPE_APPEND_PAGE_TABLE], params);
    int64_t scaled_row = -1; /* over_width: the row that the scales are of */
    float scale_q = 0, scale_k = 0;
    for (int64_t unit = share.first; unit < share.last; unit++) {
        int64_t row = unit / units, head = unit % units;
        const float *x = (const float *)call->operands[ROPE_APPEND_QKV] + unit * head_dim;
        const float *table = (const float *)call->operands[ROPE_APPEND_TABLE] + row * rotary_dim;
        if (head >= heads + kv_heads) {
            rope_append_store(&pages, slots[row], positions[row], head - heads - kv_heads, pages.values, x, head_dim,
                              encoding);
            continue;
        }
        float normal[OP_MAX_HEAD_DIM];
        bool is_query = head < heads;
        if (has_norm) {
            const void *weight = call->operands[is_query ? ROPE_APPEND_NORM_Q : ROPE_APPEND_NORM_K];
            if (over_width && row != scaled_row) {
                const float *q = x - head * head_dim;
                scale_q = rope_append_scale(q, heads * head_dim, eps);
                scale_k = rope_append_scale(q + heads * head_dim, kv_heads * head_dim, eps);
                scaled_row = row;
            }
            const float scale = !over_width ? rope_append_scale(x, head_dim, eps) : is_query ? scale_q : scale_k;
            const int64_t first = over_width ? (is_query ? head : head - heads) * head_dim : 0;
            rope_append_norm(x, scale, weight, first, norm_dtype, head_dim, normal);
            x = normal;
        }
        if (is_query) {
            float *q = (float *)call->operands[ROPE_APPEND_Q] + (row * heads + head) * head_dim;
            rope_append_rotate(x, table, head_dim, rotary_dim, q);
        } else {
            float key[OP_MAX_HEAD_DIM];
            rope_append_rotate(x, table, head_dim, rotary_dim, key);
            rope_append_store(&pages, slots[row], positions[row], head - heads, 0, key, head_dim, encoding);
        }
    }
}

static inline void rope_append_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t *params = call->params;
    int64_t units = op_valid_rows(call) * (params[ROPE_APPEND_HEADS] + 2 * params[ROPE_APPEND_KV_HEADS]);
    struct share share = team_share_rows(member, units, params[ROPE_APPEND_HEAD_DIM]);
    switch ((enum encoding_id)params[ROPE_APPEND_KV_DTYPE]) {
    case ENCODING_F32: rope_append_units(call, share, ENCODING_F32); break;
    case ENCODING_F16: rope_append_units(call, share, ENCODING_F16); break;
    case ENCODING_BF16: rope_append_units(call, share, ENCODING_BF16); break;
    case ENCODING_INT8_CHANNEL: rope_append_units(call, share, ENCODING_INT8_CHANNEL); break;
    default: rope_append_units(call, share, ENCODING_E4M3_CHANNEL); break;
    }
}

#endif
