/* SPDX-License-Identifier: Apache-2.0 */
/* The body of delta_rule over the vectors of one instruction set. A value head of all rows is one thread's work, so that its state
 * stays in the cache while a chunk's rows follow each other. */
#ifndef KERNELS_DELTA_RULE_DELTA_RULE_VECTOR_H
#define KERNELS_DELTA_RULE_DELTA_RULE_VECTOR_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/share.h"
#include "kernels/delta_rule/delta_rule.h"

op_run delta_rule_run_avx2, delta_rule_run_avx512;

static inline void delta_rule_normalise(const float *x, int64_t count, float factor, float *out)
{
    vec squares = vec_set(0);
    for (int64_t i = 0; i < count; i += VEC_WIDTH) {
        const vec value = vec_load_dtype(x, i, count - i, DTYPE_F32);
        squares = vec_fma(value, value, squares);
    }
    const float scale = factor / sqrtf(vec_sum(squares) + 1e-6f);
    for (int64_t i = 0; i < count; i++) out[i] = x[i] * scale;
}

/* state += with decay and correction, o = transpose(state) q: two passes over the state. `o`: [VALUE_DIM], whole vectors. */
static inline void delta_rule_update(float *state, const float *q, const float *k, const float *v, int64_t key_dim,
                                     int64_t value_dim, float decay, float beta, float *o)
{
    const vec kept = vec_set(decay);
    for (int64_t j = 0; j < value_dim; j += VEC_WIDTH) {
        const int64_t count = value_dim - j < VEC_WIDTH ? value_dim - j : VEC_WIDTH;
        vec held = vec_set(0), made = vec_set(0);
        for (int64_t i = 0; i < key_dim; i++)
            held = vec_fma(vec_load_dtype(state, i * value_dim + j, count, DTYPE_F32), vec_set(k[i]), held);
        const vec change = vec_set(beta) * (vec_load_dtype(v, j, count, DTYPE_F32) - kept * held);
        for (int64_t i = 0; i < key_dim; i++) {
            float *at = state + i * value_dim + j;
            const vec value = vec_fma(change, vec_set(k[i]), kept * vec_load_dtype(at, 0, count, DTYPE_F32));
            if (count == VEC_WIDTH)
                vec_store(at, value);
            else
                vec_store_part(at, count, value);
            made = vec_fma(value, vec_set(q[i]), made);
        }
        vec_store(o + j, made);
    }
}

static inline void delta_rule_head(const struct op_call *call, int64_t row, int64_t head)
{
    const int64_t *params = call->params;
    const int64_t key_heads = params[DELTA_RULE_KEY_HEADS], value_heads = params[DELTA_RULE_VALUE_HEADS];
    const int64_t key_dim = params[DELTA_RULE_KEY_DIM], value_dim = params[DELTA_RULE_VALUE_DIM];
    const int64_t key_head = head / (value_heads / key_heads);
    const float *qkv =
        (const float *)call->operands[DELTA_RULE_QKV] + row * (2 * key_heads * key_dim + value_heads * value_dim);
    const float *z = (const float *)call->operands[DELTA_RULE_Z] + (row * value_heads + head) * value_dim;
    const float *ba = (const float *)call->operands[DELTA_RULE_BA] + row * 2 * value_heads;
    float *state = delta_rule_state(call, row, head);
    float *out = (float *)call->operands[DELTA_RULE_OUT] + (row * value_heads + head) * value_dim;
    float q[DELTA_RULE_MAX_DIM], k[DELTA_RULE_MAX_DIM];
    float o[DELTA_RULE_MAX_DIM + VEC_WIDTH];
    if (((const int32_t *)call->operands[DELTA_RULE_POSITIONS])[row] == 0)
        memset(state, 0, (size_t)(key_dim * value_dim) * sizeof *state);
    delta_rule_normalise(qkv + key_head * key_dim, key_dim, 1 / sqrtf((float)key_dim), q);
    delta_rule_normalise(qkv + (key_heads + key_head) * key_dim, key_dim, 1, k);
    const float a = ba[value_heads + head] +
                    op_element(call->operands[DELTA_RULE_DT_BIAS], head, (enum dtype)params[DELTA_RULE_DT_DTYPE]);
    const float a_log = op_element(call->operands[DELTA_RULE_A_LOG], head, (enum dtype)params[DELTA_RULE_A_DTYPE]);
    const float decay = expf(-expf(a_log) * (a > 40 ? a : log1pf(expf(a)))), beta = 1 / (1 + expf(-ba[head]));
    delta_rule_update(state, q, k, qkv + 2 * key_heads * key_dim + head * value_dim, key_dim, value_dim, decay, beta,
                      o);
    vec squares = vec_set(0);
    for (int64_t j = 0; j < value_dim; j += VEC_WIDTH) {
        const vec value = vec_load_dtype(o, j, value_dim - j, DTYPE_F32);
        squares = vec_fma(value, value, squares);
    }
    const float eps = op_float_param(params, DELTA_RULE_EPS_BITS);
    const float scale = 1 / sqrtf(vec_sum(squares) / (float)value_dim + eps);
    for (int64_t j = 0; j < value_dim; j++) {
        const float weight = op_element(call->operands[DELTA_RULE_NORM], j, (enum dtype)params[DELTA_RULE_NORM_DTYPE]);
        out[j] = o[j] * scale * weight * (z[j] / (1 + expf(-z[j])));
    }
}

static inline void delta_rule_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t rows = op_valid_rows(call), *params = call->params;
    const struct share heads =
        team_share_rows(member, params[DELTA_RULE_VALUE_HEADS],
                        (rows > 0 ? rows : 1) * params[DELTA_RULE_KEY_DIM] * params[DELTA_RULE_VALUE_DIM]);
    for (int64_t head = heads.first; head < heads.last; head++)
        for (int64_t row = 0; row < rows; row++) delta_rule_head(call, row, head);
}

#endif
