/* SPDX-License-Identifier: Apache-2.0 */
/* The body of group_norm over the vectors of one instruction set. The unit of work is a row. */
#ifndef KERNELS_GROUP_NORM_GROUP_NORM_VECTOR_H
#define KERNELS_GROUP_NORM_GROUP_NORM_VECTOR_H

#include <math.h>

#include "kernels/cpu/kv_row.h"
#include "kernels/cpu/share.h"
#include "kernels/group_norm/group_norm.h"
#include "kernels/mean_squares/mean_squares.h"

op_run group_norm_run_avx2;

static inline void group_norm_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t *params = call->params;
    const int64_t width = params[GROUP_NORM_WIDTH], columns = width / params[GROUP_NORM_GROUPS];
    const enum dtype dtype = (enum dtype)params[GROUP_NORM_WEIGHT_DTYPE];
    const float *means = call->operands[GROUP_NORM_MEANS], eps = op_float_param(params, GROUP_NORM_EPS_BITS);
    const struct share share = team_share_rows(member, op_valid_rows(call), width);
    for (int64_t row = share.first; row < share.last; row++) {
        const float *x = (const float *)call->operands[GROUP_NORM_X] + row * width;
        float *out = (float *)call->operands[GROUP_NORM_OUT] + row * width;
        for (int64_t first = 0; first < width; first += columns) {
            const float mean = means ? means[row * MEAN_SQUARES_WIDTH + MEAN_SQUARES_OF_Q]
                                     : kv_row_squares(x + first, columns) / (float)columns;
            const vec scale = vec_set(1 / sqrtf(mean + eps));
            for (int64_t i = 0; i < columns; i += VEC_WIDTH) {
                const int64_t count = columns - i < VEC_WIDTH ? columns - i : VEC_WIDTH, at = first + i;
                const vec value = vec_load_dtype(x, at, count, DTYPE_F32) * scale *
                                  vec_load_dtype(call->operands[GROUP_NORM_WEIGHT], at, count, dtype);
                if (count == VEC_WIDTH)
                    vec_store(out + at, value);
                else
                    vec_store_part(out + at, count, value);
            }
        }
    }
}

#endif
