/* SPDX-License-Identifier: Apache-2.0 */
/* The body of rope_query over the vectors of one instruction set. The unit of work is one head of one row. */
#ifndef KERNELS_ROPE_QUERY_ROPE_QUERY_VECTOR_H
#define KERNELS_ROPE_QUERY_ROPE_QUERY_VECTOR_H

#include "kernels/cpu/kv_row.h"
#include "kernels/cpu/share.h"
#include "kernels/rope_query/rope_query.h"

op_run rope_query_run_avx2;

static inline void rope_query_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t *params = call->params;
    const int64_t heads = params[ROPE_QUERY_HEADS], head_dim = params[ROPE_QUERY_HEAD_DIM];
    const int64_t rotary_dim = params[ROPE_QUERY_ROTARY_DIM];
    const enum dtype dtype = (enum dtype)params[ROPE_QUERY_NORM_DTYPE];
    const float eps = op_float_param(params, ROPE_QUERY_EPS_BITS);
    const struct share share = team_share_rows(member, op_valid_rows(call) * heads, head_dim);
    for (int64_t unit = share.first; unit < share.last; unit++) {
        const float *x = (const float *)call->operands[ROPE_QUERY_X] + unit * head_dim;
        const float *table = (const float *)call->operands[ROPE_QUERY_TABLE] + unit / heads * rotary_dim;
        float *out = (float *)call->operands[ROPE_QUERY_OUT] + unit * head_dim;
        float normal[OP_MAX_HEAD_DIM];
        if (params[ROPE_QUERY_HAS_NORM])
            kv_row_norm(x, kv_row_scale(x, head_dim, eps), call->operands[ROPE_QUERY_NORM], 0, dtype, head_dim, normal);
        else
            memcpy(normal, x, (size_t)head_dim * sizeof *normal);
        kv_row_rotate(normal, table, head_dim, rotary_dim, out);
    }
}

#endif
