/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of encodings with scales: their form, packing, and the definition of what they say. */
#include <math.h>
#include <string.h>

#include "kernels/matmul/fragment_layout.cuh"
#include "kernels/matmul/pack_codes.h"
#include "kernels/matmul/panel.h"

_Static_assert((int)FRAGMENT_ROWS == (int)PANEL_ROWS && (int)FRAGMENT_LARGEST_DTYPE == (int)ENCODING_BF16 &&
                   (int)FRAGMENT_FACTOR_BYTES == (int)PANEL_LINE_BYTES,
               "as device code knows them");
_Static_assert((int)ENCODING_INT8_CHANNEL == 16 && (int)ENCODING_INT4_G32 == 17 &&
                   (int)ENCODING_INT4_G128_ZEROS == 22 && (int)ENCODING_E4M3_CHANNEL == 24 &&
                   (int)ENCODING_E4M3_BLOCK128 == 25 && (int)ENCODING_MXFP4 == 26 && (int)ENCODING_NVFP4 == 27 &&
                   (int)ENCODING_INT8_G32 == 28 && (int)ENCODING_INT8_G128 == 30 && (int)ENCODING_MXFP8 == 31 &&
                   (int)ENCODING_NF4_G64 == 32 && (int)ENCODING_FP4_G64 == 33 && (int)ENCODING_INT8_G32_ZEROS == 34 &&
                   (int)ENCODING_INT8_G128_ZEROS == 36,
               "encodings of fragment_lay_out");
_Static_assert((int)FRAGMENT_INT8 == (int)CODE_INT8 && (int)FRAGMENT_UINT4 == (int)CODE_UINT4 &&
                   (int)FRAGMENT_E4M3 == (int)CODE_E4M3 && (int)FRAGMENT_E2M1 == (int)CODE_E2M1 &&
                   (int)FRAGMENT_TABLE == (int)CODE_TABLE,
               "codes");
_Static_assert((int)FRAGMENT_F32 == (int)SCALE_F32 && (int)FRAGMENT_F16 == (int)SCALE_F16 &&
                   (int)FRAGMENT_E5M3 == (int)SCALE_E4M3 && (int)FRAGMENT_E8M0 == (int)SCALE_E8M0,
               "scales");

static uint32_t scale_bytes(enum encoding_scale scale)
{
    switch (scale) {
    case SCALE_NONE: return 0;
    case SCALE_F32: return 4;
    case SCALE_F16: return 2;
    case SCALE_E4M3:
    case SCALE_E8M0: return 1;
    }
    return 0;
}

bool panel_form(int64_t id, struct panel_form *form)
{
    const struct encoding *encoding = encoding_find(id);
    *form = (struct panel_form){.encoding = encoding};
    if (!encoding) return false;
    form->k_bytes = PANEL_ROWS * encoding->bits / 8;
    form->line_k = id == ENCODING_BF16 ? 2 : 1;
    if (encoding_is_plain(encoding->id)) return true;
    if (encoding->block_rows == 0) return false;
    if (encoding->code != CODE_E4M3) form->line_k = PANEL_LINE_BYTES / form->k_bytes;
    if (encoding->block_columns == 0 || encoding->global) form->factor_bytes = PANEL_LINE_BYTES;
    if (encoding->block_columns == 0) return true;
    form->group = encoding->block_columns;
    form->scale_bytes = PANEL_ROWS * scale_bytes(encoding->scale);
    /* Whole lines of scales, and of zeros, which are as long as codes. */
    form->span_groups = encoding->zeros ? form->line_k : PANEL_LINE_BYTES / form->scale_bytes;
    form->span_k = form->group * form->span_groups;
    form->head_bytes = form->span_groups * form->scale_bytes + (encoding->zeros ? PANEL_LINE_BYTES : 0);
    return true;
}

bool fragment_form(int64_t id, struct panel_form *form)
{
    const struct fragment_layout layout = fragment_lay_out(id);
    *form = (struct panel_form){.encoding = encoding_find(id), .fragments = true};
    if (!form->encoding || layout.code == 0) return false;
    form->k_bytes = PANEL_ROWS * (uint32_t)layout.bits / 8;
    form->line_k = FRAGMENT_STRIP_K;
    form->factor_bytes = (uint32_t)fragment_factor_bytes(layout);
    form->group = (uint32_t)layout.group;
    form->span_groups = (uint32_t)layout.groups;
    form->span_k = form->group ? FRAGMENT_STRIP_K : 0;
    form->scale_bytes = layout.groups ? PANEL_ROWS * scale_bytes(form->encoding->scale) : 0;
    form->head_bytes = (uint32_t)layout.codes_at;
    return true;
}

static uint64_t divide_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

static uint64_t form_bytes(const struct panel_form *form, uint64_t k)
{
    const uint64_t spans = form->group ? divide_up(k, form->span_k) : 0;
    return form->factor_bytes + spans * form->head_bytes + divide_up(k, form->line_k) * form->line_k * form->k_bytes;
}

uint64_t panel_bytes(uint64_t k, int64_t encoding)
{
    struct panel_form form;
    return panel_form(encoding, &form) ? form_bytes(&form, k) : 0;
}

uint64_t fragment_bytes(uint64_t k, int64_t encoding)
{
    struct panel_form form;
    return fragment_form(encoding, &form) ? form_bytes(&form, k) : 0;
}

uint64_t panel_offset(const struct panel_form *form, uint64_t k)
{
    return form->factor_bytes + (form->group ? k / form->span_k * form->head_bytes : 0) + k * form->k_bytes;
}

/* Where the span of k begins, and the codes of k, which may be any. */
static uint64_t span_offset(const struct panel_form *form, uint64_t k)
{
    return panel_offset(form, form->group ? k / form->span_k * form->span_k : 0);
}

static uint64_t line_offset(const struct panel_form *form, uint64_t k)
{
    const uint64_t heads = form->group ? (k / form->span_k + 1) * form->head_bytes : 0;
    return form->factor_bytes + heads + k / form->line_k * form->line_k * form->k_bytes;
}

/* How many of an element's factors are e4m3 numbers, each of which counts 2^-8. */
static float e4m3_factor(const struct panel_form *form)
{
    const struct encoding *encoding = form->encoding;
    return (encoding->code == CODE_E4M3 && !form->fragments ? 256.0f : 1.0f) *
           (encoding->scale == SCALE_E4M3 ? 256.0f : 1.0f);
}

/* Where a code is: bits from `bit` on of the 32-bit word, rotating, at `offset` from the beginning of its line (PANEL16) or
 * of the strip's codes. Codes of 8 bits stand at bit 0, 8, 16 and 24. */
struct place {
    uint64_t offset;
    uint32_t bit;
};

static uint32_t nibble_bit(uint64_t place) { return (uint32_t)(4 * (place / 2) + 16 * (place % 2)); }

/* `k`: in the line. */
static struct place panel_place(const struct encoding *encoding, uint64_t row, uint64_t k)
{
    if (encoding->bits == 4) return (struct place){4 * row, nibble_bit(k)};
    if (encoding->code == CODE_INT8) return (struct place){4 * row, (uint32_t)(8 * k)};
    return (struct place){row / 4 * 4, (uint32_t)(row % 4 * 8)};
}

/* `k`: in the strip. */
static struct place fragment_place(const struct encoding *encoding, uint64_t row, uint64_t k)
{
    const uint64_t lane = row % 8 * 4 + k % 8 / 2, lane_register = k % 16 / 8 * 2 + row / 8, second = k % 2;
    const uint64_t lane_k = encoding->bits == 4 ? 64 : 32, step = k % lane_k / 16;
    const uint64_t at = k / lane_k * 512 + lane * 16;
    if (encoding->code == CODE_TABLE)
        return (struct place){at + step * 4,
                              (uint32_t)(16 * (lane_register / 2) + 8 * (lane_register % 2) + 4 * second)};
    if (encoding->bits == 4) return (struct place){at + step * 4, (uint32_t)(4 * lane_register + 16 * second)};
    return (struct place){at + step * 8 + lane_register / 2 * 4, (uint32_t)(16 * second + 8 * (lane_register % 2))};
}

static struct place code_place(const struct panel_form *form, uint64_t row, uint64_t k)
{
    if (!form->fragments) return panel_place(form->encoding, row, k % form->line_k);
    struct place place = fragment_place(form->encoding, row, k % form->line_k);
    if (form->encoding->code == CODE_UINT4) place.bit = (place.bit + 3) % 32;
    return place;
}

/* The place of the scale of group `place` in the head, in scales. */
static uint64_t scale_index(const struct panel_form *form, uint64_t row, uint64_t place)
{
    return form->fragments ? (row % 8 * form->span_groups + place) * 2 + row / 8 : place * PANEL_ROWS + row;
}

static uint32_t word_at(const uint8_t *from)
{
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static void put_bits(uint8_t *base, struct place place, uint32_t bits)
{
    const uint32_t word =
        word_at(base + place.offset) | bits << place.bit | (uint32_t)((uint64_t)bits >> (32 - place.bit));
    memcpy(base + place.offset, &word, sizeof word);
}

static uint32_t bits_at(const uint8_t *base, struct place place, uint32_t mask)
{
    const uint32_t word = word_at(base + place.offset);
    return (word >> place.bit | (uint32_t)((uint64_t)word << (32 - place.bit))) & mask;
}

/* e2m1 in fragments: magnitude and sign of the register whose nibble is `place`. */
static void e2m1_places(struct place place, struct place *magnitude, struct place *sign)
{
    static const uint8_t magnitudes[4] = {6, 3, 0, 9}, signs[4] = {15, 12, 14, 13};
    const uint32_t half = place.bit / 16 * 16, lane_register = place.bit % 16 / 4;
    *magnitude = (struct place){place.offset, half + magnitudes[lane_register]};
    *sign = (struct place){place.offset, half + signs[lane_register]};
}

static uint8_t code_at(const struct panel_form *form, const uint8_t *base, uint64_t row, uint64_t k)
{
    const struct place place = code_place(form, row, k);
    if (form->encoding->bits == 8) return (uint8_t)bits_at(base, place, 255);
    if (!form->fragments || form->encoding->code != CODE_E2M1) return (uint8_t)bits_at(base, place, 15);
    struct place magnitude, sign;
    e2m1_places(place, &magnitude, &sign);
    return (uint8_t)(bits_at(base, magnitude, 7) | bits_at(base, sign, 1) << 3);
}

/* The zero of group `place` of the head, in the zeros. */
static struct place zero_place(const struct panel_form *form, uint64_t row, uint64_t place)
{
    if (!form->fragments)
        return (struct place){4 * row, form->encoding->bits == 8 ? (uint32_t)(8 * place) : nibble_bit(place)};
    const uint64_t index = scale_index(form, row, place);
    return (struct place){index / 4 * 4, (uint32_t)(index % 4 * 8)};
}

/* e4m3 scales of fragments, without their signs: a float32's exponent less 112, and three bits of its mantissa. */
static uint8_t e5m3_from_float(float value)
{
    const float nearest = e4m3_to_float(e4m3_from_float(value));
    return nearest == 0 ? 0 : (uint8_t)((float_to_bits(nearest) << 1 >> 21) - (112 << 3));
}

static float e5m3_to_float(uint8_t code) { return float_from_bits(((uint32_t)code + (112 << 3)) << 20); }

static void put_scale(const struct panel_form *form, uint8_t *to, float value)
{
    switch (form->encoding->scale) {
    case SCALE_NONE: break;
    case SCALE_F32: memcpy(to, &value, sizeof value); break;
    case SCALE_F16: {
        const uint16_t half = f16_from_float(value);
        memcpy(to, &half, sizeof half);
        break;
    }
    case SCALE_E4M3: *to = form->fragments ? e5m3_from_float(value) : e4m3_from_float(value); break;
    case SCALE_E8M0: *to = (uint8_t)(float_to_bits(value) >> 23); break;
    }
}

static float scale_at(const struct panel_form *form, const uint8_t *from)
{
    float value;
    uint16_t half;
    switch (form->encoding->scale) {
    case SCALE_NONE: break;
    case SCALE_F32: memcpy(&value, from, sizeof value); return value;
    case SCALE_F16: memcpy(&half, from, sizeof half); return f16_to_float(half);
    case SCALE_E4M3: return form->fragments ? e5m3_to_float(*from) : e4m3_to_float(*from);
    case SCALE_E8M0: return float_from_bits((uint32_t)*from << 23); /* code 0: zero, as padding needs it */
    }
    return 1.0f;
}

/* Writes scales, and zeros, of a row into the heads. */
static void pack_heads(const struct panel_form *form, const struct coded_row *row, uint64_t index, uint64_t k,
                       uint8_t *panel)
{
    const struct encoding *encoding = form->encoding;
    const float factor = form->factor_bytes ? 1 : e4m3_factor(form);
    const uint64_t bytes = form->scale_bytes / PANEL_ROWS;
    for (uint64_t g = 0; form->group && g * form->group < k; g++) {
        uint8_t *head = panel + span_offset(form, g * form->group);
        const uint64_t place = g % form->span_groups;
        put_scale(form, head + scale_index(form, index, place) * bytes, row->scales[g] * factor);
        if (encoding->zeros)
            put_bits(head + form->span_groups * form->scale_bytes, zero_place(form, index, place),
                     row->zeros[g] & (encoding->bits == 8 ? 255 : 15));
    }
}

/* Fragments of nvfp4: signs of scales go to the codes, and so does 0. */
static void take_signs(const struct panel_form *form, const struct coded_row *row, uint64_t first, uint64_t count,
                       uint8_t *codes)
{
    for (uint64_t i = 0; i < count; i += form->group) {
        const float scale = e4m3_to_float(e4m3_from_float(row->scales[(first + i) / form->group]));
        const uint64_t length = count - i < form->group ? count - i : form->group;
        for (uint64_t j = 0; j < length; j++)
            codes[i + j] = scale == 0 ? 0 : (uint8_t)(codes[i + j] ^ (signbit(scale) ? 8 : 0));
    }
}

/* The code of 0 at i, which pads the last line or strip of k elements. */
static uint8_t padding_code(const struct panel_form *form, const struct coded_row *row, uint64_t k, uint64_t i)
{
    const struct encoding *encoding = form->encoding;
    if (encoding->code == CODE_TABLE) return table_from_float(encoding->table, 0);
    if (!encoding->zeros) return encoding->code == CODE_UINT4 ? 8 : 0;
    const uint64_t group = (form->fragments ? i : k - 1) / form->group;
    return group > (k - 1) / form->group ? 0 : row->zeros[group];
}

void panel_pack_coded(const struct panel_form *form, const struct coded_row *row, uint64_t index, uint64_t k,
                      uint8_t *panel)
{
    enum { MOST_CODES = FRAGMENT_STRIP_K };
    const float factor = row->factor * e4m3_factor(form);
    const uint64_t step = form->group && form->span_k < MOST_CODES ? form->span_k : MOST_CODES;
    if (form->factor_bytes) memcpy(panel + index * sizeof factor, &factor, sizeof factor);
    pack_heads(form, row, index, k, panel);
    for (uint64_t first = 0; first < k; first += step) {
        uint8_t codes[MOST_CODES];
        uint64_t count = k - first < step ? k - first : step;
        memcpy(codes, row->codes + first, count);
        if (form->fragments && form->encoding->scale == SCALE_E4M3) take_signs(form, row, first, count, codes);
        for (; count % form->line_k; count++) codes[count] = padding_code(form, row, k, first + count);
        pack_codes(form, codes, count, index, panel + line_offset(form, first));
    }
}

uint8_t panel_code(const struct panel_form *form, const uint8_t *panel, uint64_t index, uint64_t k)
{
    return code_at(form, panel + line_offset(form, k), index, k);
}

/* Codes [first, first + count) of a row, all of one span: as panel_code, with one search for their line. */
static void read_codes(const struct panel_form *form, const uint8_t *panel, uint64_t row, uint64_t first,
                       uint64_t count, uint8_t *codes)
{
    const bool are_nibbles = form->encoding->bits == 4,
               have_words =
                   !form->fragments && (are_nibbles || form->encoding->code == CODE_INT8); /* one in each line */
    const uint8_t *line = panel + line_offset(form, first);
    for (uint64_t i = 0, k = first % form->line_k; i < count; line += form->line_k * form->k_bytes, k = 0) {
        const uint32_t word = have_words ? word_at(line + 4 * row) : 0;
        for (; k < form->line_k && i < count; k++, i++)
            codes[i] = (uint8_t)(!have_words   ? code_at(form, line, row, k)
                                 : are_nibbles ? word >> nibble_bit(k) & 15
                                               : word >> 8 * k);
    }
}

static float code_value(const struct panel_form *form, uint8_t code, int zero)
{
    switch (form->encoding->code) {
    case CODE_FLOAT: break;
    case CODE_UINT4: return (float)(code - zero);
    case CODE_E2M1: return e2m1_to_float(code);
    case CODE_TABLE:
        return form->fragments ? bf16_to_float(fragment_number(form->encoding->id, code)) : form->encoding->table[code];
    case CODE_INT8: return (float)((int8_t)code - (form->encoding->zeros ? (int8_t)zero : 0));
    case CODE_E4M3: return e4m3_to_float(code) * (form->fragments ? 1.0f : 0x1p-8f);
    }
    return 0.0f;
}

static float plain_at(const void *panels, uint64_t index, int64_t encoding)
{
    if (encoding == ENCODING_F32) return ((const float *)panels)[index];
    const uint16_t half = ((const uint16_t *)panels)[index];
    return encoding == ENCODING_F16 ? f16_to_float(half) : bf16_to_float(half);
}

void panel_read(const struct panel_form *form, const void *panels, uint64_t n, uint64_t k, uint64_t first,
                uint64_t count, float *values)
{
    const struct encoding *encoding = form->encoding;
    if (encoding_is_plain(encoding->id)) {
        const uint64_t depth = panel_depth(k, (enum dtype)encoding->id);
        for (uint64_t i = 0; i < count; i++)
            values[i] = plain_at(panels, panel_index(n, first + i, depth, (enum dtype)encoding->id), encoding->id);
        return;
    }
    const uint8_t *panel = (const uint8_t *)panels + n / PANEL_ROWS * form_bytes(form, k);
    const uint64_t row = n % PANEL_ROWS;
    enum { MOST_CODES = 256 };
    float factor = 1, scale = 1;
    int zero = 8;
    if (form->factor_bytes) memcpy(&factor, panel + row * sizeof factor, sizeof factor);
    for (uint64_t done = 0, length; done < count; done += length) {
        uint8_t codes[MOST_CODES];
        const uint64_t at = first + done, left = count - done;
        length = left < MOST_CODES ? left : MOST_CODES;
        if (form->group) {
            const uint64_t of_group = form->group - at % form->group, place = at / form->group % form->span_groups;
            const uint8_t *head = panel + span_offset(form, at);
            length = length < of_group ? length : of_group;
            scale = scale_at(form, head + scale_index(form, row, place) * (form->scale_bytes / PANEL_ROWS));
            if (encoding->scale == SCALE_E4M3) scale *= 0x1p-8f;
            if (encoding->zeros) {
                const struct place at_zero = zero_place(form, row, place);
                zero =
                    (int)bits_at(head + form->span_groups * form->scale_bytes, at_zero, encoding->bits == 8 ? 255 : 15);
            }
        }
        read_codes(form, panel, row, at, length, codes);
        for (uint64_t i = 0; i < length; i++) values[done + i] = code_value(form, codes[i], zero) * scale * factor;
    }
}
