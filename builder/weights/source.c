/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/source.h"

#include <stdlib.h>

#include "formats/base/checked.h"
#include "formats/checkpoint/quantised.h"

static int shape_rank(const struct weight_source *source)
{
    int rank = 0;
    while (rank < SOURCE_MAX_RANK && source->shape[rank]) rank++;
    return rank;
}

static bool has_columns(const struct weight_source *source) { return !source->flat && shape_rank(source) > 1; }

/* The tensor as it is stored. */
static uint64_t stored_columns(const struct weight_source *source)
{
    return has_columns(source) ? source->shape[shape_rank(source) - 1] : 1;
}

static uint64_t stored_rows(const struct weight_source *source)
{
    const int dimensions = shape_rank(source) - has_columns(source);
    uint64_t rows = source->shape[0];
    for (int i = 1; i < dimensions; i++) rows *= source->shape[i];
    return rows;
}

/* Rows of each matrix, as they are stored. */
static uint64_t matrix_rows(const struct weight_source *source)
{
    return has_columns(source) ? source->shape[shape_rank(source) - 2] : source->shape[0];
}

uint64_t source_tensor_rows(const struct weight_source *source)
{
    if (!source->transposed) return stored_rows(source);
    const uint64_t rows = matrix_rows(source), matrices = rows ? stored_rows(source) / rows : 0;
    return matrices * stored_columns(source);
}

uint64_t source_tensor_columns(const struct weight_source *source)
{
    return source->transposed ? matrix_rows(source) : stored_columns(source);
}

void source_complete(struct weight_source *source)
{
    const uint64_t tensor_rows = source_tensor_rows(source), tensor_columns = source_tensor_columns(source);
    if (!source->repeat) source->repeat = 1;
    if (!source->rows && source->first_row < tensor_rows) {
        const uint64_t left = tensor_rows - source->first_row;
        const uint64_t runs = source->period ? (left + source->period - source->run) / source->period : 1;
        source->rows = source->repeat * (source->period ? runs * source->run : left);
    }
    if (!source->columns && has_columns(source) && source->first_column < tensor_columns)
        source->columns = tensor_columns - source->first_column;
    if (!source->run) source->run = source->period = source->rows / source->repeat;
    if (!source->group) source->group = source->dealt = 1;
    if (!source->dealt) source->dealt = source->group;
    if (!source->stride) source->stride = 1;
    if (source->scale == 0.0f) source->scale = 1.0f;
    source->rank_rows = source->rows;
    source->rank_columns = source->columns;
}

/* Rows of the tensor, each once. */
static uint64_t distinct_rows(const struct weight_source *source) { return source->rows / source->repeat; }

const char *source_fault(const struct weight_source *source)
{
    uint64_t end, ignored;
    const int rank = shape_rank(source);
    if (source->rows == 0) return "has no rows";
    if (source->rows % source->repeat) return "does not repeat all of its rows";
    if (source->row_order && (source->row_order->count != source->rows || source->repeat != 1))
        return "has an order of other rows";
    if (!source->tensor) return rank ? "has a shape without a tensor" : NULL;
    if (source->column_order &&
        (source->transposed || source->first_column || !source_is_exact(source) ||
         source->columns != source_tensor_columns(source) || source->column_order->count != source->columns))
        return "has an order of other columns";
    if (!checked_product(source->shape, (size_t)rank, &ignored)) return "has a tensor of more than 2^64 elements";
    if (source->transposed && !has_columns(source)) return "transposes a tensor that is no matrix";
    if ((source->columns != 0) != has_columns(source)) return "is a vector of a matrix, or a matrix of a vector";
    if (source->run > source->period) return "has runs of rows that overlap";
    if (distinct_rows(source) % source->run) return "ends within a run of rows";
    if (source->dealt > source->group || distinct_rows(source) % source->group || source->dealt % source->stride)
        return "has an order of rows that does not fit their number";
    if (!checked_mul(distinct_rows(source) / source->run - 1, source->period, &end) ||
        !checked_add(end, source->run, &end) || !checked_range(source->first_row, end, source_tensor_rows(source)))
        return "has rows beyond the end of its tensor";
    if (source->columns && !checked_range(source->first_column, source->columns, source_tensor_columns(source)))
        return "has columns beyond the end of its tensor";
    return NULL;
}

void source_free(struct weight_source *source)
{
    free(source->tensor);
    free(source->values);
}

uint64_t source_tensor_row(const struct weight_source *source, uint64_t row)
{
    row %= distinct_rows(source);
    if (source->row_order) row = source->row_order->columns[row];
    const uint64_t in_group = row % source->group;
    if (in_group < source->dealt) {
        const uint64_t each = source->dealt / source->stride;
        row = row - in_group + in_group % each * source->stride + in_group / each;
    }
    return source->first_row + row / source->run * source->period + row % source->run;
}

uint64_t source_elements(const struct weight_source *source)
{
    return source->tensor ? distinct_rows(source) * (source->columns ? source->columns : 1) : 0;
}

bool source_is_exact(const struct weight_source *source)
{
    return source->tensor && source->scale == 1.0f && source->add == 0.0f;
}

bool source_keeps_type(const struct weight_source *source)
{
    return source_is_exact(source) || (!source->tensor && !source->values && !source->row_order && source->add == 0.0f);
}

uint64_t source_element(const struct weight_source *source, uint64_t row, uint64_t column)
{
    const uint64_t pitch = stored_columns(source);
    row = source_tensor_row(source, row);
    if (source->column_order) column = source->column_order->columns[column];
    column += source->first_column;
    if (!source->transposed) return row * pitch + column;
    return (row / pitch * matrix_rows(source) + column) * pitch + row % pitch;
}

float source_tensor_element(const struct tensor_view *tensor, uint64_t index)
{
    uint16_t half;
    float value;
    const uint8_t *data = tensor->data;
    if (tensor->quantised) {
        const uint64_t columns = tensor->quantised->columns;
        quantised_read(tensor->quantised, index / columns, index % columns, 1, &value);
        return value;
    }
    if (tensor->dtype == DTYPE_F32) {
        memcpy(&value, data + index * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, data + index * sizeof half, sizeof half);
    return tensor->dtype == DTYPE_F16 ? f16_to_float(half) : bf16_to_float(half);
}

/* In whole blocks of a length that compilers vectorise. */
static void read_bf16(const uint8_t *data, uint64_t count, float *values)
{
    enum { BLOCK = 32 };
    uint16_t halves[BLOCK];
    for (; count >= BLOCK; data += sizeof halves, values += BLOCK, count -= BLOCK) {
        memcpy(halves, data, sizeof halves);
        for (int i = 0; i < BLOCK; i++) values[i] = bf16_to_float(halves[i]);
    }
    memcpy(halves, data, count * sizeof *halves);
    for (uint64_t i = 0; i < count; i++) values[i] = bf16_to_float(halves[i]);
}

/* Every `step`-th element from `first` on. */
static void read_tensor(const struct tensor_view *tensor, uint64_t first, uint64_t step, uint64_t count, float *values)
{
    if (step == 1 && tensor->quantised) {
        const uint64_t columns = tensor->quantised->columns;
        quantised_read(tensor->quantised, first / columns, first % columns, count, values);
        return;
    }
    const uint8_t *data = (const uint8_t *)tensor->data + (step == 1 ? first * dtype_bytes(tensor->dtype) : 0);
    if (step == 1 && tensor->dtype == DTYPE_F32) {
        memcpy(values, data, count * sizeof *values);
        return;
    }
    if (step == 1 && tensor->dtype == DTYPE_BF16) {
        read_bf16(data, count, values);
        return;
    }
    if (step == 1) {
        for (uint64_t i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, data + i * sizeof half, sizeof half);
            values[i] = f16_to_float(half);
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) values[i] = source_tensor_element(tensor, first + i * step);
}

/* An element of a source without a tensor. */
static float own_element(const struct weight_source *source, uint64_t row, uint64_t column)
{
    const uint64_t columns = source->columns ? source->columns : 1;
    if (source->row_order) return (float)source->row_order->columns[row];
    return source->values ? source->values[row % distinct_rows(source) * columns + column] : source->add;
}

void source_read(const struct weight_source *source, const struct tensor_view *tensor, uint64_t row,
                 uint64_t first_column, uint64_t count, float *values)
{
    if (!source->tensor) {
        for (uint64_t i = 0; i < count; i++) values[i] = own_element(source, row, first_column + i);
        return;
    }
    if (source->column_order) {
        quantised_read_columns(tensor->quantised, source_tensor_row(source, row),
                               source->column_order->columns + first_column, count, values);
        return;
    }
    const uint64_t step = source->transposed ? stored_columns(source) : 1;
    read_tensor(tensor, source_element(source, row, first_column), step, count, values);
    if (source_is_exact(source)) return;
    for (uint64_t i = 0; i < count; i++) values[i] = source->scale * values[i] + source->add;
}
