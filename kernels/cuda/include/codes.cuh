/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of 8 bits, with a float32 scale for each row: code times scale is the number. */
#ifndef KERNELS_CUDA_INCLUDE_CODES_CUH
#define KERNELS_CUDA_INCLUDE_CODES_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/include/ptx.cuh"

/* As enum encoding_id (formats/encoding/encoding.h). */
#define CODES_INT8 16
#define CODES_E4M3 24

/* The codes that elements of a dtype are; 0: none. */
LAYOUT_FUNCTION int codes_of_dtype(int dtype)
{
    return dtype == DTYPE_I8 ? CODES_INT8 : dtype == DTYPE_F8_E4M3 ? CODES_E4M3 : 0;
}

/* Scale of a row whose largest magnitude is `largest`, which is NaN if the row has a NaN: NaN also for an infinity. */
template <int ENCODING> __device__ __forceinline__ float codes_scale(float largest)
{
    return largest / (ENCODING == CODES_INT8 ? 127.0f : 448.0f) + largest * 0;
}

/* The same of a row whose scale was given beforehand, and what its values are limited to: e4m3. */
__device__ __forceinline__ float codes_given_scale(float largest, float given) { return given + largest * 0; }
__device__ __forceinline__ float codes_limited(float value, float scale)
{
    return fminf(448.0f * scale, fmaxf(-448.0f * scale, value));
}

/* value / scale, rounded to nearest; 0 where the scale is 0 or NaN. Requires: |value| at most the row's largest. */
__device__ __forceinline__ float codes_quotient(float value, float scale)
{
    /* A quotient by the reciprocal, and its remainder. Where `lift` matters, 1 / scale would overflow. */
    const float lift = scale < 0x1p-100f ? 0x1p64f : 1.0f, divisor = scale * lift, dividend = value * lift;
    const float inverse = 1.0f / divisor, quotient = dividend * inverse;
    return scale > 0 ? fmaf(fmaf(-quotient, divisor, dividend), inverse, quotient) : 0.0f;
}

/* e4m3 of a number of at most 448, rounded to nearest even. */
__device__ __forceinline__ u32 codes_e4m3(float number)
{
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(number));
    return pair & 0xff;
#else
    const u32 bits = bits_of_float(number), magnitude = bits & 0x7fffffff;
    u32 code = (magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    /* Below 2^-6 codes count multiples of 2^-9, the unit of the last place of 2^14. */
    if (magnitude < 0x3c800000)
        code = bits_of_float(float_of_bits(magnitude) + 16384) - 0x46800000;
    else
        code = code - ((127 - 7) << 3) < 0x7e ? code - ((127 - 7) << 3) : 0x7e;
    return code | (bits >> 24 & 0x80);
#endif
}

/* The same of two numbers; the first in the lower byte. */
__device__ __forceinline__ u32 codes_e4m3_pair(float first, float second)
{
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return codes_e4m3(first) | codes_e4m3(second) << 8;
#endif
}

/* int8 of a number, rounded to nearest even. */
__device__ __forceinline__ u32 codes_int8(float number)
{
    const float magic = 12582912; /* 1.5 * 2^23: the sum has no bits left for a fraction */
    return bits_of_float(fminf(127, fmaxf(-127, number)) + magic) & 0xff;
}

/* Code of a value of a row with this scale. */
template <int ENCODING> __device__ __forceinline__ u32 code_of(float value, float scale)
{
    const float scaled = codes_quotient(value, scale);
    if constexpr (ENCODING == CODES_INT8)
        return codes_int8(scaled);
    else
        return codes_e4m3(scaled);
}

/* The same of two values; the first in the lower byte. */
template <int ENCODING> __device__ __forceinline__ u32 codes_of_pair(float first, float second, float scale)
{
    const float low = codes_quotient(first, scale), high = codes_quotient(second, scale);
    if constexpr (ENCODING == CODES_INT8)
        return codes_int8(low) | codes_int8(high) << 8;
    else
        return codes_e4m3_pair(low, high);
}

/* Four codes, of two pairs in turn. */
__device__ __forceinline__ u32 codes_interleaved(u32 pair, u32 other) { return __byte_perm(pair, other, 0x5140); }

#endif
