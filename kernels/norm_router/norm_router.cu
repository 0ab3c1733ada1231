/* SPDX-License-Identifier: Apache-2.0 */
/* norm_router as a kernel of its own: norm_router.cuh. Architectures before 9.0 get an empty kernel. */
#include "kernels/norm_router/norm_router.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                      \
    PARAM(ROWS) = 16;                      \
    PARAM(COUNT_INDEX) = 0;                \
    PARAM(K) = 2048;                       \
    PARAM(NORM_DTYPE) = DTYPE_BF16;        \
    PARAM(EPS_BITS) = 0x358637bd;          \
    PARAM(OUT_DTYPE) = DTYPE_BF16;         \
    PARAM(MATRIX_DTYPE) = DTYPE_BF16;      \
    PARAM(ROUTED) = 128;                   \
    PARAM(HAS_ROUTER_BIAS) = 1;            \
    PARAM(ROUTER_BIAS_DTYPE) = DTYPE_BF16; \
    PARAM(ROUTE_WIDTH) = 18;               \
    PARAM(SCORE) = ROUTER_SIGMOID;         \
    PARAM(RENORMALISE) = 1;                \
    PARAM(ROUTER_EPS_BITS) = 0x1e3ce508;   \
    PARAM(ROUTER_SCALE_BITS) = 0x40200000; \
    PARAM(ROUTER_GROUPS) = 8;              \
    PARAM(TOP_GROUPS) = 4;                 \
    PARAM(GROUP_SCORE) = 1;                \
    PARAM(HAS_CLAIM_BIAS) = 1;             \
    PARAM(CLAIM_BIAS_DTYPE) = DTYPE_F32;   \
    PARAM(HAS_SEEDS) = 1;                  \
    PARAM(HAS_SCALES) = 1;                 \
    PARAM(SCALES_DTYPE) = DTYPE_BF16;      \
    PARAM(SHARED) = 1;                     \
    PARAM(SHARED_GATE) = 0;                \
    PARAM(BLOCKS) = 8;                     \
    PARAM(WARPS) = 16;
#define PARAM_HAS_ROUTER_BIAS 1
#define PARAM_HAS_CLAIM_BIAS  1
#define PARAM_HAS_SEEDS       1
#define PARAM_COUNT_INDEX     0
#define PARAM_HAS_SCALES      1
#endif

struct norm_router_params {
    KERNEL_PARAMS
};
typedef norm_router_body<norm_router_params> norm_router_kernel;

extern "C" __global__ void __launch_bounds__(norm_router_kernel::THREADS, 1)
    norm_router(const int *counts, const float *x, const void *norm, void *out, float *routes, int *lists,
                const u16 *matrix OPTIONAL(PARAM_HAS_ROUTER_BIAS, const void *router_bias)
                    OPTIONAL(PARAM_HAS_CLAIM_BIAS, const void *claim_bias) OPTIONAL(PARAM_HAS_SEEDS, const int *seeds)
                        OPTIONAL(PARAM_COUNT_INDEX, const int *index) OPTIONAL(PARAM_HAS_SCALES, const void *scales))
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) u8 norm_router_memory[];
    norm_router_kernel::run(norm_router_memory, counts, x, norm, out, routes, lists,
                            {matrix, IF_PRESENT(PARAM_HAS_ROUTER_BIAS, router_bias),
                             IF_PRESENT(PARAM_HAS_CLAIM_BIAS, claim_bias), IF_PRESENT(PARAM_HAS_SCALES, scales),
                             IF_PRESENT(PARAM_HAS_SEEDS, seeds), IF_PRESENT(PARAM_COUNT_INDEX, index)});
#endif
}
