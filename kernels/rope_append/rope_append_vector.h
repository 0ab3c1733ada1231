/* SPDX-License-Identifier: Apache-2.0 */
/* The body of rope_append over the vectors of one instruction set. The unit of work is one head of one row. */
#ifndef KERNELS_ROPE_APPEND_ROPE_APPEND_VECTOR_H
#define KERNELS_ROPE_APPEND_ROPE_APPEND_VECTOR_H

#include "kernels/cpu/kv_row.h"
#include "kernels/cpu/share.h"
#include "kernels/mean_squares/mean_squares_layout.cuh"
#include "kernels/op/op.h"
#include "kernels/rope_append/rope_append.h"

op_run rope_append_run_avx2;

VEC_INLINE void rope_append_units(const struct op_call *call, struct share share, enum encoding_id encoding)
{
    const int64_t *params = call->params;
    const int64_t heads = params[ROPE_APPEND_HEADS], kv_heads = params[ROPE_APPEND_KV_HEADS];
    const int64_t head_dim = params[ROPE_APPEND_HEAD_DIM], units = heads + 2 * kv_heads;
    const int32_t *slots = call->operands[ROPE_APPEND_SLOTS], *positions = call->operands[ROPE_APPEND_POSITIONS];
    const int64_t rotary_dim = op_rotary_dim(params, ROPE_APPEND_ROTARY_DIM);
    const bool has_norm = params[ROPE_APPEND_HAS_NORM] != 0;
    const bool over_width = params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_WIDTH;
    const bool own_weights = rope_append_own_weights(params[ROPE_APPEND_NORM_SCOPE]);
    const bool after =
        params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_ROTATED; /* weights multiply after the rotation */
    const enum dtype norm_dtype = (enum dtype)params[ROPE_APPEND_NORM_DTYPE];
    const float eps = op_float_param(params, ROPE_APPEND_EPS_BITS);
    const struct pages pages = pages_of(call->operands[ROPE_APPEND_KV], call->operands[ROPE_APPEND_PAGE_TABLE], params);
    const float *scales = params[ROPE_APPEND_HAS_KV_SCALES] ? call->operands[ROPE_APPEND_KV_SCALES] : NULL;
    const float *means = params[ROPE_APPEND_HAS_MEANS] ? call->operands[ROPE_APPEND_MEANS] : NULL;
    int64_t scaled_row = -1; /* over_width: the row that the scales are of */
    float scale_q = 0, scale_k = 0;
    for (int64_t unit = share.first; unit < share.last; unit++) {
        int64_t row = unit / units, head = unit % units;
        const float *x = (const float *)call->operands[ROPE_APPEND_QKV] + unit * head_dim;
        const float *table = (const float *)call->operands[ROPE_APPEND_TABLE] + row * rotary_dim;
        float normal[OP_MAX_HEAD_DIM];
        if (head >= heads + kv_heads) {
            if (params[ROPE_APPEND_NORM_V]) {
                kv_row_multiply(x, kv_row_scale(x, head_dim, eps), head_dim, normal);
                x = normal;
            }
            kv_row_store(&pages, slots[row], positions[row], head - heads - kv_heads, pages.values, x, head_dim,
                         encoding, scales ? scales + 2 * (head - heads - kv_heads) + 1 : NULL);
            continue;
        }
        bool is_query = head < heads;
        const void *weight = call->operands[is_query ? ROPE_APPEND_NORM_Q : ROPE_APPEND_NORM_K];
        if (has_norm) {
            if (over_width && row != scaled_row) {
                const float *q = x - head * head_dim;
                if (means) {
                    scale_q = 1.0f / sqrtf(means[row * MEAN_SQUARES_WIDTH + MEAN_SQUARES_OF_Q] + eps);
                    scale_k = 1.0f / sqrtf(means[row * MEAN_SQUARES_WIDTH + MEAN_SQUARES_OF_K] + eps);
                } else {
                    scale_q = kv_row_scale(q, heads * head_dim, eps);
                    scale_k = kv_row_scale(q + heads * head_dim, kv_heads * head_dim, eps);
                }
                scaled_row = row;
            }
            if (params[ROPE_APPEND_CENTRED]) {
                kv_row_centre(x, head_dim, normal);
                x = normal;
            }
            const float scale = !over_width ? kv_row_scale(x, head_dim, eps) : is_query ? scale_q : scale_k;
            const int64_t first = own_weights ? (is_query ? head : head - heads) * head_dim : 0;
            if (after)
                kv_row_multiply(x, scale, head_dim, normal);
            else
                kv_row_norm(x, scale, weight, first, norm_dtype, head_dim, normal);
            x = normal;
        }
        if (is_query) {
            float *q = (float *)call->operands[ROPE_APPEND_Q] + (row * heads + head) * head_dim;
            kv_row_rotate(x, table, head_dim, rotary_dim, q);
            if (after) kv_row_norm(q, 1, weight, 0, norm_dtype, head_dim, q);
        } else {
            float key[OP_MAX_HEAD_DIM];
            kv_row_rotate(x, table, head_dim, rotary_dim, key);
            if (after) kv_row_norm(key, 1, weight, 0, norm_dtype, head_dim, key);
            kv_row_store(&pages, slots[row], positions[row], head - heads, 0, key, head_dim, encoding,
                         scales ? scales + 2 * (head - heads) : NULL);
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
