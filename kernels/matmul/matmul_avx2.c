/* SPDX-License-Identifier: Apache-2.0 */
/* matmul for AVX2, FMA and F16C. */
#include "kernels/matmul/matmul_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define MATMUL_LANES 8
typedef __m256 vec;

static inline vec vec_broadcast(const float *from) { return _mm256_broadcast_ss(from); }
static inline vec vec_multiply_add(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_f16(const void *from) { return _mm256_cvtph_ps(_mm_loadu_si128(from)); }

static inline vec vec_bf16_even(const void *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(from), 16));
}

/* Two shifts instead of a mask: the tiles leave no register for one. */
static inline vec vec_bf16_odd(const void *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(_mm256_loadu_si256(from), 16), 16));
}

typedef uint32_t word_vector __attribute__((vector_size(32)));
typedef int32_t integer_vector __attribute__((vector_size(32)));
typedef struct {
    vec low, high; /* of codes 0 to 7, and of 8 to 15 */
} vec_numbers;

/* The code in the low bits of 2^23: a float of 2^23 + code. */
static inline vec vec_int4(const void *from, const int place, vec_numbers table)
{
    (void)table;
    const word_vector codes = (word_vector)_mm256_loadu_si256(from) >> MATMUL_NIBBLE_SHIFT(place) & 15;
    return (vec)(codes | 0x4b000000u) - (0x1p23f + 8);
}

/* A permutation looks only at the three lowest bits of each index: the magnitude. */
static inline vec vec_e2m1(const void *from, const int place, vec_numbers table)
{
    (void)table;
    const vec magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const word_vector codes = (word_vector)_mm256_loadu_si256(from) >> MATMUL_NIBBLE_SHIFT(place);
    const word_vector signs = (codes << 28) & 0x80000000u;
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, (__m256i)codes), (vec)signs);
}

static inline vec vec_looked_up(const void *from, const int place, vec_numbers table)
{
    const word_vector codes = (word_vector)_mm256_loadu_si256(from) >> MATMUL_NIBBLE_SHIFT(place);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, (__m256i)codes),
                            _mm256_permutevar8x32_ps(table.high, (__m256i)codes), (vec)(codes << 28));
}

static inline vec vec_int8(const void *from, const int place)
{
    const word_vector codes = (word_vector)_mm256_loadu_si256(from) << (24 - 8 * place);
    return _mm256_cvtepi32_ps((__m256i)((integer_vector)codes >> 24));
}

static inline vec vec_e4m3(const void *from)
{
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(from));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16((short)0xbf80)));
}

static inline vec vec_e8m0(const void *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from)), 23));
}

static inline vec_numbers vec_table(const struct encoding *encoding)
{
    if (encoding->code != CODE_TABLE) return (vec_numbers){_mm256_setzero_ps(), _mm256_setzero_ps()};
    return (vec_numbers){_mm256_loadu_ps(encoding->table), _mm256_loadu_ps(encoding->table + 8)};
}

#include "kernels/matmul/matmul_kernels.h"

MATMUL_TILES_6(MATMUL_DEFINE_TILE, BF16)
MATMUL_TILES_6(MATMUL_DEFINE_TILE, F16)
MATMUL_TILES_6(MATMUL_DEFINE_TILE, F32)
MATMUL_TILES_6(MATMUL_DEFINE_CODED, INT4)
MATMUL_TILES_6(MATMUL_DEFINE_CODED, INT8)
MATMUL_TILES_6(MATMUL_DEFINE_CODED, E4M3)
MATMUL_TILES_6(MATMUL_DEFINE_CODED, E2M1)
MATMUL_TILES_6(MATMUL_DEFINE_CODED, TABLE)

void matmul_finish_avx2(const struct matmul_finish_call *call) { finish(call); }

void matmul_add_group_avx2(const struct matmul_tile_call *call, const unsigned char *head, int place,
                           const float *x_sums, const float *group_sums, int panels, int rows)
{
    add_group(call, head, place, x_sums, group_sums, panels, rows);
}

static const struct matmul_kernels kernels = {
    .isa = CPU_AVX2,
    .finish = matmul_finish_avx2,
    .tiles = {MATMUL_TILES_6(MATMUL_LIST_TILE, BF16) MATMUL_TILES_6(MATMUL_LIST_TILE, F16)
                  MATMUL_TILES_6(MATMUL_LIST_TILE, F32) MATMUL_TILES_6(MATMUL_LIST_TILE, INT4)
                      MATMUL_TILES_6(MATMUL_LIST_TILE, INT8) MATMUL_TILES_6(MATMUL_LIST_TILE, E4M3)
                          MATMUL_TILES_6(MATMUL_LIST_TILE, E2M1) MATMUL_TILES_6(MATMUL_LIST_TILE, TABLE)},
};

void matmul_run_float_avx2(const struct op_call *call, struct team_member *member)
{
    matmul_loop(call, member, &kernels);
}
#endif
