/* SPDX-License-Identifier: Apache-2.0 */
/* router as a kernel of its own: router.cuh. */
#include "kernels/router/router.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                 \
    PARAM(ROWS) = 16;                 \
    PARAM(COUNT_INDEX) = 0;           \
    PARAM(EXPERTS) = 256;             \
    PARAM(ROUTE_WIDTH) = 18;          \
    PARAM(SCORE) = ROUTER_SIGMOID;    \
    PARAM(RENORMALISE) = 1;           \
    PARAM(EPS_BITS) = 0x1e3ce508;     \
    PARAM(SCALE_BITS) = 0x40200000;   \
    PARAM(GROUPS) = 8;                \
    PARAM(TOP_GROUPS) = 4;            \
    PARAM(GROUP_SCORE) = 1;           \
    PARAM(HAS_BIAS) = 1;              \
    PARAM(HAS_SEEDS) = 1;             \
    PARAM(BIAS_DTYPE) = DTYPE_F32;    \
    PARAM(HAS_SCALES) = 1;            \
    PARAM(SCALES_DTYPE) = DTYPE_BF16; \
    PARAM(SHARED) = 1;                \
    PARAM(SHARED_GATE) = 0;
#define PARAM_HAS_BIAS    1
#define PARAM_HAS_SEEDS   1
#define PARAM_COUNT_INDEX 0
#define PARAM_HAS_SCALES  1
#endif

struct router_params {
    KERNEL_PARAMS
};
typedef router_body<router_params> router_kernel;

extern "C" __global__ void __launch_bounds__(router_kernel::THREADS, 1)
    router(const int *counts, const float *logits, float *out OPTIONAL(PARAM_HAS_BIAS, const void *bias),
           int *lists OPTIONAL(PARAM_HAS_SEEDS, const int *seeds) OPTIONAL(PARAM_COUNT_INDEX, const int *index)
               OPTIONAL(PARAM_HAS_SCALES, const void *scales))
{
    extern __shared__ __align__(16) u8 router_memory[];
    router_kernel::run(router_memory, counts, logits, out, IF_PRESENT(PARAM_HAS_BIAS, bias), lists,
                       IF_PRESENT(PARAM_HAS_SEEDS, seeds), IF_PRESENT(PARAM_COUNT_INDEX, index),
                       IF_PRESENT(PARAM_HAS_SCALES, scales));
}
