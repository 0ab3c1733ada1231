/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm on the GPU: out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + EPS) * weight.
 *
 * Float32 inside, rounded once to OUT_DTYPE: relative error 1e-6 before that rounding. The order of the sum depends on
 * HIDDEN and THREADS alone, so a row's result does not depend on the other rows. Operands begin at multiples of 16
 * bytes; `out` may be `x` when OUT_DTYPE is F32. */
#ifndef KERNELS_RMS_NORM_RMS_NORM_DEVICE_H
#define KERNELS_RMS_NORM_RMS_NORM_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/rms_norm/rms_norm.h"

enum rms_norm_device_operand {
    RMS_NORM_DEVICE_COUNTS,
    RMS_NORM_DEVICE_X,      /* f32[ROWS, HIDDEN] */
    RMS_NORM_DEVICE_WEIGHT, /* DTYPE[HIDDEN], a constant */
    RMS_NORM_DEVICE_OUT,    /* OUT_DTYPE[ROWS, HIDDEN] */
    RMS_NORM_DEVICE_OPERANDS
};
enum rms_norm_device_param {
    RMS_NORM_DEVICE_ROWS = RMS_NORM_ROWS,
    RMS_NORM_DEVICE_COUNT_INDEX = RMS_NORM_COUNT_INDEX,
    RMS_NORM_DEVICE_HIDDEN = RMS_NORM_HIDDEN,
    RMS_NORM_DEVICE_DTYPE = RMS_NORM_WEIGHT_DTYPE,
    RMS_NORM_DEVICE_EPS_BITS = RMS_NORM_EPS_BITS,
    RMS_NORM_DEVICE_OUT_DTYPE = RMS_NORM_OUT_DTYPE,
    RMS_NORM_DEVICE_THREADS = RMS_NORM_PARAMS, /* tunable: a multiple of 32 in 32..1024, one block per row */
    RMS_NORM_DEVICE_PARAMS
};
extern const struct device_kernel device_rms_norm;

/* Complete legal params for the problem in params[0..RMS_NORM_DEVICE_THREADS), the best guess first. Returns how many,
 * at most `capacity`; 0: the problem itself is illegal. */
int rms_norm_device_candidates(const int64_t *params, const struct device_facts *gpu,
                               int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

#endif
