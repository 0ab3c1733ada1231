/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/pages.h"
#include "kernels/mean_squares/mean_squares_layout.cuh"
#include "kernels/op/op.h"
#include "kernels/rope_append/rope_append.h"

/* 1 / sqrt(mean((x - less)^2) + EPS) */
static double scale_of(const struct op_call *call, const float *x, int64_t count, double less)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += ((double)x[i] - less) * ((double)x[i] - less);
    return 1.0 / sqrt(squares / (double)count + (double)op_float_param(call->params, ROPE_APPEND_EPS_BITS));
}

/* 1 / sqrt(mean + EPS), the mean over all heads of row `row`. */
static double scale_of_mean(const struct op_call *call, int64_t row, int norm_operand)
{
    const int column = norm_operand == ROPE_APPEND_NORM_Q ? MEAN_SQUARES_OF_Q : MEAN_SQUARES_OF_K;
    const float mean = ((const float *)call->operands[ROPE_APPEND_MEANS])[row * MEAN_SQUARES_WIDTH + column];
    return 1.0 / sqrt((double)mean + (double)op_float_param(call->params, ROPE_APPEND_EPS_BITS));
}

/* Head `head` of the `heads` at x, of row `row`, which share the norm's operand. */
static void rotate_head(const struct op_call *call, const float *x, int64_t row, int64_t heads, int64_t head,
                        const float *table, int norm_operand, float *out)
{
    const int64_t head_dim = call->params[ROPE_APPEND_HEAD_DIM];
    const int64_t rotary_dim = op_rotary_dim(call->params, ROPE_APPEND_ROTARY_DIM), half = rotary_dim / 2;
    const bool over_width = call->params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH;
    const enum dtype norm_dtype = (enum dtype)call->params[ROPE_APPEND_NORM_DTYPE];
    const bool after = call->params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_ROTATED;
    double normal[OP_MAX_HEAD_DIM], weights[OP_MAX_HEAD_DIM], mean = 0;
    for (int64_t i = 0; i < head_dim; i++) mean += (double)x[head * head_dim + i] / (double)head_dim;
    if (!call->params[ROPE_APPEND_CENTRED]) mean = 0;
    for (int64_t i = 0; i < head_dim; i++) normal[i] = (double)x[head * head_dim + i] - mean, weights[i] = 1;
    if (call->params[ROPE_APPEND_HAS_NORM]) {
        const double scale = call->params[ROPE_APPEND_HAS_MEANS] ? scale_of_mean(call, row, norm_operand)
                             : over_width                        ? scale_of(call, x, heads * head_dim, 0)
                                                                 : scale_of(call, x + head * head_dim, head_dim, mean);
        const int64_t first = rope_append_own_weights(call->params[ROPE_APPEND_NORM_SCOPE]) ? head * head_dim : 0;
        for (int64_t i = 0; i < head_dim; i++) {
            weights[i] = op_element(call->operands[norm_operand], first + i, norm_dtype);
            normal[i] *= after ? scale : scale * weights[i];
        }
    }
    for (int64_t i = 0; i < half; i++) {
        const double cosine = table[i], sine = table[half + i], low = normal[i], high = normal[half + i];
        normal[i] = low * cosine - high * sine;
        normal[half + i] = high * cosine + low * sine;
    }
    for (int64_t i = 0; i < head_dim; i++) out[i] = (float)(after ? normal[i] * weights[i] : normal[i]);
}

void rope_append_reference(const struct op_call *call)
{
    const int64_t *params = call->params;
    int64_t heads = params[ROPE_APPEND_HEADS], kv_heads = params[ROPE_APPEND_KV_HEADS];
    int64_t head_dim = params[ROPE_APPEND_HEAD_DIM], rows = op_valid_rows(call);
    const int64_t rotary_dim = op_rotary_dim(params, ROPE_APPEND_ROTARY_DIM);
    const int32_t *slots = call->operands[ROPE_APPEND_SLOTS], *positions = call->operands[ROPE_APPEND_POSITIONS];
    const enum encoding_id encoding = (enum encoding_id)params[ROPE_APPEND_KV_DTYPE];
    const struct pages pages = pages_of(call->operands[ROPE_APPEND_KV], call->operands[ROPE_APPEND_PAGE_TABLE], params);
    const float *scales = params[ROPE_APPEND_HAS_KV_SCALES] ? call->operands[ROPE_APPEND_KV_SCALES] : NULL;
    for (int64_t r = 0; r < rows; r++) {
        const float *qkv = (const float *)call->operands[ROPE_APPEND_QKV] + r * (heads + 2 * kv_heads) * head_dim;
        const float *table = (const float *)call->operands[ROPE_APPEND_TABLE] + r * rotary_dim;
        float *q = (float *)call->operands[ROPE_APPEND_Q] + r * heads * head_dim;
        for (int64_t h = 0; h < heads; h++)
            rotate_head(call, qkv, r, heads, h, table, ROPE_APPEND_NORM_Q, q + h * head_dim);
        for (int64_t g = 0; g < kv_heads; g++) {
            uint8_t *key = pages_key(&pages, slots[r], positions[r], g);
            uint8_t *scale = pages.scales ? pages_key_scale(&pages, slots[r], positions[r], g) : NULL;
            float k[OP_MAX_HEAD_DIM], v[OP_MAX_HEAD_DIM];
            const float *value = qkv + (heads + kv_heads + g) * head_dim;
            const double scale_v = params[ROPE_APPEND_NORM_V] ? scale_of(call, value, head_dim, 0) : 1;
            for (int64_t i = 0; i < head_dim; i++) v[i] = (float)(value[i] * scale_v);
            rotate_head(call, qkv + heads * head_dim, r, kv_heads, g, table, ROPE_APPEND_NORM_K, k);
            op_kv_store_row(k, head_dim, encoding, scales ? scales + 2 * g : NULL, key, scale);
            op_kv_store_row(v, head_dim, encoding, scales ? scales + 2 * g + 1 : NULL, key + pages.values,
                            scale ? scale + pages.values : NULL);
        }
    }
}
