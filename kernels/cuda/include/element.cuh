/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of operands and their conversions. */
#ifndef KERNELS_CUDA_INCLUDE_ELEMENT_CUH
#define KERNELS_CUDA_INCLUDE_ELEMENT_CUH

#include "kernels/cuda/include/device.cuh"

/* Element types, as enum dtype (formats/encoding/dtype.h). */
#define DTYPE_F32     1
#define DTYPE_F16     2
#define DTYPE_BF16    3
#define DTYPE_F8_E4M3 4 /* codes: no element that load_element reads */
#define DTYPE_I8      6 /* codes, too */

#ifndef KERNELS_ON_HOST /* tests/emulation has its own */
/* A 16-bit element (DTYPE_F16 or DTYPE_BF16) as float, and a float rounded to nearest even. */
template <int ELEMENT> __device__ __forceinline__ float float_of_half(u16 half)
{
    if constexpr (ELEMENT == DTYPE_BF16) return float_of_bits((u32)half << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

template <int ELEMENT> __device__ __forceinline__ u16 half_of_float(float value)
{
    u16 half;
    if constexpr (ELEMENT == DTYPE_BF16)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
    else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

/* Two floats as a packed pair: `low` in the lower half. */
template <int ELEMENT> __device__ __forceinline__ u32 pack_halves(float low, float high)
{
    u32 pair;
    if constexpr (ELEMENT == DTYPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* a * b + c on pairs of bfloat16, rounded once; subnormal numbers count. */
__device__ __forceinline__ u32 fma_bf16_pair(u32 a, u32 b, u32 c)
{
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* The pair `a` times number `half` of the pair b, rounded once; subnormal numbers count. */
template <int HALF> __device__ __forceinline__ u32 multiply_bf16_pair_by(u32 a, u32 b)
{
    u32 d;
    asm("{\n"
        ".reg .b16 number<2>;\n"
        ".reg .b32 both;\n"
        "mov.b32 {number0, number1}, %2;\n"
        "mov.b32 both, {number%3, number%3};\n"
        "fma.rn.bf16x2 %0, %1, both, %4;\n"
        "}"
        : "=r"(d)
        : "r"(a), "r"(b), "n"(HALF), "r"(0x80008000));
    return d;
}

/* a - b on pairs of f16. */
__device__ __forceinline__ u32 subtract_f16_pair(u32 a, u32 b)
{
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
#endif

template <int ELEMENT> __device__ __forceinline__ float load_element(const void *array, i64 index)
{
    if constexpr (ELEMENT == DTYPE_F32)
        return ((const float *)array)[index];
    else
        return float_of_half<ELEMENT>(((const u16 *)array)[index]);
}

template <int ELEMENT> __device__ __forceinline__ void store_element(void *array, i64 index, float value)
{
    if constexpr (ELEMENT == DTYPE_F32)
        ((float *)array)[index] = value;
    else
        ((u16 *)array)[index] = half_of_float<ELEMENT>(value);
}

/* Elements in 16 bytes. */
template <int ELEMENT> constexpr int VECTOR_OF = ELEMENT == DTYPE_F32 ? 4 : 8;

template <int ELEMENT, int COUNT> __device__ __forceinline__ void unpack_elements(float (&value)[COUNT], uint4 packed)
{
    static_assert(COUNT == VECTOR_OF<ELEMENT>, "16 bytes");
    const u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if constexpr (ELEMENT == DTYPE_F32)
            value[i] = float_of_bits(words[i]);
        else
            value[i] = float_of_half<ELEMENT>((u16)(words[i / 2] >> (i % 2 * 16)));
    }
}

/* COUNT elements from `index` on, by accesses of up to 16 bytes to which they are aligned. 4, or 8. */
template <int ELEMENT, int COUNT>
__device__ __forceinline__ void load_elements(float (&value)[COUNT], const void *array, i64 index)
{
    static_assert(COUNT == 4 || COUNT == 8, "accesses that are written out");
    if constexpr (ELEMENT == DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 four = *(const float4 *)((const float *)array + index + i);
            value[i] = four.x, value[i + 1] = four.y, value[i + 2] = four.z, value[i + 3] = four.w;
        }
    } else {
        u32 pairs[COUNT / 2];
        if constexpr (COUNT == 8) {
            const uint4 packed = *(const uint4 *)((const u16 *)array + index);
            pairs[0] = packed.x, pairs[1] = packed.y, pairs[2] = packed.z, pairs[3] = packed.w;
        } else {
            const uint2 packed = *(const uint2 *)((const u16 *)array + index);
            pairs[0] = packed.x, pairs[1] = packed.y;
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) value[i] = float_of_half<ELEMENT>((u16)(pairs[i / 2] >> (i % 2 * 16)));
    }
}

template <int ELEMENT, int COUNT>
__device__ __forceinline__ void store_elements(void *array, i64 index, const float (&value)[COUNT])
{
    static_assert(COUNT == 4 || COUNT == 8, "accesses that are written out");
    if constexpr (ELEMENT == DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
            *(float4 *)((float *)array + index + i) = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
    } else if constexpr (COUNT == 8) {
        *(uint4 *)((u16 *)array + index) =
            make_uint4(pack_halves<ELEMENT>(value[0], value[1]), pack_halves<ELEMENT>(value[2], value[3]),
                       pack_halves<ELEMENT>(value[4], value[5]), pack_halves<ELEMENT>(value[6], value[7]));
    } else {
        *(uint2 *)((u16 *)array + index) =
            make_uint2(pack_halves<ELEMENT>(value[0], value[1]), pack_halves<ELEMENT>(value[2], value[3]));
    }
}

/* The product with a parameter, the bits of a float32; 1 takes no instruction. */
template <auto SCALE_BITS> __device__ __forceinline__ float scaled(float value)
{
    constexpr int ONE_BITS = 0x3f800000;
    if constexpr (SCALE_BITS == ONE_BITS)
        return value;
    else
        return value * float_of_bits((u32)SCALE_BITS);
}

#endif
