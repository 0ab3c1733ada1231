/* SPDX-License-Identifier: Apache-2.0 */
/* sum_parts as a kernel of its own: sum_parts.cuh. */
#include "kernels/sum_parts/sum_parts.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS             \
    PARAM(ROWS) = 16;             \
    PARAM(COUNT_INDEX) = 0;       \
    PARAM(WIDTH) = 2048;          \
    PARAM(PARTS) = 8;             \
    PARAM(OUT_DTYPE) = DTYPE_F32; \
    PARAM(HAS_RESIDUAL) = 1;
#define PARAM_HAS_RESIDUAL 1
#endif

struct sum_parts_params {
    KERNEL_PARAMS
};
typedef sum_parts_body<sum_parts_params> sum_parts_kernel;

extern "C" __global__ void __launch_bounds__(sum_parts_kernel::THREADS)
    sum_parts(const int *counts, const float *x, void *out OPTIONAL(PARAM_HAS_RESIDUAL, const float *residual))
{
    sum_parts_kernel::run(counts, x, out, IF_PRESENT(PARAM_HAS_RESIDUAL, residual));
}
