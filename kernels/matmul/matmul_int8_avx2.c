/* SPDX-License-Identifier: Apache-2.0 */
/* matmul of int4 and int8 codes with activations rounded to int8, by VPMADDUBSW, which multiplies unsigned by signed bytes and
 * adds pairs of products to 16 bits: sums of a block of 32 k are exact integers; float32 from there on.
 *
 * An int4 code is taken as it is, 0 to 15: the pairs of a whole block fit 16 bits, and 8 times the sum of its activations is
 * taken off. An int8 code gives its magnitude, and its sign to the activation. */
#include <string.h>

#include "kernels/matmul/matmul_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

static int32_t quantise(const float *x, int64_t count, const bool nibbles, int32_t words[MATMUL_INT8_BLOCK / 4],
                        float *scale)
{
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(INT8_NIBBLE_ORDER));
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    float padded[MATMUL_INT8_BLOCK];
    if (count < MATMUL_INT8_BLOCK) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, x, (size_t)count * sizeof *x);
        x = padded;
    }
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++)
        most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), magnitude));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
    const __m256 factor = _mm256_set1_ps(matmul_int8_scale((uint32_t)_mm_cvtsi128_si32(four), scale));
    __m256i parts[4];
    /* With a factor of 0, infinity and NaN become codes that nothing depends on: the scale is NaN. */
    for (int i = 0; i < 4; i++) parts[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor));
    /* Packing works in halves: fours of codes come in the order 0, 2, 4, 6, 1, 3, 5, 7. */
    __m256i codes = _mm256_packs_epi16(_mm256_packs_epi32(parts[0], parts[1]), _mm256_packs_epi32(parts[2], parts[3]));
    codes = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    if (nibbles) codes = _mm256_shuffle_epi8(codes, order);
    _mm256_storeu_si256((__m256i *)(void *)words, codes);
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
    four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

#include "kernels/matmul/matmul_int8.h"

enum { MOST_VECTORS = 2 * MATMUL_MAX_TILE_PANELS }; /* 8 rows of W each */

/* Adds the products of 32 k, or fewer at the end of K: for int4 of pairs in 16 bits, for int8 of fours in 32. */
MATMUL_INLINE void add_block(__m256i sums[MATMUL_MAX_TILE_ROWS][MOST_VECTORS], const unsigned char *line,
                             size_t panel_bytes, const unsigned char **prefetch, size_t prefetch_step, int64_t lines,
                             const int32_t *words, const int panels, const int rows, const bool nibbles)
{
    const __m256i low = _mm256_set1_epi8(0x0f), ones = _mm256_set1_epi16(1);
    for (; lines > 0;
         lines--, line += PANEL_LINE_BYTES, words += (nibbles ? 2 : 1) * rows, *prefetch += prefetch_step) {
        MATMUL_UNROLL
        for (int panel = 0; panel < panels; panel++) __builtin_prefetch(*prefetch + (size_t)panel * panel_bytes);
        MATMUL_UNROLL
        for (int vector = 0; vector < 2 * panels; vector++) {
            const __m256i codes = _mm256_loadu_si256(
                (const __m256i *)(const void *)(line + (size_t)(vector / 2) * panel_bytes + vector % 2 * 32));
            MATMUL_UNROLL
            for (int row = 0; row < rows; row++) {
                const __m256i x = _mm256_set1_epi32(words[row]);
                __m256i *sum = &sums[row][vector];
                if (nibbles) {
                    const __m256i next = _mm256_set1_epi32(words[rows + row]);
                    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(_mm256_and_si256(codes, low), x));
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(high, next));
                } else {
                    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
        }
    }
}

MATMUL_INLINE void tile_int8(const struct matmul_tile_call *call, const int panels, const int rows, const bool nibbles)
{
    const struct panel_form *form = call->form;
    const unsigned char *weights = call->weights, *prefetch = call->prefetch, *head = weights;
    const int32_t *x = call->activations;
    const int64_t group = form->group ? form->group : call->depth;
    const int line_k = nibbles ? 8 : 4;
    float group_sums[MATMUL_MAX_TILE_SUMS], *to = form->group ? group_sums : call->sums;
    int place = 0;
    for (int64_t left = call->depth; left > 0; left -= group) {
        const int64_t depth = left < group ? left : group;
        float x_sums[MATMUL_MAX_TILE_ROWS] = {0};
        if (form->group) memset(group_sums, 0, (size_t)(rows * panels * PANEL_ROWS) * sizeof *group_sums);
        if (form->group && place == 0) {
            head = weights;
            weights += form->head_bytes;
        }
        for (int64_t k = 0; k < depth; k += MATMUL_INT8_BLOCK, x += INT8_BLOCK_UNITS * rows) {
            const int64_t count = depth - k < MATMUL_INT8_BLOCK ? depth - k : MATMUL_INT8_BLOCK;
            const int64_t lines = (count + line_k - 1) / line_k;
            __m256i exact[MATMUL_MAX_TILE_ROWS][MOST_VECTORS];
            MATMUL_UNROLL
            for (int i = 0; i < rows * 2 * panels; i++)
                exact[i / (2 * panels)][i % (2 * panels)] = _mm256_setzero_si256();
            add_block(exact, weights, call->panel_bytes, &prefetch, call->prefetch_step, lines, x, panels, rows,
                      nibbles);
            weights += lines * PANEL_LINE_BYTES;
            for (int row = 0; row < rows; row++) {
                const float scale = float_from_bits((uint32_t)x[INT8_SCALE_AT * rows + row]);
                const int32_t sum = x[INT8_SUM_AT * rows + row];
                if (form->encoding->zeros) x_sums[row] += scale * (float)sum;
            }
            MATMUL_UNROLL
            for (int row = 0; row < rows; row++) {
                const __m256 scale = _mm256_broadcast_ss((const float *)(const void *)(x + INT8_SCALE_AT * rows + row));
                const __m256i eight_sums = _mm256_set1_epi32(8 * x[INT8_SUM_AT * rows + row]);
                MATMUL_UNROLL
                for (int vector = 0; vector < 2 * panels; vector++) {
                    float *at = to + row * panels * PANEL_ROWS + vector * 8;
                    __m256i sum = exact[row][vector];
                    if (nibbles) sum = _mm256_sub_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), eight_sums);
                    _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_loadu_ps(at)));
                }
            }
        }
        if (!form->group) continue;
        matmul_add_group_avx2(call, head, place, x_sums, group_sums, panels, rows);
        place = place + 1 == (int)form->span_groups ? 0 : place + 1;
    }
}

MATMUL_TILES_6(INT8_DEFINE_TILE, INT4)
MATMUL_TILES_6(INT8_DEFINE_TILE, INT8)

static const struct matmul_kernels nibble_kernels =
    INT8_KERNELS(CPU_AVX2, matmul_finish_avx2, prepare_nibbles, MATMUL_TILES_6, INT4);
static const struct matmul_kernels byte_kernels =
    INT8_KERNELS(CPU_AVX2, matmul_finish_avx2, prepare_bytes, MATMUL_TILES_6, INT8);

void matmul_run_avx2(const struct op_call *call, struct team_member *member)
{
    const bool rounds = call->params[MATMUL_COMPUTE_DTYPE] == ENCODING_INT8_G32;
    if (!rounds || !int8_run(call, member, &nibble_kernels, &byte_kernels)) matmul_run_float_avx2(call, member);
}
#endif
