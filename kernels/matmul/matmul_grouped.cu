/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_grouped as a kernel of its own: matmul_grouped.cuh. Architectures before 9.0 get an empty kernel. */
#include "kernels/matmul/matmul_grouped.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS               \
    PARAM(ROWS) = 16;               \
    PARAM(COUNT_INDEX) = 0;         \
    PARAM(N) = 196608;              \
    PARAM(K) = 2048;                \
    PARAM(DTYPE) = DTYPE_BF16;      \
    PARAM(OUT_DTYPE) = DTYPE_BF16;  \
    PARAM(EPILOGUE) = 1;            \
    PARAM(SCALE_BITS) = 0x3f800000; \
    PARAM(CAP_BITS) = 0;            \
    PARAM(HAS_BIAS) = 1;            \
    PARAM(BIAS_DTYPE) = DTYPE_BF16; \
    PARAM(HAS_RESIDUAL) = 0;        \
    PARAM(HAS_NORM) = 0;            \
    PARAM(EXPERTS) = 128;           \
    PARAM(ROUTE_WIDTH) = 16;        \
    PARAM(PARTS) = 0;               \
    PARAM(EARLY_ROUTES) = 0;        \
    PARAM(WARPS) = 8;               \
    PARAM(STAGES) = 4;              \
    PARAM(CHUNK) = 512;             \
    PARAM(GROUPS) = 4;              \
    PARAM(COLUMNS) = 8;             \
    PARAM(CTAS_PER_SM) = 1;
#define PARAM_HAS_BIAS 1
#endif

struct matmul_grouped_params {
    KERNEL_PARAMS
};
typedef matmul_grouped_body<matmul_grouped_params> matmul_grouped_kernel;

extern "C" __global__ void __launch_bounds__(matmul_grouped_kernel::THREADS, matmul_grouped_kernel::BLOCKS)
    matmul_grouped(const int *, const u16 *x, const u16 *weights, void *out OPTIONAL(PARAM_HAS_BIAS, const void *bias),
                   const float *routes, const int *lists)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) u8 matmul_grouped_memory[];
    matmul_grouped_kernel::run(matmul_grouped_memory, x, weights, out, IF_PRESENT(PARAM_HAS_BIAS, bias), routes, lists);
#endif
}
