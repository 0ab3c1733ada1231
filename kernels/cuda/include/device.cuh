/* SPDX-License-Identifier: Apache-2.0 */
/* What all device code shares. No toolkit header is included anywhere: NVRTC and nvcc see the same text. */
#ifndef KERNELS_CUDA_INCLUDE_DEVICE_CUH
#define KERNELS_CUDA_INCLUDE_DEVICE_CUH

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

/* Element types, as enum dtype (formats/encoding/dtype.h). */
#define DTYPE_F32  1
#define DTYPE_F16  2
#define DTYPE_BF16 3

/* CUtensorMap, passed by value as a __grid_constant__ parameter. */
struct alignas(64) tensor_map {
    u64 opaque[16];
};

/* Programmatic dependent launch: waits until every launch before this one has completed and its stores are visible.
 * Without the launch attribute both do nothing. */
__device__ __forceinline__ void device_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next launch begin its preamble as soon as every block has come here. */
__device__ __forceinline__ void device_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float float_of_bits(u32 bits) { return __int_as_float((int)bits); }
__device__ __forceinline__ u32 bits_of_float(float value) { return (u32)__float_as_int(value); }

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
#endif

/* Element types of global memory. */
template <int ELEMENT> struct element_of {
    typedef u16 type;
};
template <> struct element_of<DTYPE_F32> {
    typedef float type;
};

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

__device__ __forceinline__ u32 shared_address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }

__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

#endif
