/* SPDX-License-Identifier: Apache-2.0 */
/* matmul with AMX tile registers, over the operations of kernels/cpu/tiles_amx.h or of what a test has in their place:
 * activations rounded to bf16, and those rounded to int8.
 *
 * A register tile is up to four tile registers of sums: 32 rows times 2 panels, or 16 rows times 4. Registers 0 to 3 have sums,
 * 4 and 5 activations of rows 0 to 15 and of rows 16 to 31, 6 and 7 weights. Weights BF16 are read in place: 32 k of a panel are
 * a tile register. Codes become numbers of 16 or 8 bits, a block of k at a time, which all rows of a block of rows use.
 *
 * Activations, in groups of `rows` rows:
 *   tile form:       bf16 [k / 32][rows][32], zeros beyond K
 *   int8 tile form:  for each 32 k: int8 [rows][32], float32 scales [rows], int32 sums [rows], padded to 64 bytes for each row */
#ifndef KERNELS_MATMUL_MATMUL_AMX_H
#define KERNELS_MATMUL_MATMUL_AMX_H

#include <string.h>

#include "kernels/cpu/tile_config.h"
#include "kernels/matmul/matmul_int8.h"

enum {
    TILE_K = TILE_ROW_BYTES / 2, /* bf16 in a row of a tile register */
    BLOCK_BYTES = 64,            /* activations of a row for 32 k, in both forms */
    WEIGHT_TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES,
    MOST_ROWS = 2 * TILE_ROWS,
    MOST_SUMS = 4 * TILE_ROWS * PANEL_ROWS, /* of a register tile */
    INT8_TILE_BYTES = MATMUL_INT8_BLOCK * PANEL_ROWS,
};
_Static_assert((int)PANEL_ROWS == (int)TILE_ROWS && (int)PANEL_LINE_BYTES == (int)TILE_ROW_BYTES,
               "lines of panels are tile rows");
_Static_assert((int)TILE_K == (int)MATMUL_INT8_BLOCK, "both forms have blocks of 32 k");

/* Shapes for a register tile of `rows` rows whose products are over `k_bytes` bytes of k of each row. */
static void configure(const struct matmul_tile_call *call, int k_bytes)
{
    const uint32_t shape = (uint32_t)(call->rows << 8 | k_bytes);
    if (*call->tile_shape == shape) return;
    const uint8_t first = (uint8_t)(call->rows < TILE_ROWS ? call->rows : TILE_ROWS);
    const uint8_t second = call->rows > TILE_ROWS ? (uint8_t)(call->rows - TILE_ROWS) : first;
    struct tile_config config = {.palette = TILE_PALETTE};
    for (int i = 0; i < TILE_REGISTERS; i++) {
        const bool is_activations = i == 4 || i == 5, is_weights = i == 6 || i == 7;
        config.row_bytes[i] = (uint16_t)(is_activations ? k_bytes : TILE_ROW_BYTES);
        config.rows[i] = is_weights ? (uint8_t)(k_bytes / 4) : i == 5 || i / 2 == 1 ? second : first;
    }
    TILE_CONFIGURE(&config);
    *call->tile_shape = shape;
}

static void release(void) { TILE_RELEASE(); }

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

/* ---- int8 ---- */

MATMUL_INLINE void prepare_int8(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, int32_t *out,
                                const bool nibbles)
{
    for (int64_t row = 0; row < rows; row++) {
        int32_t *block = out + first / 2 * rows;
        for (int64_t i = first; i < last; i += MATMUL_INT8_BLOCK, block += INT8_BLOCK_UNITS * rows) {
            const int64_t count = last - i < MATMUL_INT8_BLOCK ? last - i : MATMUL_INT8_BLOCK;
            float scale;
            const int32_t sum = quantise(x + row * k + i, count, nibbles, block + row * INT8_BLOCK_WORDS, &scale);
            block[INT8_SCALE_AT * rows + row] = (int32_t)float_to_bits(scale);
            block[INT8_SUM_AT * rows + row] = sum;
        }
    }
}
static void prepare_tile_nibbles(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    prepare_int8(x, k, rows, first, last, out, true);
}
static void prepare_tile_bytes(const float *x, int64_t k, int64_t rows, int64_t first, int64_t last, void *out)
{
    prepare_int8(x, k, rows, first, last, out, false);
}

/* Rows of x, at most 16, times one panel, over blocks of 32 k. */
struct int8_products {
    const int32_t *x; /* the first block of all rows */
    const unsigned char *numbers;
    int64_t blocks, all_rows;
    int first, rows;
    const unsigned char *ahead; /* for each block so many bytes of the next weights are prefetched */
    size_t ahead_bytes;
    float *sums; /* [rows], `stride` floats apart */
    size_t stride;
    /* Scales of groups, in float16, which sums of so many blocks are multiplied by; 0: sums have the scales of rows of x alone. */
    int64_t group_blocks;
    const unsigned char *head;
    const struct panel_form *form;
    int place;
};

/* Starts block `number`, whose exact sums come to `exact`. Tile registers of their own let blocks overlap. */
MATMUL_INLINE void multiply_block(const struct int8_products *products, int64_t number, int32_t *exact)
{
    const int32_t *x =
        products->x + number * INT8_BLOCK_UNITS * products->all_rows + products->first * INT8_BLOCK_WORDS;
    const unsigned char *numbers = products->numbers + number * INT8_TILE_BYTES;
#define MULTIPLY(t, of_x, of_numbers)                   \
    do {                                                \
        TILE_ZERO(t);                                   \
        TILE_LOAD(of_x, x, MATMUL_INT8_BLOCK);          \
        TILE_LOAD(of_numbers, numbers, TILE_ROW_BYTES); \
        TILE_ADD_INT8(t, of_x, of_numbers);             \
        TILE_STORE(t, exact, TILE_ROW_BYTES);           \
    } while (0)
    if (products->first == 0 && number % 2 == 0)
        MULTIPLY(0, 4, 6);
    else if (products->first == 0)
        MULTIPLY(1, 4, 7);
    else if (number % 2 == 0)
        MULTIPLY(2, 5, 6);
    else
        MULTIPLY(3, 5, 7);
#undef MULTIPLY
}

/* Starts the block after `number`, and prefetches. What reads the exact sums of a block comes after the start of the next one, so that it
 * does not wait for them. */
MATMUL_INLINE void multiply_next(const struct int8_products *products, int64_t number,
                                 int32_t exact[2][TILE_ROWS * PANEL_ROWS])
{
    const unsigned char *ahead = products->ahead + (size_t)number * products->ahead_bytes;
    for (size_t at = 0; at < products->ahead_bytes; at += PANEL_LINE_BYTES) __builtin_prefetch(ahead + at);
    if (number + 1 < products->blocks) multiply_block(products, number + 1, exact[(number + 1) % 2]);
}

MATMUL_INLINE const float *block_scales(const struct int8_products *products, int64_t number)
{
    return (const float *)(const void *)(products->x +
                                         (number * INT8_BLOCK_UNITS + INT8_SCALE_AT) * products->all_rows) +
           products->first;
}

MATMUL_INLINE __m512 next_group_scales(struct int8_products *products)
{
    const struct panel_form *form = products->form;
    const unsigned char *scales = products->head + (size_t)products->place * form->scale_bytes;
    if (++products->place == (int)form->span_groups) {
        products->place = 0;
        products->head += form->head_bytes + (size_t)form->span_k * form->k_bytes;
    }
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scales));
}

/* Exact sums of a row for a block, as float32. */
MATMUL_INLINE __m512 exact_row(const int32_t *exact, int row)
{
    return _mm512_cvtepi32_ps(_mm512_load_si512(exact + row * PANEL_ROWS));
}

/* 16 rows, whose sums are in registers. A group of 32 k is multiplied by its scales at once; sums of longer ones take the registers, and
 * those of the tile are in memory. */
MATMUL_INLINE void add_16_rows(struct int8_products *products, const bool block_is_group, const bool has_groups)
{
    _Alignas(64) int32_t exact[2][TILE_ROWS * PANEL_ROWS];
    __m512 held[TILE_ROWS];
    int64_t left = products->group_blocks;
    MATMUL_UNROLL
    for (int row = 0; row < TILE_ROWS; row++)
        held[row] = has_groups ? _mm512_setzero_ps() : _mm512_loadu_ps(products->sums + (size_t)row * products->stride);
    multiply_block(products, 0, exact[0]);
    for (int64_t number = 0; number < products->blocks; number++) {
        const float *scales = block_scales(products, number);
        const int32_t *of_block = exact[number % 2];
        multiply_next(products, number, exact);
        if (block_is_group) {
            const __m512 group_scales = next_group_scales(products);
            MATMUL_UNROLL
            for (int row = 0; row < TILE_ROWS; row++)
                held[row] =
                    _mm512_fmadd_ps(group_scales, _mm512_mul_ps(exact_row(of_block, row), _mm512_set1_ps(scales[row])),
                                    held[row]);
            continue;
        }
        MATMUL_UNROLL
        for (int row = 0; row < TILE_ROWS; row++)
            held[row] = _mm512_fmadd_ps(exact_row(of_block, row), _mm512_set1_ps(scales[row]), held[row]);
        if (!has_groups || (--left > 0 && number + 1 < products->blocks)) continue;
        const __m512 group_scales = next_group_scales(products);
        left = products->group_blocks;
        MATMUL_UNROLL
        for (int row = 0; row < TILE_ROWS; row++) {
            float *sums = products->sums + (size_t)row * products->stride;
            _mm512_storeu_ps(sums, _mm512_fmadd_ps(group_scales, held[row], _mm512_loadu_ps(sums)));
            held[row] = _mm512_setzero_ps();
        }
    }
    MATMUL_UNROLL
    for (int row = 0; row < TILE_ROWS; row++)
        if (!has_groups) _mm512_storeu_ps(products->sums + (size_t)row * products->stride, held[row]);
}

/* Any number of rows, with sums in memory: one piece of code, which keeps the library small. */
static void add_rows(struct int8_products *products)
{
    _Alignas(64) int32_t exact[2][TILE_ROWS * PANEL_ROWS];
    _Alignas(64) float group_sums[TILE_ROWS * PANEL_ROWS];
    const bool has_groups = products->group_blocks > 0;
    float *const to = has_groups ? group_sums : products->sums;
    const size_t stride = has_groups ? PANEL_ROWS : products->stride;
    int64_t left = 0;
    multiply_block(products, 0, exact[0]);
    for (int64_t number = 0; number < products->blocks; number++) {
        const float *scales = block_scales(products, number);
        multiply_next(products, number, exact);
        if (has_groups && left == 0) {
            left = products->group_blocks;
            memset(group_sums, 0, sizeof group_sums);
        }
        for (int row = 0; row < products->rows; row++) {
            float *sums = to + (size_t)row * stride;
            _mm512_storeu_ps(sums, _mm512_fmadd_ps(exact_row(exact[number % 2], row), _mm512_set1_ps(scales[row]),
                                                   _mm512_loadu_ps(sums)));
        }
        if (!has_groups || (--left > 0 && number + 1 < products->blocks)) continue;
        const __m512 group_scales = next_group_scales(products);
        for (int row = 0; row < products->rows; row++) {
            float *sums = products->sums + (size_t)row * products->stride;
            _mm512_storeu_ps(sums, _mm512_fmadd_ps(group_scales, _mm512_load_ps(group_sums + row * PANEL_ROWS),
                                                   _mm512_loadu_ps(sums)));
        }
    }
}

static void add_int8(struct int8_products *products)
{
    if (products->rows < TILE_ROWS)
        add_rows(products);
    else if (products->group_blocks == 0)
        add_16_rows(products, false, false);
    else if (products->group_blocks == 1)
        add_16_rows(products, true, false);
    else
        add_16_rows(products, false, true);
}

/* Adds the products of `depth` k from `first` on to sums of all rows, [rows][panels * PANEL_ROWS]. */
static void add_depth(const struct matmul_tile_call *call, int64_t first, int64_t depth, bool scales_groups,
                      float *sums)
{
    const struct panel_form *form = call->form;
    const size_t share = MATMUL_INT8_BLOCK * form->k_bytes / PANEL_LINE_BYTES * call->prefetch_step;
    for (int panel = 0; panel < call->panels; panel++)
        for (int row = 0; row < call->rows; row += TILE_ROWS) {
            struct int8_products products = {
                .x = (const int32_t *)call->activations + first / 2 * call->rows,
                .numbers = call->numbers + (size_t)panel * call->numbers_bytes + first * PANEL_ROWS,
                .blocks = (depth + MATMUL_INT8_BLOCK - 1) / MATMUL_INT8_BLOCK,
                .all_rows = call->rows,
                .first = row,
                .rows = call->rows - row < TILE_ROWS ? call->rows - row : TILE_ROWS,
                .ahead =
                    call->prefetch + (size_t)panel * call->panel_bytes + (size_t)(first / MATMUL_INT8_BLOCK) * share,
                .ahead_bytes = row == 0 ? share : 0,
                .sums = sums + (row * call->panels + panel) * PANEL_ROWS,
                .stride = (size_t)call->panels * PANEL_ROWS,
                .group_blocks = scales_groups ? form->group / MATMUL_INT8_BLOCK : 0,
                .head = call->weights + (size_t)panel * call->panel_bytes,
                .form = form,
            };
            add_int8(&products);
        }
}

/* What the zero points of a group count: sums of its activations. */
static void sum_blocks(const int32_t *block, int64_t blocks, int64_t rows, float sums[MOST_ROWS])
{
    for (int64_t row = 0; row < rows; row++) sums[row] = 0;
    for (; blocks > 0; blocks--, block += INT8_BLOCK_UNITS * rows)
        for (int64_t row = 0; row < rows; row++)
            sums[row] +=
                float_from_bits((uint32_t)block[INT8_SCALE_AT * rows + row]) * (float)block[INT8_SUM_AT * rows + row];
}

/* Groups with zero points, which take the function of all encodings for the end of a group. */
static void tile_zeros(const struct matmul_tile_call *call)
{
    const struct panel_form *form = call->form;
    const unsigned char *head = call->weights;
    _Alignas(64) float group_sums[MOST_SUMS];
    float x_sums[MOST_ROWS];
    int place = 0;
    for (int64_t first = 0; first < call->depth; first += form->group) {
        const int64_t left = call->depth - first, depth = left < form->group ? left : form->group;
        memset(group_sums, 0, (size_t)(call->rows * call->panels * PANEL_ROWS) * sizeof *group_sums);
        add_depth(call, first, depth, false, group_sums);
        sum_blocks((const int32_t *)call->activations + first / 2 * call->rows,
                   (depth + MATMUL_INT8_BLOCK - 1) / MATMUL_INT8_BLOCK, call->rows, x_sums);
        matmul_add_group_avx512(call, head, place, x_sums, group_sums, call->panels, call->rows);
        if (++place < (int)form->span_groups) continue;
        place = 0;
        head += form->head_bytes + (size_t)form->span_k * form->k_bytes;
    }
}

static void tile_int8_blocks(const struct matmul_tile_call *call)
{
    configure(call, MATMUL_INT8_BLOCK);
    if (call->form->encoding->zeros)
        tile_zeros(call);
    else
        add_depth(call, 0, call->depth, call->form->group > 0, call->sums);
}

static void decode_int8(const struct panel_form *form, enum matmul_weights kind, const unsigned char *weights,
                        int64_t depth, unsigned char *to)
{
    const __m512i low = _mm512_set1_epi8(0x0f), eight = _mm512_set1_epi8(8);
    const int64_t span = form->group ? form->span_k : depth;
    const int64_t padded = (depth + MATMUL_INT8_BLOCK - 1) / MATMUL_INT8_BLOCK * MATMUL_INT8_BLOCK;
    unsigned char *const end = to + padded * PANEL_ROWS;
    for (int64_t first = 0; first < depth; first += span) {
        const int64_t count = depth - first < span ? depth - first : span;
        weights += form->group ? form->head_bytes : 0;
        for (int64_t k = 0; k < count; k += form->line_k, weights += PANEL_LINE_BYTES) {
            const __m512i codes = _mm512_loadu_si512(weights);
            if (kind == MATMUL_WEIGHTS_INT4) {
                const __m512i high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low);
                _mm512_storeu_si512(to, _mm512_sub_epi8(_mm512_and_si512(codes, low), eight));
                _mm512_storeu_si512(to + PANEL_LINE_BYTES, _mm512_sub_epi8(high, eight));
                to += 2 * PANEL_LINE_BYTES;
            } else {
                _mm512_storeu_si512(to, codes);
                to += PANEL_LINE_BYTES;
            }
        }
    }
    memset(to, 0, (size_t)(end - to));
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
