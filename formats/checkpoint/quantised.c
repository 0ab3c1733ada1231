/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quantised.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/file.h"
#include "formats/base/json.h"

enum { MAX_SIDE = INT32_MAX, MAX_NAME = 512, FP8_BLOCK = 128 };

/* The module at hand, and the state of all. */
struct reading {
    const struct quant_config *config;
    const struct tensor_view *tensors; /* [count] */
    size_t count;
    bool *used; /* [count]: belongs to a module, or is left out */
    struct quantised_tensors *result;
    size_t name_bytes;              /* used of result->names */
    const struct tensor_view *main; /* the tensor by whose name the module was found */
    char module[MAX_NAME];
    struct status *status;
};

#define ANY_FLOAT (1u << DTYPE_F32 | 1u << DTYPE_F16 | 1u << DTYPE_BF16)
#define E8M0      (1u << DTYPE_U8 | 1u << DTYPE_F8_E8M0)

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct tensor_view *)left)->name, ((const struct tensor_view *)right)->name);
}

static bool fail(const struct reading *reading, const struct tensor_view *tensor, const char *expected,
                 const char *found)
{
    return status_fail(reading->status, STATUS_BAD_INPUT, "checkpoint: tensor '%.200s': expected %s, found %s",
                       tensor->name, expected, found);
}

/* The module's tensor with this suffix, which then belongs to it; NULL: there is none. */
static const struct tensor_view *find(struct reading *reading, const char *suffix)
{
    char name[MAX_NAME + 64];
    snprintf(name, sizeof name, "%s%s", reading->module, suffix);
    const struct tensor_view key = {.name = name};
    const struct tensor_view *found =
        bsearch(&key, reading->tensors, reading->count, sizeof *reading->tensors, compare_names);
    if (found) reading->used[found - reading->tensors] = true;
    return found;
}

static const struct tensor_view *need(struct reading *reading, const char *suffix)
{
    const struct tensor_view *found = find(reading, suffix);
    if (!found)
        status_fail(reading->status, STATUS_BAD_INPUT,
                    "checkpoint: tensor '%s%s' is missing; it belongs to '%.200s' (quant_method '%s')", reading->module,
                    suffix, reading->main->name, reading->config->name);
    return found;
}

static uint64_t elements(const struct tensor_view *tensor)
{
    uint64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i]; /* checked when the header was read */
    return count;
}

static void shape_text(const struct tensor_view *tensor, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%s [", dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, i ? ", %" PRIu64 : "%" PRIu64, tensor->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
}

static bool has_shape(const struct tensor_view *tensor, uint64_t rows, uint64_t columns)
{
    return tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns;
}

/* dtypes: bits 1 << enum dtype. */
static bool check_dtype(const struct reading *reading, const struct tensor_view *tensor, unsigned dtypes)
{
    char expected[64] = "";
    if (dtypes >> tensor->dtype & 1) return true;
    for (int i = 1; i < DTYPE_COUNT; i++)
        if (dtypes >> i & 1)
            snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%s", *expected ? " or " : "",
                     dtype_name((enum dtype)i));
    return fail(reading, tensor, expected, dtype_name(tensor->dtype));
}

static bool check_shape(const struct reading *reading, const struct tensor_view *tensor, unsigned dtypes, uint64_t rows,
                        uint64_t columns)
{
    char expected[64], found[160];
    if (!check_dtype(reading, tensor, dtypes)) return false;
    if (has_shape(tensor, rows, columns)) return true;
    snprintf(expected, sizeof expected, "the shape [%" PRIu64 ", %" PRIu64 "]", rows, columns);
    shape_text(tensor, found, sizeof found);
    return fail(reading, tensor, expected, found);
}

/* A matrix whose sides are no larger than any model's, so that no product below overflows. */
static bool check_matrix(const struct reading *reading, const struct tensor_view *tensor, unsigned dtypes)
{
    char found[160];
    if (!check_dtype(reading, tensor, dtypes)) return false;
    if (tensor->rank == 2 && tensor->shape[0] > 0 && tensor->shape[0] <= MAX_SIDE && tensor->shape[1] > 0 &&
        tensor->shape[1] <= MAX_SIDE)
        return true;
    shape_text(tensor, found, sizeof found);
    return fail(reading, tensor, "a matrix", found);
}

static uint64_t divide_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
static uint64_t words(uint64_t count, uint32_t bits) { return divide_up(count * bits, 32); }

static uint32_t word(const struct tensor_view *tensor, uint64_t index)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)tensor->data + 4 * index, sizeof value);
    return value;
}

static bool read_scalar(const struct reading *reading, const struct tensor_view *tensor, float *value)
{
    char found[160];
    shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_F32 || elements(tensor) != 1) return fail(reading, tensor, "one F32", found);
    memcpy(value, tensor->data, sizeof *value);
    if (isfinite(*value) && *value > 0) return true;
    snprintf(found, sizeof found, "%g", (double)*value);
    return fail(reading, tensor, "a scale above 0", found);
}

/* ---- scales ---- */

static bool scales_are_finite(const struct reading *reading, const struct quantised *matrix,
                              const struct tensor_view *tensor, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const float scale = quantised_scale(matrix, i);
        if (isfinite(scale)) continue;
        char found[64];
        snprintf(found, sizeof found, "%g at element %" PRIu64, (double)scale, i);
        return fail(reading, tensor, "finite scales", found);
    }
    return true;
}

static bool set_scale_type(const struct reading *reading, struct quantised *matrix, const struct tensor_view *tensor,
                           unsigned dtypes)
{
    if (!check_dtype(reading, tensor, dtypes)) return false;
    matrix->scale.data = tensor->data;
    matrix->scale.type = tensor->dtype == DTYPE_F32       ? QUANTISED_F32
                         : tensor->dtype == DTYPE_F16     ? QUANTISED_F16
                         : tensor->dtype == DTYPE_BF16    ? QUANTISED_BF16
                         : tensor->dtype == DTYPE_F8_E4M3 ? QUANTISED_E4M3_SCALE
                                                          : QUANTISED_E8M0;
    return true;
}

/* One scale, one for every row, or one for every group of columns or block, as the shape says. group: columns of a group; 0:
 * there are none. */
static bool set_scales(const struct reading *reading, struct quantised *matrix, const struct tensor_view *tensor,
                       unsigned dtypes, uint64_t group)
{
    const struct quant_config *config = reading->config;
    const uint64_t rows = matrix->rows, columns = matrix->columns, count = elements(tensor);
    const uint64_t block_rows = config->block_rows ? config->block_rows : FP8_BLOCK;
    const uint64_t block_columns = config->block_columns ? config->block_columns : FP8_BLOCK;
    if (!set_scale_type(reading, matrix, tensor, dtypes)) return false;
    if (count == 1 && tensor->rank <= 2) {
        matrix->scale.block_rows = rows, matrix->scale.block_columns = columns, matrix->scale.pitch = 1;
    } else if (group && has_shape(tensor, rows, divide_up(columns, group))) {
        matrix->scale.block_rows = 1, matrix->scale.block_columns = group, matrix->scale.pitch = tensor->shape[1];
    } else if (has_shape(tensor, rows, 1) || (tensor->rank == 1 && tensor->shape[0] == rows)) {
        matrix->scale.block_rows = 1, matrix->scale.block_columns = columns, matrix->scale.pitch = 1;
    } else if (!group && has_shape(tensor, divide_up(rows, block_rows), divide_up(columns, block_columns))) {
        matrix->scale.block_rows = block_rows, matrix->scale.block_columns = block_columns;
        matrix->scale.pitch = tensor->shape[1];
    } else {
        char expected[160], found[160];
        snprintf(expected, sizeof expected,
                 "scales of a weight [%" PRIu64 ", %" PRIu64 "]: one, one a row, or one for %s of %" PRIu64 " columns",
                 rows, columns, group ? "every group" : "every block", group ? group : block_columns);
        shape_text(tensor, found, sizeof found);
        return fail(reading, tensor, expected, found);
    }
    return scales_are_finite(reading, matrix, tensor, count);
}

/* ---- groups ---- */

/* g_idx: the group of each column. Trivial where column / size is its group; otherwise each group has `size` columns, and the
 * last may have fewer. */
static bool set_groups(const struct reading *reading, struct quantised *matrix, const struct tensor_view *tensor,
                       uint64_t size)
{
    const uint64_t columns = matrix->columns, groups = divide_up(columns, size);
    char found[160];
    shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_I32 || tensor->rank != 1 || tensor->shape[0] != columns)
        return fail(reading, tensor, "one I32 a column of the weight", found);
    bool trivial = true;
    for (uint64_t k = 0; trivial && k < columns; k++) trivial = word(tensor, k) == k / size;
    if (trivial) return true;
    uint64_t *members = calloc(groups, sizeof *members);
    if (!members) return status_fail(reading->status, STATUS_MACHINE, "out of memory");
    bool ok = true;
    for (uint64_t k = 0; ok && k < columns; k++) {
        snprintf(found, sizeof found, "%" PRId32 " at column %" PRIu64, (int32_t)word(tensor, k), k);
        ok = word(tensor, k) < groups ? true : fail(reading, tensor, "groups that have scales", found);
        if (ok) members[word(tensor, k)]++;
    }
    for (uint64_t g = 0; ok && g < groups; g++) {
        const uint64_t expected = g + 1 < groups ? size : columns - g * size;
        snprintf(found, sizeof found, "%" PRIu64 " columns in group %" PRIu64, members[g], g);
        ok = members[g] == expected || fail(reading, tensor, "groups of group_size columns", found);
    }
    free(members);
    matrix->groups = tensor->data;
    return ok;
}

/* ---- GPTQ ---- */

/* The scheme of the configuration that the shapes agree with; NULL: none. */
static const struct quant_scheme *gptq_scheme(const struct reading *reading, const struct tensor_view *codes,
                                              const struct tensor_view *scales, const struct tensor_view *zeros,
                                              const struct tensor_view *groups, uint64_t *columns, uint64_t *size)
{
    const uint64_t rows = codes->shape[1];
    for (int i = 0; i < reading->config->scheme_count; i++) {
        const struct quant_scheme *scheme = &reading->config->schemes[i];
        if (scheme->is_float) continue;
        *columns = groups ? elements(groups) : codes->shape[0] * 32 / scheme->bits;
        if (!*columns || *columns > MAX_SIDE) continue;
        *size = scheme->group_size ? scheme->group_size : *columns;
        if (words(*columns, scheme->bits) == codes->shape[0] &&
            (!zeros || zeros->shape[1] == words(rows, scheme->bits)) && scales->shape[0] == divide_up(*columns, *size))
            return scheme;
    }
    return NULL;
}

/* Symmetric: what the zeros say is known, since versions 1 and 2 are confused in real files. */
static bool check_symmetric_zeros(const struct reading *reading, const struct tensor_view *zeros, uint64_t rows,
                                  uint32_t bits)
{
    const uint32_t middle = 1u << (bits - 1);
    const struct quantised probe = {.zeros = {zeros->data, ORDER_ROWS, true, bits, zeros->shape[1] * 4, 0}};
    uint32_t first = 0;
    for (uint64_t g = 0; g < zeros->shape[0]; g++)
        for (uint64_t n = 0; n < rows; n++) {
            const uint32_t zero = quantised_zero(&probe, n, g);
            if (g == 0 && n == 0) first = zero;
            if (zero == first && (zero == middle || zero == middle - 1)) continue;
            char found[96];
            snprintf(found, sizeof found, "%" PRIu32 " in group %" PRIu64 " of row %" PRIu64, zero, g, n);
            return fail(reading, zeros, "equal zero points in the middle (sym is true)", found);
        }
    return true;
}

/* AutoGPTQ wrote a zero point 0 as all ones, with a borrow from the elements above it. */
static bool check_borrows(const struct reading *reading, const struct tensor_view *zeros, uint32_t bits)
{
    if (reading->config->by_gptqmodel) return true;
    for (uint64_t i = 0; i < elements(zeros); i++)
        if (word(zeros, i) >> (32 - bits) == (1u << bits) - 1)
            return fail(reading, zeros, "zero points above 0",
                        "a word that AutoGPTQ damaged: quantise again with GPTQModel");
    return true;
}

static bool set_gptq_zeros(const struct reading *reading, struct quantised *matrix, const struct tensor_view *zeros,
                           const struct quant_scheme *scheme)
{
    const uint32_t bits = scheme->bits;
    matrix->zero = 1u << (bits - 1);
    if (scheme->symmetric) return !zeros || check_symmetric_zeros(reading, zeros, matrix->rows, bits);
    matrix->zeros = (struct quantised_plane){zeros->data, ORDER_ROWS, true, bits, zeros->shape[1] * 4, 0};
    if (!reading->config->zeros_less_one) return true;
    if (32 % bits) {
        matrix->zero_add = 1;
        return true;
    }
    /* One in every element of a word, added with the carries that undo the borrows of the writer. */
    matrix->zeros.word_add = UINT32_MAX / ((1u << bits) - 1);
    return check_borrows(reading, zeros, bits);
}

static bool read_gptq(struct reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = need(reading, ".scales");
    const struct tensor_view *zeros = find(reading, ".qzeros"), *groups = find(reading, ".g_idx");
    uint64_t columns, size;
    if (!scales || !check_matrix(reading, codes, 1u << DTYPE_I32) || !check_matrix(reading, scales, ANY_FLOAT) ||
        (zeros && !check_matrix(reading, zeros, 1u << DTYPE_I32)))
        return false;
    const struct quant_scheme *scheme = gptq_scheme(reading, codes, scales, zeros, groups, &columns, &size);
    if (!scheme) {
        char found[160];
        shape_text(codes, found, sizeof found);
        return fail(reading, codes, "shapes of qweight, qzeros, scales and g_idx that fit bits and group_size", found);
    }
    if (!zeros && !scheme->symmetric && !need(reading, ".qzeros")) return false;
    *matrix = (struct quantised){.container = "GPTQ",
                                 .rows = codes->shape[1],
                                 .columns = columns,
                                 .code = QUANTISED_UNSIGNED,
                                 .codes = {codes->data, ORDER_COLUMNS, true, scheme->bits, codes->shape[1], 0},
                                 .global = 1};
    if (!check_shape(reading, scales, ANY_FLOAT, divide_up(columns, size), matrix->rows) ||
        (zeros && !check_shape(reading, zeros, 1u << DTYPE_I32, scales->shape[0], words(matrix->rows, scheme->bits))) ||
        !set_scale_type(reading, matrix, scales, ANY_FLOAT))
        return false;
    matrix->scale.transposed = true, matrix->scale.pitch = matrix->rows;
    matrix->scale.block_rows = 1, matrix->scale.block_columns = size;
    return scales_are_finite(reading, matrix, scales, elements(scales)) &&
           set_gptq_zeros(reading, matrix, zeros, scheme) && (!groups || set_groups(reading, matrix, groups, size));
}

/* ---- AWQ ---- */

/* Columns of a group: of a scheme with as many groups as there are scales. */
static uint64_t awq_group(const struct reading *reading, uint64_t columns, uint64_t groups, bool padded)
{
    for (int i = 0; i < reading->config->scheme_count; i++) {
        const uint64_t size = reading->config->schemes[i].group_size ? reading->config->schemes[i].group_size : columns;
        const uint64_t needed = divide_up(columns, size);
        const bool fits = padded ? groups >= needed && groups % 8 == 0 : groups == needed;
        if (reading->config->schemes[i].bits == 4 && fits) return size;
    }
    return 0;
}

static bool read_awq(struct reading *reading, struct quantised *matrix)
{
    const enum quant_order order = reading->config->order;
    const bool fast = order == QUANT_GEMV_FAST, gemm = order == QUANT_GEMM;
    const struct tensor_view *codes = reading->main, *scales = need(reading, ".scales");
    const struct tensor_view *zeros = find(reading, ".qzeros");
    if (fast && !zeros) zeros = find(reading, ".scaled_zeros");
    const bool optional = gemm && reading->config->schemes[0].symmetric;
    if (!scales || (!zeros && !optional && !(zeros = need(reading, ".qzeros"))) ||
        !check_matrix(reading, codes, 1u << (fast ? DTYPE_I16 : DTYPE_I32)) ||
        !check_matrix(reading, scales, 1u << DTYPE_F16 | 1u << DTYPE_BF16))
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
    if (!size || rows > MAX_SIDE || columns > MAX_SIDE || (fast && columns % 64)) {
        char found[160];
        shape_text(codes, found, sizeof found);
        return fail(reading, codes, "shapes of qweight and scales that fit group_size", found);
    }
    const bool by_group = gemm || fast;
    if (!check_shape(reading, scales, 1u << DTYPE_F16 | 1u << DTYPE_BF16, by_group ? groups : rows,
                     by_group ? rows : groups) ||
        !set_scale_type(reading, matrix, scales, ANY_FLOAT))
        return false;
    matrix->scale.transposed = by_group, matrix->scale.pitch = scales->shape[1];
    matrix->scale.block_rows = 1, matrix->scale.block_columns = size;
    if (!scales_are_finite(reading, matrix, scales, elements(scales))) return false;
    if (fast) {
        if (!check_shape(reading, zeros, 1u << DTYPE_F16, groups, rows)) return false;
        const struct quantised addends = {.scale = {.type = QUANTISED_F16, .data = zeros->data}};
        matrix->added = zeros->data;
        return scales_are_finite(reading, &addends, zeros, elements(zeros));
    }
    if (!zeros) return true;
    matrix->zeros = (struct quantised_plane){zeros->data, matrix->codes.order, gemm, 4, zeros->shape[1] * 4, 0};
    return gemm ? check_shape(reading, zeros, 1u << DTYPE_I32, groups, b)
                : check_shape(reading, zeros, 1u << DTYPE_I32, rows, divide_up(groups, 8));
}

/* Groups of compressed-tensors must have such codes; integers of fewer bits may lie in bytes. Other methods have one kind. */
static bool check_kind(const struct reading *reading, bool is_float, uint32_t bits, bool symmetric)
{
    const struct quant_config *config = reading->config;
    if (config->method != QUANT_COMPRESSED_TENSORS) return true;
    for (int i = 0; i < config->scheme_count; i++) {
        const struct quant_scheme *scheme = &config->schemes[i];
        if (scheme->is_float != is_float) continue;
        if (is_float ? scheme->bits == bits : scheme->bits <= bits && scheme->symmetric == symmetric) return true;
    }
    return fail(reading, reading->main, "codes of a group of quantization_config",
                is_float    ? "floats of another size"
                : symmetric ? "integers without zero points"
                            : "integers with zero points");
}

/* ---- codes of 8 bits, each element a byte ---- */

static bool read_bytes(struct reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main;
    const bool is_int = codes->dtype == DTYPE_I8;
    const struct tensor_view *scales = NULL, *zeros = NULL;
    static const char *const suffixes[] = {".weight_scale_inv", ".weight_scale", ".scale", ".SCB"};
    for (size_t i = 0; !scales && i < sizeof suffixes / sizeof *suffixes; i++) scales = find(reading, suffixes[i]);
    if (!scales && !(scales = need(reading, ".weight_scale"))) return false;
    if (!check_matrix(reading, codes, 1u << codes->dtype)) return false;
    *matrix = (struct quantised){.container = is_int ? "int8" : "fp8",
                                 .rows = codes->shape[0],
                                 .columns = codes->shape[1],
                                 .code = is_int ? QUANTISED_INT8 : QUANTISED_E4M3,
                                 .codes = {codes->data, ORDER_ROWS, false, 8, codes->shape[1], 0},
                                 .global = 1};
    if (reading->config->method == QUANT_BITSANDBYTES) { /* SCB: the largest magnitude of a row, as 127 */
        const struct tensor_view *format = find(reading, ".weight_format");
        if (format && (format->bytes != 1 || *(const uint8_t *)format->data != 0))
            return fail(reading, format, "row by row (0)", "another order");
        matrix->global = 1.0f / 127;
    }
    const bool e8m0 = scales->dtype == DTYPE_U8 || scales->dtype == DTYPE_F8_E8M0;
    const bool mx = e8m0 && has_shape(scales, matrix->rows, divide_up(matrix->columns, 32));
    if (!set_scales(reading, matrix, scales, is_int ? ANY_FLOAT : ANY_FLOAT | E8M0, mx ? 32 : 0)) return false;
    zeros = is_int ? find(reading, ".weight_zero_point") : NULL;
    if (!check_kind(reading, !is_int, 8, !zeros)) return false;
    if (!zeros) return true;
    matrix->zeros = (struct quantised_plane){zeros->data, ORDER_ROWS, false, 8, matrix->scale.pitch, 0};
    if (matrix->scale.block_rows != 1 || matrix->scale.pitch != 1)
        return fail(reading, zeros, "one zero point a row", "others");
    return check_shape(reading, zeros, 1u << DTYPE_I8, matrix->rows, 1);
}

/* ---- codes of e2m1, two in a byte ---- */

static bool read_e2m1(struct reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = need(reading, ".weight_scale");
    const struct tensor_view *divisor = find(reading, ".weight_global_scale"),
                             *factor = find(reading, ".weight_scale_2");
    if (!scales || !check_matrix(reading, codes, 1u << DTYPE_U8) || !check_kind(reading, true, 4, true)) return false;
    *matrix = (struct quantised){.container = divisor || factor ? "nvfp4" : "mxfp4",
                                 .rows = codes->shape[0],
                                 .columns = codes->shape[1] * 2,
                                 .code = QUANTISED_E2M1,
                                 .codes = {codes->data, ORDER_ROWS, false, 4, codes->shape[1], 0},
                                 .global = 1};
    const uint64_t group = divisor || factor ? 16 : 32;
    if (divisor && (!read_scalar(reading, divisor, &matrix->global) || !isfinite(1 / matrix->global))) return false;
    if (divisor) matrix->global = 1 / matrix->global;
    if (factor && !read_scalar(reading, factor, &matrix->global)) return false;
    return check_shape(reading, scales, group == 16 ? 1u << DTYPE_F8_E4M3 : E8M0, matrix->rows,
                       divide_up(matrix->columns, group)) &&
           set_scales(reading, matrix, scales, group == 16 ? 1u << DTYPE_F8_E4M3 : E8M0, group);
}

/* gpt-oss: experts one after the other, [experts, rows, groups, 16] bytes. */
static bool read_mxfp4_experts(struct reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = need(reading, "_scales");
    char found[160];
    if (!scales) return false;
    shape_text(codes, found, sizeof found);
    const uint64_t *shape = codes->shape;
    if (codes->dtype != DTYPE_U8 || codes->rank != 4 || shape[3] != 16 || !shape[0] || !shape[1] || !shape[2] ||
        shape[0] > MAX_SIDE / shape[1] || shape[2] > MAX_SIDE / 32)
        return fail(reading, codes, "U8 [experts, rows, columns / 32, 16]", found);
    shape_text(scales, found, sizeof found);
    if (!check_dtype(reading, scales, E8M0)) return false;
    if (scales->rank != 3 || memcmp(scales->shape, shape, 3 * sizeof *shape) != 0)
        return fail(reading, scales, "one scale for each block of 16 bytes", found);
    *matrix = (struct quantised){.container = "mxfp4",
                                 .rows = shape[0] * shape[1],
                                 .columns = shape[2] * 32,
                                 .code = QUANTISED_E2M1,
                                 .codes = {codes->data, ORDER_ROWS, false, 4, shape[2] * 16, 0},
                                 .global = 1};
    matrix->scale.type = QUANTISED_E8M0, matrix->scale.data = scales->data, matrix->scale.pitch = shape[2];
    matrix->scale.block_rows = 1, matrix->scale.block_columns = 32;
    return scales_are_finite(reading, matrix, scales, elements(scales));
}

/* ---- compressed-tensors: integers packed into words ---- */

/* The scheme that the words of a row agree with, if possible one that scales and zeros agree with, too; `dense`: elements
 * follow each other across words. */
static const struct quant_scheme *packed_scheme(const struct reading *reading, const uint64_t sides[2],
                                                uint64_t row_words, uint64_t scale_count, bool symmetric, bool *dense)
{
    for (int all = 1; all >= 0; all--)
        for (int i = 0; i < reading->config->scheme_count; i++) {
            const struct quant_scheme *scheme = &reading->config->schemes[i];
            const uint64_t groups = scheme->group_size ? divide_up(sides[1], scheme->group_size) : 1;
            if (scheme->is_float || (all && (scheme->symmetric != symmetric || sides[0] * groups != scale_count)))
                continue;
            *dense = row_words == words(sides[1], scheme->bits);
            if (*dense || row_words == divide_up(sides[1], 32 / scheme->bits)) return scheme;
        }
    return NULL;
}

static bool read_sides(const struct reading *reading, const struct tensor_view *tensor, uint64_t sides[2])
{
    char found[160];
    shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_I64 || elements(tensor) != 2) return fail(reading, tensor, "two I64", found);
    memcpy(sides, tensor->data, 2 * sizeof *sides);
    if (sides[0] > 0 && sides[0] <= MAX_SIDE && sides[1] > 0 && sides[1] <= MAX_SIDE) return true;
    return fail(reading, tensor, "rows and columns of a matrix", "other numbers");
}

static bool read_packed(struct reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *scales = need(reading, ".weight_scale");
    const struct tensor_view *shape = need(reading, ".weight_shape"), *zeros = find(reading, ".weight_zero_point");
    const struct tensor_view *groups = find(reading, ".weight_g_idx");
    uint64_t sides[2];
    bool dense;
    if (!scales || !shape || !read_sides(reading, shape, sides) || !check_matrix(reading, codes, 1u << DTYPE_I32))
        return false;
    const struct quant_scheme *scheme =
        packed_scheme(reading, sides, codes->shape[1], elements(scales), !zeros, &dense);
    char found[160];
    shape_text(codes, found, sizeof found);
    if (!scheme || codes->shape[0] != sides[0])
        return fail(reading, codes, "rows of words that fit num_bits and weight_shape", found);
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
    if (!set_scales(reading, matrix, scales, ANY_FLOAT, group)) return false;
    if (zeros && scheme->symmetric) return fail(reading, zeros, "no zero points (symmetric is true)", "some");
    if (!zeros && !scheme->symmetric && !need(reading, ".weight_zero_point")) return false;
    if (zeros) {
        const uint64_t pitch = matrix->scale.pitch;
        if (matrix->scale.block_rows != 1 ||
            !check_shape(reading, zeros, 1u << DTYPE_I32, words(matrix->rows, scheme->bits), pitch))
            return matrix->scale.block_rows == 1 ? false : fail(reading, zeros, "scales of groups or rows", "others");
        matrix->zeros = (struct quantised_plane){zeros->data, ORDER_COLUMNS, false, scheme->bits, pitch, 0};
    }
    return !groups || set_groups(reading, matrix, groups, matrix->scale.block_columns);
}

/* ---- bitsandbytes ---- */

static const struct tensor_view *find_state(struct reading *reading)
{
    const struct tensor_view *state = find(reading, ".weight.quant_state.bitsandbytes__nf4");
    return state ? state : find(reading, ".weight.quant_state.bitsandbytes__fp4");
}

struct blocks {
    uint64_t size, nested_size;
    double offset;
};

/* quant_state is JSON text: shape [rows, columns], sizes of blocks. */
static bool read_state(const struct reading *reading, const struct tensor_view *state, struct quantised *matrix,
                       struct blocks *blocks)
{
    struct json_reader reader = {0};
    bool ok = false;
    json_t *document = json_parse(state->data, state->bytes, state->name, reading->status);
    if (!document || !json_reader_open(&reader, document, state->name, reading->status)) goto done;
    const json_t *shape = json_reader_get(&reader, "shape");
    const json_int_t rows = json_integer_value(json_array_get(shape, 0)),
                     columns = json_integer_value(json_array_get(shape, 1));
    *blocks = (struct blocks){0};
    if (json_array_size(shape) != 2 || rows < 1 || columns < 1 || rows > MAX_SIDE || columns > MAX_SIDE)
        json_reader_fail(&reader, "shape", "rows and columns of a matrix", shape, reading->status);
    else
        ok = json_reader_u64(&reader, "blocksize", true, 1, 1 << 16, &blocks->size, reading->status) &&
             json_reader_u64(&reader, "nested_blocksize", false, 1, 1 << 16, &blocks->nested_size, reading->status) &&
             json_reader_double(&reader, "nested_offset", false, &blocks->offset, reading->status);
    matrix->rows = (uint64_t)rows, matrix->columns = (uint64_t)columns;
done:
    json_reader_close(&reader);
    json_decref(document);
    return ok;
}

static bool check_floats(const struct reading *reading, const struct tensor_view *tensor, uint64_t count)
{
    char expected[64], found[160];
    snprintf(expected, sizeof expected, "%" PRIu64 " finite F32", count);
    shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_F32 || elements(tensor) != count) return fail(reading, tensor, expected, found);
    const struct quantised probe = {.scale = {.type = QUANTISED_F32, .data = tensor->data}};
    return scales_are_finite(reading, &probe, tensor, count);
}

static bool read_bitsandbytes(struct reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *state = find_state(reading);
    const struct tensor_view *table = need(reading, ".weight.quant_map"), *scales = need(reading, ".weight.absmax");
    const struct tensor_view *nested = find(reading, ".weight.nested_absmax");
    const struct tensor_view *nested_table = find(reading, ".weight.nested_quant_map");
    struct blocks blocks;
    char found[160];
    shape_text(codes, found, sizeof found);
    if (!state && !need(reading, ".weight.quant_state.bitsandbytes__nf4")) return false;
    if (!table || !scales) return false;
    *matrix = (struct quantised){.container = "bitsandbytes", .code = QUANTISED_TABLE, .global = 1};
    if (!read_state(reading, state, matrix, &blocks) || !check_floats(reading, table, 16)) return false;
    const uint64_t count = matrix->rows * matrix->columns, scale_count = divide_up(count, blocks.size);
    if (codes->dtype != DTYPE_U8 || elements(codes) != divide_up(count, 2))
        return fail(reading, codes, "two codes a byte of the matrix that quant_state describes", found);
    matrix->codes = (struct quantised_plane){codes->data, ORDER_ROWS_HIGH, false, 4, matrix->columns, 0};
    matrix->table = table->data;
    matrix->scale.flat = true, matrix->scale.data = scales->data;
    matrix->scale.block_rows = 1, matrix->scale.block_columns = blocks.size;
    if (!nested && !nested_table && !blocks.nested_size) return check_floats(reading, scales, scale_count);
    if (!nested && !need(reading, ".weight.nested_absmax")) return false;
    if (!nested_table && !need(reading, ".weight.nested_quant_map")) return false;
    shape_text(scales, found, sizeof found);
    if (!blocks.nested_size) return fail(reading, state, "nested_blocksize", "none");
    if (scales->dtype != DTYPE_U8 || elements(scales) != scale_count)
        return fail(reading, scales, "one U8 for every block of codes", found);
    if (!check_floats(reading, nested, divide_up(scale_count, blocks.nested_size)) ||
        !check_floats(reading, nested_table, 256))
        return false;
    matrix->scale.type = QUANTISED_NESTED;
    matrix->scale.nested = nested->data, matrix->scale.nested_table = nested_table->data;
    matrix->scale.nested_block = blocks.nested_size, matrix->scale.offset = (float)blocks.offset;
    return scales_are_finite(reading, matrix, scales, scale_count);
}

/* ---- all modules ---- */

typedef bool read_module(struct reading *reading, struct quantised *matrix);

struct container {
    const char *suffix; /* of the tensor that has the codes */
    unsigned dtypes;    /* bits 1 << enum dtype; a tensor of another type is plain */
    unsigned methods;   /* bits 1 << enum quant_method that have such modules */
    bool is_codes;      /* so that it is an error if a tensor of that name is of another type */
    const char *weight; /* replaces the suffix */
    read_module *read;
};
#define METHOD(name) (1u << QUANT_##name)
static const struct container containers[] = {
    {".qweight", ~0u, METHOD(GPTQ), true, ".weight", read_gptq},
    {".qweight", ~0u, METHOD(AWQ), true, ".weight", read_awq},
    {".weight_packed", 1u << DTYPE_I32, METHOD(COMPRESSED_TENSORS), true, ".weight", read_packed},
    {".weight_packed", 1u << DTYPE_U8, METHOD(COMPRESSED_TENSORS), true, ".weight", read_e2m1},
    {".weight", 1u << DTYPE_U8, METHOD(MODELOPT), false, ".weight", read_e2m1},
    {".weight", 1u << DTYPE_U8, METHOD(BITSANDBYTES), false, ".weight", read_bitsandbytes},
    {".weight", 1u << DTYPE_I8, METHOD(COMPRESSED_TENSORS) | METHOD(BITSANDBYTES), false, ".weight", read_bytes},
    {".weight", 1u << DTYPE_F8_E4M3, METHOD(COMPRESSED_TENSORS) | METHOD(FP8) | METHOD(MODELOPT), false, ".weight",
     read_bytes},
    {"_blocks", 1u << DTYPE_U8, METHOD(MXFP4), false, "", read_mxfp4_experts},
};
enum { CONTAINERS = sizeof containers / sizeof *containers };

/* The container whose codes the tensor has. Fails if its name or type is that of codes, but of no container of quant_method. */
static bool find_container(const struct reading *reading, const struct tensor_view *tensor,
                           const struct container **found)
{
    bool looks = false;
    *found = NULL;
    for (int i = 0; i < CONTAINERS; i++) {
        const struct container *container = &containers[i];
        const bool has_type = container->dtypes >> tensor->dtype & 1;
        if (!file_has_suffix(tensor->name, container->suffix) || !(has_type || container->is_codes)) continue;
        looks = true;
        if (has_type && container->methods >> reading->config->method & 1) *found = container;
    }
    if (*found || !looks) return true;
    char what[96];
    snprintf(what, sizeof what, "codes (%s)", dtype_name(tensor->dtype));
    return fail(reading, tensor,
                reading->config->method == QUANT_NONE ? "floats, since config.json has no quantization_config"
                                                      : "what quantization_config describes",
                what);
}

/* What describes activations or a KV cache: an engine that computes with floats needs none of it. */
static bool is_of_activations(const char *name)
{
    static const char *const suffixes[] = {".input_scale",      ".activation_scale", ".input_global_scale",
                                           ".input_zero_point", ".output_scale",     ".k_scale",
                                           ".v_scale",          ".kv_scale"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (file_has_suffix(name, suffixes[i])) return true;
    return false;
}

static bool add_module(struct reading *reading, const struct tensor_view *tensor, const struct container *container)
{
    struct quantised_tensors *result = reading->result;
    const size_t length = strlen(tensor->name) - strlen(container->suffix);
    if (length >= MAX_NAME) return fail(reading, tensor, "a name of fewer bytes", "a longer one");
    memcpy(reading->module, tensor->name, length);
    reading->module[length] = '\0';
    reading->main = tensor;
    reading->used[tensor - reading->tensors] = true;
    struct quantised *matrix = &result->matrices[result->matrix_count++];
    if (!container->read(reading, matrix)) return false;
    matrix->code_bytes = tensor->bytes;
    char *name = result->names + reading->name_bytes;
    memcpy(name, reading->module, length);
    strcpy(name + length, container->weight);
    reading->name_bytes += length + strlen(container->weight) + 1;
    struct tensor_view *view = &result->tensors[result->count++];
    *view = (struct tensor_view){.name = name,
                                 .dtype = DTYPE_F32,
                                 .rank = 2,
                                 .shape = {matrix->rows, matrix->columns},
                                 .quantised = matrix};
    if (tensor->rank == 4) { /* experts */
        view->rank = 3;
        view->shape[0] = tensor->shape[0], view->shape[1] = tensor->shape[1], view->shape[2] = matrix->columns;
    }
    return true;
}

static bool add_plain(struct reading *reading)
{
    struct quantised_tensors *result = reading->result;
    for (size_t i = 0; i < reading->count; i++) {
        const struct tensor_view *tensor = &reading->tensors[i];
        if (reading->used[i] || (reading->config->method != QUANT_NONE && is_of_activations(tensor->name))) continue;
        result->tensors[result->count++] = *tensor;
    }
    qsort(result->tensors, result->count, sizeof *result->tensors, compare_names);
    for (size_t i = 1; i < result->count; i++)
        if (compare_names(&result->tensors[i - 1], &result->tensors[i]) == 0)
            return fail(reading, &result->tensors[i], "one weight of this name", "a plain and a quantised one");
    return true;
}

bool quantised_open(struct quantised_tensors *result, const struct quant_config *config,
                    const struct tensor_view *tensors, size_t count, struct status *status)
{
    struct reading reading = {.config = config, .tensors = tensors, .count = count, .result = result, .status = status};
    size_t names = 1;
    bool ok = false;
    for (size_t i = 0; i < count; i++) names += strlen(tensors[i].name) + sizeof ".weight";
    *result = (struct quantised_tensors){.tensors = calloc(count + 1, sizeof *tensors),
                                         .matrices = calloc(count + 1, sizeof *result->matrices),
                                         .names = malloc(names)};
    reading.used = calloc(count + 1, sizeof *reading.used);
    if (!result->tensors || !result->matrices || !result->names || !reading.used) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        const struct container *container;
        if (!find_container(&reading, &tensors[i], &container) ||
            (container && !add_module(&reading, &tensors[i], container)))
            goto done;
    }
    if (config->method != QUANT_NONE && !result->matrix_count)
        status_fail(status, STATUS_BAD_INPUT,
                    "checkpoint: the quantization_config names quant_method '%s', but no tensor is quantised; remove "
                    "it if these are plain weights",
                    config->name);
    else
        ok = add_plain(&reading);
done:
    free(reading.used);
    if (!ok) quantised_close(result);
    return ok;
}

void quantised_close(struct quantised_tensors *tensors)
{
    free(tensors->tensors);
    free(tensors->matrices);
    free(tensors->names);
    *tensors = (struct quantised_tensors){0};
}
