/* SPDX-License-Identifier: Apache-2.0 */
/* matmul with AMX tile registers, over the operations of kernels/cpu/tiles_amx.h or of what a test has in their place:
 * activations rounded to bf16, and the choice between them and those rounded to int8 (matmul_int8_amx.h).
 *
 * A register tile is up to four tile registers of sums: 32 rows times 2 panels, or 16 rows times 4. Weights BF16 are read in place: 32 k
 * of a panel are a tile register. Codes become numbers of 16 bits, a block of k at a time, which all rows of a block of rows use.
 *
 * Activations, in groups of `rows` rows: bf16 [k / 32][rows][32], zeros beyond K. */
#ifndef KERNELS_MATMUL_MATMUL_AMX_H
#define KERNELS_MATMUL_MATMUL_AMX_H

#include <string.h>

#include "kernels/matmul/matmul_int8_amx.h"
#include "kernels/matmul/matmul_shapes_amx.h"

/* Prefetches the next `lines` lines of each panel's share. */
MATMUL_INLINE void prefetch_lines(const struct matmul_tile_call *call, const unsigned char **prefetch, size_t lines)
{
    const size_t bytes = lines * call->prefetch_step;
    for (size_t at = 0; at < bytes; at += PANEL_LINE_BYTES)
        for (int panel = 0; panel < call->panels; panel++)
            __builtin_prefetch(*prefetch + at + (size_t)panel * call->panel_bytes);
    *prefetch += bytes;
}

/* ---- the sums of a register tile; `two`: it has more than 16 rows ---- */

/* Calls DO(register, where the register's sums are in a matrix [rows][panels * PANEL_ROWS]). */
#define EACH_SUM(DO, sums, two, panels)                                                \
    do {                                                                               \
        DO(0, (sums));                                                                 \
        if ((panels) > 1) DO(1, (sums) + PANEL_ROWS);                                  \
        if (two) {                                                                     \
            DO(2, (sums) + TILE_ROWS * (panels)*PANEL_ROWS);                           \
            if ((panels) > 1) DO(3, (sums) + (TILE_ROWS * (panels) + 1) * PANEL_ROWS); \
        } else {                                                                       \
            if ((panels) > 2) DO(2, (sums) + 2 * PANEL_ROWS);                          \
            if ((panels) > 3) DO(3, (sums) + 3 * PANEL_ROWS);                          \
        }                                                                              \
    } while (0)

MATMUL_INLINE void zero_sums(const bool two, const int panels)
{
#define ZERO_SUM(t, at) TILE_ZERO(t)
    EACH_SUM(ZERO_SUM, (const float *)NULL, two, panels);
#undef ZERO_SUM
}

MATMUL_INLINE void load_sums(const float *sums, const bool two, const int panels)
{
    const size_t stride = (size_t)panels * PANEL_ROWS * sizeof *sums;
#define LOAD_SUM(t, at) TILE_LOAD(t, at, stride)
    EACH_SUM(LOAD_SUM, sums, two, panels);
#undef LOAD_SUM
}

MATMUL_INLINE void store_sums(float *sums, const bool two, const int panels)
{
    const size_t stride = (size_t)panels * PANEL_ROWS * sizeof *sums;
#define STORE_SUM(t, at) TILE_STORE(t, at, stride)
    EACH_SUM(STORE_SUM, sums, two, panels);
#undef STORE_SUM
}

/* ---- bf16 ---- */

static void prepare_tiles(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    for (int64_t row = 0; row < rows; row++) {
        unsigned char *to = (unsigned char *)out + (first / TILE_K * rows + row) * BLOCK_BYTES;
        for (int64_t i = first; i < last; i += TILE_K, to += rows * BLOCK_BYTES) {
            const uint32_t present = last - i < TILE_K ? (1u << (last - i)) - 1 : UINT32_MAX;
            const __m512 low = _mm512_maskz_loadu_ps((__mmask16)present, x + row * k + i);
            const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(present >> 16), x + row * k + i + 16);
            _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

/* Adds the products of one tile register of k. `step`: from the numbers of one panel to those of the next. */
MATMUL_INLINE void add_bf16(const unsigned char *x, const unsigned char *numbers, size_t step, const bool two,
                            const int panels)
{
    TILE_LOAD(4, x, BLOCK_BYTES);
    if (two) TILE_LOAD(5, x + TILE_ROWS * BLOCK_BYTES, BLOCK_BYTES);
    TILE_LOAD(6, numbers, TILE_ROW_BYTES);
    TILE_ADD_BF16(0, 4, 6);
    if (two) TILE_ADD_BF16(2, 5, 6);
    if (panels > 1) {
        TILE_LOAD(7, numbers + step, TILE_ROW_BYTES);
        TILE_ADD_BF16(1, 4, 7);
        if (two) TILE_ADD_BF16(3, 5, 7);
    }
    if (!two && panels > 2) {
        TILE_LOAD(6, numbers + 2 * step, TILE_ROW_BYTES);
        TILE_ADD_BF16(2, 4, 6);
    }
    if (!two && panels > 3) {
        TILE_LOAD(7, numbers + 3 * step, TILE_ROW_BYTES);
        TILE_ADD_BF16(3, 4, 7);
    }
}

/* A range of k whose scales, if there are any, are those of rows. */
MATMUL_INLINE void tile_range(const struct matmul_tile_call *call, const bool two, const int panels)
{
    const unsigned char *x = call->activations, *numbers = call->numbers, *prefetch = call->prefetch;
    const size_t x_step = (size_t)call->rows * BLOCK_BYTES, lines = TILE_K * call->form->k_bytes / PANEL_LINE_BYTES;
    load_sums(call->sums, two, panels);
    for (int64_t left = call->depth; left > 0; left -= TILE_K) {
        prefetch_lines(call, &prefetch, lines);
        add_bf16(x, numbers, call->numbers_bytes, two, panels);
        x += x_step;
        numbers += WEIGHT_TILE_BYTES;
    }
    store_sums(call->sums, two, panels);
}

/* A range of k with groups, each of 16 k or a multiple of 32. Zero points are taken off the numbers already. */
MATMUL_INLINE void tile_groups(const struct matmul_tile_call *call, const bool two, const int panels)
{
    const struct panel_form *form = call->form;
    const unsigned char *head = call->weights, *prefetch = call->prefetch;
    const int64_t group = form->group, block = group < TILE_K ? group : TILE_K;
    const size_t lines = (size_t)block * form->k_bytes / PANEL_LINE_BYTES;
    const size_t span_bytes = form->head_bytes + (size_t)form->span_k * form->k_bytes;
    static const float no_x_sums[MOST_ROWS];
    _Alignas(64) float group_sums[MOST_SUMS];
    int place = 0;
    for (int64_t first = 0; first < call->depth; first += group) {
        const int64_t last = first + group < call->depth ? first + group : call->depth;
        zero_sums(two, panels);
        for (int64_t k = first; k < last; k += block) {
            prefetch_lines(call, &prefetch, lines);
            const unsigned char *x = (const unsigned char *)call->activations + k / TILE_K * call->rows * BLOCK_BYTES +
                                     k % TILE_K * (int64_t)sizeof(uint16_t);
            add_bf16(x, call->numbers + k * PANEL_ROWS * (int64_t)sizeof(uint16_t), call->numbers_bytes, two, panels);
        }
        store_sums(group_sums, two, panels);
        matmul_add_group_avx512(call, head, place, no_x_sums, group_sums, panels, call->rows);
        if (++place < (int)form->span_groups) continue;
        place = 0;
        head += span_bytes;
    }
}

/* Sizes as constants, so that loops over them vanish. Codes have at most two panels. */
static void tile_coded(const struct matmul_tile_call *call)
{
    const bool two = call->rows > TILE_ROWS;
    if (call->panels == 1)
        two ? tile_groups(call, true, 1) : tile_groups(call, false, 1);
    else
        two ? tile_groups(call, true, 2) : tile_groups(call, false, 2);
}

static void tile_plain(const struct matmul_tile_call *call)
{
    const bool two = call->rows > TILE_ROWS;
    switch (call->panels) {
    case 1: two ? tile_range(call, true, 1) : tile_range(call, false, 1); break;
    case 2: two ? tile_range(call, true, 2) : tile_range(call, false, 2); break;
    case 3: tile_range(call, false, 3); break;
    default: tile_range(call, false, 4); break;
    }
}

static void tile_bf16(const struct matmul_tile_call *call)
{
    const struct panel_form *form = call->form;
    configure(call, form->group && form->group < TILE_K ? TILE_ROW_BYTES / 2 : TILE_ROW_BYTES);
    form->group ? tile_coded(call) : tile_plain(call);
}

/* bf16 of -16 to 15. */
static const uint16_t integers[32] = {0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130, 0xc120, 0xc110,
                                      0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                      0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                      0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
static const uint16_t e2m1_bf16[32] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                       0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

/* A line of codes of 4 bits as four lines of pairs. `offset`: 16 less the zero point, what it is in `numbers`. */
MATMUL_INLINE void decode_nibbles(const unsigned char *line, __m512i offset, __m512i numbers, unsigned char *to)
{
    const __m512i low = _mm512_set1_epi16(15);
    __m512i codes = _mm512_loadu_si512(line);
    for (int i = 0; i < 4; i++) {
        const __m512i index = _mm512_add_epi16(_mm512_and_si512(codes, low), offset);
        _mm512_storeu_si512(to + i * PANEL_LINE_BYTES, _mm512_permutexvar_epi16(index, numbers));
        codes = _mm512_srli_epi16(codes, 4);
    }
}

/* Pairs of bf16 from the float32 of two k, which are bf16, too. */
MATMUL_INLINE __m512i pair_floats(__m512 first, __m512 second)
{
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first), 16),
                           _mm512_and_si512(_mm512_castps_si512(second), _mm512_set1_epi32(-65536)));
}

/* `zeros`: float32, of the rows. */
MATMUL_INLINE void decode_bytes(const unsigned char *line, __m512 zeros, unsigned char *to)
{
    const __m512i words = _mm512_loadu_si512(line);
    for (unsigned i = 0; i < 2; i++) {
        const __m512i first = _mm512_slli_epi32(words, 24 - 16 * i), second = _mm512_slli_epi32(words, 16 - 16 * i);
        const __m512 one = _mm512_cvtepi32_ps(_mm512_srai_epi32(first, 24)),
                     other = _mm512_cvtepi32_ps(_mm512_srai_epi32(second, 24));
        _mm512_storeu_si512(to + i * PANEL_LINE_BYTES,
                            pair_floats(_mm512_sub_ps(one, zeros), _mm512_sub_ps(other, zeros)));
    }
}

/* e4m3 as the upper bits of float16: 2^-8 times the numbers, as all kernels read them (panel.h). */
MATMUL_INLINE __m512 e4m3_floats(const unsigned char *codes)
{
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)codes));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16((short)0xbf80)));
}

/* 16 less the zero points of group `place` of a span, for both k of a pair; of int8 its zero points as float32, or zeros. */
MATMUL_INLINE __m512i zero_offset(const struct panel_form *form, const unsigned char *head, int place)
{
    if (form->encoding->code == CODE_E2M1) return _mm512_setzero_si512();
    if (form->encoding->code == CODE_INT8) {
        if (!form->encoding->zeros) return _mm512_setzero_si512();
        const __m512i words = _mm512_loadu_si512(head + form->span_groups * form->scale_bytes);
        const __m512i bytes = _mm512_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * place));
        return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(bytes, 24)));
    }
    __m512i zero = _mm512_set1_epi32(8);
    if (form->encoding->zeros) {
        const __m512i words = _mm512_loadu_si512(head + form->span_groups * form->scale_bytes);
        const __m128i shift = _mm_cvtsi32_si128(MATMUL_NIBBLE_SHIFT(place));
        zero = _mm512_and_si512(_mm512_srl_epi32(words, shift), _mm512_set1_epi32(15));
    }
    return _mm512_sub_epi16(_mm512_set1_epi16(16), _mm512_or_si512(zero, _mm512_slli_epi32(zero, 16)));
}

/* `depth` k of codes that are contiguous. */
static void decode_codes(const unsigned char *codes, enum matmul_weights kind, int64_t depth, __m512i offset,
                         unsigned char *to)
{
    const __m512i numbers = _mm512_loadu_si512(integers);
    const __m512i e2m1 = _mm512_loadu_si512(e2m1_bf16);
    int64_t k = 0;
    switch (kind) {
    case MATMUL_WEIGHTS_INT4:
        for (; k < depth; k += 8, codes += PANEL_LINE_BYTES, to += 4 * PANEL_LINE_BYTES)
            decode_nibbles(codes, offset, numbers, to);
        break;
    case MATMUL_WEIGHTS_E2M1:
        for (; k < depth; k += 8, codes += PANEL_LINE_BYTES, to += 4 * PANEL_LINE_BYTES)
            decode_nibbles(codes, offset, e2m1, to);
        break;
    case MATMUL_WEIGHTS_INT8:
        for (; k < depth; k += 4, codes += PANEL_LINE_BYTES, to += 2 * PANEL_LINE_BYTES)
            decode_bytes(codes, _mm512_castsi512_ps(offset), to);
        break;
    case MATMUL_WEIGHTS_E4M3:
        for (; k < depth; k += 2, codes += 2 * PANEL_ROWS, to += PANEL_LINE_BYTES)
            _mm512_storeu_si512(to, pair_floats(e4m3_floats(codes),
                                                k + 1 < depth ? e4m3_floats(codes + PANEL_ROWS) : _mm512_setzero_ps()));
        break;
    default: /* BF16 */ memcpy(to, codes, (size_t)((depth + 1) / 2) * PANEL_LINE_BYTES); break;
    }
}

static void decode_bf16(const struct panel_form *form, enum matmul_weights kind, const unsigned char *weights,
                        int64_t depth, unsigned char *to)
{
    const size_t line = PANEL_ROWS * sizeof(uint16_t); /* of one k */
    const unsigned char *head = weights;
    const int64_t whole = (depth + form->line_k - 1) / form->line_k * form->line_k;
    const int64_t padded = (depth + TILE_K - 1) / TILE_K * TILE_K;
    int place = 0;
    for (int64_t k = 0, count; k < depth; k += count) {
        count = form->group && form->group < depth - k ? form->group : depth - k;
        if (form->group && place == 0) {
            head = weights;
            weights += form->head_bytes;
        }
        decode_codes(weights, kind, count, zero_offset(form, head, place), to + (size_t)k * line);
        weights += (size_t)count * form->k_bytes;
        place = place + 1 == (int)form->span_groups ? 0 : place + 1;
    }
    const int64_t written = kind == MATMUL_WEIGHTS_E4M3 ? depth + depth % 2 : whole;
    memset(to + (size_t)written * line, 0, (size_t)(padded - written) * line);
}

/* ---- the choice of a kernel ---- */

static const struct matmul_kernels bf16_kernels = {
    .isa = CPU_AMX,
    .pair_units = 1,
    .block_k = TILE_K,
    .prepare = prepare_tiles,
    .finish = matmul_finish_avx512,
    .tile = tile_bf16,
    .decode = decode_bf16,
    .number_bytes = 2,
    .release = release,
};
#define AMX_INT8_KERNELS(PREPARE)                                                                           \
    {                                                                                                       \
        .isa = CPU_AMX, .pair_units = 1, .block_k = MATMUL_INT8_BLOCK, .prepare = (PREPARE),                \
        .finish = matmul_finish_avx512, .tile = tile_int8_blocks, .decode = decode_int8, .number_bytes = 1, \
        .release = release,                                                                                 \
    }
static const struct matmul_kernels nibble_kernels = AMX_INT8_KERNELS(prepare_tile_nibbles);
static const struct matmul_kernels byte_kernels = AMX_INT8_KERNELS(prepare_tile_bytes);

/* False: the launch is one for AVX-512. */
static inline bool amx_run(const struct op_call *call, struct team_member *member)
{
    const int64_t *params = call->params;
    if (!matmul_takes_amx(params, matmul_matrix_rows(params, op_valid_rows(call)))) return false;
    if (params[MATMUL_COMPUTE_DTYPE] == ENCODING_INT8_G32)
        return int8_run(call, member, &nibble_kernels, &byte_kernels);
    matmul_loop(call, member, &bf16_kernels);
    return true;
}

#endif
