/* SPDX-License-Identifier: Apache-2.0 */
/* routed_mlp as a kernel of its own: routed_mlp.cuh. Architectures before 9.0 get an empty kernel. */
#include "kernels/routed_mlp/routed_mlp.cuh"

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
    PARAM(SHARED) = 2;                     \
    PARAM(SHARED_GATE) = 0;                \
    PARAM(DOWN_N) = 34816;                 \
    PARAM(DOWN_K) = 128;                   \
    PARAM(DOWN_DTYPE) = DTYPE_BF16;        \
    PARAM(DOWN_OUT_DTYPE) = DTYPE_F32;     \
    PARAM(DOWN_SCALE_BITS) = 0x3f800000;   \
    PARAM(HAS_DOWN_BIAS) = 1;              \
    PARAM(DOWN_BIAS_DTYPE) = DTYPE_BF16;   \
    PARAM(HAS_RESIDUAL) = 1;               \
    PARAM(WARPS) = 8;                      \
    PARAM(STAGES) = 4;                     \
    PARAM(CHUNK) = 512;                    \
    PARAM(TILE_GROUPS) = 2;                \
    PARAM(COPY) = GEMV_COPY_BOXES;         \
    PARAM(SHARE) = 1;                      \
    PARAM(DOWN_STAGES) = 4;                \
    PARAM(DOWN_CHUNK) = 128;               \
    PARAM(DOWN_GROUPS) = 2;
#define PARAM_HAS_BIAS        1
#define PARAM_HAS_NORM        1
#define PARAM_HAS_ROUTER_BIAS 1
#define PARAM_HAS_CLAIM_BIAS  1
#define PARAM_HAS_SEEDS       1
#define PARAM_COUNT_INDEX     0
#define PARAM_HAS_SCALES      1
#define PARAM_HAS_DOWN_BIAS   1
#define PARAM_HAS_RESIDUAL    1
#endif

struct routed_mlp_params {
    KERNEL_PARAMS
};
typedef routed_mlp_body<routed_mlp_params> routed_mlp_kernel;

extern "C" __global__ void __launch_bounds__(routed_mlp_kernel::THREADS, routed_mlp_kernel::BLOCKS) routed_mlp(
    const int *counts, const void *x, const __grid_constant__ routed_mlp_kernel::up_weights weights, void *out,
    const __grid_constant__ routed_mlp_kernel::down_weights down OPTIONAL(PARAM_HAS_DOWN_BIAS, const void *down_bias),
    const u16 *matrix,
    u32 *workspace OPTIONAL(PARAM_HAS_BIAS, const void *bias) OPTIONAL(PARAM_HAS_NORM, const void *norm)
        OPTIONAL(PARAM_HAS_ROUTER_BIAS, const void *router_bias) OPTIONAL(PARAM_HAS_CLAIM_BIAS, const void *claim_bias)
            OPTIONAL(PARAM_HAS_SEEDS, const int *seeds) OPTIONAL(PARAM_COUNT_INDEX, const int *index)
                OPTIONAL(PARAM_HAS_SCALES, const void *scales) OPTIONAL(PARAM_HAS_RESIDUAL, const float *residual))
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) u8 routed_mlp_memory[];
    routed_mlp_kernel::run(routed_mlp_memory, counts, x, weights, down, out, IF_PRESENT(PARAM_HAS_BIAS, bias),
                           IF_PRESENT(PARAM_HAS_NORM, norm), IF_PRESENT(PARAM_HAS_DOWN_BIAS, down_bias),
                           IF_PRESENT(PARAM_HAS_RESIDUAL, residual),
                           {matrix, workspace, IF_PRESENT(PARAM_HAS_ROUTER_BIAS, router_bias),
                            IF_PRESENT(PARAM_HAS_CLAIM_BIAS, claim_bias), IF_PRESENT(PARAM_HAS_SCALES, scales),
                            IF_PRESENT(PARAM_HAS_SEEDS, seeds), IF_PRESENT(PARAM_COUNT_INDEX, index)});
#endif
}
