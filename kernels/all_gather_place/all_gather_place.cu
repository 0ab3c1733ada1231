/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather_place as a kernel of its own: all_gather_place.cuh. */
#include "kernels/all_gather_place/all_gather_place.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS          \
    PARAM(ROWS) = 1;           \
    PARAM(COUNT_INDEX) = 1;    \
    PARAM(WIDTH) = 64128;      \
    PARAM(OUT_WIDTH) = 128256; \
    PARAM(RANKS) = 2;          \
    PARAM(THREADS) = 256;
#endif

struct all_gather_place_params {
    KERNEL_PARAMS
};
typedef all_gather_place_body<all_gather_place_params> all_gather_place_kernel;

extern "C" __global__ void __launch_bounds__(all_gather_place_params::THREADS)
    all_gather_place(const int *__restrict__ counts, const float *__restrict__ gathered, float *__restrict__ out)
{
    all_gather_place_kernel::run(counts, gathered, out);
}
