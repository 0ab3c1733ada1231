/* SPDX-License-Identifier: Apache-2.0 */
/* Products of one warpgroup (wgmma, compute capability 9.0a): inside `#if defined(__CUDA_ARCH_FEAT_SM90_ALL)` alone. */
#ifndef KERNELS_CUDA_INCLUDE_WGMMA_CUH
#define KERNELS_CUDA_INCLUDE_WGMMA_CUH

#include "kernels/cuda/include/element.cuh"

#ifndef KERNELS_ON_HOST /* tests/emulation has its own */

/* Begin before the first of a group, commit after the last, wait before the sums are read. */
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most PENDING groups are unfinished. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving accesses of accumulators across a begin or a wait. */
template <int COUNT> __device__ __forceinline__ void wgmma_keep(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int COUNT> __device__ __forceinline__ void wgmma_keep(int (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* The same of operands in registers, before a begin: none of them is made between products. */
__device__ __forceinline__ void wgmma_keep(u32 (&a)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(a[i])::"memory");
}

/* wgmma: 64 x N += 64 x 16 times 16 x N by one warpgroup, operands as tiles of rows of 64 elements (128 bytes) in
 * the 128-byte swizzle, 8 rows in 1024 bytes, tiles aligned to 1024. A step of 16 along k adds 32 bytes to the
 * address. `next`: bytes from one tile of 64 columns to the next, for an operand with rows across the depth (k) of
 * the product; without effect for rows along it. Layout of the sums: d[4 * j + i] of lane l of warp w is row 16 * w + l / 4
 * + 8 * (i / 2), column 8 * j + l % 4 * 2 + i % 2. */
__device__ __forceinline__ u64 wgmma_tile(u32 address, u32 next = 16)
{
    /* start / 16 (in a cluster the upper bits have the block's rank), distance of tiles / 16, 1024 / 16 between
     * groups of 8 rows, 128-byte swizzle */
    return (u64)((address & 0x3ffffu) >> 4) | (u64)(next >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

/* The text of one instruction: operand lists of 4 to 128 registers, each list the one before and more. `of`: "+f" or "+r". */
#define WGMMA_R4 "%0, %1, %2, %3"
#define WGMMA_R8 \
    WGMMA_R4     \
    ", %4, %5, %6, %7"
#define WGMMA_R12 \
    WGMMA_R8      \
    ", %8, %9, %10, %11"
#define WGMMA_R16 \
    WGMMA_R12     \
    ", %12, %13, %14, %15"
#define WGMMA_R24 \
    WGMMA_R16     \
    ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_R32 \
    WGMMA_R24     \
    ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R48 \
    WGMMA_R32     \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_R64 \
    WGMMA_R48     \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R80 \
    WGMMA_R64     \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_R96 \
    WGMMA_R80     \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_R128                                                                                 \
    WGMMA_R96                                                                                      \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_D4(of, i)   of(d[i]), of(d[i + 1]), of(d[i + 2]), of(d[i + 3])
#define WGMMA_D8(of, i)   WGMMA_D4(of, i), WGMMA_D4(of, i + 4)
#define WGMMA_D12(of, i)  WGMMA_D8(of, i), WGMMA_D4(of, i + 8)
#define WGMMA_D16(of, i)  WGMMA_D8(of, i), WGMMA_D8(of, i + 8)
#define WGMMA_D24(of, i)  WGMMA_D16(of, i), WGMMA_D8(of, i + 16)
#define WGMMA_D32(of, i)  WGMMA_D16(of, i), WGMMA_D16(of, i + 16)
#define WGMMA_D48(of, i)  WGMMA_D32(of, i), WGMMA_D16(of, i + 32)
#define WGMMA_D64(of, i)  WGMMA_D32(of, i), WGMMA_D32(of, i + 32)
#define WGMMA_D80(of, i)  WGMMA_D64(of, i), WGMMA_D16(of, i + 64)
#define WGMMA_D96(of, i)  WGMMA_D64(of, i), WGMMA_D32(of, i + 64)
#define WGMMA_D128(of, i) WGMMA_D64(of, i), WGMMA_D64(of, i + 64)

#define WGMMA_ASM(n, registers, type, a, b, accumulate)                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\n"                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" WGMMA_R##registers \
                 "}, " a ", " b ", p, 1, 1, 0, 0;\n}"                                                    \
                 : WGMMA_D##registers("+f", 0)                                                           \
                 : "l"(w), "l"(x), "r"(add))

/* run(d, w, x, add): d = W tile times x tile transposed, plus d if add. */
template <int N_, int DTYPE_> struct wgmma;
#define WGMMA_DEFINE(n, registers, a, b, accumulate)                                             \
    template <int DTYPE_> struct wgmma<n, DTYPE_> {                                              \
        static __device__ __forceinline__ void run(float (&d)[registers], u64 w, u64 x, int add) \
        {                                                                                        \
            if constexpr (DTYPE_ == DTYPE_BF16)                                                  \
                WGMMA_ASM(n, registers, "bf16", a, b, accumulate);                               \
            else                                                                                 \
                WGMMA_ASM(n, registers, "f16", a, b, accumulate);                                \
        }                                                                                        \
    };
WGMMA_DEFINE(8, 4, "%4", "%5", "%6")
WGMMA_DEFINE(16, 8, "%8", "%9", "%10")
WGMMA_DEFINE(24, 12, "%12", "%13", "%14")
WGMMA_DEFINE(32, 16, "%16", "%17", "%18")
WGMMA_DEFINE(48, 24, "%24", "%25", "%26")
WGMMA_DEFINE(64, 32, "%32", "%33", "%34")
WGMMA_DEFINE(96, 48, "%48", "%49", "%50")
WGMMA_DEFINE(128, 64, "%64", "%65", "%66")
WGMMA_DEFINE(160, 80, "%80", "%81", "%82")
WGMMA_DEFINE(192, 96, "%96", "%97", "%98")
WGMMA_DEFINE(256, 128, "%128", "%129", "%130")

/* d[64, N] += a[64, 16] * b[16, N]: a in registers, b a tile with its rows across the depth. */
template <int N_, int DTYPE_> struct wgmma_registers;
#define WGMMA_REGISTERS_ASM(n, registers, type, a_list, b_operand)                                       \
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" WGMMA_R##registers \
                 "}, " a_list ", " b_operand ", p, 1, 1, 1;\n}"                                          \
                 : WGMMA_D##registers("+f", 0)                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WGMMA_REGISTERS_DEFINE(n, registers, a_list, b_operand)                   \
    template <int DTYPE_> struct wgmma_registers<n, DTYPE_> {                     \
        static __device__ __forceinline__ void run(float *d, const u32 *a, u64 b) \
        {                                                                         \
            if constexpr (DTYPE_ == DTYPE_BF16)                                   \
                WGMMA_REGISTERS_ASM(n, registers, "bf16", a_list, b_operand);     \
            else                                                                  \
                WGMMA_REGISTERS_ASM(n, registers, "f16", a_list, b_operand);      \
        }                                                                         \
    };
WGMMA_REGISTERS_DEFINE(16, 8, "{%8, %9, %10, %11}", "%12")
WGMMA_REGISTERS_DEFINE(32, 16, "{%16, %17, %18, %19}", "%20")
WGMMA_REGISTERS_DEFINE(48, 24, "{%24, %25, %26, %27}", "%28")
WGMMA_REGISTERS_DEFINE(64, 32, "{%32, %33, %34, %35}", "%36")
WGMMA_REGISTERS_DEFINE(128, 64, "{%64, %65, %66, %67}", "%68")

/* run(d, a, x, add): d = a times x tile transposed, plus d if add; a is 64 x 16 bfloat16 in registers, as of mma.m16n8k16 in
 * each of the four warps. */
template <int N_> struct wgmma_rows;
#define WGMMA_ROWS_DEFINE(n, registers, a_list, x_operand, accumulate)                                       \
    template <> struct wgmma_rows<n> {                                                                       \
        static __device__ __forceinline__ void run(float (&d)[registers], const u32 (&a)[4], u64 x, int add) \
        {                                                                                                    \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\n"                             \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" WGMMA_R##registers     \
                         "}, {" a_list "}, " x_operand ", p, 1, 1, 0;\n}"                                    \
                         : WGMMA_D##registers("+f", 0)                                                       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(add));                    \
        }                                                                                                    \
    };
WGMMA_ROWS_DEFINE(8, 4, "%4, %5, %6, %7", "%8", "%9")
WGMMA_ROWS_DEFINE(16, 8, "%8, %9, %10, %11", "%12", "%13")
WGMMA_ROWS_DEFINE(24, 12, "%12, %13, %14, %15", "%16", "%17")
WGMMA_ROWS_DEFINE(32, 16, "%16, %17, %18, %19", "%20", "%21")
WGMMA_ROWS_DEFINE(48, 24, "%24, %25, %26, %27", "%28", "%29")
WGMMA_ROWS_DEFINE(64, 32, "%32, %33, %34, %35", "%36", "%37")
WGMMA_ROWS_DEFINE(96, 48, "%48, %49, %50, %51", "%52", "%53")
WGMMA_ROWS_DEFINE(128, 64, "%64, %65, %66, %67", "%68", "%69")
WGMMA_ROWS_DEFINE(160, 80, "%80, %81, %82, %83", "%84", "%85")
WGMMA_ROWS_DEFINE(192, 96, "%96, %97, %98, %99", "%100", "%101")
WGMMA_ROWS_DEFINE(256, 128, "%128, %129, %130, %131", "%132", "%133")

/* The same with codes of 8 bits: a is 64 x 32 as of mma.m16n8k32, x a tile of rows of 128 codes. Sums of e4m3 codes are float32,
 * of which the tensor cores keep about 14 bits; those of int8 codes are int32 and exact, but wrap around at 2^31. */
template <int N_> struct wgmma_codes;
template <int N_> struct wgmma_integers;
#define WGMMA_CODES_ASM(n, registers, types, of, scales, a_list, x_operand, accumulate)      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\n"                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32." types " {" WGMMA_R##registers \
                 "}, {" a_list "}, " x_operand ", p" scales ";\n}"                           \
                 : WGMMA_D##registers(of, 0)                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(add))
#define WGMMA_CODES_DEFINE(n, registers, a_list, x_operand, accumulate)                                      \
    template <> struct wgmma_codes<n> {                                                                      \
        static __device__ __forceinline__ void run(float (&d)[registers], const u32 (&a)[4], u64 x, int add) \
        {                                                                                                    \
            WGMMA_CODES_ASM(n, registers, "f32.e4m3.e4m3", "+f", ", 1, 1", a_list, x_operand, accumulate);   \
        }                                                                                                    \
    };                                                                                                       \
    template <> struct wgmma_integers<n> {                                                                   \
        static __device__ __forceinline__ void run(int (&d)[registers], const u32 (&a)[4], u64 x, int add)   \
        {                                                                                                    \
            WGMMA_CODES_ASM(n, registers, "s32.s8.s8", "+r", "", a_list, x_operand, accumulate);             \
        }                                                                                                    \
    };
WGMMA_CODES_DEFINE(8, 4, "%4, %5, %6, %7", "%8", "%9")
WGMMA_CODES_DEFINE(16, 8, "%8, %9, %10, %11", "%12", "%13")
WGMMA_CODES_DEFINE(24, 12, "%12, %13, %14, %15", "%16", "%17")
WGMMA_CODES_DEFINE(32, 16, "%16, %17, %18, %19", "%20", "%21")
WGMMA_CODES_DEFINE(48, 24, "%24, %25, %26, %27", "%28", "%29")
WGMMA_CODES_DEFINE(64, 32, "%32, %33, %34, %35", "%36", "%37")
WGMMA_CODES_DEFINE(96, 48, "%48, %49, %50, %51", "%52", "%53")
WGMMA_CODES_DEFINE(128, 64, "%64, %65, %66, %67", "%68", "%69")
WGMMA_CODES_DEFINE(160, 80, "%80, %81, %82, %83", "%84", "%85")
WGMMA_CODES_DEFINE(192, 96, "%96, %97, %98, %99", "%100", "%101")
WGMMA_CODES_DEFINE(256, 128, "%128, %129, %130, %131", "%132", "%133")
#endif

#endif
