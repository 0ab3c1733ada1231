/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/quantised_module.h"

#include <inttypes.h>
#include <stdio.h>

#include "formats/base/json.h"

static const struct tensor_view *find_state(struct quantised_reading *reading)
{
    const struct tensor_view *state = quantised_find(reading, ".weight.quant_state.bitsandbytes__nf4");
    return state ? state : quantised_find(reading, ".weight.quant_state.bitsandbytes__fp4");
}

struct blocks {
    uint64_t size, nested_size;
    double offset;
};

/* quant_state is JSON text: shape [rows, columns], sizes of blocks. */
static bool read_state(const struct quantised_reading *reading, const struct tensor_view *state,
                       struct quantised *matrix, struct blocks *blocks)
{
    struct json_reader reader = {0};
    bool ok = false;
    json_t *document = json_parse(state->data, state->bytes, state->name, reading->status);
    if (!document || !json_reader_open(&reader, document, state->name, reading->status)) goto done;
    const json_t *shape = json_reader_get(&reader, "shape");
    const json_int_t rows = json_integer_value(json_array_get(shape, 0)),
                     columns = json_integer_value(json_array_get(shape, 1));
    *blocks = (struct blocks){0};
    if (json_array_size(shape) != 2 || rows < 1 || columns < 1 || rows > QUANTISED_MAX_SIDE ||
        columns > QUANTISED_MAX_SIDE)
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

static bool check_floats(const struct quantised_reading *reading, const struct tensor_view *tensor, uint64_t count)
{
    char expected[64], found[160];
    snprintf(expected, sizeof expected, "%" PRIu64 " finite F32", count);
    quantised_shape_text(tensor, found, sizeof found);
    if (tensor->dtype != DTYPE_F32 || quantised_elements(tensor) != count)
        return quantised_fail(reading, tensor, expected, found);
    const struct quantised probe = {.scale = {.type = QUANTISED_F32, .data = tensor->data}};
    return quantised_check_scales(reading, &probe, tensor, count);
}

bool quantised_read_bitsandbytes(struct quantised_reading *reading, struct quantised *matrix)
{
    const struct tensor_view *codes = reading->main, *state = find_state(reading);
    const struct tensor_view *table = quantised_need(reading, ".weight.quant_map"),
                             *scales = quantised_need(reading, ".weight.absmax");
    const struct tensor_view *nested = quantised_find(reading, ".weight.nested_absmax");
    const struct tensor_view *nested_table = quantised_find(reading, ".weight.nested_quant_map");
    struct blocks blocks;
    char found[160];
    quantised_shape_text(codes, found, sizeof found);
    if (!state && !quantised_need(reading, ".weight.quant_state.bitsandbytes__nf4")) return false;
    if (!table || !scales) return false;
    *matrix = (struct quantised){.container = "bitsandbytes", .code = QUANTISED_TABLE, .global = 1};
    if (!read_state(reading, state, matrix, &blocks) || !check_floats(reading, table, 16)) return false;
    const uint64_t count = matrix->rows * matrix->columns, scale_count = quantised_divide_up(count, blocks.size);
    if (codes->dtype != DTYPE_U8 || quantised_elements(codes) != quantised_divide_up(count, 2))
        return quantised_fail(reading, codes, "two codes a byte of the matrix that quant_state describes", found);
    matrix->codes = (struct quantised_plane){codes->data, ORDER_ROWS_HIGH, false, 4, matrix->columns, 0};
    matrix->table = table->data;
    matrix->scale.flat = true, matrix->scale.data = scales->data;
    matrix->scale.block_rows = 1, matrix->scale.block_columns = blocks.size;
    if (!nested && !nested_table && !blocks.nested_size) return check_floats(reading, scales, scale_count);
    if (!nested && !quantised_need(reading, ".weight.nested_absmax")) return false;
    if (!nested_table && !quantised_need(reading, ".weight.nested_quant_map")) return false;
    quantised_shape_text(scales, found, sizeof found);
    if (!blocks.nested_size) return quantised_fail(reading, state, "nested_blocksize", "none");
    if (scales->dtype != DTYPE_U8 || quantised_elements(scales) != scale_count)
        return quantised_fail(reading, scales, "one U8 for every block of codes", found);
    if (!check_floats(reading, nested, quantised_divide_up(scale_count, blocks.nested_size)) ||
        !check_floats(reading, nested_table, 256))
        return false;
    matrix->scale.type = QUANTISED_NESTED;
    matrix->scale.nested = nested->data, matrix->scale.nested_table = nested_table->data;
    matrix->scale.nested_block = blocks.nested_size, matrix->scale.offset = (float)blocks.offset;
    return quantised_check_scales(reading, matrix, scales, scale_count);
}
