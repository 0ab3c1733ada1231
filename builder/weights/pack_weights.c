/* SPDX-License-Identifier: Apache-2.0 */
/* The weight section as a function of its offset. Every weight is a sequence of units of one size, each of which can be made
 * by itself from its sources; so threads can make any part of the section, and the file does not depend on who made which. */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builder/weights/calibration.h"
#include "builder/weights/channel_scales.h"
#include "builder/weights/coded.h"
#include "builder/weights/shard.h"
#include "builder/weights/weights.h"
#include "formats/base/checked.h"
#include "kernels/matmul/weight_layout.h"

enum unit {
    UNIT_PANEL, /* PANEL_ROWS rows of a matrix as a panel */
    UNIT_ROW,   /* a row of a matrix, or of vectors: an element */
    UNIT_CODED, /* PANEL_ROWS rows of codes with scales as a panel */
};

/* A source and a rank's share of it. */
struct rank_source {
    const struct weight_source *source;
    const struct tensor_view *tensor; /* NULL: not from the checkpoint */
    struct shard_slice slice;
    const float *row_scales, *column_scales; /* [slice.rows], [columns]: factors of its elements; NULL: 1 */
};

/* A rank's share of a weight. */
struct weight_share {
    const struct graph_weight *weight;
    uint64_t offset;                   /* in the weight section */
    const struct rank_source *sources; /* [source_count] */
    int source_count;                  /* the weight's, with SHARD_MATRICES the rank's of them */
    enum unit unit;
    uint64_t depth; /* elements of a row as the engine has it */
    uint64_t unit_bytes, units;
    uint64_t unit_rows;
    struct panel_form form; /* UNIT_CODED */
    /* UNIT_CODED, of a calibrated weight, else NULL. Its columns' factors are here, and not in its sources. */
    const float *factors, *error_weights, *column_scales;
    _Atomic uint64_t left; /* bytes of it that no thread has read yet */
};

struct packer {
    struct weight_share *shares; /* [count], by rising offset */
    struct rank_source *sources; /* of all shares */
    size_t count;
    uint64_t total_bytes;
};

/* Buffers of one thread to make a unit. */
struct scratch {
    uint8_t *converted;     /* UNIT_PANEL, UNIT_ROW: rows in the engine's encoding that need conversion or padding */
    float *values;          /* UNIT_CODED: a row */
    struct coded_row coded; /* UNIT_CODED */
    uint8_t *unit;          /* one that does not lie in the part as a whole */
    /* A source that has an element that is not finite, or not in its new encoding, and where; NULL: none so far. */
    const struct rank_source *refused;
    uint64_t refused_row, refused_column;
};

static uint64_t element_bytes(const struct graph_weight *weight) { return encoding_find(weight->encoding)->bits / 8; }

static void refuse(struct scratch *scratch, const struct rank_source *from, uint64_t row, uint64_t column)
{
    if (scratch->refused) return;
    scratch->refused = from;
    scratch->refused_row = row;
    scratch->refused_column = column;
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

/* Row `row` of a source as it lies in the tensor. */
static const uint8_t *row_in_tensor(struct scratch *scratch, const struct rank_source *from, uint64_t row,
                                    uint64_t columns)
{
    const struct tensor_view *tensor = from->tensor;
    const uint64_t bytes = dtype_bytes(tensor->dtype), first_column = from->slice.first_column;
    const uint64_t first = source_element(from->source, row, first_column);
    const uint8_t *data = (const uint8_t *)tensor->data + first * bytes;
    if (!all_finite(data, columns * bytes, tensor->dtype)) {
        uint64_t column = 0;
        while (isfinite(source_tensor_element(tensor, first + column))) column++;
        refuse(scratch, from, row, first_column + column);
    }
    return data;
}

/* Elements [column, column + count) of a row of a source's share. */
static void read_row(const struct rank_source *from, uint64_t row, uint64_t column, uint64_t count, float *values)
{
    source_read(from->source, from->tensor, row, column, count, values);
    const float scale = from->row_scales ? from->row_scales[row - from->slice.first_row] : 1;
    for (uint64_t i = 0; from->row_scales && i < count; i++) values[i] *= scale;
    const float *scales = from->column_scales ? from->column_scales + (column - from->slice.first_column) : NULL;
    for (uint64_t i = 0; scales && i < count; i++) values[i] *= scales[i];
}

static void convert_row(struct scratch *scratch, const struct rank_source *from, uint64_t row, uint64_t columns,
                        enum encoding_id encoding, uint8_t *to)
{
    enum { PART = 512 };
    float values[PART];
    const uint64_t bytes = encoding_find(encoding)->bits / 8;
    for (uint64_t first = 0; first < columns; first += PART) {
        const uint64_t count = columns - first < PART ? columns - first : PART;
        const uint64_t column = from->slice.first_column + first;
        uint64_t refused;
        read_row(from, row, column, count, values);
        if (!encoding_from_float(encoding, 1, count, values, to + first * bytes, &refused))
            refuse(scratch, from, row, column + refused);
    }
}

/* The source of row `row` of a share, and which row of it that is; NULL for a padding row. */
static const struct rank_source *source_of_row(const struct weight_share *share, uint64_t *row)
{
    const struct graph_weight *weight = share->weight;
    const uint64_t experts = weight->experts ? weight->experts : 1;
    const uint64_t count = (uint64_t)share->source_count / experts, expert_rows = weight->rows / experts;
    if (*row >= weight->rows) return NULL; /* the end of the last panel */
    uint64_t index = 0, at = *row % expert_rows;
    if (weight->interleave) {
        const uint64_t group = at / weight->interleave;
        index = *row / expert_rows * count + group % count;
        at = group / count * weight->interleave + at % weight->interleave;
    } else {
        while (index < count && at >= weight->sources[index].rank_rows) at -= weight->sources[index++].rank_rows;
        if (index == count) return NULL;
    }
    const struct rank_source *from = &share->sources[index];
    if (at >= from->slice.rows) return NULL;
    *row = from->slice.first_row + at;
    return from;
}

static uint64_t columns_of(const struct graph_weight *weight) { return weight->columns ? weight->columns : 1; }

/* Row `row` of a share in the engine's encoding, NULL for a padding row. `slot` is the row's place in the unit. */
static const void *encoded_row(const struct weight_share *share, uint64_t row, uint64_t slot, struct scratch *scratch)
{
    const struct graph_weight *weight = share->weight;
    const struct rank_source *from = source_of_row(share, &row);
    if (!from) return NULL;
    const uint64_t columns = columns_of(weight), element = element_bytes(weight);
    const bool as_it_is = source_is_exact(from->source) && !from->row_scales && !from->column_scales &&
                          !from->source->transposed && !from->tensor->quantised &&
                          (int)from->tensor->dtype == (int)weight->encoding;
    if (as_it_is && share->depth == columns) return row_in_tensor(scratch, from, row, columns);
    uint8_t *converted = scratch->converted + slot * share->depth * element;
    memset(converted + columns * element, 0, (share->depth - columns) * element);
    if (as_it_is)
        memcpy(converted, row_in_tensor(scratch, from, row, columns), columns * element);
    else
        convert_row(scratch, from, row, columns, weight->encoding, converted);
    return converted;
}

/* A panel of codes: padding rows and columns are zeros. */
static void make_coded(const struct weight_share *share, uint64_t unit, struct scratch *scratch, uint8_t *to)
{
    const struct graph_weight *weight = share->weight;
    const uint64_t columns = columns_of(weight);
    memset(to, 0, share->unit_bytes);
    for (uint64_t i = 0; i < PANEL_ROWS; i++) {
        uint64_t row = unit * PANEL_ROWS + i, refused;
        const struct rank_source *from = source_of_row(share, &row);
        if (!from) continue;
        const uint64_t first = from->slice.first_column;
        memset(scratch->values + columns, 0, (share->depth - columns) * sizeof(float));
        read_row(from, row, first, columns, scratch->values);
        bool ok;
        if (weight->keeps_codes) {
            ok = coded_from_quantised(&share->form, from->tensor->quantised, from->source, row, first, columns,
                                      scratch->values, &scratch->coded, &refused);
        } else {
            struct coded_feedback feedback = {.factors = share->factors,
                                              .error_weights = share->error_weights,
                                              .scales = share->column_scales};
            ok = coded_from_floats(&share->form, scratch->values, share->depth, share->factors ? &feedback : NULL,
                                   &scratch->coded, &refused);
        }
        if (ok)
            panel_pack_coded(&share->form, &scratch->coded, i, weight->keeps_codes ? columns : share->depth, to);
        else
            refuse(scratch, from, row, first + refused);
    }
}

static void make_unit(const struct weight_share *share, uint64_t unit, struct scratch *scratch, uint8_t *to)
{
    const struct graph_weight *weight = share->weight;
    if (share->unit == UNIT_CODED) {
        make_coded(share, unit, scratch, to);
        return;
    }
    if (share->unit == UNIT_PANEL) {
        const void *rows[PANEL_ROWS];
        for (uint64_t i = 0; i < PANEL_ROWS; i++) rows[i] = encoded_row(share, unit * PANEL_ROWS + i, i, scratch);
        panel_pack(rows, weight->depth, (enum dtype)weight->encoding, to);
        return;
    }
    const void *row = encoded_row(share, unit, 0, scratch);
    if (row)
        memcpy(to, row, share->unit_bytes);
    else
        memset(to, 0, share->unit_bytes);
}

/* Bytes [first, end) of a weight whose units follow each other. */
static void make_bytes(const struct weight_share *share, uint64_t first, uint64_t end, struct scratch *scratch,
                       uint8_t *to)
{
    const uint64_t bytes = share->unit_bytes;
    for (uint64_t unit = first / bytes; unit < share->units && unit * bytes < end; unit++) {
        const uint64_t begin = unit * bytes, from = begin < first ? first : begin,
                       until = begin + bytes < end ? begin + bytes : end;
        if (until - from == bytes) {
            make_unit(share, unit, scratch, to + (begin - first));
        } else {
            make_unit(share, unit, scratch, scratch->unit);
            memcpy(to + (from - first), scratch->unit + (from - begin), until - from);
        }
    }
}

static void describe_units(struct weight_share *share, enum tensor_layout layout)
{
    const struct graph_weight *weight = share->weight;
    const bool panels = weight_layout_form(layout, weight->encoding, &share->form);
    share->depth = weight->form == WEIGHT_MATRIX ? weight->depth : columns_of(weight);
    share->unit = !panels ? UNIT_ROW : encoding_is_plain(weight->encoding) ? UNIT_PANEL : UNIT_CODED;
    share->unit_rows = panels ? PANEL_ROWS : 1;
    share->units = (weight->rows + share->unit_rows - 1) / share->unit_rows;
    weight_layout_bytes(layout, weight->encoding, share->unit_rows, share->depth, &share->unit_bytes);
}

struct packer *packer_open(const struct graph *graph, const struct checkpoint *checkpoint, uint64_t total_bytes,
                           struct status *status)
{
    size_t most = 1;
    for (int w = 0; w < graph->weight_count; w++) most += (size_t)graph->weights[w].source_count * graph->ranks;
    struct packer *packer = calloc(1, sizeof *packer);
    struct weight_share *shares = calloc((size_t)graph->weight_count * graph->ranks + 1, sizeof *shares);
    struct rank_source *sources = calloc(most, sizeof *sources);
    if (!packer || !shares || !sources) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        free(packer);
        free(shares);
        free(sources);
        return NULL;
    }
    *packer = (struct packer){.shares = shares, .sources = sources, .total_bytes = total_bytes};
    for (uint32_t rank = 0; rank < graph->ranks; rank++)
        for (int w = 0; w < graph->weight_count; w++) {
            const struct graph_weight *weight = &graph->weights[w];
            if (!weight->used) continue;
            struct weight_share *share = &shares[packer->count++];
            share->weight = weight;
            share->offset = total_bytes / graph->ranks * rank + weight->offset;
            share->sources = sources;
            const struct weight_scales scales = channel_scales_of(graph->scales, rank, w);
            if (graph->calibration) {
                share->factors = calibration_factors(graph->calibration, rank, w);
                share->error_weights = calibration_error_weights(graph->calibration, rank, w);
            }
            if (share->factors) share->column_scales = scales.columns;
            for (int i = 0; i < weight->source_count; i++) {
                const struct weight_source *source = &weight->sources[i];
                *sources++ = (struct rank_source){
                    .source = source,
                    .tensor = source->tensor ? checkpoint_find(checkpoint, source->tensor) : NULL,
                    .slice = shard_slice(source, rank, graph->ranks),
                    .row_scales = scales.source == i ? scales.rows : NULL,
                    .column_scales = share->factors ? NULL : scales.columns,
                };
            }
            share->source_count = weight->source_count;
            if (share->source_count && weight->sources[0].shard == SHARD_MATRICES) {
                share->source_count /= (int)graph->ranks;
                share->sources += (int)rank * share->source_count;
            }
            describe_units(share, graph_weight_layout(graph, weight));
            share->left = weight->bytes;
        }
    return packer;
}

void packer_close(struct packer *packer)
{
    if (!packer) return;
    free(packer->shares);
    free(packer->sources);
    free(packer);
}

static bool fail_refused(const struct scratch *scratch, const struct graph_weight *weight, struct status *status)
{
    const struct rank_source *from = scratch->refused;
    const struct tensor_view *tensor = from->tensor;
    float value;
    char place[64];
    read_row(from, scratch->refused_row, scratch->refused_column, 1, &value);
    if (!tensor)
        return status_fail(status, STATUS_INTERNAL,
                           "weight '%s': a value that the builder computed is %g, which %s has not", weight->name,
                           (double)value, encoding_name(weight->encoding));
    const uint64_t element = source_element(from->source, scratch->refused_row, scratch->refused_column);
    const uint64_t columns = tensor->rank > 1 ? tensor->shape[tensor->rank - 1] : 0;
    const float raw = source_tensor_element(tensor, element);
    if (columns)
        snprintf(place, sizeof place, "row %" PRIu64 ", column %" PRIu64, element / columns, element % columns);
    else
        snprintf(place, sizeof place, "element %" PRIu64, element);
    if (isfinite(raw))
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s': %s is %.9g, beyond the range of %s; choose another --dtype",
                           tensor->name, place, (double)value, encoding_label(weight->encoding));
    return status_fail(status, STATUS_BAD_INPUT,
                       "checkpoint: tensor '%s': %s is %s, expected finite weights; the file is damaged, or what wrote "
                       "it went wrong: get the checkpoint anew",
                       tensor->name, place,
                       isnan(raw) ? "NaN"
                       : raw > 0  ? "infinity"
                                  : "-infinity");
}

/* Its tensors are not needed any more; another rank reads its share of them again. */
static void release(const struct weight_share *share)
{
    for (int i = 0; i < share->source_count; i++) {
        const struct tensor_view *tensor = share->sources[i].tensor;
        if (tensor && tensor->quantised)
            file_map_release(tensor->quantised->codes.data, tensor->quantised->code_bytes);
        else if (tensor)
            file_map_release(tensor->data, tensor->bytes);
    }
}

/* The part of a weight that lies in bytes [offset, offset + size) of the section. */
static bool read_share(struct weight_share *share, uint64_t offset, uint64_t size, uint8_t *to, struct status *status)
{
    const struct graph_weight *weight = share->weight;
    const uint64_t begin = share->offset > offset ? share->offset : offset,
                   end = share->offset + weight->bytes < offset + size ? share->offset + weight->bytes : offset + size;
    const uint64_t rows = share->unit_rows * share->depth;
    const bool coded = share->unit == UNIT_CODED;
    struct scratch scratch = {.converted = malloc(coded ? 1 : rows * element_bytes(weight)),
                              .values = malloc(coded ? share->depth * sizeof(float) : 1),
                              .unit = malloc(share->unit_bytes)};
    bool ok = scratch.converted && scratch.values && scratch.unit &&
              (!coded || coded_row_open(&scratch.coded, &share->form, share->depth));
    if (!ok) status_fail(status, STATUS_MACHINE, "out of memory while packing '%s'", weight->name);
    if (ok) make_bytes(share, begin - share->offset, end - share->offset, &scratch, to + (begin - offset));
    free(scratch.converted);
    free(scratch.values);
    free(scratch.unit);
    coded_row_close(&scratch.coded);
    if (ok && scratch.refused) ok = fail_refused(&scratch, weight, status);
    if (ok && atomic_fetch_sub(&share->left, end - begin) == end - begin) release(share);
    return ok;
}

bool packer_read(struct packer *packer, uint64_t offset, uint64_t size, uint8_t *to, struct status *status)
{
    if (!checked_range(offset, size, packer->total_bytes))
        return status_fail(status, STATUS_INTERNAL, "packing beyond the weights' end");
    memset(to, 0, size);
    /* The first weight that ends after `offset`. */
    size_t low = 0, high = packer->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct weight_share *share = &packer->shares[middle];
        if (share->offset + share->weight->bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < packer->count && packer->shares[low].offset < offset + size; low++)
        if (!read_share(&packer->shares[low], offset, size, to, status)) return false;
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
    struct status *status; /* status of the thread that set `failed` first */
};

static void pack_some(void *argument, struct team_member *member)
{
    enum { MOST_THREADS = 32 }; /* a file system writes one file's bytes one after the other: more would only wait */
    struct packing *packing = argument;
    struct status status = {0};
    if (member->index >= MOST_THREADS) return;
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
