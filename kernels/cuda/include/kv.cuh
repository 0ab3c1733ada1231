/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of K and V in their pages (kernels/op/paged.h): where they lie, and codes of 8 bits with a scale for each row. */
#ifndef KERNELS_CUDA_INCLUDE_KV_CUH
#define KERNELS_CUDA_INCLUDE_KV_CUH

#include "kernels/cuda/include/element.cuh"
#include "kernels/cuda/include/ptx.cuh"

/* Encodings with scales, as enum encoding_id (formats/encoding/encoding.h); the others are element types. */
#define KV_INT8_CHANNEL 16
#define KV_E4M3_CHANNEL 24

/* A layer's block of a page, in bytes: K's rows [KV_HEADS, PAGE_TOKENS], their scales, then those of V. */
template <class P> struct kv_pages {
    static constexpr bool CODED = P::KV_DTYPE == KV_INT8_CHANNEL || P::KV_DTYPE == KV_E4M3_CHANNEL;
    static constexpr int ELEMENT_BYTES = CODED ? 1 : P::KV_DTYPE == DTYPE_F32 ? 4 : 2;
    static constexpr int ROW_BYTES = P::HEAD_DIM * ELEMENT_BYTES;
    static constexpr i64 ROWS_BYTES = (i64)P::KV_HEADS * P::PAGE_TOKENS * ROW_BYTES;
    static constexpr i64 SCALES =
        CODED ? (ROWS_BYTES + 255) / 256 * 256 : 0; /* from K's rows to their scales, float32 */
    static constexpr i64 VALUES = CODED ? SCALES + (i64)P::KV_HEADS * P::PAGE_TOKENS * 4 : ROWS_BYTES; /* from K to V */
};

/* Scale of a row whose largest magnitude is `largest`, which is NaN if the row has a NaN: NaN also for an infinity. */
template <int ENCODING> __device__ __forceinline__ float kv_scale(float largest)
{
    return largest / (ENCODING == KV_INT8_CHANNEL ? 127.0f : 448.0f) + largest * 0;
}

/* Code of value / scale, rounded to nearest even; 0 where the scale is 0 or NaN. Requires: |value| at most the row's largest. */
template <int ENCODING> __device__ __forceinline__ u32 kv_code(float value, float scale)
{
    const float scaled = scale > 0 ? value / scale : 0.0f;
    if constexpr (ENCODING == KV_INT8_CHANNEL) {
        const float magic = 12582912; /* 1.5 * 2^23: the sum has no bits left for a fraction */
        return bits_of_float(fminf(127, fmaxf(-127, scaled)) + magic) & 0xff;
    } else {
        const u32 bits = bits_of_float(scaled), magnitude = bits & 0x7fffffff;
        u32 code = (magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
        /* Below 2^-6 codes count multiples of 2^-9, the unit of the last place of 2^14. */
        if (magnitude < 0x3c800000)
            code = bits_of_float(float_of_bits(magnitude) + 16384) - 0x46800000;
        else
            code = code - ((127 - 7) << 3) < 0x7e ? code - ((127 - 7) << 3) : 0x7e;
        return code | (bits >> 24 & 0x80);
    }
}

/* Numbers of the codes of a word as pairs of f16; what a number has to be multiplied by. */
template <int ENCODING> struct kv_codes {
#if __CUDA_ARCH__ >= 890
    static constexpr bool CONVERTS = ENCODING == KV_E4M3_CHANNEL;
#else
    static constexpr bool CONVERTS = false;
#endif
    static constexpr float FACTOR = ENCODING == KV_E4M3_CHANNEL && !CONVERTS ? 256 : 1;

    static __device__ __forceinline__ void to_pairs(u32 codes, u32 &low, u32 &high)
    {
        if constexpr (ENCODING == KV_INT8_CHANNEL) {
            /* 0x64 above a byte makes 1024 + byte; the byte is the code plus 128. */
            codes ^= 0x80808080;
            low = subtract_f16_pair(__byte_perm(codes, 0x64646464, 0x4140), 0x64806480);
            high = subtract_f16_pair(__byte_perm(codes, 0x64646464, 0x4342), 0x64806480);
        } else if constexpr (CONVERTS) {
#if __CUDA_ARCH__ >= 890
            asm("{\n"
                ".reg .b16 first, second;\n"
                "mov.b32 {first, second}, %2;\n"
                "cvt.rn.f16x2.e4m3x2 %0, first;\n"
                "cvt.rn.f16x2.e4m3x2 %1, second;\n"
                "}"
                : "=r"(low), "=r"(high)
                : "r"(codes));
#endif
        } else {
            /* Sign, exponent and mantissa in their places of f16: the number times 2^-8. */
            const u32 first = __byte_perm(codes, 0, 0x1404), second = __byte_perm(codes, 0, 0x3424);
            low = and_or(first, 0x80008000, (first & 0x7f007f00) >> 1);
            high = and_or(second, 0x80008000, (second & 0x7f007f00) >> 1);
        }
    }
};

#endif
