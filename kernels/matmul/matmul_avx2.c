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

#include "kernels/matmul/matmul_kernels.h"

MATMUL_TILES_6(MATMUL_DEFINE_TILE, BF16)
MATMUL_TILES_6(MATMUL_DEFINE_TILE, F16)
MATMUL_TILES_6(MATMUL_DEFINE_TILE, F32)

static const struct matmul_kernels kernels = {
    .isa = CPU_AVX2,
    .finish = finish,
    .tiles = {MATMUL_TILES_6(MATMUL_LIST_TILE, BF16) MATMUL_TILES_6(MATMUL_LIST_TILE, F16)
                  MATMUL_TILES_6(MATMUL_LIST_TILE, F32)},
};

void matmul_run_avx2(const struct op_call *call, struct team_member *member) { matmul_loop(call, member, &kernels); }
#endif
