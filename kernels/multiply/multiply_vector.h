/* SPDX-License-Identifier: Apache-2.0 */
/* The body of multiply over the vectors of one instruction set. */
#ifndef KERNELS_MULTIPLY_MULTIPLY_VECTOR_H
#define KERNELS_MULTIPLY_MULTIPLY_VECTOR_H

#include "kernels/cpu/share.h"
#include "kernels/multiply/multiply.h"

op_run multiply_run_avx2;

static inline void multiply_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t width = call->params[MULTIPLY_WIDTH];
    const struct share share = team_share_rows(member, op_valid_rows(call), width);
    const bool by_weight = call->params[MULTIPLY_HAS_WEIGHT] != 0;
    const enum dtype dtype = by_weight ? (enum dtype)call->params[MULTIPLY_WEIGHT_DTYPE] : DTYPE_F32;
    for (int64_t row = share.first; row < share.last; row++) {
        /* No restrict: out may be x or by. */
        const float *x = (const float *)call->operands[MULTIPLY_X] + row * width;
        const void *by =
            by_weight ? call->operands[MULTIPLY_WEIGHT] : (float *)call->operands[MULTIPLY_BY] + row * width;
        float *out = (float *)call->operands[MULTIPLY_OUT] + row * width;
        for (int64_t i = 0; i < width; i += VEC_WIDTH)
            vec_store_dtype(out, i, width - i, DTYPE_F32,
                            vec_load_dtype(x, i, width - i, DTYPE_F32) * vec_load_dtype(by, i, width - i, dtype));
    }
}

#endif
