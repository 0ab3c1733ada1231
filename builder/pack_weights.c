#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "builder/shard.h"
#include "builder/weights.h"
#include "kernels/matmul/panel.h"

/* Rows of a rank's share of a weight's pieces as the engine's dtype wants them, one panel at a time. */
struct row_source {
    const struct graph_weight *weight;
    uint64_t interleave; /* rows of gate, then of up, that alternate */
    const struct tensor_view *tensors[GRAPH_MAX_PIECES];
    struct shard_slice slices[GRAPH_MAX_PIECES];
    uint8_t *converted; /* [PANEL_ROWS, depth] in the engine's dtype: rows that need conversion or padding */
    const struct tensor_view *overflowed; /* a tensor with a value that its new dtype cannot hold; NULL: none so far */
};

static float load_element(const uint8_t *data, uint64_t index, enum dtype dtype)
{
    uint16_t half;
    float value;
    if (dtype == DTYPE_F32) {
        memcpy(&value, data + index * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, data + index * sizeof half, sizeof half);
    return dtype == DTYPE_F16 ? f16_to_float(half) : bf16_to_float(half);
}

static void store_element(uint8_t *data, uint64_t index, enum dtype dtype, float value)
{
    if (dtype == DTYPE_F32) {
        memcpy(data + index * sizeof value, &value, sizeof value);
        return;
    }
    uint16_t half = dtype == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
    memcpy(data + index * sizeof half, &half, sizeof half);
}

/* The least magnitude that rounds to infinity. */
static float overflow_limit(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? 65520.0f : dtype == DTYPE_BF16 ? 0x1.ffp127f : INFINITY;
}

/* Converts `count` elements of `tensor`, from element `first` on. */
static void convert(struct row_source *source, const struct tensor_view *tensor, uint64_t first, uint8_t *to,
                    uint64_t count)
{
    enum dtype dtype = source->weight->dtype;
    const uint8_t *from = (const uint8_t *)tensor->data + first * dtype_bytes(tensor->dtype);
    if (tensor->dtype == dtype) {
        memcpy(to, from, count * dtype_bytes(dtype));
        return;
    }
    float limit = overflow_limit(dtype);
    bool fits = true;
    for (uint64_t i = 0; i < count; i++) {
        float value = load_element(from, i, tensor->dtype);
        store_element(to, i, dtype, value);
        fits &= fabsf(value) < limit || !isfinite(value);
    }
    if (!fits) source->overflowed = tensor;
}

static bool check_overflow(const struct row_source *source, struct status *status)
{
    if (!source->overflowed) return true;
    return status_fail(status, STATUS_BAD_INPUT,
                       "checkpoint: tensor '%s': a value is beyond the range of %s; choose another --dtype",
                       source->overflowed->name, dtype_name(source->weight->dtype));
}

/* Row `row` of the stacked pieces, NULL for a padding row. `slot` is the row's place in the panel. */
static const void *source_row(struct row_source *source, uint64_t row, int slot)
{
    const struct graph_weight *weight = source->weight;
    int piece = 0;
    if (weight->form == WEIGHT_GATE_UP) {
        uint64_t group = row / source->interleave;
        piece = (int)(group % 2);
        row = group / 2 * source->interleave + row % source->interleave;
    } else {
        while (piece < weight->piece_count && row >= weight->pieces[piece].rank_rows)
            row -= weight->pieces[piece++].rank_rows;
        if (piece == weight->piece_count) return NULL;
    }
    const struct shard_slice *slice = &source->slices[piece];
    if (row >= slice->rows) return NULL;
    const struct tensor_view *tensor = source->tensors[piece];
    uint64_t columns = weight->columns;
    uint64_t first = (slice->first_row + row) * weight->pieces[piece].columns + slice->first_column;
    if (tensor->dtype == weight->dtype && weight->depth == columns)
        return (const uint8_t *)tensor->data + first * dtype_bytes(tensor->dtype);
    uint64_t row_bytes = weight->depth * dtype_bytes(weight->dtype);
    uint8_t *converted = source->converted + (uint64_t)slot * row_bytes;
    memset(converted, 0, row_bytes);
    convert(source, tensor, first, converted, columns);
    return converted;
}

struct packing {
    struct engine_writer *writer;
    pack_progress *progress;
    void *context;
    uint64_t total_bytes, written;
};

static bool emit(struct packing *packing, const void *data, uint64_t bytes, struct status *status)
{
    if (!engine_writer_weights_add(packing->writer, data, bytes, status)) return false;
    packing->written += bytes;
    if (packing->progress) packing->progress(packing->context, packing->written, packing->total_bytes);
    return true;
}

static bool emit_zeros(struct packing *packing, uint64_t bytes, struct status *status)
{
    packing->written += bytes;
    return engine_writer_weights_pad(packing->writer, packing->written, status);
}

static bool pack_panels(struct row_source *source, struct packing *packing, struct status *status)
{
    enum { BATCH_BYTES = 4 << 20 };
    const struct graph_weight *weight = source->weight;
    uint64_t bytes = panel_bytes(weight->depth, weight->dtype), panels = panel_count(weight->rows);
    uint64_t batch = bytes < BATCH_BYTES ? BATCH_BYTES / bytes : 1;
    uint8_t *out = malloc(batch * bytes);
    if (!out) return status_fail(status, STATUS_MACHINE, "out of memory while packing '%s'", weight->name);
    bool ok = true;
    for (uint64_t first = 0; ok && first < panels; first += batch) {
        uint64_t count = panels - first < batch ? panels - first : batch;
        for (uint64_t p = 0; p < count; p++) {
            const void *rows[PANEL_ROWS];
            for (int i = 0; i < PANEL_ROWS; i++)
                rows[i] = source_row(source, (first + p) * PANEL_ROWS + (uint64_t)i, i);
            panel_pack(rows, weight->depth, weight->dtype, out + p * bytes);
        }
        ok = check_overflow(source, status) && emit(packing, out, count * bytes, status);
    }
    free(out);
    return ok;
}

/* A matrix with its rows in another order, or with padding. */
static bool pack_matrix(struct row_source *source, struct packing *packing, struct status *status)
{
    enum { BATCH_BYTES = 4 << 20 };
    const struct graph_weight *weight = source->weight;
    uint64_t bytes = weight->depth * dtype_bytes(weight->dtype);
    uint64_t batch = bytes < BATCH_BYTES ? BATCH_BYTES / bytes : 1;
    uint8_t *out = malloc(batch * bytes);
    if (!out) return status_fail(status, STATUS_MACHINE, "out of memory while packing '%s'", weight->name);
    bool ok = true;
    for (uint64_t first = 0; ok && first < weight->rows; first += batch) {
        uint64_t count = weight->rows - first < batch ? weight->rows - first : batch;
        for (uint64_t r = 0; r < count; r++) {
            const void *row = source_row(source, first + r, 0);
            if (row)
                memcpy(out + r * bytes, row, bytes);
            else
                memset(out + r * bytes, 0, bytes);
        }
        ok = check_overflow(source, status) && emit(packing, out, count * bytes, status);
    }
    free(out);
    return ok;
}

/* Vectors, and matrices of whole rows as the checkpoint has them. */
static bool pack_rows(struct row_source *source, struct packing *packing, struct status *status)
{
    enum { BATCH_ELEMENTS = 1 << 20 };
    const struct graph_weight *weight = source->weight;
    uint8_t *out = malloc(BATCH_ELEMENTS * dtype_bytes(weight->dtype));
    if (!out) return status_fail(status, STATUS_MACHINE, "out of memory while packing '%s'", weight->name);
    bool ok = true;
    for (int p = 0; ok && p < weight->piece_count; p++) {
        const struct tensor_view *tensor = source->tensors[p];
        const struct shard_slice *slice = &source->slices[p];
        uint64_t width = weight->columns ? weight->columns : 1, elements = slice->rows * width;
        for (uint64_t first = 0; ok && first < elements; first += BATCH_ELEMENTS) {
            uint64_t count = elements - first < BATCH_ELEMENTS ? elements - first : BATCH_ELEMENTS;
            convert(source, tensor, slice->first_row * width + first, out, count);
            ok = check_overflow(source, status) && emit(packing, out, count * dtype_bytes(weight->dtype), status);
        }
        uint64_t missing = (weight->pieces[p].rank_rows - slice->rows) * width;
        ok = ok && emit_zeros(packing, missing * dtype_bytes(weight->dtype), status);
    }
    free(out);
    return ok;
}

/* A bias in the row order of an interleaved gate/up matrix. */
static bool pack_gate_up_bias(const struct row_source *source, struct packing *packing, struct status *status)
{
    const struct graph_weight *weight = source->weight;
    uint8_t *out = calloc(weight->rows, dtype_bytes(weight->dtype));
    if (!out) return status_fail(status, STATUS_MACHINE, "out of memory while packing '%s'", weight->name);
    for (uint64_t row = 0; row < weight->rows; row++) {
        uint64_t group = row / source->interleave, at = group / 2 * source->interleave + row % source->interleave;
        const struct tensor_view *tensor = source->tensors[group % 2];
        const struct shard_slice *slice = &source->slices[group % 2];
        if (at >= slice->rows) continue;
        store_element(out, row, weight->dtype, load_element(tensor->data, slice->first_row + at, tensor->dtype));
    }
    bool ok = emit(packing, out, weight->bytes, status);
    free(out);
    return ok;
}

static bool pack_one(const struct graph *graph, const struct graph_weight *weight, const struct checkpoint *checkpoint,
                     uint32_t rank, struct packing *packing, struct status *status)
{
    if (weight->form == WEIGHT_CONSTANT) return emit(packing, weight->constant, weight->bytes, status);
    struct row_source source = {.weight = weight, .interleave = graph_interleave(graph)};
    bool whole_rows = true;
    for (int p = 0; p < weight->piece_count; p++) {
        source.tensors[p] = checkpoint_find(checkpoint, weight->pieces[p].tensor);
        source.slices[p] = shard_slice(&weight->pieces[p], rank, graph->ranks);
        whole_rows &= weight->pieces[p].rank_columns == weight->pieces[p].columns;
    }
    if (weight->form == WEIGHT_GATE_UP_BIAS) return pack_gate_up_bias(&source, packing, status);
    bool as_it_is =
        weight->form == WEIGHT_MATRIX && !graph_has_panels(graph) && weight->depth == weight->columns && whole_rows;
    if (weight->form == WEIGHT_ROW_MAJOR || as_it_is) return pack_rows(&source, packing, status);
    source.converted = malloc(PANEL_ROWS * weight->depth * dtype_bytes(weight->dtype));
    if (!source.converted) return status_fail(status, STATUS_MACHINE, "out of memory while packing '%s'", weight->name);
    bool ok = graph_has_panels(graph) ? pack_panels(&source, packing, status) : pack_matrix(&source, packing, status);
    free(source.converted);
    return ok;
}

bool pack_weights(const struct graph *graph, const struct checkpoint *checkpoint, struct engine_writer *writer,
                  uint64_t total_bytes, pack_progress *progress, void *context, struct status *status)
{
    struct packing packing = {writer, progress, context, total_bytes, 0};
    if (!engine_writer_weights_begin(writer, total_bytes, status)) return false;
    for (uint32_t rank = 0; rank < graph->ranks; rank++) {
        uint64_t base = total_bytes / graph->ranks * rank;
        for (int w = 0; w < graph->weight_count; w++) {
            const struct graph_weight *weight = &graph->weights[w];
            if (!weight->used) continue;
            packing.written = base + weight->offset;
            if (!engine_writer_weights_pad(writer, packing.written, status) ||
                !pack_one(graph, weight, checkpoint, rank, &packing, status))
                return false;
            for (int p = 0; p < weight->piece_count; p++) {
                const struct tensor_view *tensor = checkpoint_find(checkpoint, weight->pieces[p].tensor);
                file_map_release(tensor->data, tensor->bytes);
            }
        }
    }
    return engine_writer_weights_pad(writer, total_bytes, status) && engine_writer_weights_end(writer, status);
}
