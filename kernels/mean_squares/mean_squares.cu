/* SPDX-License-Identifier: Apache-2.0 */
/* mean_squares as a kernel of its own: mean_squares.cuh. */
#include "kernels/mean_squares/mean_squares.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS       \
    PARAM(ROWS) = 512;      \
    PARAM(COUNT_INDEX) = 0; \
    PARAM(HEADS) = 20;      \
    PARAM(KV_HEADS) = 4;    \
    PARAM(HEAD_DIM) = 128;  \
    PARAM(RANKS) = 2;       \
    PARAM(X_DTYPE) = DTYPE_BF16;
#endif

struct mean_squares_params {
    KERNEL_PARAMS
};
typedef mean_squares_body<mean_squares_params> mean_squares_kernel;

extern "C" __global__ void __launch_bounds__(mean_squares_kernel::THREADS)
    mean_squares(const int *__restrict__ counts, const u16 *__restrict__ qkv, float *__restrict__ out)
{
    mean_squares_kernel::run(counts, qkv, out);
}
