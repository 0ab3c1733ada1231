/* SPDX-License-Identifier: Apache-2.0 */
/* A block of activations as int8, in AVX-512 vectors: the function that matmul_int8.h asks for. */
#ifndef KERNELS_MATMUL_MATMUL_QUANTISE_AVX512VNNI_H
#define KERNELS_MATMUL_MATMUL_QUANTISE_AVX512VNNI_H

#include <immintrin.h>

#include "kernels/matmul/matmul_tile.h"

MATMUL_INLINE int32_t quantise(const float *x, int64_t count, const bool nibbles, int32_t words[MATMUL_INT8_BLOCK / 4],
                               float *scale)
{
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(INT8_NIBBLE_ORDER));
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const uint32_t present = count < MATMUL_INT8_BLOCK ? (1u << count) - 1 : UINT32_MAX;
    const __m512 low = _mm512_maskz_loadu_ps((__mmask16)present, x);
    const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(present >> 16), x + 16);
    const __m512i largest = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                             _mm512_and_si512(_mm512_castps_si512(high), magnitude));
    const float inverse = matmul_int8_scale(_mm512_reduce_max_epu32(largest), scale);
    const __m512 factor = _mm512_set1_ps(inverse);
    /* With an inverse of 0, infinity and NaN become codes that nothing depends on: the scale is NaN. */
    const __m128i first = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, factor)));
    const __m128i second = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, factor)));
    __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
    if (nibbles) codes = _mm256_shuffle_epi8(codes, order);
    _mm256_storeu_si256((__m256i *)(void *)words, codes);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

#endif
