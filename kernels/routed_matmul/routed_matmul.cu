/* SPDX-License-Identifier: Apache-2.0 */
/* routed_matmul as a kernel of its own: routed_matmul.cuh. Architectures before 9.0 get an empty kernel. */
#include "kernels/routed_matmul/routed_matmul.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                      \
    PARAM(ROWS) = 1;                       \
    PARAM(COUNT_INDEX) = 0;                \
    PARAM(N) = 8704;                       \
    PARAM(K) = 1024;                       \
    PARAM(DTYPE) = DTYPE_BF16;             \
    PARAM(OUT_DTYPE) = DTYPE_BF16;         \
    PARAM(EPILOGUE) = ACTIVATION_SILU;     \
    PARAM(HAS_BIAS) = 1;                   \
    PARAM(BIAS_DTYPE) = DTYPE_BF16;        \
    PARAM(HAS_NORM) = 1;                   \
    PARAM(NORM_DTYPE) = DTYPE_BF16;        \
    PARAM(EPS_BITS) = 925353388;           \
    PARAM(CAP_BITS) = 0x3f800000;          \
    PARAM(EXPERTS) = 34;                   \
    PARAM(ROUTE_WIDTH) = 12;               \
    PARAM(MATRIX_DTYPE) = DTYPE_BF16;      \
    PARAM(ROUTED) = 32;                    \
    PARAM(HAS_ROUTER_BIAS) = 1;            \
    PARAM(ROUTER_BIAS_DTYPE) = DTYPE_BF16; \
    PARAM(SCORE) = ROUTER_SIGMOID;         \
    PARAM(RENORMALISE) = 1;                \
    PARAM(ROUTER_EPS_BITS) = 0x1e3ce508;   \
    PARAM(ROUTER_SCALE_BITS) = 0x40200000; \
    PARAM(ROUTER_GROUPS) = 1;              \
    PARAM(TOP_GROUPS) = 1;                 \
    PARAM(GROUP_SCORE) = 0;                \
    PARAM(HAS_CLAIM_BIAS) = 1;             \
    PARAM(CLAIM_BIAS_DTYPE) = DTYPE_F32;   \
    PARAM(HAS_SEEDS) = 1;                  \
    PARAM(HAS_SCALES) = 1;                 \
    PARAM(SCALES_DTYPE) = DTYPE_BF16;      \
    PARAM(WARPS) = 8;                      \
    PARAM(STAGES) = 6;                     \
    PARAM(CHUNK) = 512;                    \
    PARAM(TILE_GROUPS) = 2;                \
    PARAM(CTAS_PER_SM) = 1;                \
    PARAM(SHARED) = 2;                     \
    PARAM(SHARED_GATE) = 0;                \
    PARAM(COPY) = GEMV_COPY_ROWS;          \
    PARAM(SHARE) = 1;
#define PARAM_HAS_BIAS        1
#define PARAM_HAS_NORM        1
#define PARAM_HAS_ROUTER_BIAS 1
#define PARAM_HAS_CLAIM_BIAS  1
#define PARAM_HAS_SEEDS       1
#define PARAM_COUNT_INDEX     0
#define PARAM_HAS_SCALES      1
#endif

struct routed_matmul_params {
    KERNEL_PARAMS
};
typedef routed_matmul_body<routed_matmul_params> routed_matmul_kernel;

extern "C" __global__ void __launch_bounds__(routed_matmul_kernel::THREADS, routed_matmul_kernel::BLOCKS)
    routed_matmul(const int *counts, const void *x,
                  const __grid_constant__ routed_matmul_kernel::weights_operand weights, void *out, float *routes,
                  int *lists, const u16 *matrix,
                  u32 *workspace OPTIONAL(PARAM_HAS_BIAS, const void *bias) OPTIONAL(PARAM_HAS_NORM, const void *norm)
                      OPTIONAL(PARAM_HAS_ROUTER_BIAS, const void *router_bias)
                          OPTIONAL(PARAM_HAS_CLAIM_BIAS, const void *claim_bias)
                              OPTIONAL(PARAM_HAS_SEEDS, const int *seeds) OPTIONAL(PARAM_COUNT_INDEX, const int *index)
                                  OPTIONAL(PARAM_HAS_SCALES, const void *scales))
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) u8 routed_matmul_memory[];
    routed_matmul_kernel::run(routed_matmul_memory, counts, x, weights, out, routes, lists,
                              IF_PRESENT(PARAM_HAS_BIAS, bias), IF_PRESENT(PARAM_HAS_NORM, norm),
                              {matrix, workspace, IF_PRESENT(PARAM_HAS_ROUTER_BIAS, router_bias),
                               IF_PRESENT(PARAM_HAS_CLAIM_BIAS, claim_bias), IF_PRESENT(PARAM_HAS_SCALES, scales),
                               IF_PRESENT(PARAM_HAS_SEEDS, seeds), IF_PRESENT(PARAM_COUNT_INDEX, index)});
#endif
}
