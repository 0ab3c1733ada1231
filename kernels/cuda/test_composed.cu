/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies called from a kernel that is none of theirs: blockIdx.y picks one of two matmuls of different parameters or
 * a swiglu. Compiled, together with all entries, in one translation unit (kernels/BUILD); never launched. */
#include "kernels/matmul/matmul_mma.cuh"
#include "kernels/swiglu/swiglu.cuh"

struct composed_matmul {
    static constexpr int ROWS = 16, COUNT_INDEX = 0, K = 4096, DTYPE = DTYPE_BF16, BIAS_DTYPE = DTYPE_F32, HAS_NORM = 0;
    static constexpr int NORM_DTYPE = DTYPE_F32, EPS_BITS = 0, TILE_K = 64, STAGES = 4, WARPS_N = 4, WARPS_M = 1;
    static constexpr int WARPS_K = 2, TILE_M = 16, HAS_BIAS = 0, EXPERTS = 0, ROUTE_WIDTH = 0, PARTS = 0, BLOCK_N = 0,
                         X_PITCH = 0;
};
struct composed_first : composed_matmul {
    static constexpr int N = 6144, OUT_DTYPE = DTYPE_BF16, EPILOGUE = ACTIVATION_NONE, HAS_RESIDUAL = 0, TILE_N = 64;
    static constexpr int SCALE_BITS = 0x3f800000;
};
struct composed_second : composed_matmul {
    static constexpr int N = 4096, OUT_DTYPE = DTYPE_F32, EPILOGUE = ACTIVATION_NONE, HAS_RESIDUAL = 1, TILE_N = 128;
    static constexpr int SCALE_BITS = 0x3e6147ae; /* 0.22 */
};
struct composed_swiglu {
    static constexpr int ROWS = 16, COUNT_INDEX = 0, WIDTH = 14336, X_DTYPE = DTYPE_BF16, ACTIVATION = ACTIVATION_SILU;
};

extern "C" __global__ void __launch_bounds__(256)
    composed(const int *counts, const u16 *x, const u16 *w, void *out, const float *residual)
{
    typedef matmul_mma_body<composed_first> first;
    typedef matmul_mma_body<composed_second> second;
    typedef swiglu_body<composed_swiglu> third;
    static_assert(first::THREADS == 256 && second::THREADS == 256 && third::THREADS == 256, "one block for all");
    extern __shared__ __align__(128) u8 composed_memory[];
    if (blockIdx.y == 0)
        first::run(composed_memory, counts, x, w, out, nullptr, nullptr);
    else if (blockIdx.y == 1)
        second::run(composed_memory, counts, x, w, out, nullptr, residual);
    else
        third::run(counts, (const uint4 *)x, (uint4 *)out);
}
