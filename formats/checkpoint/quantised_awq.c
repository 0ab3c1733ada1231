/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quantised_module.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Groups of a row with the padding of gemv and gemv_fast: words of 8, as many as a thread block reads. */
static uint64_t padded_groups(uint64_t groups, uint64_t size)
{
    const uint64_t multiple = size >= 128 ? 1 : size >= 64 ? 2 : 4;
    return quantised_divide_up(quantised_divide_up(groups, 8), multiple) * multiple * 8;
}

/* Columns of a group: of a scheme with as many groups as there are scales. */
static uint64_t awq_group(const struct quantised_reading *reading, uint64_t columns, uint64_t groups, bool padded)
{
    for (int i = 0; i < reading->config->scheme_count; i++) {
        const uint64_t size = reading->config->schemes[i].group_size ? reading->config->schemes[i].group_size : columns;
        const uint64_t needed = quantised_divide_up(columns, size);
        if (reading->config->schemes[i].bits == 4 && groups == (padded ? padded_groups(needed, size) : needed))
            return size;
    }
    return 0;
}

/* For a symmetric scheme: the numbers that are added are -8 times the scales, but for the rounding to float16. */
static bool check_middle(const struct quantised_reading *reading, const struct quantised *matrix,
                         const struct quantised *addends, const struct tensor_view *zeros)
{
    for (uint64_t i = 0; i < quantised_elements(zeros); i++) {
        const float expected = -8 * quantised_scale(matrix, i), number = quantised_scale(addends, i);
        if (fabsf(number - expected) <= fabsf(expected) * 0x1p-10f) continue;
        char found[64];
        snprintf(found, sizeof found, "%g at element %" PRIu64, (double)number, i);
        return quantised_fail(reading, zeros, "-8 times the scales (zero_point is false)", found);
    }
    return true;
}

bool quantised_read_awq(struct quantised_reading *reading, struct quantised *matrix)
{
    const enum quant_order order = reading->config->order;
    const bool fast = order == QUANT_GEMV_FAST, gemm = order == QUANT_GEMM;
    const struct tensor_view *codes = reading->main, *scales = quantised_need(reading, ".scales");
    const struct tensor_view *zeros = quantised_find(reading, ".qzeros");
    if (fast && !zeros) zeros = quantised_find(reading, ".scaled_zeros");
    const bool symmetric = reading->config->schemes[0].symmetric, optional = gemm && symmetric;
    if (!scales || (!zeros && !optional && !(zeros = quantised_need(reading, ".qzeros"))) ||
        !quantised_check_matrix(reading, codes, 1u << (fast ? DTYPE_I16 : DTYPE_I32)) ||
        !quantised_check_matrix(reading, scales, 1u << DTYPE_F16 | 1u << DTYPE_BF16))
        return false;
    const uint64_t a = codes->shape[0], b = codes->shape[1];
    *matrix = (struct quantised){.container = "AWQ",
                                 .rows = gemm   ? b * 8
                                         : fast ? a * 4
                                                : a,
                                 .columns = gemm   ? a
                                            : fast ? b
                                                   : b * 8,
                                 .code = QUANTISED_UNSIGNED,
                                 .codes = {codes->data,
                                           gemm   ? ORDER_AWQ
                                           : fast ? ORDER_AWQ_FAST
                                                  : ORDER_ROWS,
                                           gemm, 4, b * (fast ? 2 : 4), 0},
                                 .zero = gemm ? 8 : 0,
                                 .global = 1};
    const uint64_t rows = matrix->rows, columns = matrix->columns, groups = scales->shape[gemm || fast ? 0 : 1];
    const uint64_t size = awq_group(reading, columns, groups, !gemm);
    if (!size || rows > QUANTISED_MAX_SIDE || columns > QUANTISED_MAX_SIDE || (fast && columns % 64)) {
        char found[160];
        quantised_shape_text(codes, found, sizeof found);
        return quantised_fail(reading, codes, "shapes of qweight and scales that fit group_size", found);
    }
    const bool by_group = gemm || fast;
    if (!quantised_check_shape(reading, scales, 1u << DTYPE_F16 | 1u << DTYPE_BF16, by_group ? groups : rows,
                               by_group ? rows : groups) ||
        !quantised_set_scale_type(reading, matrix, scales, QUANTISED_ANY_FLOAT))
        return false;
    matrix->scale.transposed = by_group, matrix->scale.pitch = scales->shape[1];
    matrix->scale.block_rows = 1, matrix->scale.block_columns = size;
    if (!quantised_check_scales(reading, matrix, scales, quantised_elements(scales))) return false;
    if (fast) {
        if (!quantised_check_shape(reading, zeros, 1u << DTYPE_F16, groups, rows)) return false;
        const struct quantised addends = {.scale = {.type = QUANTISED_F16, .data = zeros->data}};
        matrix->added = zeros->data;
        return quantised_check_scales(reading, &addends, zeros, quantised_elements(zeros)) &&
               (!symmetric || reading->config->zeros_decide || check_middle(reading, matrix, &addends, zeros));
    }
    if (!zeros) return true;
    matrix->zeros = (struct quantised_plane){zeros->data, matrix->codes.order, gemm, 4, zeros->shape[1] * 4, 0};
    if (!(gemm ? quantised_check_shape(reading, zeros, 1u << DTYPE_I32, groups, b)
               : quantised_check_shape(reading, zeros, 1u << DTYPE_I32, rows, quantised_divide_up(groups, 8))))
        return false;
    /* Groups beyond the last column have none. */
    return !symmetric || reading->config->zeros_decide ||
           quantised_drop_zeros(reading, matrix, zeros, quantised_divide_up(columns, size), false);
}
