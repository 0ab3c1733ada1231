/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of eight floats: AVX2, FMA, F16C. The names are explained in vector_portable.h. */
#ifndef KERNELS_CPU_VECTOR_H
#define KERNELS_CPU_VECTOR_H

#include <immintrin.h>
#include <stdint.h>

#include "formats/encoding/dtype.h"

enum { VEC_WIDTH = 8, VEC_REGISTERS = 16 };
typedef __m256 vec;
typedef int32_t vec_int __attribute__((vector_size(32)));

static inline vec vec_set(float value) { return _mm256_set1_ps(value); }
static inline vec_int vec_int_set(int32_t value) { return (vec_int)_mm256_set1_epi32(value); }
static inline vec vec_load(const float *from) { return _mm256_loadu_ps(from); }
static inline void vec_store(float *to, vec value) { _mm256_storeu_ps(to, value); }

static inline __m256i vec_part_mask(int64_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vec vec_load_part(const float *from, int64_t count)
{
    return _mm256_maskload_ps(from, vec_part_mask(count));
}

static inline void vec_store_part(float *to, int64_t count, vec value)
{
    _mm256_maskstore_ps(to, vec_part_mask(count), value);
}

static inline vec vec_load_f16(const uint16_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

static inline vec vec_load_bf16(const uint16_t *from)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline vec vec_load_int8(const uint8_t *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}

static inline vec vec_load_e4m3(const uint8_t *from)
{
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)from));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16((short)0xbf80)));
}

static inline void vec_store_bytes(uint8_t *to, vec_int codes)
{
    const __m256i low = _mm256_and_si256((__m256i)codes, _mm256_set1_epi32(0xff));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64((__m128i *)to, _mm_packus_epi16(words, words));
}

static inline void vec_store_f16(uint16_t *to, vec value)
{
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void vec_store_bf16(uint16_t *to, vec value)
{
    /* Like bf16_from_float: adds 0x7fff plus the lowest kept bit, or makes a NaN quiet. */
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(packed));
}

static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec vec_min(vec a, vec b) { return _mm256_min_ps(a, b); }

static inline vec vec_scale(vec value, vec n)
{
    vec_int whole = (vec_int)_mm256_cvtps_epi32(n), half = whole >> 1;
    vec first = (vec)((half + vec_int_set(127)) << 23), second = (vec)((whole - half + vec_int_set(127)) << 23);
    return value * first * second;
}

static inline float vec_sum(vec v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}

static inline float vec_largest(vec v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

static inline uint32_t vec_bits_ge(vec a, vec b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

static inline vec vec_select(uint32_t bits, vec a, vec b)
{
    __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)bits), lane_bit);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane_bit)));
}

static inline __attribute__((always_inline)) void vec_transpose(vec rows[VEC_WIDTH])
{
    vec quad[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
        /* 4 x 4 transposes inside the 128-bit halves, */
        __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(rows[i], rows[i + 1]));
        __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(rows[i], rows[i + 1]));
        __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(rows[i + 2], rows[i + 3]));
        __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(rows[i + 2], rows[i + 3]));
        quad[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        quad[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        quad[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        quad[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        /* then the halves are exchanged. */
        rows[i] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31);
    }
}

#include "kernels/cpu/vector_math.h"

#endif
