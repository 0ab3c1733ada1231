/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_gemv as a kernel of its own: matmul_gemv.cuh. */
#include "kernels/matmul/matmul_gemv.cuh"

#ifndef KERNEL_PARAMS
#if __CUDA_ARCH__ >= 900
#define COPY_PARAM PARAM(COPY) = GEMV_COPY_BOXES;
#else
#define COPY_PARAM PARAM(COPY) = GEMV_COPY_THREADS;
#endif
#define KERNEL_PARAMS               \
    PARAM(ROWS) = 1;                \
    PARAM(COUNT_INDEX) = 0;         \
    PARAM(N) = 2048;                \
    PARAM(K) = 2048;                \
    PARAM(DTYPE) = DTYPE_BF16;      \
    PARAM(OUT_DTYPE) = DTYPE_F32;   \
    PARAM(EPILOGUE) = 0;            \
    PARAM(SCALE_BITS) = 0x3f800000; \
    PARAM(CAP_BITS) = 0;            \
    PARAM(HAS_BIAS) = 1;            \
    PARAM(BIAS_DTYPE) = DTYPE_BF16; \
    PARAM(HAS_RESIDUAL) = 1;        \
    PARAM(HAS_NORM) = 1;            \
    PARAM(NORM_DTYPE) = DTYPE_BF16; \
    PARAM(EPS_BITS) = 925353388;    \
    PARAM(EXPERTS) = 0;             \
    PARAM(ROUTE_WIDTH) = 0;         \
    PARAM(PARTS) = 0;               \
    PARAM(EARLY_ROUTES) = 0;        \
    PARAM(WARPS) = 8;               \
    PARAM(STAGES) = 5;              \
    PARAM(CHUNK) = 512;             \
    PARAM(SPLIT_K) = 1;             \
    PARAM(GROUPS) = 2;              \
    PARAM(CTAS_PER_SM) = 1;         \
    PARAM(X_SHARED) = 1;            \
    COPY_PARAM
#define PARAM_HAS_BIAS     1
#define PARAM_HAS_RESIDUAL 1
#define PARAM_HAS_NORM     1
#define PARAM_ROUTE_WIDTH  0
#endif
#if PARAM_ROUTE_WIDTH
#define HAS_ROUTES 1
#else
#define HAS_ROUTES 0
#endif

struct matmul_gemv_params {
    KERNEL_PARAMS
};
typedef matmul_gemv_choice<matmul_gemv_params>::body matmul_gemv_kernel;

extern "C" __global__ void __launch_bounds__(matmul_gemv_kernel::THREADS, matmul_gemv_kernel::BLOCKS)
    matmul_gemv(const int *counts, const void *x, const __grid_constant__ matmul_gemv_kernel::weights_operand weights,
                void *out OPTIONAL(PARAM_HAS_BIAS, const void *bias) OPTIONAL(PARAM_HAS_RESIDUAL, const float *residual)
                    OPTIONAL(PARAM_HAS_NORM, const void *norm)
                        OPTIONAL(HAS_ROUTES, const float *routes, const int *lists))
{
    extern __shared__ __align__(1024) u8 matmul_gemv_memory[];
    matmul_gemv_kernel::run(matmul_gemv_memory, counts, x, weights, out, IF_PRESENT(PARAM_HAS_BIAS, bias),
                            IF_PRESENT(PARAM_HAS_RESIDUAL, residual), IF_PRESENT(PARAM_HAS_NORM, norm),
                            IF_PRESENT(HAS_ROUTES, routes));
}
