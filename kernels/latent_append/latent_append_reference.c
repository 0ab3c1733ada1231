/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/pages.h"
#include "kernels/latent_append/latent_append.h"

static void rotate(const float *x, const float *table, int64_t rope_dim, float *out)
{
    const int64_t half = rope_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const double low = x[i], high = x[half + i], cosine = table[i], sine = table[half + i];
        out[i] = (float)(low * cosine - high * sine);
        out[half + i] = (float)(high * cosine + low * sine);
    }
}

static void normalise(const struct op_call *call, const float *x, int64_t count, float *out)
{
    const enum dtype dtype = (enum dtype)call->params[LATENT_APPEND_NORM_DTYPE];
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += (double)x[i] * x[i];
    const double eps = (double)op_float_param(call->params, LATENT_APPEND_EPS_BITS);
    const double scale = 1.0 / sqrt(squares / (double)count + eps);
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)(x[i] * scale * op_element(call->operands[LATENT_APPEND_NORM], i, dtype));
}

void latent_append_reference(const struct op_call *call)
{
    const int64_t *params = call->params;
    const int64_t heads = params[LATENT_APPEND_HEADS], head_dim = params[LATENT_APPEND_HEAD_DIM];
    const int64_t latent_dim = params[LATENT_APPEND_VALUE_DIM], rope_dim = latent_append_rope_dim(params);
    const int64_t rows = op_valid_rows(call);
    const int32_t *slots = call->operands[LATENT_APPEND_SLOTS], *positions = call->operands[LATENT_APPEND_POSITIONS];
    const struct pages pages =
        pages_of_latent(call->operands[LATENT_APPEND_KV], call->operands[LATENT_APPEND_PAGE_TABLE], params, latent_dim);
    for (int64_t r = 0; r < rows; r++) {
        const float *table = (const float *)call->operands[LATENT_APPEND_TABLE] + r * rope_dim;
        const float *x = (const float *)call->operands[LATENT_APPEND_KV_ROW] + latent_append_kv_at(params, r);
        const float *q_rope = (const float *)call->operands[LATENT_APPEND_Q_ROPE] + latent_append_q_at(params, r);
        for (int64_t i = r * heads; i < (r + 1) * heads; i++) {
            float *q = (float *)call->operands[LATENT_APPEND_Q] + i * head_dim;
            memcpy(q, (const float *)call->operands[LATENT_APPEND_Q_LATENT] + i * latent_dim,
                   (size_t)latent_dim * sizeof *q);
            rotate(q_rope + (i - r * heads) * rope_dim, table, rope_dim, q + latent_dim);
        }
        float key[OP_MAX_LATENT_DIM];
        normalise(call, x, latent_dim, key);
        rotate(x + latent_dim, table, rope_dim, key + latent_dim);
        op_kv_store_row(key, head_dim, (enum encoding_id)params[LATENT_APPEND_KV_DTYPE], NULL,
                        pages_key(&pages, slots[r], positions[r], 0),
                        pages.scales ? pages_key_scale(&pages, slots[r], positions[r], 0) : NULL);
    }
}
