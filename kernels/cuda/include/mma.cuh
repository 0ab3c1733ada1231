/* SPDX-License-Identifier: Apache-2.0 */
/* Products of one warp (mma.sync) and the loads and stores of their fragments, from compute capability 8.0 on;
 * stmatrix from 9.0 on. Which element a lane holds: the PTX manual's figures of the instruction. */
#ifndef KERNELS_CUDA_INCLUDE_MMA_CUH
#define KERNELS_CUDA_INCLUDE_MMA_CUH

#include "kernels/cuda/include/element.cuh"

#ifndef KERNELS_ON_HOST /* tests/emulation has its own */

#define MMA_SYNC(types)                                                                              \
    asm("mma.sync.aligned." types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))

/* d[16, 8] += a[16, 16] * b[16, 8], elements of 16 bits. */
template <int ELEMENT>
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    if constexpr (ELEMENT == DTYPE_BF16)
        MMA_SYNC("m16n8k16.row.col.f32.bf16.bf16.f32");
    else
        MMA_SYNC("m16n8k16.row.col.f32.f16.f16.f32");
}

/* d[16, 8] += a[16, 8] * b[8, 8], float32 of which the upper 19 bits count. */
__device__ __forceinline__ void mma_tf32(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    MMA_SYNC("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef MMA_SYNC

/* 8 x 8 matrices of 16-bit elements, a row of 16 bytes at each lane's address: two, four, and four transposed. */
__device__ __forceinline__ void load_matrices(u32 (&to)[2], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&to)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void store_matrix_transposed(u32 address, u32 from)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(from) : "memory");
}
__device__ __forceinline__ void store_matrices_transposed(u32 address, u32 first, u32 second)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first),
                 "r"(second)
                 : "memory");
}
/* An 8 x 8 matrix in registers, transposed. */
__device__ __forceinline__ u32 transpose_8x8(u32 pair)
{
    u32 result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}
#endif

#endif
