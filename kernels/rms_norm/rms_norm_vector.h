/* SPDX-License-Identifier: Apache-2.0 */
/* The body of rms_norm over the vectors of one instruction set. A row is one thread's work; its sum of squares is formed
 * in four vectors of partial sums, column i in vector (i / VEC_WIDTH) % 4, which depends on the width alone. */
#ifndef KERNELS_RMS_NORM_RMS_NORM_VECTOR_H
#define KERNELS_RMS_NORM_RMS_NORM_VECTOR_H

#include <math.h>

#include "kernels/cpu/share.h"
#include "kernels/op/op.h"
#include "kernels/rms_norm/rms_norm.h"

op_run rms_norm_run_avx2, rms_norm_run_avx512;

enum { RMS_NORM_PARTS = 4 };

/* Sum of squares of x, or of x + residual, which then goes to `sum` (may be x or residual: an element is read before it
 * is written). */
VEC_INLINE float rms_norm_squares(const float *x, const float *residual, float *sum, int64_t width, bool has_residual)
{
    vec parts[RMS_NORM_PARTS];
#pragma GCC unroll 4
    for (int j = 0; j < RMS_NORM_PARTS; j++) parts[j] = vec_set(0);
    int64_t i = 0;
    for (; i + RMS_NORM_PARTS * VEC_WIDTH <= width; i += RMS_NORM_PARTS * VEC_WIDTH) {
#pragma GCC unroll 4
        for (int j = 0; j < RMS_NORM_PARTS; j++) {
            vec value = vec_load(x + i + j * VEC_WIDTH);
            if (has_residual) {
                value = value + vec_load(residual + i + j * VEC_WIDTH);
                vec_store(sum + i + j * VEC_WIDTH, value);
            }
            parts[j] = vec_fma(value, value, parts[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < RMS_NORM_PARTS; j++, i += VEC_WIDTH) {
        int64_t count = width - i < VEC_WIDTH ? width - i : VEC_WIDTH;
        if (count <= 0) break;
        vec value = vec_load_part(x + i, count);
        if (has_residual) {
            value = value + vec_load_part(residual + i, count);
            vec_store_part(sum + i, count, value);
        }
        parts[j] = vec_fma(value, value, parts[j]);
    }
    return vec_sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

VEC_INLINE void rms_norm_scale(const float *x, const void *weight, float *out, int64_t width, float scale,
                               enum dtype dtype)
{
    vec factor = vec_set(scale);
    int64_t i = 0;
    for (; i + VEC_WIDTH <= width; i += VEC_WIDTH)
        vec_store(out + i, vec_load(x + i) * factor * vec_load_dtype(weight, i, VEC_WIDTH, dtype));
    int64_t rest = width - i;
    if (rest > 0)
        vec_store_part(out + i, rest, vec_load_part(x + i, rest) * factor * vec_load_dtype(weight, i, rest, dtype));
}

VEC_INLINE void rms_norm_rows(const struct op_call *call, struct share rows, enum dtype dtype, bool has_residual)
{
    int64_t width = call->params[RMS_NORM_HIDDEN];
    float eps = op_float_param(call->params, RMS_NORM_EPS_BITS);
    for (int64_t r = rows.first; r < rows.last; r++) {
        const float *x = (const float *)call->operands[RMS_NORM_X] + r * width;
        const float *residual = NULL;
        float *sum = NULL;
        if (has_residual) {
            residual = (const float *)call->operands[RMS_NORM_RESIDUAL] + r * width;
            sum = (float *)call->operands[RMS_NORM_SUM] + r * width;
        }
        float squares = rms_norm_squares(x, residual, sum, width, has_residual);
        float scale = 1.0f / sqrtf(squares / (float)width + eps);
        rms_norm_scale(has_residual ? sum : x, call->operands[RMS_NORM_WEIGHT],
                       (float *)call->operands[RMS_NORM_OUT] + r * width, width, scale, dtype);
    }
}

static inline void rms_norm_vector_run(const struct op_call *call, struct team_member *member)
{
    struct share rows = team_share_rows(member, op_valid_rows(call), call->params[RMS_NORM_HIDDEN]);
    bool has_residual = call->params[RMS_NORM_HAS_RESIDUAL] != 0;
    switch ((enum dtype)call->params[RMS_NORM_WEIGHT_DTYPE]) {
    case DTYPE_F32: rms_norm_rows(call, rows, DTYPE_F32, has_residual); break;
    case DTYPE_F16: rms_norm_rows(call, rows, DTYPE_F16, has_residual); break;
    default: rms_norm_rows(call, rows, DTYPE_BF16, has_residual); break;
    }
}

#endif
