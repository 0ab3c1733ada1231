/* SPDX-License-Identifier: Apache-2.0 */
/* The body of rms_norm over the vectors of one instruction set. A row is one thread's work; its sums are formed in four
 * vectors of partial sums, column i in vector (i / VEC_WIDTH) % 4, which depends on the width alone. */
#ifndef KERNELS_RMS_NORM_RMS_NORM_VECTOR_H
#define KERNELS_RMS_NORM_RMS_NORM_VECTOR_H

#include <math.h>

#include "kernels/cpu/share.h"
#include "kernels/op/op.h"
#include "kernels/rms_norm/rms_norm.h"

op_run rms_norm_run_avx2, rms_norm_run_avx512;

enum { RMS_NORM_SUMS = 4 };

/* A row that is normalised: x, or x + residual, which goes to `sum` (NULL: no residual). `mean` is taken off; 0: it is not
 * centred. */
struct rms_norm_row {
    const float *x, *residual;
    float *sum;
    float mean;
};

/* Sum of the row (or of its squares, less the mean), up to 4 vectors at a time. Forms the sum with the residual, if there is one
 * (sum may be x or residual: an element is read before it is written). */
VEC_INLINE float rms_norm_total(const struct rms_norm_row *row, int64_t width, bool squares)
{
    vec parts[RMS_NORM_SUMS];
    const vec mean = vec_set(row->mean);
#pragma GCC unroll 4
    for (int j = 0; j < RMS_NORM_SUMS; j++) parts[j] = vec_set(0);
    int64_t i = 0;
    for (; i + RMS_NORM_SUMS * VEC_WIDTH <= width; i += RMS_NORM_SUMS * VEC_WIDTH) {
#pragma GCC unroll 4
        for (int j = 0; j < RMS_NORM_SUMS; j++) {
            vec value = vec_load(row->x + i + j * VEC_WIDTH);
            if (row->residual) {
                value = value + vec_load(row->residual + i + j * VEC_WIDTH);
                vec_store(row->sum + i + j * VEC_WIDTH, value);
            }
            const vec centred = value - mean;
            if (squares)
                parts[j] = vec_fma(centred, centred, parts[j]);
            else
                parts[j] = parts[j] + value;
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < RMS_NORM_SUMS; j++, i += VEC_WIDTH) {
        int64_t count = width - i < VEC_WIDTH ? width - i : VEC_WIDTH;
        if (count <= 0) break;
        vec value = vec_load_part(row->x + i, count);
        if (row->residual) {
            value = value + vec_load_part(row->residual + i, count);
            vec_store_part(row->sum + i, count, value);
        }
        float lanes[VEC_WIDTH] = {0}; /* lanes beyond the row are not less the mean */
        if (squares && row->mean != 0) {
            vec_store_part(lanes, count, value - mean);
            value = vec_load(lanes);
        }
        if (squares)
            parts[j] = vec_fma(value, value, parts[j]);
        else
            parts[j] = parts[j] + value;
    }
    return vec_sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

/* A row whose sums have been formed. */
VEC_INLINE void rms_norm_scale(const struct op_call *call, const float *x, float *out, float mean, float scale,
                               enum dtype dtype)
{
    const int64_t width = call->params[RMS_NORM_HIDDEN];
    const void *weight = call->operands[RMS_NORM_WEIGHT], *bias = call->operands[RMS_NORM_BIAS];
    const enum dtype bias_dtype = (enum dtype)call->params[RMS_NORM_BIAS_DTYPE];
    const bool has_bias = call->params[RMS_NORM_HAS_BIAS] != 0;
    const vec factor = vec_set(scale), taken = vec_set(mean);
    for (int64_t i = 0; i < width; i += VEC_WIDTH) {
        const int64_t count = width - i < VEC_WIDTH ? width - i : VEC_WIDTH;
        const vec value = count == VEC_WIDTH ? vec_load(x + i) : vec_load_part(x + i, count);
        vec scaled = (value - taken) * factor * vec_load_dtype(weight, i, count, dtype);
        if (has_bias) scaled = scaled + vec_load_dtype(bias, i, count, bias_dtype);
        if (count == VEC_WIDTH)
            vec_store(out + i, scaled);
        else
            vec_store_part(out + i, count, scaled);
    }
}

VEC_INLINE void rms_norm_rows(const struct op_call *call, struct share rows, enum dtype dtype)
{
    int64_t width = call->params[RMS_NORM_HIDDEN];
    float eps = op_float_param(call->params, RMS_NORM_EPS_BITS);
    for (int64_t r = rows.first; r < rows.last; r++) {
        struct rms_norm_row row = {.x = (const float *)call->operands[RMS_NORM_X] + r * width};
        if (call->params[RMS_NORM_HAS_RESIDUAL]) {
            row.residual = (const float *)call->operands[RMS_NORM_RESIDUAL] + r * width;
            row.sum = (float *)call->operands[RMS_NORM_SUM] + r * width;
        }
        if (call->params[RMS_NORM_CENTRED]) {
            const float mean = rms_norm_total(&row, width, false) / (float)width;
            row = (struct rms_norm_row){.x = row.residual ? row.sum : row.x, .mean = mean};
        }
        const float squares = rms_norm_total(&row, width, true);
        const float scale = 1.0f / sqrtf(squares / (float)width + eps);
        rms_norm_scale(call, row.residual ? row.sum : row.x, (float *)call->operands[RMS_NORM_OUT] + r * width,
                       row.mean, scale, dtype);
    }
}

static inline void rms_norm_vector_run(const struct op_call *call, struct team_member *member)
{
    struct share rows = team_share_rows(member, op_valid_rows(call), call->params[RMS_NORM_HIDDEN]);
    switch ((enum dtype)call->params[RMS_NORM_WEIGHT_DTYPE]) {
    case DTYPE_F32: rms_norm_rows(call, rows, DTYPE_F32); break;
    case DTYPE_F16: rms_norm_rows(call, rows, DTYPE_F16); break;
    default: rms_norm_rows(call, rows, DTYPE_BF16); break;
    }
}

#endif
