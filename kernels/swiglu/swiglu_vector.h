/* SPDX-License-Identifier: Apache-2.0 */
/* The body of swiglu over the vectors of one instruction set. */
#ifndef KERNELS_SWIGLU_SWIGLU_VECTOR_H
#define KERNELS_SWIGLU_SWIGLU_VECTOR_H

#include "kernels/cpu/share.h"
#include "kernels/swiglu/swiglu.h"

op_run swiglu_run_avx2, swiglu_run_avx512;

static inline void swiglu_vector_run(const struct op_call *call, struct team_member *member)
{
    const float *gate = call->operands[SWIGLU_GATE], *up = call->operands[SWIGLU_UP];
    float *out = call->operands[SWIGLU_OUT];
    struct share share = team_share_rows(member, op_valid_rows(call) * call->params[SWIGLU_WIDTH], 1);
    int64_t i = share.first;
    for (; i + VEC_WIDTH <= share.last; i += VEC_WIDTH)
        vec_store(out + i, vec_silu(vec_load(gate + i)) * vec_load(up + i));
    int64_t rest = share.last - i;
    if (rest > 0) vec_store_part(out + i, rest, vec_silu(vec_load_part(gate + i, rest)) * vec_load_part(up + i, rest));
}

#endif
