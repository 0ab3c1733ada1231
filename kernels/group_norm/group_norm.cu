/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm as a kernel of its own: group_norm.cuh. */
#include "kernels/group_norm/group_norm.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                 \
    PARAM(ROWS) = 512;                \
    PARAM(COUNT_INDEX) = 0;           \
    PARAM(GROUPS) = 8;                \
    PARAM(WIDTH) = 8192;              \
    PARAM(EPS_BITS) = 0x3727c5ac;     \
    PARAM(WEIGHT_DTYPE) = DTYPE_BF16; \
    PARAM(HAS_MEANS) = 0;             \
    PARAM(X_DTYPE) = DTYPE_BF16;
#define PARAM_HAS_MEANS 0
#endif

struct group_norm_params {
    KERNEL_PARAMS
};
typedef group_norm_body<group_norm_params> group_norm_kernel;

extern "C" __global__ void __launch_bounds__(group_norm_kernel::THREADS)
    group_norm(const int *__restrict__ counts, const void *x, const void *__restrict__ weight,
               void *out OPTIONAL(PARAM_HAS_MEANS, const float *means))
{
    group_norm_kernel::run(counts, x, weight, out, IF_PRESENT(PARAM_HAS_MEANS, means));
}
