/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "formats/checkpoint/quantised.h"
#include "formats/encoding/encoding.h"

static uint32_t word_at(const uint8_t *data, uint64_t index)
{
    uint32_t word;
    memcpy(&word, data + 4 * index, sizeof word);
    return word;
}

/* Bits [bit, bit + bits) of a stream of bytes; at most 8. Reads no byte beyond the last bit's. */
static uint32_t stream_at(const uint8_t *data, uint64_t bit, uint32_t bits)
{
    const uint64_t first = bit / 8, last = (bit + bits - 1) / 8;
    uint32_t value = data[first];
    if (last > first) value |= (uint32_t)data[last] << 8;
    return value >> (bit % 8) & ((1u << bits) - 1);
}

/* Four rows are interleaved in blocks of 64 columns; in each half of a block, column j is at place (j % 8) * 4 + j / 8. */
static uint32_t awq_fast_at(const struct quantised_plane *plane, uint64_t r, uint64_t c)
{
    const uint64_t half = c % 64 / 32, place = half * 32 + (c % 8) * 4 + c % 32 / 8;
    const uint64_t element = r % 4 * 64 + place; /* of the 256 of a block: 64 words of 16 bits */
    const uint8_t *word = plane->data + r / 4 * plane->pitch + (c / 64 * 64 + element / 4) * 2;
    return stream_at(word, element % 4 * 4, 4);
}

/* Column c is a stream through the words [.., c]. */
static uint32_t column_stream_at(const struct quantised_plane *plane, uint64_t r, uint64_t c)
{
    const uint64_t bit = r * plane->bits, row = bit / 32;
    const uint32_t shift = (uint32_t)(bit % 32), mask = (1u << plane->bits) - 1;
    uint64_t value = word_at(plane->data, row * plane->pitch + c);
    if (shift + plane->bits > 32) value |= (uint64_t)word_at(plane->data, (row + 1) * plane->pitch + c) << 32;
    return (uint32_t)(value >> shift) & mask;
}

static const uint8_t awq[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* the place of each element of a word of AWQ */

static uint32_t code_at(const struct quantised_plane *plane, uint64_t row, uint64_t column)
{
    const uint64_t r = plane->transposed ? column : row, c = plane->transposed ? row : column;
    const uint32_t bits = plane->bits, mask = (1u << bits) - 1;
    const uint64_t line = r * plane->pitch;
    switch (plane->order) {
    case ORDER_ROWS:
        if (!plane->word_add) return stream_at(plane->data + line, c * bits, bits);
        return (word_at(plane->data + line, c * bits / 32) + plane->word_add) >> (c * bits % 32) & mask;
    case ORDER_ROWS_HIGH: {
        const uint64_t element = line + c;
        return (uint32_t)plane->data[element / 2] >> (element % 2 ? 0 : 4) & 15;
    }
    case ORDER_WORDS: return word_at(plane->data + line, c / (32 / bits)) >> (c % (32 / bits) * bits) & mask;
    case ORDER_COLUMNS: return column_stream_at(plane, r, c);
    case ORDER_COLUMN_WORDS:
        return word_at(plane->data, r / (32 / bits) * plane->pitch + c) >> (r % (32 / bits) * bits) & mask;
    case ORDER_AWQ: return word_at(plane->data + line, c / 8) >> (4 * awq[c % 8]) & 15;
    case ORDER_AWQ_FAST: return awq_fast_at(plane, r, c);
    case ORDER_BLOCKS: break; /* read_block_codes */
    }
    return 0;
}

static float float_at(const uint8_t *data, uint64_t index)
{
    float value;
    memcpy(&value, data + index * sizeof value, sizeof value);
    return value;
}

static float half_at(const uint8_t *data, uint64_t index, bool bf16)
{
    uint16_t half;
    memcpy(&half, data + index * sizeof half, sizeof half);
    return bf16 ? bf16_to_float(half) : f16_to_float(half);
}

/* Scale or minimum i of a block of Q4_K or Q5_K, 6 bits: the first four in the low bits of bytes 0 to 3 (minima: 4 to 7), the
 * others in the low (minima: high) halves of bytes 8 to 11, with their two highest bits above those of the first four. */
static uint32_t six_bits(const uint8_t *scales, uint64_t i, bool minimum)
{
    const uint8_t *first = scales + (minimum ? 4 : 0);
    if (i < 4) return first[i] & 63;
    return ((uint32_t)scales[i + 4] >> (minimum ? 4 : 0) & 15) | (uint32_t)first[i - 4] >> 6 << 4;
}

/* Scale number `place` of a block of GGUF. */
static int32_t block_scale(enum quantised_scale type, const uint8_t *scales, uint64_t place)
{
    switch (type) {
    case QUANTISED_FOUR_BITS: return scales[place] & 15;
    case QUANTISED_SIX_BITS: return (int32_t)six_bits(scales, place, false);
    case QUANTISED_SIGNED_SIX_BITS: {
        const int32_t low = scales[place % 8] >> (place / 8 * 4) & 15,
                      high = scales[8 + place % 4] >> (place / 4 * 2) & 3;
        return (low | high << 4) - 32;
    }
    case QUANTISED_DIVIDED_SIX_BITS: {
        const int32_t low = scales[2 + place / 2] >> (place % 2 * 4) & 15,
                      high = scales[place / 4] >> (place % 4 * 2) & 3;
        return (low | high << 4) - 32;
    }
    default: return (int8_t)scales[place];
    }
}

/* The block of scale number `index`, whose place among the block's becomes *place. */
static const uint8_t *block_of_scale(const struct quantised *matrix, uint64_t index, uint64_t *place)
{
    const uint64_t count = matrix->block.columns / matrix->scale.block_columns;
    *place = index % count;
    return matrix->scale.data + index / count * matrix->block.bytes;
}

float quantised_scale(const struct quantised *matrix, uint64_t index)
{
    const uint8_t *data = matrix->scale.data, *block;
    uint64_t place;
    if (matrix->scale.step) data += index * matrix->scale.step, index = 0;
    switch (matrix->scale.type) {
    case QUANTISED_F32: return float_at(data, index);
    case QUANTISED_F16: return half_at(data, index, false);
    case QUANTISED_BF16: return half_at(data, index, true);
    case QUANTISED_E4M3_SCALE: return e4m3_to_float(data[index]);
    case QUANTISED_E8M0: return e8m0_to_float(data[index]);
    case QUANTISED_NESTED:
        return float_at(matrix->scale.nested_table, data[index]) *
                   float_at(matrix->scale.nested, index / matrix->scale.nested_block) +
               matrix->scale.offset;
    default: break;
    }
    block = block_of_scale(matrix, index, &place);
    return half_at(block + matrix->block.factors, 0, false) *
           (float)block_scale(matrix->scale.type, block + matrix->block.scales, place);
}

/* The number that is added to elements with scale number `index`. */
static float added_at(const struct quantised *matrix, uint64_t index)
{
    if (matrix->added && matrix->scale.step) return half_at(matrix->added + index * matrix->scale.step, 0, false);
    if (matrix->added) return half_at(matrix->added, index, false);
    const bool four = matrix->scale.type == QUANTISED_FOUR_BITS;
    if (!four && matrix->scale.type != QUANTISED_SIX_BITS) return 0;
    uint64_t place;
    const uint8_t *block = block_of_scale(matrix, index, &place), *scales = block + matrix->block.scales;
    const uint32_t minimum = four ? scales[place] >> 4 : six_bits(scales, place, true);
    return -(half_at(block + matrix->block.factors, 1, false) * (float)minimum);
}

static uint64_t group_of(const struct quantised *matrix, uint64_t column)
{
    return matrix->groups ? word_at(matrix->groups, column) : column / matrix->scale.block_columns;
}

static uint64_t scale_index(const struct quantised *matrix, uint64_t row, uint64_t column, uint64_t group)
{
    const uint64_t pitch = matrix->scale.pitch, block_row = row / matrix->scale.block_rows;
    if (matrix->scale.flat) return (row * matrix->columns + column) / matrix->scale.block_columns;
    return matrix->scale.transposed ? group * pitch + block_row : block_row * pitch + group;
}

uint32_t quantised_zero(const struct quantised *matrix, uint64_t row, uint64_t group)
{
    return (code_at(&matrix->zeros, row, group) + matrix->zero_add) & ((1u << matrix->zeros.bits) - 1);
}

struct quantised_group quantised_group_at(const struct quantised *matrix, uint64_t row, uint64_t column)
{
    const uint64_t group = group_of(matrix, column), index = scale_index(matrix, row, column, group);
    return (struct quantised_group){
        .scale = quantised_scale(matrix, index),
        .zero = (int32_t)(matrix->zeros.data ? quantised_zero(matrix, row, group) : matrix->zero),
        .added = added_at(matrix, index),
    };
}

/* ORDER_BLOCKS, in runs of elements that have the same bits of neighbouring bytes. */
static void read_block_codes(const struct quantised *matrix, uint64_t row, uint64_t first_column, uint64_t count,
                             uint8_t *codes)
{
    const uint32_t columns = matrix->block.columns, half = matrix->block.half, low_bits = matrix->block.low;
    const uint32_t more = matrix->codes.bits - low_bits, each = 8 / low_bits;
    const bool stream = matrix->block.high_stream;
    const uint32_t turn = more ? 8 / more * 32 : 0; /* elements whose high bits 32 bytes hold */
    /* half is a multiple of 32 where 32 bytes hold high bits */
    const uint32_t longest = each == 1 ? columns : more && !stream ? 32 : half;
    const uint8_t *line = matrix->codes.data + row * matrix->codes.pitch;
    for (uint64_t i = 0, run; i < count; i += run) {
        const uint64_t column = first_column + i;
        const uint32_t place = (uint32_t)(column % columns);
        const uint8_t *block = line + column / columns * matrix->block.bytes, *low = block + matrix->block.codes;
        run = longest - place % longest < count - i ? longest - place % longest : count - i;
        if (each == 1) {
            memcpy(codes + i, low + place, run);
            continue;
        }
        low += place / (each * half) * half + place % half;
        const uint32_t shift = place / half % each * low_bits, low_mask = (1u << low_bits) - 1;
        for (uint64_t j = 0; j < run; j++) codes[i + j] = (uint8_t)(low[j] >> shift & low_mask);
        if (!more) continue;
        const uint8_t *high = block + matrix->block.high;
        if (stream) {
            for (uint64_t j = 0; j < run; j++) codes[i + j] |= (uint8_t)(stream_at(high, place + j, 1) << low_bits);
            continue;
        }
        high += place / turn * 32 + place % 32;
        const uint32_t high_shift = place % turn / 32 * more, mask = (1u << more) - 1;
        for (uint64_t j = 0; j < run; j++) codes[i + j] |= (uint8_t)((high[j] >> high_shift & mask) << low_bits);
    }
}

/* Codes of a row; the usual layouts without a decision for each element. */
static void read_codes(const struct quantised *matrix, uint64_t row, uint64_t first_column, uint64_t count,
                       uint8_t *codes)
{
    const struct quantised_plane *plane = &matrix->codes;
    const uint32_t bits = plane->bits, mask = (1u << bits) - 1;
    if (plane->order == ORDER_ROWS && !plane->transposed && bits == 8) {
        memcpy(codes, plane->data + row * plane->pitch + first_column, count);
    } else if (plane->order == ORDER_ROWS && !plane->transposed && bits == 4) {
        const uint8_t *line = plane->data + row * plane->pitch;
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t column = first_column + i;
            codes[i] = line[column / 2] >> (column % 2 * 4) & 15;
        }
    } else if (plane->order == ORDER_COLUMNS && plane->transposed && 32 % bits == 0) {
        const uint64_t each = 32 / bits;
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t k = first_column + i;
            codes[i] = (uint8_t)(word_at(plane->data, k / each * plane->pitch + row) >> (k % each * bits) & mask);
        }
    } else if (plane->order == ORDER_AWQ && plane->transposed) {
        const uint32_t shift = 4u * awq[row % 8];
        const uint8_t *words = plane->data + first_column * plane->pitch + row / 8 * 4;
        for (uint64_t i = 0; i < count; i++) codes[i] = word_at(words + i * plane->pitch, 0) >> shift & 15;
    } else if (plane->order == ORDER_BLOCKS) {
        read_block_codes(matrix, row, first_column, count, codes);
    } else {
        for (uint64_t i = 0; i < count; i++) codes[i] = (uint8_t)code_at(plane, row, first_column + i);
    }
}

/* Numbers that codes stand for, before scales. `count` of them have the same zero point. */
static void numbers(const struct quantised *matrix, const uint8_t *codes, uint32_t zero, uint64_t count, float *values)
{
    switch (matrix->code) {
    case QUANTISED_UNSIGNED:
        for (uint64_t i = 0; i < count; i++) values[i] = (float)((int32_t)codes[i] - (int32_t)zero);
        break;
    case QUANTISED_INT8:
        for (uint64_t i = 0; i < count; i++) values[i] = (float)((int8_t)codes[i] - (int8_t)zero);
        break;
    case QUANTISED_E4M3:
        for (uint64_t i = 0; i < count; i++) values[i] = e4m3_to_float(codes[i]);
        break;
    case QUANTISED_E2M1:
        for (uint64_t i = 0; i < count; i++) values[i] = e2m1_to_float(codes[i]);
        break;
    case QUANTISED_TABLE:
        for (uint64_t i = 0; i < count; i++) values[i] = float_at(matrix->table, codes[i]);
        break;
    }
}

/* Columns from `column` on, at most `most`, that have its scale. */
static uint64_t run_length(const struct quantised *matrix, uint64_t row, uint64_t column, uint64_t most)
{
    const uint64_t size = matrix->scale.block_columns;
    const uint64_t at = matrix->scale.flat ? row * matrix->columns + column : column;
    const uint64_t left = matrix->groups ? 1 : size - at % size;
    return left < most ? left : most;
}

/* Elements of `count` codes that have scale number `index` and its zero point. */
static void elements(const struct quantised *matrix, const uint8_t *codes, uint32_t zero, uint64_t index,
                     uint64_t count, float *values)
{
    const float scale = quantised_scale(matrix, index) * matrix->global, added = added_at(matrix, index);
    numbers(matrix, codes, zero, count, values);
    for (uint64_t i = 0; i < count; i++) values[i] = values[i] * scale + added;
}

static uint32_t zero_of(const struct quantised *matrix, uint64_t row, uint64_t group)
{
    return matrix->zeros.data ? quantised_zero(matrix, row, group) : matrix->zero;
}

enum { PART = 512 };

void quantised_read(const struct quantised *matrix, uint64_t row, uint64_t first_column, uint64_t count, float *values)
{
    uint8_t codes[PART];
    for (uint64_t i = 0, run; i < count; i += run) {
        if (i % PART == 0) read_codes(matrix, row, first_column + i, count - i < PART ? count - i : PART, codes);
        const uint64_t column = first_column + i, group = group_of(matrix, column);
        const uint64_t index = scale_index(matrix, row, column, group), part_left = PART - i % PART;
        run = run_length(matrix, row, column, count - i < part_left ? count - i : part_left);
        elements(matrix, codes + i % PART, zero_of(matrix, row, group), index, run, values + i);
    }
}

void quantised_read_columns(const struct quantised *matrix, uint64_t row, const uint32_t *columns, uint64_t count,
                            float *values)
{
    uint8_t codes[PART];
    for (uint64_t i = 0, run; i < count; i += run) {
        const uint64_t group = group_of(matrix, columns[i]), most = count - i < PART ? count - i : PART;
        for (run = 0; run < most && group_of(matrix, columns[i + run]) == group; run++)
            codes[run] = (uint8_t)code_at(&matrix->codes, row, columns[i + run]);
        elements(matrix, codes, zero_of(matrix, row, group), scale_index(matrix, row, columns[i], group), run,
                 values + i);
    }
}
