/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu as a kernel of its own: swiglu.cuh. */
#include "kernels/swiglu/swiglu.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS            \
    PARAM(ROWS) = 16;            \
    PARAM(COUNT_INDEX) = 0;      \
    PARAM(WIDTH) = 8192;         \
    PARAM(X_DTYPE) = DTYPE_BF16; \
    PARAM(ACTIVATION) = ACTIVATION_SILU;
#endif

struct swiglu_params {
    KERNEL_PARAMS
};
typedef swiglu_body<swiglu_params> swiglu_kernel;

extern "C" __global__ void __launch_bounds__(swiglu_kernel::THREADS)
    swiglu(const int *__restrict__ counts, const uint4 *__restrict__ gate_up, uint4 *__restrict__ out)
{
    swiglu_kernel::run(counts, gate_up, out);
}
