/* SPDX-License-Identifier: Apache-2.0 */
/* Claims are rows by columns. Columns are cut where any claim begins or ends; within such a strip a claim has all columns or
 * none, and every row must have exactly one claim. */
#include "builder/weights/consumption.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

bool claims_add(struct tensor_claims *claims, const struct weight_source *source)
{
    if (claims->count == claims->capacity) {
        const size_t capacity = claims->capacity ? 2 * claims->capacity : 2;
        const struct weight_source **larger = realloc(claims->sources, capacity * sizeof *larger);
        if (!larger) return false;
        claims->sources = larger;
        claims->capacity = capacity;
    }
    claims->sources[claims->count++] = source;
    return true;
}

void claims_free(struct tensor_claims *claims) { free(claims->sources); }

static uint64_t first_column(const struct weight_source *source) { return source->columns ? source->first_column : 0; }

static uint64_t end_column(const struct weight_source *source)
{
    return source->columns ? source->first_column + source->columns : 1;
}

/* The end of the strip that begins at `column`. */
static uint64_t strip_end(const struct tensor_claims *claims, uint64_t column, uint64_t columns)
{
    uint64_t end = columns;
    for (size_t c = 0; c < claims->count; c++) {
        const uint64_t begins = first_column(claims->sources[c]), ends = end_column(claims->sources[c]);
        if (begins > column && begins < end) end = begins;
        if (ends > column && ends < end) end = ends;
    }
    return end;
}

static bool fail_twice(const struct tensor_view *tensor, const char *what, uint64_t row, struct status *status)
{
    return status_fail(status, STATUS_INTERNAL, "tensor '%s': %s %" PRIu64 " is taken twice", tensor->name, what, row);
}

/* Rows [from, until) of the strip have no claim. */
static bool fail_left(const struct tensor_view *tensor, bool transposed, uint64_t from, uint64_t until, uint64_t column,
                      uint64_t end, bool all_columns, const char *reader, struct status *status)
{
    char part[96] = "";
    const char *rows = transposed ? "columns" : "rows", *columns = transposed ? "rows" : "columns";
    if (!all_columns) snprintf(part, sizeof part, " (of %s %" PRIu64 " to %" PRIu64 ")", columns, column, end - 1);
    return status_fail(status, STATUS_BAD_INPUT,
                       "checkpoint: tensor '%s': %s %" PRIu64 " to %" PRIu64 "%s are not used by %s as config.json "
                       "describes it; an engine without them would compute something else",
                       tensor->name, rows, from, until - 1, part, reader);
}

static bool strip_is_covered(const struct tensor_claims *claims, const struct tensor_view *tensor, uint8_t *taken,
                             uint64_t column, uint64_t end, const char *reader, struct status *status)
{
    const bool transposed = claims->sources[0]->transposed;
    const uint64_t rows = source_tensor_rows(claims->sources[0]), columns = source_tensor_columns(claims->sources[0]);
    memset(taken, 0, rows);
    for (size_t c = 0; c < claims->count; c++) {
        const struct weight_source *source = claims->sources[c];
        if (first_column(source) > column || end_column(source) < end) continue;
        for (uint64_t row = 0; row < source->rows / source->repeat; row++) {
            const uint64_t at = source_tensor_row(source, row);
            if (taken[at]++) return fail_twice(tensor, transposed ? "column" : "row", at, status);
        }
    }
    const uint8_t *left = memchr(taken, 0, rows);
    if (!left) return true;
    const uint64_t from = (uint64_t)(left - taken);
    uint64_t until = from + 1;
    while (until < rows && !taken[until]) until++;
    return fail_left(tensor, transposed, from, until, column, end, end - column == columns, reader, status);
}

bool claims_cover(const struct tensor_claims *claims, const struct tensor_view *tensor, const char *reader,
                  struct status *status)
{
    const struct weight_source *first = claims->sources[0];
    const uint64_t rows = source_tensor_rows(first), columns = source_tensor_columns(first);
    /* A source takes each of its elements once. */
    if (claims->count == 1 && source_elements(first) == rows * columns) return true;
    for (size_t c = 1; c < claims->count; c++)
        if (claims->sources[c]->transposed != first->transposed)
            return status_fail(status, STATUS_INTERNAL, "tensor '%s' is read both transposed and as it is",
                               tensor->name);
    uint8_t *taken = malloc(rows);
    bool ok = taken || status_fail(status, STATUS_MACHINE, "out of memory while binding weights");
    for (uint64_t column = 0, end; ok && column < columns; column = end) {
        end = strip_end(claims, column, columns);
        ok = strip_is_covered(claims, tensor, taken, column, end, reader, status);
    }
    free(taken);
    return ok;
}
