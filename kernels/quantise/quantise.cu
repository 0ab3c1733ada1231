/* SPDX-License-Identifier: Apache-2.0 */
/* quantise as a kernel of its own: quantise.cuh. */
#include "kernels/quantise/quantise.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                 \
    PARAM(ROWS) = 64;                 \
    PARAM(COUNT_INDEX) = 0;           \
    PARAM(WIDTH) = 14336;             \
    PARAM(X_DTYPE) = DTYPE_BF16;      \
    PARAM(OUT_DTYPE) = DTYPE_F8_E4M3; \
    PARAM(THREADS) = 256;
#endif

struct quantise_params {
    KERNEL_PARAMS
};
typedef quantise_body<quantise_params> quantise_kernel;

extern "C" __global__ void __launch_bounds__(quantise_params::THREADS)
    quantise(const int *__restrict__ counts, const uint4 *__restrict__ x, uint4 *__restrict__ out,
             float *__restrict__ scales)
{
    quantise_kernel::run(counts, x, out, scales);
}
