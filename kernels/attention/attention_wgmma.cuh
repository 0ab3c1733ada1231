/* SPDX-License-Identifier: Apache-2.0 */
/* Warpgroup matrix products of 64 rows as attention_prefill uses them. sm_90a only.
 *
 * All tiles lie in shared memory in blocks of 64 columns (128 bytes) by any multiple of 8 rows, swizzled by 128 bytes
 * and aligned to 1024. */
#ifndef KERNELS_ATTENTION_ATTENTION_WGMMA_CUH
#define KERNELS_ATTENTION_ATTENTION_WGMMA_CUH

#include "kernels/cuda/include/hopper.cuh"

/* A matrix in shared memory. Rows along the depth of the product (q, k): `next` is not used. Rows across it (v): `next`
 * is the distance of blocks of 64 columns. Eight rows make 1024 bytes. In a cluster addresses have the block's rank in
 * their upper bits. */
__device__ __forceinline__ u64 matrix_descriptor(u32 address, u32 next)
{
    return (u64)((address & 0x3ffff) >> 4) | (u64)(next >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

/* Keeps the compiler from moving accesses of accumulators across a begin or a wait. */
template <int COUNT> __device__ __forceinline__ void products_fence(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define D_4(i)  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define D_8(i)  D_4(i), D_4((i) + 4)
#define D_16(i) D_8(i), D_8((i) + 8)
#define D_32(i) D_16(i), D_16((i) + 16)
#define LIST_8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define LIST_16 LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST_24 LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LIST_32 LIST_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_48 LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LIST_64 LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* d[64, N] (+)= q[64, 16] * k[N, 16]^T, both in shared memory; without `accumulate` d is set. */
#define SCORES(N, TYPE, LIST, A, B, P, ...)                                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" LIST "}, " A ", " B \
                 ", p, 1, 1, 0, 0;\n}"                                                                   \
                 : __VA_ARGS__                                                                           \
                 : "l"(q), "l"(k), "r"((int)accumulate))

template <int DTYPE, int N> __device__ __forceinline__ void multiply_scores(float *d, u64 q, u64 k, bool accumulate)
{
    static_assert(N == 64 || N == 128, "sizes that are written out");
    if constexpr (N == 128 && DTYPE == DTYPE_BF16)
        SCORES("128", "bf16", LIST_64, "%64", "%65", "%66", D_32(0), D_32(32));
    else if constexpr (N == 128)
        SCORES("128", "f16", LIST_64, "%64", "%65", "%66", D_32(0), D_32(32));
    else if constexpr (DTYPE == DTYPE_BF16)
        SCORES("64", "bf16", LIST_32, "%32", "%33", "%34", D_32(0));
    else
        SCORES("64", "f16", LIST_32, "%32", "%33", "%34", D_32(0));
}

/* d[64, N] += p[64, 16] * v[16, N]: p in registers, v in shared memory with its rows across the depth. */
#define VALUES_OF(N, TYPE, LIST, A, B, ...)                                                              \
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                              \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" LIST "}, " A ", " B \
                 ", p, 1, 1, 1;\n}"                                                                      \
                 : __VA_ARGS__                                                                           \
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v))
#define VALUES(N, LIST, A, B, ...)                     \
    if constexpr (DTYPE == DTYPE_BF16)                 \
        VALUES_OF(N, "bf16", LIST, A, B, __VA_ARGS__); \
    else                                               \
        VALUES_OF(N, "f16", LIST, A, B, __VA_ARGS__)

template <int DTYPE, int N> __device__ __forceinline__ void multiply_values(float *d, const u32 *p, u64 v)
{
    static_assert(N == 16 || N == 32 || N == 48 || N == 64 || N == 128, "sizes that are written out");
    if constexpr (N == 128) {
        VALUES("128", LIST_64, "{%64, %65, %66, %67}", "%68", D_32(0), D_32(32));
    } else if constexpr (N == 64) {
        VALUES("64", LIST_32, "{%32, %33, %34, %35}", "%36", D_32(0));
    } else if constexpr (N == 48) {
        VALUES("48", LIST_24, "{%24, %25, %26, %27}", "%28", D_16(0), D_8(16));
    } else if constexpr (N == 32) {
        VALUES("32", LIST_16, "{%16, %17, %18, %19}", "%20", D_16(0));
    } else {
        VALUES("16", LIST_8, "{%8, %9, %10, %11}", "%12", D_8(0));
    }
}

#undef SCORES
#undef VALUES
#undef VALUES_OF
#undef D_4
#undef D_8
#undef D_16
#undef D_32
#undef LIST_8
#undef LIST_16
#undef LIST_24
#undef LIST_32
#undef LIST_48
#undef LIST_64

#endif
