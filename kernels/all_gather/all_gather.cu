/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather as a kernel of its own: all_gather.cuh. */
#include "kernels/all_gather/all_gather.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS          \
    PARAM(ROWS) = 1;           \
    PARAM(COUNT_INDEX) = 1;    \
    PARAM(WIDTH) = 64128;      \
    PARAM(OUT_WIDTH) = 128256; \
    PARAM(RANKS) = 2;          \
    PARAM(THREADS) = 256;
#endif

struct all_gather_params {
    KERNEL_PARAMS
};
typedef all_gather_body<all_gather_params> all_gather_kernel;

extern "C" __global__ void __launch_bounds__(all_gather_params::THREADS)
    all_gather(const int *__restrict__ counts, const all_gather_kernel::vector_words *x, comm_header *header,
               u8 *buffer, all_gather_kernel::vector_words *__restrict__ out)
{
    all_gather_kernel::run(counts, x, header, buffer, out);
}
