/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce_one_shot as a kernel of its own: all_reduce_one_shot.cuh. */
#include "kernels/all_reduce/all_reduce_one_shot.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                                                     \
    PARAM(ROWS) = 16;                                                     \
    PARAM(COUNT_INDEX) = 0;                                               \
    PARAM(WIDTH) = 4096;                                                  \
    PARAM(RANKS) = 2;                                                     \
    PARAM(X_DTYPE) = DTYPE_BF16;                                          \
    PARAM(HAS_RESIDUAL) = 1; /* 2: the rank's own rows of it are there */ \
    PARAM(HAS_NORM) = 1;     /* 2: formed by a row's owner */             \
    PARAM(NORM_DTYPE) = DTYPE_BF16;                                       \
    PARAM(EPS_BITS) = 0x3727c5ac; /* 1e-5 */                              \
    PARAM(OUT_DTYPE) = DTYPE_BF16;                                        \
    PARAM(THREADS) = 512;                                                 \
    PARAM(CLUSTER) = 1;
#define PARAM_HAS_RESIDUAL 1
#define PARAM_HAS_NORM     1
#endif

struct all_reduce_one_shot_params {
    KERNEL_PARAMS
};
typedef all_reduce_one_shot_body<all_reduce_one_shot_params> all_reduce_one_shot_kernel;

extern "C" __global__ void __launch_bounds__(all_reduce_one_shot_params::THREADS, 1)
    all_reduce_one_shot(const int *__restrict__ counts, const uint4 *x, comm_header *header, u8 *buffer,
                        float *out OPTIONAL(PARAM_HAS_RESIDUAL, const float *residual)
                            OPTIONAL(PARAM_HAS_NORM, const void *__restrict__ weight, void *__restrict__ normed))
{
    all_reduce_one_shot_kernel::run(counts, x, header, buffer, out, IF_PRESENT(PARAM_HAS_RESIDUAL, residual),
                                    IF_PRESENT(PARAM_HAS_NORM, weight), IF_PRESENT(PARAM_HAS_NORM, normed));
}
