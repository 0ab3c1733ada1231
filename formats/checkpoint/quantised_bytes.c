/* SPDX-License-Identifier: Apache-2.0 */
/* Codes that are bytes, int8 or e4m3, and codes of e2m1, two in a byte: compressed-tensors, FP8, ModelOpt, gpt-oss. */
#include "formats/checkpoint/quantised_module.h"

#include <math.h>
#include <stdio.h>

static bool read_scalar(const struct quantised_reading *reading, const struct tensor_view *tensor, float *value)
{
    char found[160];
    quantised_shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_F32 || quantised_elements(tensor) != 1)
        return quantised_fail(reading, tensor, "one F32", found);
    memcpy(value, tensor->data, sizeof *value);
    if (isfinite(*value) && *value > 0) return true;
    snprintf(found, sizeof found, "%g", (double)*value);
    return quantised_fail(reading, tensor, "a scale above 0", found);
}

/* A scheme of compressed-tensors or ModelOpt must have such codes and, if it has groups, these scales; integers of fewer bits may lie
 * in bytes. Other methods have one kind. */
static bool check_kind(const struct quantised_reading *reading, const struct quantised *matrix,
                       const struct tensor_view *scales, bool symmetric)
{
    const struct quant_config *config = reading->config;
    const struct quant_scheme *likely = NULL; /* but for its groups */
    const bool is_float = matrix->code != QUANTISED_INT8;
    const uint32_t bits = matrix->codes.bits;
    if (config->method != QUANT_COMPRESSED_TENSORS && config->method != QUANT_MODELOPT) return true;
    for (int i = 0; i < config->scheme_count; i++) {
        const struct quant_scheme *scheme = &config->schemes[i];
        if (scheme->is_float != is_float) continue;
        if (is_float ? scheme->bits != bits : scheme->bits > bits || scheme->symmetric != symmetric) continue;
        if (quantised_has_group(matrix, scheme)) return true;
        likely = scheme;
    }
    if (likely) return quantised_check_group(reading, matrix, scales, likely);
    return quantised_fail(reading, reading->main, "codes of a group of quantization_config",
                          is_float    ? "floats of another size"
                          : symmetric ? "integers without zero points"
                                      : "integers with zero points");
}

/* ---- codes of 8 bits, each element a byte ---- */

/* Columns of a group: those of MX, or of a scheme with as many groups as there are scales. 0: scales have another shape. */
static uint64_t group_of_scales(const struct quantised_reading *reading, const struct quantised *matrix,
                                const struct tensor_view *scales)
{
    const bool e8m0 = scales->dtype == DTYPE_U8 || scales->dtype == DTYPE_F8_E8M0;
    if (e8m0 && quantised_has_shape(scales, matrix->rows, quantised_divide_up(matrix->columns, 32))) return 32;
    for (int i = 0; i < reading->config->scheme_count; i++) {
        const struct quant_scheme *scheme = &reading->config->schemes[i];
        if (scheme->is_float == (matrix->code == QUANTISED_E4M3) && scheme->group_size &&
            matrix->columns % scheme->group_size == 0 &&
            quantised_has_shape(scales, matrix->rows, matrix->columns / scheme->group_size))
            return scheme->group_size;
    }
    return 0;
}

bool quantised_read_bytes(struct quantised_reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main;
    const bool is_int = codes->dtype == DTYPE_I8;
    const struct tensor_view *scales = NULL, *zeros = NULL;
    static const char *const suffixes[] = {".weight_scale_inv", ".weight_scale", ".scale", ".SCB"};
    for (size_t i = 0; !scales && i < sizeof suffixes / sizeof *suffixes; i++)
        scales = quantised_find(reading, suffixes[i]);
    if (!scales && !(scales = quantised_need(reading, ".weight_scale"))) return false;
    if (!quantised_check_matrix(reading, codes, 1u << codes->dtype)) return false;
    *matrix = (struct quantised){.container = is_int ? "int8" : "fp8",
                                 .rows = codes->shape[0],
                                 .columns = codes->shape[1],
                                 .code = is_int ? QUANTISED_INT8 : QUANTISED_E4M3,
                                 .codes = {codes->data, ORDER_ROWS, false, 8, codes->shape[1], 0},
                                 .global = 1};
    if (reading->config->method == QUANT_BITSANDBYTES) { /* SCB: the largest magnitude of a row, as 127 */
        const struct tensor_view *format = quantised_find(reading, ".weight_format");
        if (format && (format->bytes != 1 || *(const uint8_t *)format->data != 0))
            return quantised_fail(reading, format, "row by row (0)", "another order");
        matrix->global = 1.0f / 127;
    }
    if (!quantised_set_scales(reading, matrix, scales,
                              is_int ? QUANTISED_ANY_FLOAT : QUANTISED_ANY_FLOAT | QUANTISED_ANY_E8M0,
                              group_of_scales(reading, matrix, scales)))
        return false;
    zeros = is_int ? quantised_find(reading, ".weight_zero_point") : NULL;
    if (!check_kind(reading, matrix, scales, !zeros)) return false;
    if (!zeros) return true;
    matrix->zeros = (struct quantised_plane){zeros->data, ORDER_ROWS, false, 8, matrix->scale.pitch, 0};
    if (quantised_elements(scales) == 1) { /* of all rows */
        matrix->zeros.pitch = 0;
        return quantised_check_dtype(reading, zeros, 1u << DTYPE_I8) &&
               (quantised_elements(zeros) == 1 || quantised_fail(reading, zeros, "one zero point", "others"));
    }
    if (matrix->scale.block_rows != 1) return quantised_fail(reading, zeros, "scales of groups or rows", "others");
    return quantised_check_shape(reading, zeros, 1u << DTYPE_I8, matrix->rows, matrix->scale.pitch);
}

/* ---- codes of e2m1, two in a byte ---- */

bool quantised_read_e2m1(struct quantised_reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = quantised_need(reading, ".weight_scale");
    const struct tensor_view *divisor = quantised_find(reading, ".weight_global_scale"),
                             *factor = quantised_find(reading, ".weight_scale_2");
    if (!scales || !quantised_check_matrix(reading, codes, 1u << DTYPE_U8)) return false;
    *matrix = (struct quantised){.container = divisor || factor ? "nvfp4" : "mxfp4",
                                 .rows = codes->shape[0],
                                 .columns = codes->shape[1] * 2,
                                 .code = QUANTISED_E2M1,
                                 .codes = {codes->data, ORDER_ROWS, false, 4, codes->shape[1], 0},
                                 .global = 1};
    const uint64_t group = divisor || factor ? 16 : 32;
    if (divisor && !read_scalar(reading, divisor, &matrix->global)) return false;
    if (divisor && !isfinite(1 / matrix->global))
        return quantised_fail(reading, divisor, "a scale that can be divided by", "one that is too small");
    if (divisor) matrix->global = 1 / matrix->global;
    if (factor && !read_scalar(reading, factor, &matrix->global)) return false;
    return quantised_check_shape(reading, scales, group == 16 ? 1u << DTYPE_F8_E4M3 : QUANTISED_ANY_E8M0, matrix->rows,
                                 quantised_divide_up(matrix->columns, group)) &&
           quantised_set_scales(reading, matrix, scales, group == 16 ? 1u << DTYPE_F8_E4M3 : QUANTISED_ANY_E8M0,
                                group) &&
           check_kind(reading, matrix, scales, true);
}

/* gpt-oss: experts one after the other, [experts, rows, groups, 16] bytes. */
bool quantised_read_experts(struct quantised_reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = quantised_need(reading, "_scales");
    char found[160];
    if (!scales) return false;
    quantised_shape_text(codes, found, sizeof found);
    const uint64_t *shape = codes->shape;
    if (codes->dtype != DTYPE_U8 || codes->rank != 4 || shape[3] != 16 || !shape[0] || !shape[1] || !shape[2] ||
        shape[0] > QUANTISED_MAX_SIDE / shape[1] || shape[2] > QUANTISED_MAX_SIDE / 32)
        return quantised_fail(reading, codes, "U8 [experts, rows, columns / 32, 16]", found);
    quantised_shape_text(scales, found, sizeof found);
    if (!quantised_check_dtype(reading, scales, QUANTISED_ANY_E8M0)) return false;
    if (scales->rank != 3 || memcmp(scales->shape, shape, 3 * sizeof *shape) != 0)
        return quantised_fail(reading, scales, "one scale for each block of 16 bytes", found);
    *matrix = (struct quantised){.container = "mxfp4",
                                 .rows = shape[0] * shape[1],
                                 .columns = shape[2] * 32,
                                 .code = QUANTISED_E2M1,
                                 .codes = {codes->data, ORDER_ROWS, false, 4, shape[2] * 16, 0},
                                 .global = 1};
    matrix->scale.type = QUANTISED_E8M0, matrix->scale.data = scales->data, matrix->scale.pitch = shape[2];
    matrix->scale.block_rows = 1, matrix->scale.block_columns = 32;
    return quantised_check_scales(reading, matrix, scales, quantised_elements(scales));
}
