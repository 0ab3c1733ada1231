/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm as a kernel of its own: rms_norm.cuh. */
#include "kernels/rms_norm/rms_norm.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                 \
    PARAM(ROWS) = 16;                 \
    PARAM(COUNT_INDEX) = 0;           \
    PARAM(HIDDEN) = 4096;             \
    PARAM(WEIGHT_DTYPE) = DTYPE_BF16; \
    PARAM(EPS_BITS) = 0x3727c5ac;     \
    PARAM(OUT_DTYPE) = DTYPE_BF16;    \
    PARAM(HAS_ADD_TO) = 0;            \
    PARAM(HAS_COPY) = 0;              \
    PARAM(COPY_DTYPE) = DTYPE_BF16;   \
    PARAM(CENTRED) = 0;               \
    PARAM(HAS_BIAS) = 0;              \
    PARAM(BIAS_DTYPE) = DTYPE_BF16;   \
    PARAM(HAS_FACTOR) = 0;            \
    PARAM(FACTOR_DTYPE) = DTYPE_BF16; \
    PARAM(HAS_RESIDUAL) = 0;          \
    PARAM(PARTS) = 1;                 \
    PARAM(THREADS) = 256;
#define PARAM_HAS_RESIDUAL 0
#define PARAM_HAS_ADD_TO   0
#define PARAM_HAS_COPY     0
#define PARAM_HAS_SCALES   0
#define PARAM_HAS_BIAS     0
#define PARAM_HAS_FACTOR   0
#endif

struct rms_norm_params {
    KERNEL_PARAMS
};
typedef rms_norm_body<rms_norm_params> rms_norm_kernel;

extern "C" __global__ void __launch_bounds__(rms_norm_params::THREADS)
    rms_norm(const int *__restrict__ counts, const float *x, const void *__restrict__ weight,
             void *out OPTIONAL(PARAM_HAS_RESIDUAL, const float *residual) OPTIONAL(PARAM_HAS_RESIDUAL, float *sum)
                 OPTIONAL(PARAM_HAS_ADD_TO, const float *add_to) OPTIONAL(PARAM_HAS_COPY, void *copy)
                     OPTIONAL(PARAM_HAS_SCALES, float *scales) OPTIONAL(PARAM_HAS_BIAS, const void *__restrict__ bias)
                         OPTIONAL(PARAM_HAS_FACTOR, const void *__restrict__ factor))
{
    rms_norm_kernel::run(counts, x, weight, out, IF_PRESENT(PARAM_HAS_RESIDUAL, residual),
                         IF_PRESENT(PARAM_HAS_RESIDUAL, sum), IF_PRESENT(PARAM_HAS_ADD_TO, add_to),
                         IF_PRESENT(PARAM_HAS_COPY, copy), IF_PRESENT(PARAM_HAS_SCALES, scales),
                         IF_PRESENT(PARAM_HAS_BIAS, bias), IF_PRESENT(PARAM_HAS_FACTOR, factor));
}
