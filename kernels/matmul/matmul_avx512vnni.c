/* SPDX-License-Identifier: Apache-2.0 */
/* matmul for AVX-512 with VNNI: int4 and int8 codes are multiplied by activations rounded to int8 (matmul_round), with VPDPBUSD.
 * Sums of a block of 32 k are exact integers; float32 from there on. Other launches take the AVX-512 code.
 *
 * VPDPBUSD multiplies unsigned by signed bytes. So a code is taken as its number plus 8 (int4) or 128 (int8), and a block's sums
 * begin with so many times the sum of its activations less. */
#include "kernels/matmul/matmul_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/matmul/matmul_quantise_avx512vnni.h"

#include "kernels/matmul/matmul_int8.h"

/* VPDPBUSD in place: gcc 12 copies sums that its intrinsic changes in a loop to other registers and back. */
MATMUL_INLINE void multiply_add_four(__m512i *sums, __m512i codes, __m512i values)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(codes), "v"(values));
}

/* Adds the products of four k, whose codes are `codes` of each panel. */
MATMUL_INLINE void add_four(__m512i sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS],
                            const __m512i codes[MATMUL_MAX_TILE_PANELS], const int32_t *x, const int panels,
                            const int rows)
{
    MATMUL_UNROLL
    for (int row = 0; row < rows; row++) {
        const __m512i value = _mm512_set1_epi32(x[row]);
        MATMUL_UNROLL
        for (int panel = 0; panel < panels; panel++) multiply_add_four(&sums[row][panel], codes[panel], value);
    }
}

/* What matmul_add_group_avx512 does for scales in f16 and no zero points, with sums in registers: a group of 32 k has so few products
 * that the call took as long as they do. */
MATMUL_INLINE void add_scaled(const struct matmul_tile_call *call, const unsigned char *scales,
                              __m512 sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS], const int panels,
                              const int rows)
{
    MATMUL_UNROLL
    for (int panel = 0; panel < panels; panel++, scales += call->panel_bytes) {
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scales));
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) {
            float *to = call->sums + (row * panels + panel) * PANEL_ROWS;
            _mm512_storeu_ps(to, _mm512_fmadd_ps(scale, sums[row][panel], _mm512_loadu_ps(to)));
        }
    }
}

MATMUL_INLINE void tile_int8(const struct matmul_tile_call *call, const int panels, const int rows, const bool nibbles)
{
    const struct panel_form *form = call->form;
    const size_t panel_bytes = call->panel_bytes, prefetch_step = call->prefetch_step;
    const unsigned char *weights = call->weights, *prefetch = call->prefetch, *head = weights;
    const int32_t *x = call->activations;
    const int64_t group = form->group ? form->group : call->depth;
    const int line_k = nibbles ? 8 : 4, offset = nibbles ? 8 : 128;
    const __m512i low = _mm512_set1_epi8(0x0f), sign = _mm512_set1_epi8(-128);
    const float *from = form->group ? matmul_no_sums : call->sums;
    float group_sums[MATMUL_MAX_TILE_SUMS], *to = form->group ? group_sums : call->sums;
    int place = 0;
    for (int64_t left = call->depth; left > 0; left -= group) {
        const int64_t depth = left < group ? left : group;
        float x_sums[MATMUL_MAX_TILE_ROWS] = {0};
        __m512 sums[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS];
        if (form->group && place == 0) {
            head = weights;
            weights += form->head_bytes;
        }
        MATMUL_UNROLL
        for (int row = 0; row < rows; row++) {
            MATMUL_UNROLL
            for (int panel = 0; panel < panels; panel++)
                sums[row][panel] = _mm512_loadu_ps(from + (row * panels + panel) * PANEL_ROWS);
        }
        for (int64_t k = 0; k < depth; k += MATMUL_INT8_BLOCK, x += INT8_BLOCK_UNITS * rows) {
            const int64_t count = depth - k < MATMUL_INT8_BLOCK ? depth - k : MATMUL_INT8_BLOCK;
            const int32_t *words = x;
            __m512i exact[MATMUL_MAX_TILE_ROWS][MATMUL_MAX_TILE_PANELS];
            MATMUL_UNROLL
            for (int row = 0; row < rows; row++) {
                const __m512i start = _mm512_set1_epi32(-offset * x[INT8_SUM_AT * rows + row]);
                MATMUL_UNROLL
                for (int panel = 0; panel < panels; panel++) exact[row][panel] = start;
            }
            for (int64_t line = 0; line < count; line += line_k) {
                __m512i codes[MATMUL_MAX_TILE_PANELS];
                MATMUL_UNROLL
                for (int panel = 0; panel < panels; panel++) {
                    const __m512i both = _mm512_loadu_si512(weights + (size_t)panel * panel_bytes);
                    __builtin_prefetch(prefetch + (size_t)panel * panel_bytes);
                    codes[panel] = nibbles ? _mm512_and_si512(both, low) : _mm512_xor_si512(both, sign);
                }
                add_four(exact, codes, words, panels, rows);
                words += rows;
                if (nibbles) {
                    /* Loaded again: there are no registers to keep them. */
                    MATMUL_UNROLL
                    for (int panel = 0; panel < panels; panel++) {
                        const __m512i both = _mm512_loadu_si512(weights + (size_t)panel * panel_bytes);
                        codes[panel] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
                    }
                    add_four(exact, codes, words, panels, rows);
                    words += rows;
                }
                weights += PANEL_LINE_BYTES;
                prefetch += prefetch_step;
            }
            MATMUL_UNROLL
            for (int row = 0; row < rows; row++) {
                const float scale = float_from_bits((uint32_t)x[INT8_SCALE_AT * rows + row]);
                if (form->encoding->zeros) x_sums[row] += scale * (float)x[INT8_SUM_AT * rows + row];
                MATMUL_UNROLL
                for (int panel = 0; panel < panels; panel++)
                    sums[row][panel] =
                        _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact[row][panel]), _mm512_set1_ps(scale), sums[row][panel]);
            }
        }
        if (form->group && form->encoding->scale == SCALE_F16 && !form->encoding->zeros) {
            add_scaled(call, head + (size_t)place * form->scale_bytes, sums, panels, rows);
        } else {
            MATMUL_UNROLL
            for (int row = 0; row < rows; row++) {
                MATMUL_UNROLL
                for (int panel = 0; panel < panels; panel++)
                    _mm512_storeu_ps(to + (row * panels + panel) * PANEL_ROWS, sums[row][panel]);
            }
            if (!form->group) continue;
            matmul_add_group_avx512(call, head, place, x_sums, group_sums, panels, rows);
        }
        place = place + 1 == (int)form->span_groups ? 0 : place + 1;
    }
}

MATMUL_TILES_12(INT8_DEFINE_TILE, INT4)
MATMUL_TILES_12(INT8_DEFINE_TILE, INT8)

static const struct matmul_kernels nibble_kernels =
    INT8_KERNELS(CPU_AVX512VNNI, matmul_finish_avx512, prepare_nibbles, MATMUL_TILES_12, INT4);
static const struct matmul_kernels byte_kernels =
    INT8_KERNELS(CPU_AVX512VNNI, matmul_finish_avx512, prepare_bytes, MATMUL_TILES_12, INT8);

void matmul_run_avx512vnni(const struct op_call *call, struct team_member *member)
{
    const bool rounds = call->params[MATMUL_COMPUTE_DTYPE] == ENCODING_INT8_G32;
    if (!rounds || !int8_run(call, member, &nibble_kernels, &byte_kernels)) matmul_run_avx512(call, member);
}
#endif
