/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_wgmma as a kernel of its own: matmul_wgmma.cuh. Other architectures get an empty kernel. */
#include "kernels/matmul/matmul_wgmma.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                                                                                         \
    PARAM(ROWS) = 16;                                                                                         \
    PARAM(COUNT_INDEX) = 0;                                                                                   \
    PARAM(N) = 4096;                                                                                          \
    PARAM(K) = 4096;                                                                                          \
    PARAM(DTYPE) = DTYPE_BF16;                                                                                \
    PARAM(OUT_DTYPE) = DTYPE_BF16;                                                                            \
    PARAM(EPILOGUE) = 0;                                                                                      \
    PARAM(INPUT_DTYPE) = DTYPE_BF16;                                                                          \
    PARAM(SCALE_BITS) = 0x3f800000;                                                                           \
    PARAM(CAP_BITS) = 0;                                                                                      \
    PARAM(HAS_BIAS) = 0;                                                                                      \
    PARAM(BIAS_DTYPE) = DTYPE_F32;                                                                            \
    PARAM(HAS_RESIDUAL) = 0;                                                                                  \
    PARAM(HAS_NORM) = 0;                                                                                      \
    PARAM(NORM_DTYPE) = DTYPE_F32;                                                                            \
    PARAM(EPS_BITS) = 0;                                                                                      \
    PARAM(TILE_N) = 64;    /* rows of W in a tile: 64 or 128 for each warpgroup */                            \
    PARAM(TILE_M) = 16;    /* rows of x in a tile: a size of wgmma's N */                                     \
    PARAM(TILE_K) = 64;    /* k in a stage: 64 or 128 */                                                      \
    PARAM(WARPGROUPS) = 1; /* that multiply */                                                                \
    PARAM(STAGES) = 8;                                                                                        \
    PARAM(SPLIT_K) = 2;    /* blocks that share a tile */                                                     \
    PARAM(MULTICAST) = 1;  /* blocks that share an x tile */                                                  \
    PARAM(PERSISTENT) = 0; /* blocks per SM that take tiles in turn; 0: a block (or cluster) for each tile */ \
    PARAM(ROW_GROUP) =                                                                                        \
        8; /* row tiles that take the same rows of W one after the other, while these are in the L2 cache */  \
    PARAM(PREFETCH) = 1; /* stages of W that are asked for before the launches before this one have ended; 1: all */
#define PARAM_HAS_BIAS     0
#define PARAM_HAS_RESIDUAL 0
#define PARAM_HAS_X_SCALES 0
#endif

struct matmul_wgmma_params {
    KERNEL_PARAMS
};
typedef matmul_wgmma_body<matmul_wgmma_params> matmul_wgmma_kernel;

extern "C" __global__ void
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__launch_bounds__(matmul_wgmma_kernel::THREADS, matmul_wgmma_kernel::LEAST_BLOCKS)
#endif
    matmul_wgmma(const int *counts, const __grid_constant__ tensor_map x_map,
                 const __grid_constant__ matmul_wgmma_kernel::weights_operand weights,
                 void *out OPTIONAL(PARAM_HAS_BIAS, const void *bias)
                     OPTIONAL(PARAM_HAS_RESIDUAL, const float *residual)
                         OPTIONAL(PARAM_HAS_X_SCALES, const float *x_scales))
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) u8 matmul_wgmma_memory[];
    matmul_wgmma_kernel::run(matmul_wgmma_memory, counts, x_map, weights, out, IF_PRESENT(PARAM_HAS_BIAS, bias),
                             IF_PRESENT(PARAM_HAS_RESIDUAL, residual), IF_PRESENT(PARAM_HAS_X_SCALES, x_scales));
#endif
}
