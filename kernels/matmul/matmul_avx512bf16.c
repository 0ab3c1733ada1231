/* SPDX-License-Identifier: Apache-2.0 */
/* matmul for AVX-512 with BF16: weights of type BF16 are multiplied as they are stored, two k at a time, with
 * activations in split form. Other weights take the AVX-512 code.
 *
 * VDPBF16PS rounds to nearest even and treats subnormal operands and results as zero, whatever the control register
 * says. It needs as many instructions per product as the AVX-512 code has multiplications (hi and lo), but saves the
 * conversion of the weights. */
#include "kernels/matmul/matmul_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Each float x as hi + lo: hi is x rounded to bf16, lo the rest rounded to bf16. */
MATMUL_INLINE void split(__m512 x, __m256i *hi, __m256i *lo)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    __m512i x_bits = _mm512_castps_si512(x);
    __m512i hi_bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16);
    __mmask16 x_finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(x_bits, exponent), exponent);
    __mmask16 hi_special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(hi_bits, exponent), exponent);
    /* A large finite x must not round to infinity: truncate it instead. For infinity and NaN, hi has the whole value:
     * the difference would be NaN. */
    hi_bits = _mm512_mask_and_epi32(hi_bits, x_finite & hi_special, x_bits, _mm512_set1_epi32(-65536));
    __m512 rest = _mm512_maskz_sub_ps(x_finite, x, _mm512_castsi512_ps(hi_bits));
    *hi = _mm512_cvtepi32_epi16(_mm512_srli_epi32(hi_bits, 16));
    *lo = (__m256i)_mm512_cvtneps_pbh(rest);
}

static void prepare_split(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    const __m512i interleave = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * k;
        uint64_t *to = (uint64_t *)out + first / 2 * rows + row; /* {hi pair, lo pair} is one unit of 8 bytes */
        for (int64_t i = first; i < last; i += 16) {
            int64_t count = last - i < 16 ? last - i : 16, pairs = (count + 1) / 2;
            __m256i hi, lo;
            split(_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from + i), &hi, &lo);
            __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(hi), lo, 1);
            both = _mm512_permutexvar_epi32(interleave, both);
            if (rows == 1) {
                _mm512_mask_storeu_epi64(to, (__mmask8)((1u << pairs) - 1), both);
                to += pairs;
            } else {
                _Alignas(64) uint64_t units[8];
                _mm512_store_si512(units, both);
                for (int64_t pair = 0; pair < pairs; pair++, to += rows) *to = units[pair];
            }
        }
    }
}

/* NaN stays NaN and infinity infinity; a finite number beyond the largest bf16 becomes infinite. */
static void prepare_pairs(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * k;
        uint32_t *to = (uint32_t *)out + first / 2 * rows + row;
        for (int64_t i = first; i < last; i += 16) {
            const int64_t count = last - i < 16 ? last - i : 16, pairs = (count + 1) / 2;
            const __m256i both =
                (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from + i));
            if (rows == 1) {
                _mm256_mask_storeu_epi32(to, (__mmask8)((1u << pairs) - 1), both);
                to += pairs;
            } else {
                _Alignas(32) uint32_t units[8];
                _mm256_store_si256((__m256i *)(void *)units, both);
                for (int64_t pair = 0; pair < pairs; pair++, to += rows) *to = units[pair];
            }
        }
    }
}

MATMUL_INLINE __m512bh broadcast_pair(const uint32_t *pair) { return (__m512bh)_mm512_set1_epi32((int)*pair); }
MATMUL_INLINE __m512bh load_pairs(const unsigned char *weights) { return (__m512bh)_mm512_loadu_si512(weights); }

/* The side of the tile with fewer operands is held in registers, the other one streams. `terms`: 2 in split form, 1 in pair
 * form. */
MATMUL_INLINE void tile_pairs(const struct matmul_tile_call *call, const int panels, const int rows, const int terms)
{
    const size_t panel_bytes = call->panel_bytes, prefetch_step = call->prefetch_step;
    const unsigned char *weights = call->weights, *prefetch = call->prefetch;
    const uint32_t *x = call->activations;
    __m512 sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS];
    MATMUL_UNROLL
    for (int row = 0; row < rows; row++) {
        MATMUL_UNROLL
        for (int panel = 0; panel < panels; panel++)
            sums[row][panel] = _mm512_loadu_ps(call->sums + (row * panels + panel) * PANEL_ROWS);
    }
    for (int64_t pair = (call->depth + 1) / 2; pair > 0; pair--) {
        MATMUL_UNROLL
        for (int panel = 0; panel < panels; panel++) __builtin_prefetch(prefetch + (size_t)panel * panel_bytes);
        prefetch += prefetch_step;
        if (terms * rows <= panels) {
            __m512bh values[2 * MATMUL_MAX_TILE_ROWS];
            MATMUL_UNROLL
            for (int i = 0; i < terms * rows; i++) values[i] = broadcast_pair(x + i);
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++) {
                __m512bh pairs = load_pairs(weights + (size_t)panel * panel_bytes);
                MATMUL_UNROLL
                for (int i = 0; i < terms * rows; i++)
                    sums[i / terms][panel] = _mm512_dpbf16_ps(sums[i / terms][panel], pairs, values[i]);
            }
        } else {
            __m512bh pairs[MATMUL_MAX_TILE_PANELS];
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++)
                pairs[panel] = load_pairs(weights + (size_t)panel * panel_bytes);
            MATMUL_UNROLL
            for (int i = 0; i < terms * rows; i++) {
                __m512bh value = broadcast_pair(x + i);
                MATMUL_UNROLL
                for (int panel = 0; panel < panels; panel++)
                    sums[i / terms][panel] = _mm512_dpbf16_ps(sums[i / terms][panel], pairs[panel], value);
            }
        }
        weights += 4 * PANEL_ROWS;
        x += terms * rows;
    }
    MATMUL_UNROLL
    for (int row = 0; row < rows; row++) {
        MATMUL_UNROLL
        for (int panel = 0; panel < panels; panel++)
            _mm512_storeu_ps(call->sums + (row * panels + panel) * PANEL_ROWS, sums[row][panel]);
    }
}

#define DEFINE_TILE(PANELS, ROWS, NAME, TERMS) \
    static void NAME##_##PANELS##x##ROWS(const struct matmul_tile_call *call) { tile_pairs(call, PANELS, ROWS, TERMS); }
#define DEFINE_SPLIT(PANELS, ROWS, KIND) DEFINE_TILE(PANELS, ROWS, split_##KIND, 2)
#define DEFINE_PAIRS(PANELS, ROWS, KIND) DEFINE_TILE(PANELS, ROWS, pairs_##KIND, 1)
#define LIST_SPLIT(PANELS, ROWS, KIND)   [MATMUL_WEIGHTS_##KIND][PANELS][ROWS] = split_##KIND##_##PANELS##x##ROWS,
#define LIST_PAIRS(PANELS, ROWS, KIND)   [MATMUL_WEIGHTS_##KIND][PANELS][ROWS] = pairs_##KIND##_##PANELS##x##ROWS,

MATMUL_TILES_24(DEFINE_SPLIT, BF16)
MATMUL_TILES_24(DEFINE_PAIRS, BF16)

static const struct matmul_kernels split_kernels = {
    .isa = CPU_AVX512BF16,
    .pair_units = 2,
    .prepare = prepare_split,
    .finish = matmul_finish_avx512,
    .tiles = {MATMUL_TILES_24(LIST_SPLIT, BF16)},
};

static const struct matmul_kernels pair_kernels = {
    .isa = CPU_AVX512BF16,
    .pair_units = 1,
    .prepare = prepare_pairs,
    .finish = matmul_finish_avx512,
    .tiles = {MATMUL_TILES_24(LIST_PAIRS, BF16)},
};

void matmul_run_avx512bf16(const struct op_call *call, struct team_member *member)
{
    if (call->params[MATMUL_DTYPE] != DTYPE_BF16)
        matmul_run_avx512(call, member);
    else
        matmul_loop(call, member, call->params[MATMUL_COMPUTE_DTYPE] == DTYPE_BF16 ? &pair_kernels : &split_kernels);
}
#endif
