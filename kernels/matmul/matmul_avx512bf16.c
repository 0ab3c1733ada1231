/* SPDX-License-Identifier: Apache-2.0 */
/* matmul for AVX-512 with BF16: weights of type BF16 are multiplied as they are stored, two k at a time, with
 * activations in pair form. Codes of 4 bits, but those of tables, are multiplied alike, with activations in split form, too: each
 * stands for a number that a bf16 holds, and a permutation of words looks up 32 of them. Other weights take the AVX-512 code, and so do
 * those of type BF16 with activations in float32: split form took them 2.8 times as long on a Xeon with AMX, and is less exact.
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

/* ---- codes of 4 bits ---- */

/* bf16 of the numbers of codes (int4: less 8), twice: a permutation looks at the five lowest bits of a word, of which the
 * fifth belongs to the next code. */
static const uint16_t int4_numbers[32] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                          0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                          0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                          0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
static const uint16_t e2m1_numbers[32] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                          0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
                                          0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                          0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

/* Sums of a group's activations for each row, of which a pair of k has `terms` units. */
__attribute__((noinline)) static void sum_pairs(const uint32_t *x, int64_t pairs, int rows, int terms,
                                                float sums[MATMUL_MAX_TILE_ROWS])
{
    const __m128bh ones = (__m128bh)_mm_set1_epi32(0x3f803f80);
    for (int row = 0; row < rows; row++) {
        __m128 parts[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
        for (int64_t pair = 0; pair < pairs; pair++)
            for (int term = 0; term < terms; term++) {
                const uint32_t unit = x[(pair * rows + row) * terms + term];
                parts[pair % 4] = _mm_dpbf16_ps(parts[pair % 4], ones, (__m128bh)_mm_set1_epi32((int)unit));
            }
        sums[row] = _mm_cvtss_f32(_mm_add_ps(_mm_add_ps(parts[0], parts[1]), _mm_add_ps(parts[2], parts[3])));
    }
}

/* Adds the products of pair `place` of a line of codes. */
MATMUL_INLINE void add_nibble_products(__m512 sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS],
                                       const unsigned char *line, size_t panel_bytes, __m512i numbers,
                                       const uint32_t *x, const int panels, const int rows, const int terms,
                                       const int place)
{
    const __m128i shift = _mm_cvtsi32_si128(4 * place);
    if (terms * rows <= panels) {
        __m512bh values[2 * MATMUL_MAX_TILE_ROWS];
        MATMUL_UNROLL
        for (int i = 0; i < terms * rows; i++) values[i] = broadcast_pair(x + i);
        MATMUL_UNROLL
        for (int panel = 0; panel < panels; panel++) {
            const __m512i codes = _mm512_loadu_si512(line + (size_t)panel * panel_bytes);
            const __m512bh pairs = (__m512bh)_mm512_permutexvar_epi16(_mm512_srl_epi16(codes, shift), numbers);
            MATMUL_UNROLL
            for (int i = 0; i < terms * rows; i++)
                sums[i / terms][panel] = _mm512_dpbf16_ps(sums[i / terms][panel], pairs, values[i]);
        }
    } else {
        __m512bh pairs[MATMUL_MAX_TILE_PANELS];
        MATMUL_UNROLL
        for (int panel = 0; panel < panels; panel++) {
            const __m512i codes = _mm512_loadu_si512(line + (size_t)panel * panel_bytes);
            pairs[panel] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srl_epi16(codes, shift), numbers);
        }
        MATMUL_UNROLL
        for (int i = 0; i < terms * rows; i++) {
            const __m512bh value = broadcast_pair(x + i);
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++)
                sums[i / terms][panel] = _mm512_dpbf16_ps(sums[i / terms][panel], pairs[panel], value);
        }
    }
}

MATMUL_INLINE void tile_nibbles(const struct matmul_tile_call *call, const int panels, const int rows, const int terms)
{
    enum { LINE_PAIRS = 4 };
    const struct panel_form *form = call->form;
    const size_t panel_bytes = call->panel_bytes, prefetch_step = call->prefetch_step;
    const unsigned char *weights = call->weights, *prefetch = call->prefetch, *head = weights;
    const uint32_t *x = call->activations;
    const __m512i numbers = _mm512_loadu_si512(form->encoding->code == CODE_UINT4 ? int4_numbers : e2m1_numbers);
    float group_sums[MATMUL_MAX_TILE_SUMS];
    int place = 0;
    for (int64_t left = call->depth; left > 0; left -= form->group) {
        const int64_t pairs = ((left < form->group ? left : form->group) + 1) / 2;
        float x_sums[MATMUL_MAX_TILE_ROWS] = {0};
        __m512 sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS];
        if (place == 0) {
            head = weights;
            weights += form->head_bytes;
        }
        if (form->encoding->zeros) sum_pairs(x, pairs, rows, terms, x_sums);
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) {
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++) sums[row][panel] = _mm512_setzero_ps();
        }
        int64_t pair = 0;
        /* With one row the place is a constant; with more rows one piece of code for all places keeps the library small. */
        for (; rows == 1 && pair + LINE_PAIRS <= pairs; pair += LINE_PAIRS) {
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++) __builtin_prefetch(prefetch + (size_t)panel * panel_bytes);
            prefetch += prefetch_step;
            MATMUL_UNROLL
            for (int i = 0; i < LINE_PAIRS; i++)
                add_nibble_products(sums, weights, panel_bytes, numbers, x + i * terms, panels, rows, terms, i);
            weights += PANEL_LINE_BYTES;
            x += LINE_PAIRS * terms;
        }
        for (int i = 0; pair < pairs; pair++, x += terms * rows) {
            add_nibble_products(sums, weights, panel_bytes, numbers, x, panels, rows, terms, i);
            if (++i < LINE_PAIRS) continue;
            i = 0;
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++) __builtin_prefetch(prefetch + (size_t)panel * panel_bytes);
            prefetch += prefetch_step;
            weights += PANEL_LINE_BYTES;
        }
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) {
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++)
                _mm512_storeu_ps(group_sums + (row * panels + panel) * PANEL_ROWS, sums[row][panel]);
        }
        matmul_add_group_avx512(call, head, place, x_sums, group_sums, panels, rows);
        place = place + 1 == (int)form->span_groups ? 0 : place + 1;
    }
}

#define DEFINE_TILE(PANELS, ROWS, NAME, TERMS)                                        \
    static void NAME##_##PANELS##x##ROWS(const struct matmul_tile_call *call)         \
    {                                                                                 \
        tile_pairs(call, PANELS, ROWS, TERMS);                                        \
    }                                                                                 \
    static void NAME##_nibbles_##PANELS##x##ROWS(const struct matmul_tile_call *call) \
    {                                                                                 \
        tile_nibbles(call, PANELS, ROWS, TERMS);                                      \
    }
#define DEFINE_SPLIT(PANELS, ROWS, NAME) DEFINE_TILE(PANELS, ROWS, NAME, 2)
#define DEFINE_PAIRS(PANELS, ROWS, NAME) DEFINE_TILE(PANELS, ROWS, NAME, 1)
#define LIST_TILE(PANELS, ROWS, NAME)                                    \
    MATMUL_TILE_AT(PANELS, ROWS, BF16, NAME##_##PANELS##x##ROWS)         \
    MATMUL_TILE_AT(PANELS, ROWS, INT4, NAME##_nibbles_##PANELS##x##ROWS) \
    MATMUL_TILE_AT(PANELS, ROWS, E2M1, NAME##_nibbles_##PANELS##x##ROWS)

MATMUL_TILES_24(DEFINE_SPLIT, split)
MATMUL_TILES_24(DEFINE_PAIRS, pairs)

static const struct matmul_kernels split_kernels = {
    .isa = CPU_AVX512BF16,
    .pair_units = 2,
    .block_k = 2,
    .prepare = prepare_split,
    .finish = matmul_finish_avx512,
    .tiles = {MATMUL_TILES_24(LIST_TILE, split)},
};

static const struct matmul_kernels pair_kernels = {
    .isa = CPU_AVX512BF16,
    .pair_units = 1,
    .block_k = 2,
    .prepare = prepare_pairs,
    .finish = matmul_finish_avx512,
    .tiles = {MATMUL_TILES_24(LIST_TILE, pairs)},
};

void matmul_run_avx512bf16(const struct op_call *call, struct team_member *member)
{
    const enum encoding_id encoding = (enum encoding_id)call->params[MATMUL_DTYPE];
    const enum encoding_code code = encoding_find(encoding)->code;
    const bool rounds = call->params[MATMUL_COMPUTE_DTYPE] == DTYPE_BF16;
    if (call->params[MATMUL_COMPUTE_DTYPE] == ENCODING_INT8_G32)
        matmul_run_avx512vnni(call, member);
    else if (encoding == ENCODING_BF16 ? !rounds : code != CODE_UINT4 && code != CODE_E2M1)
        matmul_run_avx512(call, member);
    else
        matmul_loop(call, member, rounds ? &pair_kernels : &split_kernels);
}
#endif
