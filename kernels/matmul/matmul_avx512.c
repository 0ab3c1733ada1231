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

#include "kernels/matmul/matmul_kernels.h"

MATMUL_TILES_24(MATMUL_DEFINE_TILE, BF16)
MATMUL_TILES_24(MATMUL_DEFINE_TILE, F16)
MATMUL_TILES_24(MATMUL_DEFINE_TILE, F32)

void matmul_finish_avx512(const struct matmul_finish_call *call) { finish(call); }

static const struct matmul_kernels kernels = {
    .isa = CPU_AVX512,
    .finish = matmul_finish_avx512,
    .tiles = {MATMUL_TILES_24(MATMUL_LIST_TILE, BF16) MATMUL_TILES_24(MATMUL_LIST_TILE, F16)
                  MATMUL_TILES_24(MATMUL_LIST_TILE, F32)},
};

void matmul_run_avx512(const struct op_call *call, struct team_member *member) { matmul_loop(call, member, &kernels); }
#endif
