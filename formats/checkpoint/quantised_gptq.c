/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quantised_module.h"

/* The scheme of the configuration that the shapes agree with; NULL: none. */
static const struct quant_scheme *gptq_scheme(const struct quantised_reading *reading, const struct tensor_view *codes,
                                              const struct tensor_view *scales, const struct tensor_view *zeros,
                                              const struct tensor_view *groups, uint64_t *columns, uint64_t *size)
{
    const uint64_t rows = codes->shape[1];
    for (int i = 0; i < reading->config->scheme_count; i++) {
        const struct quant_scheme *scheme = &reading->config->schemes[i];
        if (scheme->is_float) continue;
        *columns = groups ? quantised_elements(groups) : codes->shape[0] * 32 / scheme->bits;
        if (!*columns || *columns > QUANTISED_MAX_SIDE) continue;
        *size = scheme->group_size ? scheme->group_size : *columns;
        if (quantised_words(*columns, scheme->bits) == codes->shape[0] &&
            (!zeros || zeros->shape[1] == quantised_words(rows, scheme->bits)) &&
            scales->shape[0] == quantised_divide_up(*columns, *size))
            return scheme;
    }
    return NULL;
}

/* AutoGPTQ wrote a zero point 0 as all ones, with a borrow from the elements above it. */
static bool check_borrows(const struct quantised_reading *reading, const struct tensor_view *zeros, uint32_t bits)
{
    if (reading->config->by_gptqmodel) return true;
    for (uint64_t i = 0; i < quantised_elements(zeros); i++)
        if (quantised_word(zeros, i) >> (32 - bits) == (1u << bits) - 1)
            return quantised_fail(reading, zeros, "zero points above 0",
                                  "a word that AutoGPTQ damaged: quantise again with GPTQModel");
    return true;
}

static bool set_gptq_zeros(const struct quantised_reading *reading, struct quantised *matrix,
                           const struct tensor_view *zeros, const struct quant_scheme *scheme)
{
    const uint32_t bits = scheme->bits;
    matrix->zero = 1u << (bits - 1);
    if (!zeros) return true;
    matrix->zeros = (struct quantised_plane){zeros->data, ORDER_ROWS, true, bits, zeros->shape[1] * 4, 0};
    /* What symmetric zeros say is known, since versions 1 and 2 are confused in real files. */
    const bool decide = reading->config->zeros_decide;
    if (decide ? quantised_has_middle_zeros(matrix, zeros->shape[0]) : scheme->symmetric)
        return quantised_drop_zeros(reading, matrix, zeros, zeros->shape[0], true);
    if (!reading->config->zeros_less_one) return true;
    if (32 % bits) {
        matrix->zero_add = 1;
        return true;
    }
    /* One in every element of a word, added with the carries that undo the borrows of the writer. */
    matrix->zeros.word_add = UINT32_MAX / ((1u << bits) - 1);
    return check_borrows(reading, zeros, bits);
}

bool quantised_read_gptq(struct quantised_reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = quantised_need(reading, ".scales");
    const struct tensor_view *zeros = quantised_find(reading, ".qzeros"), *groups = quantised_find(reading, ".g_idx");
    uint64_t columns, size;
    if (!scales || !quantised_check_matrix(reading, codes, 1u << DTYPE_I32) ||
        !quantised_check_matrix(reading, scales, QUANTISED_ANY_FLOAT) ||
        (zeros && !quantised_check_matrix(reading, zeros, 1u << DTYPE_I32)))
        return false;
    const struct quant_scheme *scheme = gptq_scheme(reading, codes, scales, zeros, groups, &columns, &size);
    if (!scheme) {
        char found[160];
        quantised_shape_text(codes, found, sizeof found);
        return quantised_fail(reading, codes,
                              "shapes of qweight, qzeros, scales and g_idx that fit bits and group_size", found);
    }
    if (!zeros && !scheme->symmetric && !reading->config->zeros_decide && !quantised_need(reading, ".qzeros"))
        return false;
    if (!groups && scheme->act_order && size < columns && !quantised_need(reading, ".g_idx")) return false;
    *matrix = (struct quantised){.container = "GPTQ",
                                 .rows = codes->shape[1],
                                 .columns = columns,
                                 .code = QUANTISED_UNSIGNED,
                                 .codes = {codes->data, ORDER_COLUMNS, true, scheme->bits, codes->shape[1], 0},
                                 .global = 1};
    if (!quantised_check_shape(reading, scales, QUANTISED_ANY_FLOAT, quantised_divide_up(columns, size),
                               matrix->rows) ||
        (zeros && !quantised_check_shape(reading, zeros, 1u << DTYPE_I32, scales->shape[0],
                                         quantised_words(matrix->rows, scheme->bits))) ||
        !quantised_set_scale_type(reading, matrix, scales, QUANTISED_ANY_FLOAT))
        return false;
    matrix->scale.transposed = true, matrix->scale.pitch = matrix->rows;
    matrix->scale.block_rows = 1, matrix->scale.block_columns = size;
    return quantised_check_scales(reading, matrix, scales, quantised_elements(scales)) &&
           set_gptq_zeros(reading, matrix, zeros, scheme) &&
           (!groups || quantised_set_groups(reading, matrix, groups, size));
}
