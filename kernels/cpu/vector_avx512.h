/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of sixteen floats: AVX-512 F, BW, VL, DQ. The names are explained in vector_portable.h. */
#ifndef KERNELS_CPU_VECTOR_H
#define KERNELS_CPU_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

#include "formats/encoding/dtype.h"

enum { VEC_WIDTH = 16, VEC_REGISTERS = 32 };
typedef __m512 vec;
typedef int32_t vec_int __attribute__((vector_size(64)));

static inline vec vec_set(float value) { return _mm512_set1_ps(value); }
static inline vec_int vec_int_set(int32_t value) { return (vec_int)_mm512_set1_epi32(value); }
static inline vec vec_load(const float *from) { return _mm512_loadu_ps(from); }
static inline void vec_store(float *to, vec value) { _mm512_storeu_ps(to, value); }
static inline __mmask16 vec_part_mask(int64_t count) { return (__mmask16)((1u << count) - 1u); }

static inline vec vec_load_part(const float *from, int64_t count)
{
    return _mm512_maskz_loadu_ps(vec_part_mask(count), from);
}

static inline void vec_store_part(float *to, int64_t count, vec value)
{
    _mm512_mask_storeu_ps(to, vec_part_mask(count), value);
}

static inline vec vec_load_f16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

static inline vec vec_load_bf16(const uint16_t *from)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline vec vec_load_int8(const uint8_t *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}

static inline vec vec_load_e4m3(const uint8_t *from)
{
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16((short)0xbf80)));
}

static inline void vec_store_bytes(uint8_t *to, vec_int codes)
{
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)codes));
}

static inline void vec_store_f16(uint16_t *to, vec value)
{
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void vec_store_bf16(uint16_t *to, vec value)
{
    /* Like bf16_from_float: adds 0x7fff plus the lowest kept bit, or makes a NaN quiet. VCVTNEPS2BF16 would flush
     * subnormals. */
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }

static inline vec vec_scale(vec value, vec n) { return _mm512_scalef_ps(value, n); }

static inline float vec_sum(vec v)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}

static inline float vec_largest(vec v)
{
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

static inline uint32_t vec_bits_ge(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
static inline vec vec_select(uint32_t bits, vec a, vec b) { return _mm512_mask_blend_ps((__mmask16)bits, b, a); }

static inline __attribute__((always_inline)) void vec_transpose(vec rows[VEC_WIDTH])
{
    vec quad[16], pair[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        /* 4 x 4 transposes inside the 128-bit quarters: quad[i + j] holds columns j, 4 + j, 8 + j, 12 + j of rows i..i + 3. */
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(rows[i], rows[i + 1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(rows[i], rows[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(rows[i + 2], rows[i + 3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(rows[i + 2], rows[i + 3]));
        quad[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        quad[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        quad[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        quad[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    /* Then a 4 x 4 transpose of the quarters for each j. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        pair[j] = _mm512_shuffle_f32x4(quad[j], quad[4 + j], 0x44);          /* columns j, 4 + j of rows 0..7 */
        pair[4 + j] = _mm512_shuffle_f32x4(quad[8 + j], quad[12 + j], 0x44); /* of rows 8..15 */
        pair[8 + j] = _mm512_shuffle_f32x4(quad[j], quad[4 + j], 0xee);      /* columns 8 + j, 12 + j */
        pair[12 + j] = _mm512_shuffle_f32x4(quad[8 + j], quad[12 + j], 0xee);
        rows[j] = _mm512_shuffle_f32x4(pair[j], pair[4 + j], 0x88);
        rows[4 + j] = _mm512_shuffle_f32x4(pair[j], pair[4 + j], 0xdd);
        rows[8 + j] = _mm512_shuffle_f32x4(pair[8 + j], pair[12 + j], 0x88);
        rows[12 + j] = _mm512_shuffle_f32x4(pair[8 + j], pair[12 + j], 0xdd);
    }
}

#include "kernels/cpu/vector_math.h"

#endif
