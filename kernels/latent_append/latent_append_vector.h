/* SPDX-License-Identifier: Apache-2.0 */
/* The body of latent_append over the vectors of one instruction set. The unit of work is one head of q of one row, or its row of
 * keys. */
#ifndef KERNELS_LATENT_APPEND_LATENT_APPEND_VECTOR_H
#define KERNELS_LATENT_APPEND_LATENT_APPEND_VECTOR_H

#include "kernels/cpu/kv_row.h"
#include "kernels/cpu/share.h"
#include "kernels/latent_append/latent_append.h"

op_run latent_append_run_avx2;

VEC_INLINE void latent_append_units(const struct op_call *call, struct share share, enum encoding_id encoding)
{
    const int64_t *params = call->params;
    const int64_t heads = params[LATENT_APPEND_HEADS], head_dim = params[LATENT_APPEND_HEAD_DIM];
    const int64_t latent_dim = params[LATENT_APPEND_VALUE_DIM], rope_dim = head_dim - latent_dim;
    const float *q_latent = call->operands[LATENT_APPEND_Q_LATENT], *q_rope = call->operands[LATENT_APPEND_Q_ROPE];
    const float *kv_rows = call->operands[LATENT_APPEND_KV_ROW], *tables = call->operands[LATENT_APPEND_TABLE];
    const int32_t *slots = call->operands[LATENT_APPEND_SLOTS], *positions = call->operands[LATENT_APPEND_POSITIONS];
    const enum dtype norm_dtype = (enum dtype)params[LATENT_APPEND_NORM_DTYPE];
    const float eps = op_float_param(params, LATENT_APPEND_EPS_BITS);
    const struct pages pages =
        pages_of_latent(call->operands[LATENT_APPEND_KV], call->operands[LATENT_APPEND_PAGE_TABLE], params, latent_dim);
    float *q = call->operands[LATENT_APPEND_Q];
    for (int64_t unit = share.first; unit < share.last; unit++) {
        const int64_t row = unit / (heads + 1), head = unit % (heads + 1);
        const float *table = tables + row * rope_dim;
        if (head < heads) {
            const int64_t index = row * heads + head;
            float *to = q + index * head_dim;
            memcpy(to, q_latent + index * latent_dim, (size_t)latent_dim * sizeof *to);
            kv_row_rotate(q_rope + latent_append_q_at(params, row) + head * rope_dim, table, rope_dim, rope_dim,
                          to + latent_dim);
            continue;
        }
        const float *x = kv_rows + latent_append_kv_at(params, row);
        float key[OP_MAX_LATENT_DIM];
        kv_row_norm(x, kv_row_scale(x, latent_dim, eps), call->operands[LATENT_APPEND_NORM], 0, norm_dtype, latent_dim,
                    key);
        kv_row_rotate(x + latent_dim, table, rope_dim, rope_dim, key + latent_dim);
        kv_row_store(&pages, slots[row], positions[row], 0, 0, key, head_dim, encoding, NULL);
    }
}

static inline void latent_append_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t *params = call->params;
    const int64_t units = op_valid_rows(call) * (params[LATENT_APPEND_HEADS] + 1);
    const struct share share = team_share_rows(member, units, params[LATENT_APPEND_HEAD_DIM]);
    switch ((enum encoding_id)params[LATENT_APPEND_KV_DTYPE]) {
    case ENCODING_F32: latent_append_units(call, share, ENCODING_F32); break;
    case ENCODING_F16: latent_append_units(call, share, ENCODING_F16); break;
    case ENCODING_BF16: latent_append_units(call, share, ENCODING_BF16); break;
    case ENCODING_INT8_CHANNEL: latent_append_units(call, share, ENCODING_INT8_CHANNEL); break;
    default: latent_append_units(call, share, ENCODING_E4M3_CHANNEL); break;
    }
}

#endif
