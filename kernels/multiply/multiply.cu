/* SPDX-License-Identifier: Apache-2.0 */
/* multiply as a kernel of its own: multiply.cuh. */
#include "kernels/multiply/multiply.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS            \
    PARAM(ROWS) = 16;            \
    PARAM(COUNT_INDEX) = 0;      \
    PARAM(WIDTH) = 256;          \
    PARAM(HAS_BY) = 1;           \
    PARAM(HAS_WEIGHT) = 0;       \
    PARAM(WEIGHT_DTYPE) = 1;     \
    PARAM(X_DTYPE) = DTYPE_BF16; \
    PARAM(BY_DTYPE) = DTYPE_F32; \
    PARAM(OUT_DTYPE) = DTYPE_BF16;
#define PARAM_HAS_BY     1
#define PARAM_HAS_WEIGHT 0
#endif

struct multiply_params {
    KERNEL_PARAMS
};
typedef multiply_body<multiply_params> multiply_kernel;

extern "C" __global__ void __launch_bounds__(multiply_kernel::THREADS)
    multiply(const int *counts, const void *x,
             void *out OPTIONAL(PARAM_HAS_BY, const void *by) OPTIONAL(PARAM_HAS_WEIGHT, const void *weight))
{
    const void *const values = IF_PRESENT(PARAM_HAS_BY, by), *const weights = IF_PRESENT(PARAM_HAS_WEIGHT, weight);
    multiply_kernel::run(counts, x, out, multiply_params::HAS_WEIGHT ? weights : values);
}
