/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of quantised checkpoints, kept as they are. */
#include "builder/weights/coded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which encoding ---- */

/* Whether float16 has all scales: exactly, or with errors below 2^-16 of the matrix's largest scale, as where one is subnormal among
 * much larger ones. `order`: of the columns, by their groups; NULL: they are as they lie. */
static bool scales_fit_f16(const struct quantised *matrix, const struct column_order *order)
{
    if (matrix->scale.type == QUANTISED_F16 && matrix->global == 1.0f) return true;
    float largest = 0, error = 0;
    for (uint64_t row = 0; row < matrix->rows; row += matrix->scale.block_rows)
        for (uint64_t i = 0; i < matrix->columns; i += matrix->scale.block_columns) {
            const uint64_t column = order ? order->columns[i] : i;
            const float scale = quantised_group_at(matrix, row, column).scale * matrix->global;
            largest = fmaxf(largest, fabsf(scale));
            error = fmaxf(error, fabsf(f16_to_float(f16_from_float(scale)) - scale)); /* above 65504 infinite */
        }
    return error <= largest * 0x1p-16f;
}

/* The zero point that stands for the number added to codes times their scale: that is the float16 nearest to -zero * scale, or `exactly` that
 * product. -1: none does. */
static int zero_of_added(const struct quantised_group *group, bool exactly)
{
    const float product = -group->added, zero = group->scale == 0 ? 0 : rintf(product / group->scale);
    const float error = fabsf(zero * group->scale - product);
    if (!(zero >= 0 && zero <= 15)) return -1;
    return error == 0 || (!exactly && error <= fmaxf(fabsf(product) * 0x1p-11f, 0x1p-25f)) ? (int)zero : -1;
}

static bool added_are_zeros(const struct quantised *matrix, bool exactly)
{
    for (uint64_t row = 0; row < matrix->rows; row++)
        for (uint64_t column = 0; column < matrix->columns; column += matrix->scale.block_columns) {
            const struct quantised_group group = quantised_group_at(matrix, row, column);
            if (zero_of_added(&group, exactly) < 0) return false;
        }
    return true;
}

/* The encoding with the largest group that `columns` is a multiple of. */
static enum encoding_id of_group(const enum encoding_id encodings[3], uint64_t columns)
{
    for (int i = 2; i >= 0; i--)
        if (columns % encoding_find(encodings[i])->block_columns == 0) return encodings[i];
    return ENCODING_NONE;
}

/* One with the same numbers; blocks of the checkpoint must end where groups do. */
static enum encoding_id of_table(const struct quantised *matrix)
{
    for (size_t i = 0; encoding_at(i); i++) {
        const struct encoding *each = encoding_at(i);
        if (each->code != CODE_TABLE || memcmp(each->table, matrix->table, 16 * sizeof *each->table) != 0) continue;
        if (matrix->columns % each->block_columns == 0 && matrix->scale.block_columns % each->block_columns == 0)
            return each->id;
    }
    return ENCODING_NONE;
}

/* Whether all numbers of a table are codes of int8. */
static bool has_int8_table(const struct quantised *matrix)
{
    for (size_t i = 0; i < 16; i++) {
        float number;
        memcpy(&number, matrix->table + i * sizeof number, sizeof number);
        if (!(fabsf(number) <= 127 && rintf(number) == number)) return false;
    }
    return true;
}

/* *why: the reason where there is none. */
static enum encoding_id encoding_of(const struct quantised *matrix, const struct column_order *order, bool exactly,
                                    const char **why)
{
    static const enum encoding_id int4[3] = {ENCODING_INT4_G32, ENCODING_INT4_G64, ENCODING_INT4_G128};
    static const enum encoding_id int4_zeros[3] = {ENCODING_INT4_G32_ZEROS, ENCODING_INT4_G64_ZEROS,
                                                   ENCODING_INT4_G128_ZEROS};
    static const enum encoding_id int8[3] = {ENCODING_INT8_G32, ENCODING_INT8_G64, ENCODING_INT8_G128};
    static const enum encoding_id int8_zeros[3] = {ENCODING_INT8_G32_ZEROS, ENCODING_INT8_G64_ZEROS,
                                                   ENCODING_INT8_G128_ZEROS};
    const bool row_scales = matrix->scale.block_columns >= matrix->columns;
    const uint64_t group = row_scales ? 128 : matrix->scale.block_columns; /* any group has the row's scale */
    *why = "with blocks that no encoding has";
    if (matrix->code == QUANTISED_TABLE && !has_int8_table(matrix)) return of_table(matrix);
    if (matrix->scale.flat) return ENCODING_NONE;
    *why = "with two levels of scales";
    if (matrix->scale.type >= QUANTISED_NESTED) return ENCODING_NONE;
    *why = "in act-order";
    if (matrix->groups && !order) return ENCODING_NONE;
    *why = "with zero points between codes";
    if (matrix->added && !added_are_zeros(matrix, exactly)) return ENCODING_NONE;
    enum encoding_id found = ENCODING_NONE;
    const bool zeros = matrix->zeros.data || matrix->added;
    const uint32_t bits = matrix->codes.bits;
    static const char no_group[] = "with groups of no multiple of 32 columns";
    *why = no_group;
    switch (matrix->code) {
    case QUANTISED_UNSIGNED: /* of 5 to 7 bits: in 8 */
        if (bits <= 4)
            found = of_group(zeros ? int4_zeros : int4, group);
        else
            found = zeros ? of_group(int8_zeros, group) : row_scales ? ENCODING_INT8_CHANNEL : of_group(int8, group);
        *why = "with a zero point that is not the middle of the codes";
        if (!zeros && matrix->zero != 1u << (bits - 1)) return ENCODING_NONE;
        *why = no_group;
        break;
    case QUANTISED_INT8:
    case QUANTISED_TABLE:
        found = zeros ? of_group(int8_zeros, group) : row_scales ? ENCODING_INT8_CHANNEL : of_group(int8, group);
        break;
    case QUANTISED_E4M3:
        *why = "with blocks that no encoding has";
        if (row_scales) return ENCODING_E4M3_CHANNEL;
        if (matrix->scale.type == QUANTISED_E8M0 && group == 32 && matrix->global == 1.0f) return ENCODING_MXFP8;
        return group % 128 == 0 ? ENCODING_E4M3_BLOCK128 : ENCODING_NONE;
    case QUANTISED_E2M1:
        *why = "with blocks that no encoding has";
        if (matrix->scale.type == QUANTISED_E8M0 && group == 32 && matrix->global == 1.0f) return ENCODING_MXFP4;
        return matrix->scale.type == QUANTISED_E4M3_SCALE && group == 16 ? ENCODING_NVFP4 : ENCODING_NONE;
    }
    if (found == ENCODING_NONE || found == ENCODING_INT8_CHANNEL) return found;
    *why = "with scales that are not exact in float16";
    return scales_fit_f16(matrix, order) ? found : ENCODING_NONE;
}

/* One that holds the codes of both. */
static enum encoding_id common(enum encoding_id a, enum encoding_id b)
{
    const struct encoding *left = encoding_find(a), *right = encoding_find(b);
    if (a == b) return a;
    if (!left || !right || left->code != right->code || left->scale != SCALE_F16 || right->scale != SCALE_F16)
        return ENCODING_NONE;
    for (size_t i = 0; encoding_at(i); i++) {
        const struct encoding *each = encoding_at(i);
        if (each->code == left->code && each->scale == SCALE_F16 && each->zeros == (left->zeros || right->zeros) &&
            each->block_columns == (left->block_columns < right->block_columns ? left : right)->block_columns)
            return each->id;
    }
    return ENCODING_NONE;
}

/* Whether ranks can each have whole groups of the encoding. */
static bool coded_splits(const struct graph_weight *weight, enum encoding_id encoding, uint32_t ranks)
{
    const uint32_t group = encoding_find(encoding)->block_columns;
    for (int i = 0; group && i < weight->source_count; i++) {
        const struct weight_source *source = &weight->sources[i];
        if ((!source->transposed && source->first_column % group) || /* codes of transposed sources are not kept */
            (ranks > 1 && source->rank_columns < source->columns && source->rank_columns % group))
            return false;
    }
    return true;
}

enum encoding_id coded_that_splits(const struct graph_weight *weight, enum encoding_id encoding, uint32_t ranks)
{
    while (encoding != ENCODING_NONE && !coded_splits(weight, encoding, ranks)) {
        const struct encoding *now = encoding_find(encoding), *smaller = NULL;
        for (size_t i = 0; encoding_at(i); i++) {
            const struct encoding *each = encoding_at(i);
            if (each->code == now->code && each->scale == now->scale && each->zeros == now->zeros &&
                each->scale == SCALE_F16 && each->block_columns * 2 == now->block_columns)
                smaller = each;
        }
        encoding = smaller ? smaller->id : ENCODING_NONE;
    }
    return encoding;
}

enum encoding_id coded_encoding(const struct graph_weight *weight, const struct checkpoint *checkpoint, uint32_t ranks,
                                bool exactly, const char **why)
{
    enum encoding_id found = ENCODING_NONE;
    for (int i = 0; i < weight->source_count; i++) {
        const struct weight_source *source = &weight->sources[i];
        const struct tensor_view *tensor = source->tensor ? checkpoint_find(checkpoint, source->tensor) : NULL;
        *why = "joined with others that have no codes";
        if (!tensor || !tensor->quantised) return ENCODING_NONE;
        *why = "that are transposed or whose elements are changed";
        if (!source_is_exact(source) || source->transposed) return ENCODING_NONE;
        const enum encoding_id own = encoding_of(tensor->quantised, source->column_order, exactly, why);
        if (own == ENCODING_NONE) return own;
        found = i == 0 ? own : common(found, own);
        *why = "joined with others that have other codes";
        if (found == ENCODING_NONE) return found;
    }
    *why = "whose groups would be divided";
    return coded_that_splits(weight, found, ranks);
}

/* ---- rows ---- */

bool coded_row_open(struct coded_row *row, const struct panel_form *form, uint64_t columns)
{
    const uint64_t groups = form->group ? columns / form->group + 1 : 1;
    *row = (struct coded_row){.codes = malloc(columns + 1),
                              .scales = malloc(groups * sizeof(float)),
                              .zeros = malloc(groups),
                              .factor = 1};
    if (row->codes && row->scales && row->zeros) return true;
    coded_row_close(row);
    return false;
}

void coded_row_close(struct coded_row *row)
{
    free(row->codes);
    free(row->scales);
    free(row->zeros);
    *row = (struct coded_row){0};
}

/* The code of a number (an element without its scale); false where there is none. */
static bool code_of(const struct encoding *encoding, float number, int zero, uint8_t *code)
{
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_INT8: {
        const float shifted = number + (encoding->zeros ? (float)(int8_t)zero : 0);
        if (!(shifted >= -128.25f && shifted <= 127.25f)) return false;
        *code = (uint8_t)(int8_t)lrintf(shifted);
        return true;
    }
    case CODE_UINT4: {
        const float shifted = number + (float)zero;
        if (!(shifted >= -0.5f && shifted < 15.5f)) return false;
        *code = (uint8_t)lrintf(shifted);
        return true;
    }
    case CODE_E4M3: *code = e4m3_from_float(number); return true;
    case CODE_E2M1: *code = e2m1_from_float(number); return true;
    case CODE_TABLE: *code = table_from_float(encoding->table, number); return true;
    }
    return false;
}

float coded_number(const struct encoding *encoding, uint8_t code, int zero)
{
    switch (encoding->code) {
    case CODE_FLOAT: break;
    case CODE_INT8: return (float)((int8_t)code - (encoding->zeros ? (int8_t)zero : 0));
    case CODE_UINT4: return (float)(code - zero);
    case CODE_E4M3: return e4m3_to_float(code);
    case CODE_E2M1: return e2m1_to_float(code);
    case CODE_TABLE: return encoding->table[code];
    }
    return 0;
}

bool coded_from_quantised(const struct panel_form *form, const struct quantised *matrix,
                          const struct weight_source *source, uint64_t row, uint64_t first, uint64_t count,
                          const float *values, struct coded_row *to, uint64_t *refused)
{
    const struct encoding *encoding = form->encoding;
    const uint64_t step = form->group ? form->group : count;
    to->factor = 1;
    for (uint64_t begin = 0; begin < count; begin += step) {
        const uint64_t element = source_element(source, row, first + begin);
        const struct quantised_group group =
            quantised_group_at(matrix, element / matrix->columns, element % matrix->columns);
        const uint64_t end = count - begin < step ? count : begin + step;
        const float scale = group.scale * matrix->global; /* as quantised_read has it */
        /* Unsigned codes of 8 bits become signed ones. */
        const int less = encoding->code == CODE_INT8 && matrix->code == QUANTISED_UNSIGNED ? 128 : 0;
        const int zero = matrix->added ? zero_of_added(&group, false) : encoding->zeros ? group.zero - less : 8;
        const float shift = matrix->added ? group.added + (float)zero * scale : 0, most = fabsf(shift) * 1.01f;
        if (!form->group)
            to->factor = scale;
        else if (encoding->global)
            to->scales[begin / step] = group.scale, to->factor = matrix->global;
        else
            to->scales[begin / step] = scale;
        to->zeros[form->group ? begin / step : 0] = (uint8_t)zero;
        for (uint64_t i = begin; i < end; i++) {
            const float number = scale == 0 ? 0 : (values[i] - shift) / scale;
            if (isfinite(values[i]) && code_of(encoding, number, zero, &to->codes[i]) &&
                fabsf(coded_number(encoding, to->codes[i], zero) * scale - values[i]) <= most)
                continue;
            *refused = i;
            return false;
        }
    }
    return true;
}
