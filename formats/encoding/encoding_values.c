/* SPDX-License-Identifier: Apache-2.0 */
/* From codes to floats and back: the reference of every encoding, written for clarity. */
#include <math.h>

#include "formats/encoding/encoding.h"

/* Largest finite values of the formats, and ranges of the integers. */
static const float e4m3_largest = 448.0f, e2m1_largest = 6.0f, int8_largest = 127.0f, int4_largest = 7.0f;

/* ---- small floats: a sign, an exponent with this bias, mantissa_bits; the largest code without its sign ---- */

struct small_float {
    int bias, mantissa_bits;
    uint8_t largest;
};

static const struct small_float e4m3 = {7, 3, 0x7e}, e2m1 = {1, 1, 0x7};

/* Exponent and mantissa in the place of a float32's: the number times 2^(bias - 127). Exact, subnormal codes included. */
static float small_to_float(const struct small_float *format, uint8_t magnitude)
{
    const uint32_t factor = (uint32_t)(254 - format->bias) << 23; /* 2^(127 - bias) */
    return float_from_bits((uint32_t)magnitude << (23 - format->mantissa_bits)) * float_from_bits(factor);
}

/* Both cases are computed, so that compilers vectorise loops. Below the least normal number codes count multiples of the least
 * number, which is the unit in the last place of `aligned`: adding that rounds. */
static inline uint8_t small_from_float(const struct small_float *format, uint8_t sign, float value)
{
    const int shift = 23 - format->mantissa_bits;
    const uint32_t aligned = (uint32_t)(127 + 24 - format->bias - format->mantissa_bits) << 23;
    const uint32_t bits = float_to_bits(value), magnitude = bits & INT32_MAX;
    const uint32_t subnormal = float_to_bits(float_from_bits(magnitude) + float_from_bits(aligned)) - aligned;
    const uint32_t rounded = (magnitude + (UINT32_C(1) << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift;
    const uint32_t normal = rounded - ((uint32_t)(127 - format->bias) << format->mantissa_bits);
    const int32_t least_normal = (128 - format->bias) << 23;
    const int32_t code = (int32_t)magnitude < least_normal ? (int32_t)subnormal : (int32_t)normal;
    return (uint8_t)((uint32_t)(code > format->largest ? format->largest : code) | (bits >> 31) * sign);
}

/* In whole blocks of a length that compilers vectorise. */
static inline void small_from_floats(const struct small_float *format, uint8_t sign, uint64_t count,
                                     const float *values, uint8_t *codes)
{
    enum { BLOCK = 16 };
    for (; count >= BLOCK; values += BLOCK, codes += BLOCK, count -= BLOCK)
        for (int i = 0; i < BLOCK; i++) codes[i] = small_from_float(format, sign, values[i]);
    for (uint64_t i = 0; i < count; i++) codes[i] = small_from_float(format, sign, values[i]);
}

float e4m3_to_float(uint8_t code)
{
    if ((code & 0x7f) == 0x7f) return NAN;
    const float magnitude = small_to_float(&e4m3, code & 0x7f);
    return code & 0x80 ? -magnitude : magnitude;
}

uint8_t e4m3_from_float(float value) { return small_from_float(&e4m3, 0x80, value); }

void e4m3_from_floats(uint64_t count, const float *values, uint8_t *codes)
{
    small_from_floats(&e4m3, 0x80, count, values, codes);
}

float e2m1_to_float(uint8_t code)
{
    const float magnitude = small_to_float(&e2m1, code & 0x7);
    return code & 0x8 ? -magnitude : magnitude;
}

uint8_t e2m1_from_float(float value) { return small_from_float(&e2m1, 0x8, value); }

void e2m1_from_floats(uint64_t count, const float *values, uint8_t *codes)
{
    small_from_floats(&e2m1, 0x8, count, values, codes);
}

uint8_t table_from_float(const float table[16], float value)
{
    uint8_t nearest = 0;
    for (uint8_t code = 1; code < 16; code++)
        if (fabsf(table[code] - value) < fabsf(table[nearest] - value)) nearest = code;
    return nearest;
}

float e8m0_to_float(uint8_t code) { return code == 255 ? NAN : ldexpf(1.0f, code - 127); }

/* ---- planes ---- */

/* An encoded weight. */
struct encoded {
    const struct encoding *encoding;
    struct encoding_layout layout;
    const uint8_t *data;
};

static uint8_t load_code(const uint8_t *codes, uint64_t index, uint32_t bits)
{
    if (bits == 8) return codes[index];
    return (uint8_t)(codes[index / 2] >> (index % 2 * 4) & 0xf);
}

/* The codes' bits are 0 before. */
static void store_code(uint8_t *codes, uint64_t index, uint32_t bits, uint8_t code)
{
    if (bits == 8)
        codes[index] = code;
    else
        codes[index / 2] = (uint8_t)(codes[index / 2] | code << (index % 2 * 4));
}

static float load_float(const uint8_t *data, uint64_t index)
{
    float value;
    memcpy(&value, data + index * sizeof value, sizeof value);
    return value;
}

static uint16_t load_half(const uint8_t *data, uint64_t index)
{
    uint16_t half;
    memcpy(&half, data + index * sizeof half, sizeof half);
    return half;
}

static float load_scale(const uint8_t *scales, uint64_t index, enum encoding_scale scale)
{
    switch (scale) {
    case SCALE_NONE: break;
    case SCALE_F32: return load_float(scales, index);
    case SCALE_F16: return f16_to_float(load_half(scales, index));
    case SCALE_E4M3: return e4m3_to_float(scales[index]);
    case SCALE_E8M0: return e8m0_to_float(scales[index]);
    }
    return 1.0f;
}

/* Its value before scales. */
static float code_value(const struct encoding *encoding, const uint8_t *row, uint64_t column, int zero)
{
    switch (encoding->code) {
    case CODE_FLOAT:
        if (encoding->id == ENCODING_F32) return load_float(row, column);
        return encoding->id == ENCODING_F16 ? f16_to_float(load_half(row, column))
                                            : bf16_to_float(load_half(row, column));
    case CODE_INT8: return (float)((int8_t)row[column] - (encoding->zeros ? (int8_t)zero : 0));
    case CODE_UINT4: return (float)(load_code(row, column, 4) - zero);
    case CODE_E4M3: return e4m3_to_float(row[column]);
    case CODE_E2M1: return e2m1_to_float(load_code(row, column, 4));
    case CODE_TABLE: return encoding->table[load_code(row, column, 4)];
    }
    return 0.0f;
}

static void row_to_float(const struct encoded *weight, uint64_t row, uint64_t columns, float *values)
{
    const struct encoding *encoding = weight->encoding;
    const struct encoding_layout *layout = &weight->layout;
    const uint8_t *planes[PLANE_COUNT];
    const uint64_t row_block = encoding->block_rows ? row / encoding->block_rows : 0;
    const uint64_t at[PLANE_COUNT] = {row, row_block, row_block, row};
    for (int p = 0; p < PLANE_COUNT; p++)
        planes[p] = weight->data + layout->planes[p].offset + at[p] * layout->planes[p].pitch;
    for (uint64_t column = 0; column < columns; column++) {
        const uint64_t block = encoding->block_columns ? column / encoding->block_columns : 0;
        const int zero = encoding->zeros ? load_code(planes[PLANE_ZEROS], block, encoding->bits) : 8;
        float value = code_value(encoding, planes[PLANE_CODES], column, zero);
        if (encoding->scale != SCALE_NONE) value *= load_scale(planes[PLANE_SCALES], block, encoding->scale);
        if (encoding->global) value *= load_float(planes[PLANE_GLOBAL], 0);
        values[column] = value;
    }
}

void encoding_to_float(enum encoding_id id, uint64_t rows, uint64_t columns, const void *data, uint64_t first_row,
                       uint64_t count, float *values)
{
    struct encoded weight = {.encoding = encoding_find(id), .data = data};
    if (!encoding_layout(id, rows, columns, &weight.layout)) return;
    for (uint64_t i = 0; i < count; i++) row_to_float(&weight, first_row + i, columns, values + i * columns);
}

/* ---- from floats ---- */

/* The least magnitude that has no finite value. */
static float overflow_limit(enum encoding_id id)
{
    return id == ENCODING_F16 ? 65520.0f : id == ENCODING_BF16 ? 0x1.ffp127f : INFINITY;
}

/* Whether all magnitudes are below the limit, which NaN is not. As integers, in whole blocks of a length that compilers
 * vectorise. */
static bool all_below(const float *values, uint64_t count, float limit)
{
    enum { BLOCK = 32 };
    const int32_t limit_bits = (int32_t)float_to_bits(limit);
    int32_t least = INT32_MAX; /* difference between the limit and a magnitude */
    for (; count >= BLOCK; values += BLOCK, count -= BLOCK)
        for (int i = 0; i < BLOCK; i++) {
            int32_t bits;
            memcpy(&bits, values + i, sizeof bits);
            const int32_t difference = limit_bits - (bits & INT32_MAX);
            least = difference < least ? difference : least;
        }
    bool below = least > 0;
    for (uint64_t i = 0; i < count; i++) below &= fabsf(values[i]) < limit;
    return below;
}

static bool plain_from_float(enum encoding_id id, uint64_t count, const float *values, uint8_t *data)
{
    const bool fits = all_below(values, count, overflow_limit(id));
    if (id == ENCODING_F32) {
        memcpy(data, values, count * sizeof *values);
    } else if (id == ENCODING_BF16) {
        for (uint64_t i = 0; i < count; i++) {
            const uint16_t half = bf16_from_float(values[i]);
            memcpy(data + i * sizeof half, &half, sizeof half);
        }
    } else {
        for (uint64_t i = 0; i < count; i++) {
            const uint16_t half = f16_from_float(values[i]);
            memcpy(data + i * sizeof half, &half, sizeof half);
        }
    }
    return fits;
}

/* A block of values, within its weight. */
struct block {
    const float *values; /* the first */
    uint64_t rows, columns, pitch;
};

/* Least and largest element, of which zero is always one. */
static void block_range(const struct block *block, float *least, float *largest)
{
    *least = *largest = 0.0f;
    for (uint64_t row = 0; row < block->rows; row++)
        for (uint64_t column = 0; column < block->columns; column++) {
            const float value = block->values[row * block->pitch + column];
            if (value < *least) *least = value;
            if (value > *largest) *largest = value;
        }
}

/* Its element of the largest magnitude. */
static const float *block_extreme(const struct block *block)
{
    const float *extreme = block->values;
    for (uint64_t row = 0; row < block->rows; row++)
        for (uint64_t column = 0; column < block->columns; column++) {
            const float *value = &block->values[row * block->pitch + column];
            if (fabsf(*value) > fabsf(*extreme)) extreme = value;
        }
    return extreme;
}

static float block_magnitude(const struct block *block) { return fabsf(*block_extreme(block)); }

/* Writes the scale as it is stored and returns its value; infinity where it has none. */
static float store_scale(uint8_t *scales, uint64_t index, enum encoding_scale scale, float value)
{
    switch (scale) {
    case SCALE_NONE: break;
    case SCALE_F32: memcpy(scales + index * sizeof value, &value, sizeof value); return value;
    case SCALE_F16: {
        const uint16_t half = f16_from_float(value);
        memcpy(scales + index * sizeof half, &half, sizeof half);
        return f16_to_float(half);
    }
    case SCALE_E4M3: scales[index] = e4m3_from_float(value); return e4m3_to_float(scales[index]);
    case SCALE_E8M0: {
        /* The largest power of two that is not above the value. */
        int exponent = -127;
        if (value > 0.0f) exponent = ilogbf(value);
        scales[index] = (uint8_t)(exponent < -127 ? 0 : exponent + 127);
        return e8m0_to_float(scales[index]);
    }
    }
    return 1.0f;
}

/* A scale such that the block's largest magnitude becomes the largest code. */
static float wanted_scale(const struct encoding *encoding, const struct block *block, float global)
{
    float least, largest;
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_INT8:
        if (!encoding->zeros) return block_magnitude(block) / int8_largest;
        block_range(block, &least, &largest);
        return largest / 255.0f - least / 255.0f;
    case CODE_UINT4:
        if (!encoding->zeros) return block_magnitude(block) / int4_largest;
        block_range(block, &least, &largest);
        return largest / 15.0f - least / 15.0f;
    case CODE_E4M3:
        /* 256 is the power of two of the largest code, 448. */
        return block_magnitude(block) / (encoding->scale == SCALE_E8M0 ? 256.0f : e4m3_largest);
    case CODE_E2M1:
        /* 4 is the power of two of the largest code, 6: what the MX format asks for. */
        if (encoding->scale == SCALE_E8M0) return block_magnitude(block) / 4.0f;
        return global > 0.0f ? block_magnitude(block) / e2m1_largest / global : 0.0f;
    case CODE_TABLE: return block_magnitude(block);
    }
    return 1.0f;
}

static float clamped(float value, float least, float largest) { return fminf(fmaxf(value, least), largest); }

/* `scale` with the global one in it; 0: the block is 0. */
static uint8_t code_of(const struct encoding *encoding, float value, float scale, int zero)
{
    const float scaled = scale > 0.0f ? value / scale : 0.0f;
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_INT8:
        if (encoding->zeros) return (uint8_t)(int8_t)clamped(rintf(scaled) + (float)zero, -128.0f, int8_largest);
        return (uint8_t)(int8_t)clamped(rintf(scaled), -int8_largest, int8_largest);
    case CODE_UINT4: return (uint8_t)clamped(rintf(scaled) + (float)zero, 0.0f, 15.0f);
    case CODE_E4M3: return e4m3_from_float(scaled);
    case CODE_E2M1: return e2m1_from_float(scaled);
    case CODE_TABLE: return table_from_float(encoding->table, scaled);
    }
    return 0;
}

static bool encode_block(const struct encoding *encoding, const struct block *block, float global, uint8_t *codes,
                         uint64_t codes_pitch, uint64_t first_column, uint8_t *scales, uint8_t *zeros, uint64_t index)
{
    float scale = store_scale(scales, index, encoding->scale, wanted_scale(encoding, block, global));
    int zero = 8;
    if (!isfinite(scale)) return false;
    if (encoding->zeros) {
        float least, largest;
        block_range(block, &least, &largest);
        const int lowest = encoding->code == CODE_INT8 ? -128 : 0;
        const float codes_below = encoding->code == CODE_INT8 ? 255.0f : 15.0f;
        zero = scale > 0.0f ? (int)clamped(rintf(-least / scale), 0.0f, codes_below) + lowest : 0;
        store_code(zeros, index, encoding->bits, (uint8_t)zero);
    }
    if (encoding->global) scale *= global;
    for (uint64_t row = 0; row < block->rows; row++)
        for (uint64_t column = 0; column < block->columns; column++)
            store_code(codes + row * codes_pitch, first_column + column, encoding->bits,
                       code_of(encoding, block->values[row * block->pitch + column], scale, zero));
    return true;
}

/* The blocks beside each other that begin at `first_row`. */
static bool encode_row_block(const struct encoding *encoding, const struct encoding_layout *layout, uint64_t row_block,
                             uint64_t rows, uint64_t columns, const float *values, uint8_t *data, uint64_t *refused)
{
    const uint64_t height = encoding->block_rows ? encoding->block_rows : rows;
    const uint64_t width = encoding->block_columns ? encoding->block_columns : columns;
    const uint64_t first_row = row_block * height;
    const uint64_t block_rows = rows - first_row < height ? rows - first_row : height;
    uint8_t *planes[PLANE_COUNT];
    const uint64_t at[PLANE_COUNT] = {first_row, row_block, row_block, first_row};
    for (int p = 0; p < PLANE_COUNT; p++) planes[p] = data + layout->planes[p].offset + at[p] * layout->planes[p].pitch;
    float global = 1.0f;
    if (encoding->global) { /* such encodings have blocks of one row */
        const struct block row = {values + first_row * columns, 1, columns, columns};
        global = block_magnitude(&row) / (e4m3_largest * e2m1_largest);
        memcpy(planes[PLANE_GLOBAL], &global, sizeof global);
    }
    for (uint64_t b = 0; b < layout->column_blocks; b++) {
        const uint64_t first = b * width, count = columns - first < width ? columns - first : width;
        const struct block block = {values + first_row * columns + first, block_rows, count, columns};
        if (!encode_block(encoding, &block, global, planes[PLANE_CODES], layout->planes[PLANE_CODES].pitch, first,
                          planes[PLANE_SCALES], planes[PLANE_ZEROS], b)) {
            *refused = (uint64_t)(block_extreme(&block) - values);
            return false;
        }
    }
    return true;
}

bool encoding_from_float(enum encoding_id id, uint64_t rows, uint64_t columns, const float *values, void *data,
                         uint64_t *refused)
{
    const struct encoding *encoding = encoding_find(id);
    struct encoding_layout layout;
    *refused = 0;
    if (!encoding_layout(id, rows, columns, &layout)) return false;
    const uint64_t count = rows * columns;
    if (encoding->code == CODE_FLOAT) {
        if (plain_from_float(id, count, values, data)) return true;
        const float limit = overflow_limit(id);
        while (fabsf(values[*refused]) < limit) ++*refused;
        return false;
    }
    for (; *refused < count; ++*refused)
        if (!isfinite(values[*refused])) return false;
    memset(data, 0, layout.bytes);
    for (uint64_t b = 0; b < layout.row_blocks; b++)
        if (!encode_row_block(encoding, &layout, b, rows, columns, values, data, refused)) return false;
    return true;
}
