/* SPDX-License-Identifier: Apache-2.0 */
/* The weight section as a function of its offset. Every weight is a sequence of units of one size, each of which can be made
 * by itself from the checkpoint's tensors; so threads can make any part of the section, and the file does not depend on who
 * made which. */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builder/weights/shard.h"
#include "builder/weights/weights.h"
#include "formats/base/checked.h"
#include "kernels/matmul/panel.h"

enum unit {
    UNIT_PANEL,      /* PANEL_ROWS rows of a matrix as a panel */
    UNIT_ROW,        /* a row of a matrix, or of vectors: an element */
    UNIT_BIAS,       /* an element of a bias in the row order of an interleaved gate/up matrix */
    UNIT_OF_CONSTANT /* all of it */
};

/* A rank's share of a weight. */
struct row_source {
    const struct graph_weight *weight;
    uint64_t offset;     /* in the weight section */
    uint64_t interleave; /* rows of gate, then of up, that alternate */
    const struct tensor_view *tensors[GRAPH_MAX_PIECES];
    struct shard_slice slices[GRAPH_MAX_PIECES];
    enum unit unit;
    uint64_t unit_bytes, units;
    _Atomic uint64_t left; /* bytes of it that nobody has read yet */
};

struct packer {
    struct row_source *sources; /* [count], by rising offset */
    size_t count;
    uint64_t total_bytes;
};

/* What one thread needs to make a unit. */
struct scratch {
    uint8_t *converted; /* [PANEL_ROWS, depth] in the engine's dtype: rows that need conversion or padding */
    uint8_t *unit;      /* one that does not lie in the part as a whole */
    const struct tensor_view
        *refused; /* has an element that is not finite, or not in its new dtype; NULL: none so far */
    uint64_t refused_element;
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

/* Finds the first of elements [first, first + count) that does not fit, of which there is one. */
static void refuse(struct scratch *scratch, const struct tensor_view *tensor, uint64_t first, uint64_t count,
                   enum dtype dtype)
{
    const float limit = overflow_limit(dtype);
    uint64_t i = first;
    if (scratch->refused) return;
    while (i + 1 < first + count && fabsf(load_element(tensor->data, i, tensor->dtype)) < limit) i++;
    scratch->refused = tensor;
    scratch->refused_element = i;
}

/* A finite element's exponent is not all ones: adding one to it carries into the sign's place, several elements at once, for
 * NaN and infinity alone. Whole blocks of a length that compilers vectorise. */
static bool all_finite(const uint8_t *data, uint64_t bytes, enum dtype dtype)
{
    enum { BLOCK_WORDS = 32, WORD = sizeof(uint64_t) };
    const uint64_t exponent = dtype == DTYPE_F32   ? UINT64_C(0x7f8000007f800000)
                              : dtype == DTYPE_F16 ? UINT64_C(0x7c007c007c007c00)
                                                   : UINT64_C(0x7f807f807f807f80);
    const uint64_t sign = dtype == DTYPE_F32 ? UINT64_C(0x8000000080000000) : UINT64_C(0x8000800080008000);
    const uint64_t one = sign - exponent;
    uint64_t carries = 0;
    for (; bytes >= BLOCK_WORDS * WORD; data += BLOCK_WORDS * WORD, bytes -= BLOCK_WORDS * WORD)
        for (int i = 0; i < BLOCK_WORDS; i++) {
            uint64_t word;
            memcpy(&word, data + i * WORD, sizeof word);
            carries |= (word & exponent) + one;
        }
    while (bytes) {
        const uint64_t part = bytes < WORD ? bytes : WORD;
        uint64_t word = 0;
        memcpy(&word, data, part);
        carries |= (word & exponent) + one;
        data += part;
        bytes -= part;
    }
    return !(carries & sign);
}

/* Elements [first, first + count) of `tensor`, which keep their dtype. */
static const uint8_t *checked_elements(struct scratch *scratch, const struct tensor_view *tensor, uint64_t first,
                                       uint64_t count)
{
    const uint64_t bytes = dtype_bytes(tensor->dtype);
    const uint8_t *from = (const uint8_t *)tensor->data + first * bytes;
    if (!all_finite(from, count * bytes, tensor->dtype)) refuse(scratch, tensor, first, count, tensor->dtype);
    return from;
}

/* Converts `count` elements of `tensor`, from element `first` on. */
static void convert(struct scratch *scratch, const struct tensor_view *tensor, uint64_t first, uint8_t *to,
                    uint64_t count, enum dtype dtype)
{
    const uint8_t *from = (const uint8_t *)tensor->data + first * dtype_bytes(tensor->dtype);
    if (tensor->dtype == dtype) {
        memcpy(to, checked_elements(scratch, tensor, first, count), count * dtype_bytes(dtype));
        return;
    }
    const float limit = overflow_limit(dtype);
    bool fits = true;
    for (uint64_t i = 0; i < count; i++) {
        float value = load_element(from, i, tensor->dtype);
        store_element(to, i, dtype, value);
        fits &= fabsf(value) < limit; /* false for NaN */
    }
    if (!fits) refuse(scratch, tensor, first, count, dtype);
}

static bool is_matrix(const struct graph_weight *weight)
{
    return weight->form == WEIGHT_MATRIX || weight->form == WEIGHT_GATE_UP;
}

/* Elements of a row as the engine has it. */
static uint64_t stored_depth(const struct graph_weight *weight)
{
    return is_matrix(weight) ? weight->depth : weight->columns ? weight->columns : 1;
}

/* Row `row` of the stacked pieces, NULL for a padding row. `slot` is the row's place in the panel. */
static const void *source_row(const struct row_source *source, uint64_t row, int slot, struct scratch *scratch)
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
    const bool is_vector = weight->columns == 0;
    const uint64_t columns = is_vector ? 1 : weight->columns, depth = stored_depth(weight);
    const uint64_t pitch = is_vector ? 1 : weight->pieces[piece].columns;
    const uint64_t first = (slice->first_row + row) * pitch + slice->first_column;
    if (tensor->dtype == weight->dtype && depth == columns) return checked_elements(scratch, tensor, first, columns);
    uint64_t row_bytes = depth * dtype_bytes(weight->dtype);
    uint8_t *converted = scratch->converted + (uint64_t)slot * row_bytes;
    memset(converted, 0, row_bytes);
    convert(scratch, tensor, first, converted, columns, weight->dtype);
    return converted;
}

static void make_unit(const struct row_source *source, uint64_t unit, struct scratch *scratch, uint8_t *to)
{
    const struct graph_weight *weight = source->weight;
    switch (source->unit) {
    case UNIT_PANEL: {
        const void *rows[PANEL_ROWS];
        for (int i = 0; i < PANEL_ROWS; i++) rows[i] = source_row(source, unit * PANEL_ROWS + (uint64_t)i, i, scratch);
        panel_pack(rows, weight->depth, weight->dtype, to);
        return;
    }
    case UNIT_ROW: {
        const void *row = source_row(source, unit, 0, scratch);
        if (row)
            memcpy(to, row, source->unit_bytes);
        else
            memset(to, 0, source->unit_bytes);
        return;
    }
    case UNIT_BIAS: {
        uint64_t group = unit / source->interleave, at = group / 2 * source->interleave + unit % source->interleave;
        const struct tensor_view *tensor = source->tensors[group % 2];
        const struct shard_slice *slice = &source->slices[group % 2];
        memset(to, 0, source->unit_bytes);
        if (at < slice->rows) convert(scratch, tensor, slice->first_row + at, to, 1, weight->dtype);
        return;
    }
    case UNIT_OF_CONSTANT: memcpy(to, weight->constant, source->unit_bytes); return;
    }
}

/* Bytes [first, end) of a weight. */
static void make_bytes(const struct row_source *source, uint64_t first, uint64_t end, struct scratch *scratch,
                       uint8_t *to)
{
    const uint64_t bytes = source->unit_bytes;
    for (uint64_t unit = first / bytes; unit < source->units && unit * bytes < end; unit++) {
        const uint64_t begin = unit * bytes, from = begin < first ? first : begin,
                       until = begin + bytes < end ? begin + bytes : end;
        if (until - from == bytes) {
            make_unit(source, unit, scratch, to + (begin - first));
        } else {
            make_unit(source, unit, scratch, scratch->unit);
            memcpy(to + (from - first), scratch->unit + (from - begin), until - from);
        }
    }
}

static void describe_units(struct row_source *source, bool panels)
{
    const struct graph_weight *weight = source->weight;
    const uint64_t element = dtype_bytes(weight->dtype);
    source->unit = UNIT_ROW;
    source->unit_bytes = stored_depth(weight) * element;
    source->units = weight->rows;
    if (weight->form == WEIGHT_CONSTANT) {
        source->unit = UNIT_OF_CONSTANT;
        source->unit_bytes = weight->bytes;
        source->units = 1;
    } else if (weight->form == WEIGHT_GATE_UP_BIAS) {
        source->unit = UNIT_BIAS;
        source->unit_bytes = element;
    } else if (is_matrix(weight) && panels) {
        source->unit = UNIT_PANEL;
        source->unit_bytes = panel_bytes(weight->depth, weight->dtype);
        source->units = panel_count(weight->rows);
    }
}

struct packer *packer_open(const struct graph *graph, const struct checkpoint *checkpoint, uint64_t total_bytes,
                           struct status *status)
{
    struct packer *packer = calloc(1, sizeof *packer);
    struct row_source *sources = calloc((size_t)graph->weight_count * graph->ranks + 1, sizeof *sources);
    if (!packer || !sources) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        free(packer);
        free(sources);
        return NULL;
    }
    *packer = (struct packer){.sources = sources, .total_bytes = total_bytes};
    for (uint32_t rank = 0; rank < graph->ranks; rank++)
        for (int w = 0; w < graph->weight_count; w++) {
            const struct graph_weight *weight = &graph->weights[w];
            if (!weight->used) continue;
            struct row_source *source = &sources[packer->count++];
            source->weight = weight;
            source->offset = total_bytes / graph->ranks * rank + weight->offset;
            source->interleave = graph_interleave(graph);
            for (int p = 0; p < weight->piece_count; p++) {
                source->tensors[p] = checkpoint_find(checkpoint, weight->pieces[p].tensor);
                source->slices[p] = shard_slice(&weight->pieces[p], rank, graph->ranks);
            }
            describe_units(source, graph_has_panels(graph));
            source->left = weight->bytes;
        }
    return packer;
}

void packer_close(struct packer *packer)
{
    if (!packer) return;
    free(packer->sources);
    free(packer);
}

static bool fail_refused(const struct scratch *scratch, enum dtype dtype, struct status *status)
{
    const struct tensor_view *tensor = scratch->refused;
    const uint64_t element = scratch->refused_element, columns = tensor->rank == 2 ? tensor->shape[1] : 0;
    const float value = load_element(tensor->data, element, tensor->dtype);
    char place[64];
    if (columns)
        snprintf(place, sizeof place, "row %" PRIu64 ", column %" PRIu64, element / columns, element % columns);
    else
        snprintf(place, sizeof place, "element %" PRIu64, element);
    if (isfinite(value))
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s': %s is %.9g, beyond the range of %s; choose another --dtype",
                           tensor->name, place, (double)value, dtype_name(dtype));
    return status_fail(status, STATUS_BAD_INPUT,
                       "checkpoint: tensor '%s': %s is %s, expected finite weights; the file is damaged, or what wrote "
                       "it went wrong: get the checkpoint anew",
                       tensor->name, place,
                       isnan(value) ? "NaN"
                       : value > 0  ? "infinity"
                                    : "-infinity");
}

/* Nobody needs its tensors any more; another rank's share of them is read again. */
static void release(const struct row_source *source)
{
    for (int p = 0; p < source->weight->piece_count; p++)
        file_map_release(source->tensors[p]->data, source->tensors[p]->bytes);
}

/* The part of a weight that lies in bytes [offset, offset + size) of the section. */
static bool read_source(struct row_source *source, uint64_t offset, uint64_t size, uint8_t *to, struct status *status)
{
    const struct graph_weight *weight = source->weight;
    const uint64_t begin = source->offset > offset ? source->offset : offset,
                   end =
                       source->offset + weight->bytes < offset + size ? source->offset + weight->bytes : offset + size;
    const uint64_t converted = PANEL_ROWS * stored_depth(weight) * dtype_bytes(weight->dtype);
    struct scratch scratch = {.converted = malloc(converted), .unit = malloc(source->unit_bytes)};
    bool ok = scratch.converted && scratch.unit;
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while packing '%s'", weight->name);
    if (ok) make_bytes(source, begin - source->offset, end - source->offset, &scratch, to + (begin - offset));
    free(scratch.converted);
    free(scratch.unit);
    if (ok && scratch.refused) ok = fail_refused(&scratch, weight->dtype, status);
    if (ok && atomic_fetch_sub(&source->left, end - begin) == end - begin) release(source);
    return ok;
}

bool packer_read(struct packer *packer, uint64_t offset, uint64_t size, uint8_t *to, struct status *status)
{
    if (!checked_range(offset, size, packer->total_bytes))
        return status_fail(status, STATUS_INTERNAL, "packing beyond the weights' end");
    memset(to, 0, size);
    /* The first weight that ends behind `offset`. */
    size_t low = 0, high = packer->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct row_source *source = &packer->sources[middle];
        if (source->offset + source->weight->bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < packer->count && packer->sources[low].offset < offset + size; low++)
        if (!read_source(&packer->sources[low], offset, size, to, status)) return false;
    return true;
}

struct packing {
    struct packer *packer;
    struct engine_writer *writer;
    uint64_t total_bytes, regions;
    pack_progress *progress;
    void *context;
    _Atomic uint64_t done;
    atomic_bool failed;
    struct status *status; /* of the thread that set `failed` first */
};

static void pack_some(void *argument, struct team_member *member)
{
    enum { MOST_THREADS = 32 }; /* a file system writes one file's bytes one after the other: more would only wait */
    struct packing *packing = argument;
    struct status status;
    if (member->index >= MOST_THREADS) return;
    status_clear(&status);
    uint8_t *bytes = malloc(ENGINE_WEIGHT_CHUNK_BYTES);
    bool ok = bytes || status_fail(&status, STATUS_MACHINE, "out of memory while packing weights");
    const uint64_t chunks = weight_chunk_count(packing->total_bytes, packing->regions);
    for (uint64_t chunk, offset, size;
         ok && !atomic_load(&packing->failed) && (chunk = team_ticket(member)) < chunks;) {
        weight_chunk_range(packing->total_bytes, packing->regions, chunk, &offset, &size);
        ok = packer_read(packing->packer, offset, size, bytes, &status) &&
             engine_writer_weights_put(packing->writer, offset, bytes, size, &status);
        const uint64_t done = atomic_fetch_add(&packing->done, size) + size;
        if (member->index == 0 && packing->progress) packing->progress(packing->context, done, packing->total_bytes);
    }
    free(bytes);
    if (!ok && !atomic_exchange(&packing->failed, true)) *packing->status = status;
}

bool pack_weights(const struct graph *graph, const struct checkpoint *checkpoint, struct engine_writer *writer,
                  uint64_t total_bytes, struct team *team, pack_progress *progress, void *context,
                  struct status *status)
{
    struct packing packing = {.writer = writer,
                              .total_bytes = total_bytes,
                              .regions = graph->ranks,
                              .progress = progress,
                              .context = context,
                              .status = status};
    if (!engine_writer_weights_begin(writer, total_bytes, graph->ranks, status)) return false;
    packing.packer = packer_open(graph, checkpoint, total_bytes, status);
    if (!packing.packer) return false;
    team_run(team, pack_some, &packing);
    packer_close(packing.packer);
    if (atomic_load(&packing.failed)) return false;
    if (progress) progress(context, total_bytes, total_bytes);
    return engine_writer_weights_end(writer, status);
}
