/* SPDX-License-Identifier: Apache-2.0 */
/* matmul for AVX-512 (F, BW, VL, DQ). */
#include "kernels/matmul/matmul_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define MATMUL_LANES 16
typedef __m512 vec;

static inline vec vec_broadcast(const float *from) { return _mm512_set1_ps(*from); }
static inline vec vec_multiply_add(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_f16(const void *from) { return _mm512_cvtph_ps(_mm256_loadu_si256(from)); }

static inline vec vec_bf16_even(const void *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16));
}

static inline vec vec_bf16_odd(const void *from)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32(-65536)));
}

typedef uint32_t word_vector __attribute__((vector_size(64)));
typedef int32_t integer_vector __attribute__((vector_size(64)));

typedef vec vec_numbers;

static inline vec vec_table(const struct encoding *encoding)
{
    if (encoding->code == CODE_TABLE) return _mm512_loadu_ps(encoding->table);
    return encoding->code == CODE_E2M1
               ? _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6)
               : _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
}

/* A permutation looks only at the four lowest bits of each index: a table of codes needs no mask. One function for all codes,
 * so that their tiles are the same code. */
static inline vec vec_int4(const void *from, const int place, vec table)
{
    const word_vector codes = (word_vector)_mm512_loadu_si512(from) >> MATMUL_NIBBLE_SHIFT(place);
    return _mm512_permutexvar_ps((__m512i)codes, table);
}
#define vec_e2m1      vec_int4
#define vec_looked_up vec_int4

static inline vec vec_int8(const void *from, const int place)
{
    const word_vector codes = (word_vector)_mm512_loadu_si512(from) << (24 - 8 * place);
    return _mm512_cvtepi32_ps((__m512i)((integer_vector)codes >> 24));
}

static inline vec vec_e4m3(const void *from)
{
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(from));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16((short)0xbf80)));
}

static inline vec vec_e8m0(const void *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(from)), 23));
}

#include "kernels/matmul/matmul_kernels.h"

MATMUL_TILES_24(MATMUL_DEFINE_TILE, BF16)
MATMUL_TILES_24(MATMUL_DEFINE_TILE, F16)
MATMUL_TILES_24(MATMUL_DEFINE_TILE, F32)
MATMUL_TILES_24(MATMUL_DEFINE_CODED, INT4)
MATMUL_TILES_24(MATMUL_DEFINE_CODED, INT8)
MATMUL_TILES_24(MATMUL_DEFINE_CODED, E4M3)
#define LIST_AS_INT4(PANELS, ROWS, KIND) MATMUL_TILE_AT(PANELS, ROWS, KIND, tile_INT4_##PANELS##x##ROWS)

void matmul_finish_avx512(const struct matmul_finish_call *call) { finish(call); }

void matmul_add_group_avx512(const struct matmul_tile_call *call, const unsigned char *head, int place,
                             const float *x_sums, const float *group_sums, int panels, int rows)
{
    add_group(call, head, place, x_sums, group_sums, panels, rows);
}

static const struct matmul_kernels kernels = {
    .isa = CPU_AVX512,
    .finish = matmul_finish_avx512,
    .tiles = {MATMUL_TILES_24(MATMUL_LIST_TILE, BF16) MATMUL_TILES_24(MATMUL_LIST_TILE, F16)
                  MATMUL_TILES_24(MATMUL_LIST_TILE, F32) MATMUL_TILES_24(MATMUL_LIST_TILE, INT4)
                      MATMUL_TILES_24(MATMUL_LIST_TILE, INT8) MATMUL_TILES_24(MATMUL_LIST_TILE, E4M3)
                          MATMUL_TILES_24(LIST_AS_INT4, E2M1) MATMUL_TILES_24(LIST_AS_INT4, TABLE)},
};

void matmul_run_avx512(const struct op_call *call, struct team_member *member) { matmul_loop(call, member, &kernels); }
#endif
