/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of encodings with scales: their form, packing, and the definition of what they say. */
#include <string.h>

#include "kernels/matmul/panel.h"

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
static float e4m3_factor(const struct encoding *encoding)
{
    return (encoding->code == CODE_E4M3 ? 256.0f : 1.0f) * (encoding->scale == SCALE_E4M3 ? 256.0f : 1.0f);
}

static uint32_t nibble_shift(uint64_t place) { return (uint32_t)(4 * (place / 2) + 16 * (place % 2)); }

/* A code of 4 bits in a line of codes, or a zero in a line of zeros. */
static void put_nibble(uint8_t *line, uint64_t row, uint32_t shift, uint8_t code)
{
    uint8_t *byte = line + 4 * row + shift / 8;
    *byte = (uint8_t)(*byte | (code & 15) << (shift % 8));
}

static uint8_t nibble_at(const uint8_t *line, uint64_t row, uint32_t shift)
{
    return line[4 * row + shift / 8] >> (shift % 8) & 15;
}

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
    case SCALE_E4M3: *to = e4m3_from_float(value); break;
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
    case SCALE_E4M3: return e4m3_to_float(*from);
    case SCALE_E8M0: return float_from_bits((uint32_t)*from << 23); /* code 0: zero, as padding needs it */
    }
    return 1.0f;
}

void panel_pack_coded(const struct panel_form *form, const struct coded_row *row, uint64_t index, uint64_t k,
                      uint8_t *panel)
{
    const struct encoding *encoding = form->encoding;
    const float factor = row->factor * e4m3_factor(encoding);
    const bool factor_in_scales = !form->factor_bytes;
    if (form->factor_bytes) memcpy(panel + index * sizeof factor, &factor, sizeof factor);
    for (uint64_t g = 0; form->group && g * form->group < k; g++) {
        uint8_t *head = panel + span_offset(form, g * form->group);
        const uint64_t place = g % form->span_groups;
        put_scale(form, head + place * form->scale_bytes + index * (form->scale_bytes / PANEL_ROWS),
                  factor_in_scales ? row->scales[g] * e4m3_factor(encoding) : row->scales[g]);
        if (encoding->zeros)
            put_nibble(head + form->span_groups * form->scale_bytes, index, nibble_shift(place), row->zeros[g]);
    }
    for (uint64_t i = 0; i < k; i++) {
        uint8_t *line = panel + line_offset(form, i);
        const uint64_t place = i % form->line_k;
        if (encoding->bits == 4)
            put_nibble(line, index, nibble_shift(place), row->codes[i]);
        else if (encoding->code == CODE_INT8)
            line[4 * index + place] = row->codes[i];
        else
            line[index] = row->codes[i];
    }
    /* What pads the last line of int4 must be the code of 0. */
    for (uint64_t i = k; encoding->code == CODE_UINT4 && i % form->line_k; i++) {
        const uint8_t zero = encoding->zeros ? row->zeros[(i - 1) / form->group] : 8;
        put_nibble(panel + line_offset(form, k - 1), index, nibble_shift(i % form->line_k), zero);
    }
}

static float code_value(const struct encoding *encoding, const uint8_t *line, uint64_t row, uint64_t place, int zero)
{
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_UINT4: return (float)(nibble_at(line, row, nibble_shift(place)) - zero);
    case CODE_E2M1: return e2m1_to_float(nibble_at(line, row, nibble_shift(place)));
    case CODE_INT8: return (float)(int8_t)line[4 * row + place];
    case CODE_E4M3: return e4m3_to_float(line[row]) * 0x1p-8f;
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
    float factor = 1, scale = 1;
    int zero = 8;
    if (form->factor_bytes) memcpy(&factor, panel + row * sizeof factor, sizeof factor);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = first + i;
        if (form->group && (i == 0 || at % form->group == 0)) {
            const uint8_t *head = panel + span_offset(form, at);
            const uint64_t place = at / form->group % form->span_groups;
            scale = scale_at(form, head + place * form->scale_bytes + row * (form->scale_bytes / PANEL_ROWS));
            if (encoding->scale == SCALE_E4M3) scale *= 0x1p-8f;
            if (encoding->zeros)
                zero = nibble_at(head + form->span_groups * form->scale_bytes, row, nibble_shift(place));
        }
        values[i] = code_value(encoding, panel + line_offset(form, at), row, at % form->line_k, zero) * scale * factor;
    }
}
