/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_mma as a kernel of its own: matmul_mma.cuh. */
#include "kernels/matmul/matmul_mma.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                                                               \
    PARAM(ROWS) = 16;                                                               \
    PARAM(COUNT_INDEX) = 0;                                                         \
    PARAM(N) = 4096;                                                                \
    PARAM(K) = 4096;                                                                \
    PARAM(DTYPE) = DTYPE_BF16;                                                      \
    PARAM(OUT_DTYPE) = DTYPE_BF16;                                                  \
    PARAM(EPILOGUE) = 0;                                                            \
    PARAM(SCALE_BITS) = 0x3f800000;                                                 \
    PARAM(CAP_BITS) = 0;                                                            \
    PARAM(HAS_BIAS) = 0;                                                            \
    PARAM(BIAS_DTYPE) = DTYPE_F32;                                                  \
    PARAM(HAS_RESIDUAL) = 0;                                                        \
    PARAM(HAS_NORM) = 0;                                                            \
    PARAM(NORM_DTYPE) = DTYPE_F32;                                                  \
    PARAM(EPS_BITS) = 0;                                                            \
    PARAM(EXPERTS) = 0;                                                             \
    PARAM(ROUTE_WIDTH) = 0;                                                         \
    PARAM(PARTS) = 0;                                                               \
    PARAM(BLOCK_N) = 0;                                                             \
    PARAM(X_PITCH) = 0;                                                             \
    PARAM(TILE_N) = 64; /* rows of W in a tile: 16, 32 or 64 for each of WARPS_N */ \
    PARAM(TILE_M) = 16; /* rows of x in a tile: 8 to 64 for each of WARPS_M */      \
    PARAM(TILE_K) = 64; /* k in a stage: 32, 64, 128; coded: 128 to 1024 */         \
    PARAM(STAGES) = 4;                                                              \
    PARAM(WARPS_N) = 2;                                                             \
    PARAM(WARPS_M) = 1;                                                             \
    PARAM(WARPS_K) = 2; /* a multiple of 16 k of each stage for each, coded: of 128 k */
#define PARAM_HAS_BIAS     0
#define PARAM_HAS_RESIDUAL 0
#define PARAM_ROUTE_WIDTH  0
#endif
#if PARAM_ROUTE_WIDTH
#define HAS_ROUTES 1
#else
#define HAS_ROUTES 0
#endif

struct matmul_mma_params {
    KERNEL_PARAMS
};
typedef matmul_mma_body<matmul_mma_params> matmul_mma_kernel;

extern "C" __global__ void __launch_bounds__(matmul_mma_kernel::THREADS, matmul_mma_kernel::LEAST_BLOCKS)
    matmul_mma(const int *counts, const u16 *x, const u16 *w,
               void *out OPTIONAL(PARAM_HAS_BIAS, const void *bias) OPTIONAL(PARAM_HAS_RESIDUAL, const float *residual)
                   OPTIONAL(HAS_ROUTES, const float *routes, const int *lists))
{
    extern __shared__ __align__(128) u8 matmul_mma_memory[];
    matmul_mma_kernel::run(matmul_mma_memory, counts, x, w, out, IF_PRESENT(PARAM_HAS_BIAS, bias),
                           IF_PRESENT(PARAM_HAS_RESIDUAL, residual), IF_PRESENT(HAS_ROUTES, routes),
                           IF_PRESENT(HAS_ROUTES, lists));
}
