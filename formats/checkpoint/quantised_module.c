/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quantised_module.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int quantised_compare_names(const void *left, const void *right)
{
    return strcmp(((const struct tensor_view *)left)->name, ((const struct tensor_view *)right)->name);
}

bool quantised_fail(const struct quantised_reading *reading, const struct tensor_view *tensor, const char *expected,
                    const char *found)
{
    return status_fail(reading->status, STATUS_BAD_INPUT, "checkpoint: tensor '%.200s': expected %s, found %s",
                       tensor->name, expected, found);
}

/* The module's tensor with this suffix, which then belongs to it; NULL: there is none. */
const struct tensor_view *quantised_find(struct quantised_reading *reading, const char *suffix)
{
    char name[QUANTISED_MAX_NAME + 64];
    snprintf(name, sizeof name, "%s%s", reading->module, suffix);
    const struct tensor_view key = {.name = name};
    const struct tensor_view *found =
        bsearch(&key, reading->tensors, reading->count, sizeof *reading->tensors, quantised_compare_names);
    if (found) reading->used[found - reading->tensors] = true;
    return found;
}

const struct tensor_view *quantised_need(struct quantised_reading *reading, const char *suffix)
{
    const struct tensor_view *found = quantised_find(reading, suffix);
    if (!found)
        status_fail(reading->status, STATUS_BAD_INPUT,
                    "checkpoint: tensor '%s%s' is missing; it belongs to '%.200s' (quant_method '%s')", reading->module,
                    suffix, reading->main->name, reading->config->name);
    return found;
}

void quantised_shape_text(const struct tensor_view *tensor, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%s [", dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, i ? ", %" PRIu64 : "%" PRIu64, tensor->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
}

/* dtypes: bits 1 << enum dtype. */
bool quantised_check_dtype(const struct quantised_reading *reading, const struct tensor_view *tensor, unsigned dtypes)
{
    char expected[64] = "";
    if (dtypes >> tensor->dtype & 1) return true;
    for (int i = 1; i < DTYPE_COUNT; i++)
        if (dtypes >> i & 1)
            snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%s", *expected ? " or " : "",
                     dtype_name((enum dtype)i));
    return quantised_fail(reading, tensor, expected, dtype_name(tensor->dtype));
}

bool quantised_check_shape(const struct quantised_reading *reading, const struct tensor_view *tensor, unsigned dtypes,
                           uint64_t rows, uint64_t columns)
{
    char expected[64], found[160];
    if (!quantised_check_dtype(reading, tensor, dtypes)) return false;
    if (quantised_has_shape(tensor, rows, columns)) return true;
    snprintf(expected, sizeof expected, "the shape [%" PRIu64 ", %" PRIu64 "]", rows, columns);
    quantised_shape_text(tensor, found, sizeof found);
    return quantised_fail(reading, tensor, expected, found);
}

/* A matrix whose sides are no larger than any model's, so that no product below overflows. */
bool quantised_check_matrix(const struct quantised_reading *reading, const struct tensor_view *tensor, unsigned dtypes)
{
    char found[160];
    if (!quantised_check_dtype(reading, tensor, dtypes)) return false;
    if (tensor->rank == 2 && tensor->shape[0] > 0 && tensor->shape[0] <= QUANTISED_MAX_SIDE && tensor->shape[1] > 0 &&
        tensor->shape[1] <= QUANTISED_MAX_SIDE)
        return true;
    quantised_shape_text(tensor, found, sizeof found);
    return quantised_fail(reading, tensor, "a matrix", found);
}

/* The first zero point that is not the middle of the codes, or, where `or_less`, one less as all others; false: there is none. */
static bool find_other_zero(const struct quantised *matrix, uint64_t groups, bool or_less, uint64_t *row,
                            uint64_t *group)
{
    const uint32_t middle = 1u << (matrix->zeros.bits - 1), first = quantised_zero(matrix, 0, 0);
    for (*group = 0; *group < groups; ++*group)
        for (*row = 0; *row < matrix->rows; ++*row) {
            const uint32_t zero = quantised_zero(matrix, *row, *group);
            if (zero != first || (zero != middle && !(or_less && zero == middle - 1))) return true;
        }
    return false;
}

bool quantised_has_middle_zeros(const struct quantised *matrix, uint64_t groups)
{
    uint64_t row, group;
    return !find_other_zero(matrix, groups, true, &row, &group);
}

bool quantised_drop_zeros(const struct quantised_reading *reading, struct quantised *matrix,
                          const struct tensor_view *tensor, uint64_t groups, bool or_less)
{
    uint64_t row, group;
    if (find_other_zero(matrix, groups, or_less, &row, &group)) {
        char found[96];
        snprintf(found, sizeof found, "%" PRIu32 " in group %" PRIu64 " of row %" PRIu64,
                 quantised_zero(matrix, row, group), group, row);
        return quantised_fail(reading, tensor, "equal zero points in the middle (sym is true, or zero_point is false)",
                              found);
    }
    matrix->zero = 1u << (matrix->zeros.bits - 1);
    matrix->zeros = (struct quantised_plane){0};
    return true;
}

/* ---- scales ---- */

bool quantised_check_scales(const struct quantised_reading *reading, const struct quantised *matrix,
                            const struct tensor_view *tensor, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const float scale = quantised_scale(matrix, i);
        if (isfinite(scale)) continue;
        char found[64];
        snprintf(found, sizeof found, "%g at element %" PRIu64, (double)scale, i);
        return quantised_fail(reading, tensor, "finite scales", found);
    }
    return true;
}

bool quantised_set_scale_type(const struct quantised_reading *reading, struct quantised *matrix,
                              const struct tensor_view *tensor, unsigned dtypes)
{
    if (!quantised_check_dtype(reading, tensor, dtypes)) return false;
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
bool quantised_set_scales(const struct quantised_reading *reading, struct quantised *matrix,
                          const struct tensor_view *tensor, unsigned dtypes, uint64_t group)
{
    const struct quant_config *config = reading->config;
    const uint64_t rows = matrix->rows, columns = matrix->columns, count = quantised_elements(tensor);
    const uint64_t block_rows = config->block_rows ? config->block_rows : QUANTISED_FP8_BLOCK;
    const uint64_t block_columns = config->block_columns ? config->block_columns : QUANTISED_FP8_BLOCK;
    struct tensor_view flat = *tensor; /* ModelOpt has scales of blocks as [rows, 1, columns, 1] */
    if (tensor->rank == 4 && tensor->shape[1] == 1 && tensor->shape[3] == 1)
        flat.rank = 2, flat.shape[1] = tensor->shape[2];
    if (!quantised_set_scale_type(reading, matrix, tensor, dtypes)) return false;
    if (count == 1 && flat.rank <= 2) {
        matrix->scale.block_rows = rows, matrix->scale.block_columns = columns, matrix->scale.pitch = 1;
    } else if (group && quantised_has_shape(tensor, rows, quantised_divide_up(columns, group))) {
        matrix->scale.block_rows = 1, matrix->scale.block_columns = group, matrix->scale.pitch = tensor->shape[1];
    } else if (quantised_has_shape(tensor, rows, 1) || (tensor->rank == 1 && tensor->shape[0] == rows)) {
        matrix->scale.block_rows = 1, matrix->scale.block_columns = columns, matrix->scale.pitch = 1;
    } else if (!group && quantised_has_shape(&flat, quantised_divide_up(rows, block_rows),
                                             quantised_divide_up(columns, block_columns))) {
        matrix->scale.block_rows = block_rows, matrix->scale.block_columns = block_columns;
        matrix->scale.pitch = flat.shape[1];
    } else {
        char expected[160], found[160];
        snprintf(expected, sizeof expected,
                 "scales of a weight [%" PRIu64 ", %" PRIu64 "]: one, one a row, or one for %s of %" PRIu64 " columns",
                 rows, columns, group ? "every group" : "every block", group ? group : block_columns);
        quantised_shape_text(tensor, found, sizeof found);
        return quantised_fail(reading, tensor, expected, found);
    }
    return quantised_check_scales(reading, matrix, tensor, count);
}

/* ---- groups ---- */

bool quantised_has_group(const struct quantised *matrix, const struct quant_scheme *scheme)
{
    const uint64_t size = scheme->group_size, found = matrix->scale.block_columns;
    return !size || found == size || (size >= matrix->columns && found >= matrix->columns);
}

bool quantised_check_group(const struct quantised_reading *reading, const struct quantised *matrix,
                           const struct tensor_view *scales, const struct quant_scheme *scheme)
{
    char expected[64], found[64];
    if (quantised_has_group(matrix, scheme)) return true;
    snprintf(expected, sizeof expected, "scales of groups of %" PRIu64 " columns", scheme->group_size);
    snprintf(found, sizeof found, "scales of %" PRIu64 " columns", matrix->scale.block_columns);
    return quantised_fail(reading, scales, expected, found);
}

/* g_idx: the group of each column. Trivial where column / size is its group; otherwise each group has `size` columns, and the
 * last may have fewer. */
bool quantised_set_groups(const struct quantised_reading *reading, struct quantised *matrix,
                          const struct tensor_view *tensor, uint64_t size)
{
    const uint64_t columns = matrix->columns, groups = quantised_divide_up(columns, size);
    char found[160];
    quantised_shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_I32 || tensor->rank != 1 || tensor->shape[0] != columns)
        return quantised_fail(reading, tensor, "one I32 a column of the weight", found);
    bool trivial = true, unset = true; /* compressed-tensors leaves -1 where columns stay in order */
    for (uint64_t k = 0; k < columns && (trivial || unset); k++) {
        trivial &= quantised_word(tensor, k) == k / size;
        unset &= quantised_word(tensor, k) == UINT32_MAX;
    }
    if (trivial || unset) return true;
    uint64_t *members = calloc(groups, sizeof *members);
    if (!members) return status_fail(reading->status, STATUS_MACHINE, "out of memory");
    bool ok = true;
    for (uint64_t k = 0; ok && k < columns; k++) {
        const uint32_t group = quantised_word(tensor, k);
        if (group < groups) {
            members[group]++;
            continue;
        }
        snprintf(found, sizeof found, "%" PRId32 " at column %" PRIu64, (int32_t)group, k);
        ok = quantised_fail(reading, tensor, "groups that have scales", found);
    }
    for (uint64_t g = 0; ok && g < groups; g++) {
        const uint64_t expected = g + 1 < groups ? size : columns - g * size;
        if (members[g] == expected) continue;
        snprintf(found, sizeof found, "%" PRIu64 " columns in group %" PRIu64, members[g], g);
        ok = quantised_fail(reading, tensor, "groups of group_size columns", found);
    }
    free(members);
    matrix->groups = tensor->data;
    return ok;
}
