/* SPDX-License-Identifier: Apache-2.0 */
/* The body of mean_squares over the vectors of one instruction set. The unit of work is a row. */
#ifndef KERNELS_MEAN_SQUARES_MEAN_SQUARES_VECTOR_H
#define KERNELS_MEAN_SQUARES_MEAN_SQUARES_VECTOR_H

#include <string.h>

#include "kernels/cpu/kv_row.h"
#include "kernels/cpu/share.h"
#include "kernels/mean_squares/mean_squares.h"

op_run mean_squares_run_avx2;

static inline void mean_squares_vector_run(const struct op_call *call, struct team_member *member)
{
    const int64_t *params = call->params;
    const int64_t head_dim = params[MEAN_SQUARES_HEAD_DIM];
    const int64_t q_width = params[MEAN_SQUARES_HEADS] * head_dim, k_width = params[MEAN_SQUARES_KV_HEADS] * head_dim;
    const float ranks = (float)params[MEAN_SQUARES_RANKS];
    const struct share share = team_share_rows(member, op_valid_rows(call), q_width + k_width);
    for (int64_t row = share.first; row < share.last; row++) {
        const float *x = (const float *)call->operands[MEAN_SQUARES_QKV] + row * (q_width + 2 * k_width);
        float *out = (float *)call->operands[MEAN_SQUARES_OUT] + row * MEAN_SQUARES_WIDTH;
        memset(out, 0, MEAN_SQUARES_WIDTH * sizeof *out);
        out[MEAN_SQUARES_OF_Q] = kv_row_squares(x, q_width) / ((float)q_width * ranks);
        if (k_width > 0) out[MEAN_SQUARES_OF_K] = kv_row_squares(x + q_width, k_width) / ((float)k_width * ranks);
    }
}

#endif
