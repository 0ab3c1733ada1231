/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of K and V in their pages (kernels/op/paged.h): where they lie, and codes of 8 bits with a scale for each row. */
#ifndef KERNELS_CUDA_INCLUDE_KV_CUH
#define KERNELS_CUDA_INCLUDE_KV_CUH

#include "kernels/cuda/include/codes.cuh"

/* A layer's block of a page, in bytes: K's rows [KV_HEADS, PAGE_TOKENS], their scales, then those of V. */
template <class P> struct kv_pages {
    static constexpr bool CODED = P::KV_DTYPE == CODES_INT8 || P::KV_DTYPE == CODES_E4M3;
    static constexpr int ELEMENT_BYTES = CODED ? 1 : P::KV_DTYPE == DTYPE_F32 ? 4 : 2;
    static constexpr int ROW_BYTES = P::HEAD_DIM * ELEMENT_BYTES;
    static constexpr i64 ROWS_BYTES = (i64)P::KV_HEADS * P::PAGE_TOKENS * ROW_BYTES;
    static constexpr i64 SCALES =
        CODED ? (ROWS_BYTES + 255) / 256 * 256 : 0; /* from K's rows to their scales, float32 */
    static constexpr i64 VALUES = CODED ? SCALES + (i64)P::KV_HEADS * P::PAGE_TOKENS * 4 : ROWS_BYTES; /* from K to V */
};

/* Numbers of the codes of a word as pairs of f16; what a number has to be multiplied by. */
template <int ENCODING> struct kv_codes {
#if __CUDA_ARCH__ >= 890
    static constexpr bool CONVERTS = ENCODING == CODES_E4M3;
#else
    static constexpr bool CONVERTS = false;
#endif
    static constexpr float FACTOR = ENCODING == CODES_E4M3 && !CONVERTS ? 256 : 1;

    static __device__ __forceinline__ void to_pairs(u32 codes, u32 &low, u32 &high)
    {
        if constexpr (ENCODING == CODES_INT8) {
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

/* 16 codes times `scale`, their row's times FACTOR, as elements. */
template <int ENCODING, int ELEMENT> __device__ __forceinline__ void kv_load_codes(u8 *to, const u8 *from, float scale)
{
    constexpr int COUNT = ELEMENT == DTYPE_F32 ? 4 : 8;
    const uint4 packed = *(const uint4 *)from;
    const u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
    float values[16];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        u32 pairs[2];
        kv_codes<ENCODING>::to_pairs(words[i / 2], pairs[0], pairs[1]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            values[2 * i + j] = float_of_half<DTYPE_F16>((u16)(pairs[j / 2] >> j % 2 * 16)) * scale;
    }
#pragma unroll
    for (int i = 0; i < 16; i += COUNT) store_elements<ELEMENT>(to, i, *(const float(*)[COUNT])(values + i));
}

#endif
