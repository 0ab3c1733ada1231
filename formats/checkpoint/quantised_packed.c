/* SPDX-License-Identifier: Apache-2.0 */
/* compressed-tensors: integers packed into words. */
#include "formats/checkpoint/quantised_module.h"

/* The scheme that the words of a row agree with, if possible one that scales and zeros agree with, too; `dense`: elements
 * follow each other across words. */
static const struct quant_scheme *packed_scheme(const struct quantised_reading *reading, const uint64_t sides[2],
                                                uint64_t row_words, uint64_t scale_count, bool symmetric, bool *dense)
{
    for (int all = 1; all >= 0; all--)
        for (int i = 0; i < reading->config->scheme_count; i++) {
            const struct quant_scheme *scheme = &reading->config->schemes[i];
            const uint64_t groups = scheme->group_size ? quantised_divide_up(sides[1], scheme->group_size) : 1;
            if (scheme->is_float || (all && (scheme->symmetric != symmetric || sides[0] * groups != scale_count)))
                continue;
            *dense = row_words == quantised_words(sides[1], scheme->bits);
            if (*dense || row_words == quantised_divide_up(sides[1], 32 / scheme->bits)) return scheme;
        }
    return NULL;
}

static bool read_sides(const struct quantised_reading *reading, const struct tensor_view *tensor, uint64_t sides[2])
{
    char found[160];
    quantised_shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_I64 || quantised_elements(tensor) != 2)
        return quantised_fail(reading, tensor, "two I64", found);
    memcpy(sides, tensor->data, 2 * sizeof *sides);
    if (sides[0] > 0 && sides[0] <= QUANTISED_MAX_SIDE && sides[1] > 0 && sides[1] <= QUANTISED_MAX_SIDE) return true;
    return quantised_fail(reading, tensor, "rows and columns of a matrix", "other numbers");
}

bool quantised_read_packed(struct quantised_reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = quantised_need(reading, ".weight_scale");
    const struct tensor_view *shape = quantised_need(reading, ".weight_shape"),
                             *zeros = quantised_find(reading, ".weight_zero_point");
    const struct tensor_view *groups = quantised_find(reading, ".weight_g_idx");
    uint64_t sides[2];
    bool dense;
    if (!scales || !shape || !read_sides(reading, shape, sides) ||
        !quantised_check_matrix(reading, codes, 1u << DTYPE_I32))
        return false;
    const struct quant_scheme *scheme =
        packed_scheme(reading, sides, codes->shape[1], quantised_elements(scales), !zeros, &dense);
    char found[160];
    quantised_shape_text(codes, found, sizeof found);
    if (!scheme || codes->shape[0] != sides[0])
        return quantised_fail(reading, codes, "rows of words that fit num_bits and weight_shape", found);
    *matrix = (struct quantised){.container = "pack-quantized",
                                 .rows = sides[0],
                                 .columns = sides[1],
                                 .code = QUANTISED_UNSIGNED,
                                 .codes = {codes->data, dense ? ORDER_ROWS : ORDER_WORDS, false, scheme->bits,
                                           codes->shape[1] * 4, 0},
                                 .zero = 1u << (scheme->bits - 1),
                                 .global = 1};
    uint64_t group = scheme->group_size; /* 0: as the scales have it */
    if (!group && scales->rank == 2 && scales->shape[1] > 1 && sides[1] % scales->shape[1] == 0)
        group = sides[1] / scales->shape[1];
    if (!quantised_set_scales(reading, matrix, scales, QUANTISED_ANY_FLOAT, group) ||
        !quantised_check_group(reading, matrix, scales, scheme))
        return false;
    if (!groups && scheme->act_order && group && group < sides[1] && !quantised_need(reading, ".weight_g_idx"))
        return false;
    if (zeros && scheme->symmetric) return quantised_fail(reading, zeros, "no zero points (symmetric is true)", "some");
    if (!zeros && !scheme->symmetric && !quantised_need(reading, ".weight_zero_point")) return false;
    if (zeros) {
        const uint64_t pitch = matrix->scale.pitch;
        if (matrix->scale.block_rows != 1) return quantised_fail(reading, zeros, "scales of groups or rows", "others");
        const uint64_t words =
            dense ? quantised_words(matrix->rows, scheme->bits) : quantised_divide_up(matrix->rows, 32 / scheme->bits);
        if (!quantised_check_shape(reading, zeros, 1u << DTYPE_I32, words, pitch)) return false;
        matrix->zeros = (struct quantised_plane){zeros->data, dense ? ORDER_COLUMNS : ORDER_COLUMN_WORDS,
                                                 false,       scheme->bits,
                                                 pitch,       0};
    }
    return !groups || quantised_set_groups(reading, matrix, groups, matrix->scale.block_columns);
}
