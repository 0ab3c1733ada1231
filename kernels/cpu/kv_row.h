/* SPDX-License-Identifier: Apache-2.0 */
/* What ops that append to the KV cache do to a row, over the vectors of one instruction set: norm, rotation, storage. Requires: the
 * vectors' header is included before. */
#ifndef KERNELS_CPU_KV_ROW_H
#define KERNELS_CPU_KV_ROW_H

#include <math.h>

#include "kernels/cpu/pages.h"

/* The sum of x^2. */
static inline float kv_row_squares(const float *x, int64_t count)
{
    vec squares = vec_set(0);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        vec value = vec_load_dtype(x, i, count - i, DTYPE_F32);
        squares = vec_fma(value, value, squares);
    }
    return vec_sum(squares);
}

/* 1 / sqrt(mean(x^2) + eps) */
static inline float kv_row_scale(const float *x, int64_t count, float eps)
{
    return 1.0f / sqrtf(kv_row_squares(x, count) / (float)count + eps);
}

/* out[i] = x[i] minus the mean of x */
static inline void kv_row_centre(const float *x, int64_t count, float *out)
{
    vec sum = vec_set(0);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) sum = sum + vec_load_dtype(x, i, count - i, DTYPE_F32);
    const vec mean = vec_set(vec_sum(sum) / (float)count);
    for (int64_t i = 0; i < count; i += VEC_WIDTH)
        vec_store_dtype(out, i, count - i, DTYPE_F32, vec_load_dtype(x, i, count - i, DTYPE_F32) - mean);
}

/* out[i] = x[i] * scale */
static inline void kv_row_multiply(const float *x, float scale, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i += VEC_WIDTH)
        vec_store_dtype(out, i, count - i, DTYPE_F32, vec_load_dtype(x, i, count - i, DTYPE_F32) * vec_set(scale));
}

/* out[i] = x[i] * scale * weight[first + i] */
static inline void kv_row_norm(const float *x, float scale, const void *weight, int64_t first, enum dtype dtype,
                               int64_t head_dim, float *out)
{
    for (int64_t i = 0; i < head_dim; i += VEC_WIDTH) {
        vec value = vec_load_dtype(x, i, head_dim - i, DTYPE_F32) * vec_set(scale);
        vec_store_dtype(out, i, head_dim - i, DTYPE_F32,
                        value * vec_load_dtype(weight, first + i, head_dim - i, dtype));
    }
}

static inline void kv_row_rotate(const float *x, const float *table, int64_t head_dim, int64_t rotary_dim, float *out)
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

/* A row of keys (`offset` 0) or of values (their offset) of a token to its place in the pages. `given`: the static scale of
 * the head's rows; NULL: none. */
VEC_INLINE void kv_row_store(const struct pages *pages, int64_t slot, int64_t position, int64_t kv_head, int64_t offset,
                             const float *row, int64_t head_dim, enum encoding_id encoding, const float *given)
{
    uint8_t *codes = pages_key(pages, slot, position, kv_head) + offset;
    if (encoding == ENCODING_INT8_CHANNEL || encoding == ENCODING_E4M3_CHANNEL) {
        float scale;
        vec_store_scaled(row, head_dim, encoding, given, codes, &scale);
        memcpy(pages_key_scale(pages, slot, position, kv_head) + offset, &scale, sizeof scale);
        return;
    }
    for (int64_t i = 0; i < head_dim; i += VEC_WIDTH)
        vec_store_dtype(codes, i, head_dim - i, (enum dtype)encoding, vec_load_dtype(row, i, head_dim - i, DTYPE_F32));
}

#endif
