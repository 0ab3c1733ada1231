/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm: y[r, :] = s[r, :] / sqrt(mean(s[r, :]^2) + EPS) * weight (+ bias), with s = x or, with HAS_RESIDUAL, s = residual + x
 * (also written to `sum`, which may be the same memory as x or residual). x holds PARTS addends of each row, which are added to the residual
 * one after the other, as sum_parts.h does. With HAS_ADD_TO: out = add_to + y, with
 * HAS_FACTOR each column of it times `factor`. With HAS_COPY `copy` is the same as out in another dtype. Root mean square layer normalisation,
 * Zhang and Sennrich 2019. With CENTRED the mean of the row is taken from s before all that: layer normalisation, Ba et al.
 * 2016. Float32 throughout; the sum of squares is formed in a fixed order that does not depend on
 * the number of rows or threads.
 *
 * GPUs: rounded once to OUT_DTYPE: relative error 1e-6 before that rounding. The order of the sum depends on HIDDEN and
 * THREADS alone, so a row's result does not depend on the other rows. Operands begin at multiples of 16 bytes; `out` may
 * be `x` or `add_to` when OUT_DTYPE is F32. With OUT_DTYPE F8_E4M3 or I8 out and scales are what quantise (quantise.h) makes of the
 * rows in float32. */
#ifndef KERNELS_RMS_NORM_RMS_NORM_H
#define KERNELS_RMS_NORM_RMS_NORM_H

#include "kernels/op/op.h"

enum { RMS_NORM_MOST_SUMMED = 32 * 1024 }; /* HIDDEN with a residual, on GPUs */

enum rms_norm_operand {
    RMS_NORM_COUNTS,
    RMS_NORM_X,        /* f32[rows, PARTS * HIDDEN] */
    RMS_NORM_WEIGHT,   /* WEIGHT_DTYPE[HIDDEN] */
    RMS_NORM_OUT,      /* OUT_DTYPE[rows, HIDDEN]; may be X if it is F32 and PARTS is 1 */
    RMS_NORM_RESIDUAL, /* HAS_RESIDUAL: f32[rows, HIDDEN] */
    RMS_NORM_SUM,      /* HAS_RESIDUAL: f32[rows, HIDDEN]; may be X (without parts) or RESIDUAL, not OUT */
    RMS_NORM_ADD_TO,   /* HAS_ADD_TO: f32[rows, HIDDEN]; may be OUT if that is F32 */
    RMS_NORM_COPY,     /* HAS_COPY: COPY_DTYPE[rows, HIDDEN] */
    RMS_NORM_SCALES,   /* HAS_SCALES: f32[rows] */
    RMS_NORM_BIAS,     /* HAS_BIAS: BIAS_DTYPE[HIDDEN] */
    RMS_NORM_FACTOR,   /* HAS_FACTOR: FACTOR_DTYPE[HIDDEN] */
    RMS_NORM_OPERANDS
};
enum rms_norm_param {
    RMS_NORM_ROWS,
    RMS_NORM_COUNT_INDEX,
    RMS_NORM_HIDDEN,
    RMS_NORM_WEIGHT_DTYPE,
    RMS_NORM_EPS_BITS, /* bits of a float32 >= 0 */
    RMS_NORM_OUT_DTYPE,
    RMS_NORM_HAS_RESIDUAL, /* not with HAS_ADD_TO */
    RMS_NORM_HAS_ADD_TO,   /* CUDA, as the next two */
    RMS_NORM_HAS_COPY,
    RMS_NORM_COPY_DTYPE,
    RMS_NORM_HAS_SCALES, /* with OUT_DTYPE F8_E4M3 or I8, and only then; not with HAS_ADD_TO */
    RMS_NORM_CENTRED,
    RMS_NORM_HAS_BIAS,
    RMS_NORM_BIAS_DTYPE,
    RMS_NORM_HAS_FACTOR, /* with HAS_ADD_TO */
    RMS_NORM_FACTOR_DTYPE,
    RMS_NORM_PARTS, /* 1, or on CUDA, with HAS_RESIDUAL, to SUM_PARTS_MOST */
    RMS_NORM_PARAMS
};

enum rms_norm_device_param {
    RMS_NORM_DEVICE_THREADS = RMS_NORM_PARAMS, /* tunable: a multiple of 32 in 32..1024, one block per row */
    RMS_NORM_DEVICE_PARAMS
};

extern const struct op_descriptor op_rms_norm;
extern const struct device_kernel device_rms_norm;
op_cost rms_norm_cost;
void rms_norm_reference(const struct op_call *call);

#endif
