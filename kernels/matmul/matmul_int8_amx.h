/* SPDX-License-Identifier: Apache-2.0 */
/* matmul with AMX tile registers of int4 and int8 codes with activations rounded to int8. Codes become int8 numbers, a block of k at a time.
 * A tile product is one of 32 k, 16 rows and 16 rows of W, whose exact sums are stored and become float32, as in matmul_avx512vnni.c:
 * the scales of rows of x differ from block to block.
 *
 * Activations, in groups of `rows` rows: for each 32 k int8 [rows][32], float32 scales [rows], int32 sums [rows], padded to 64 bytes for
 * each row. */
#ifndef KERNELS_MATMUL_MATMUL_INT8_AMX_H
#define KERNELS_MATMUL_MATMUL_INT8_AMX_H

#include <string.h>

#include "kernels/matmul/matmul_int8.h"
#include "kernels/matmul/matmul_shapes_amx.h"

enum { INT8_TILE_BYTES = MATMUL_INT8_BLOCK * PANEL_ROWS };

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

#endif
