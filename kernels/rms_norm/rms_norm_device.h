/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm on the GPU: out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + EPS) * weight.
 *
 * Float32 inside, rounded once to OUT_DTYPE: relative error 1e-6 before that rounding. The order of the sum depends on
 * HIDDEN and THREADS alone, so a row's result does not depend on the other rows. Operands begin at multiples of 16
 * bytes; `out` may be `x` or `add_to` when OUT_DTYPE is F32. */
#ifndef KERNELS_RMS_NORM_RMS_NORM_DEVICE_H
#define KERNELS_RMS_NORM_RMS_NORM_DEVICE_H

#include "kernels/cuda/kernel.h"
#include "kernels/rms_norm/rms_norm.h"

/* No residual before the norm: the operands of a launch are those of the schema up to OUT, then ADD_TO and COPY. */
enum {
    RMS_NORM_DEVICE_ADD_TO = RMS_NORM_OUT + 1,
    RMS_NORM_DEVICE_COPY,
    RMS_NORM_DEVICE_OPERANDS,
    RMS_NORM_DEVICE_LEAST_OPERANDS = RMS_NORM_OUT + 1,
};
enum rms_norm_device_param {
    RMS_NORM_DEVICE_THREADS = RMS_NORM_PARAMS, /* tunable: a multiple of 32 in 32..1024, one block per row */
    RMS_NORM_DEVICE_PARAMS
};
extern const struct device_kernel device_rms_norm;

/* Complete legal params for the problem in params[0..RMS_NORM_DEVICE_THREADS), the best guess first. Returns how many,
 * at most `capacity`; 0: the problem itself is illegal. */
int rms_norm_device_candidates(const int64_t *params, const struct device_facts *gpu,
                               int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity);

#endif
