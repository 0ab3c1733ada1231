/* SPDX-License-Identifier: Apache-2.0 */
/* Weight sources: where the rows of a weight come from. A source is a part of one tensor of the checkpoint, read in an order
 * of rows and with arithmetic that the architecture asks for, or values that the builder knows. Binding, sharding, packing and
 * the check that every element of the checkpoint is used know weights as lists of sources and nothing else.
 *
 * A source is a matrix of `rows` x `columns` (a vector: columns 0). Its row i comes from a row of the tensor in four steps, each
 * of which is absent by default:
 *   repeat      i modulo rows / repeat
 *   order       in each group of `group` rows, the first `dealt` are read with a stride: 0, stride, 2 stride, .., 1, 1 + stride, ..
 *   runs        of `run` rows, one at every `period` rows
 *   first_row   the tensor's row at which the source begins
 * Row and column are those of the tensor as it is read: exchanged where it is transposed, of each matrix where it has three dimensions.
 * A flat source is a vector of all elements. An element is scale * x + add.
 *
 * With an order (act-order) row i of the source is what would be row row_order[i], and column i of a quantised tensor is its column
 * column_order[i]. Orders have all rows of the source and all columns of the tensor.
 *
 *   fused q, k, v          {.shape = {q + 2 * kv, hidden}, .first_row = q, .rows = kv}          rows of k
 *   heads side by side     {.shape = {3 * width, hidden}, .first_row = d, .rows = width, .run = d, .period = 3 * d}   k of q, k, v
 *   gate and up by turns   {.shape = {2 * inner, hidden}, .first_row = 1, .rows = inner, .run = 1, .period = 2}       up
 *   Conv1D                 {.shape = {in, out}, .transposed = true}
 *   expert e               {.shape = {experts, out, in}, .first_row = e * out, .rows = out}
 *   the same, transposed   {.shape = {experts, in, out}, .transposed = true, .first_row = e * out, .rows = out}
 *   its bias               {.shape = {experts, out}, .flat = true, .first_row = e * out, .rows = out}
 *   norm of 1 + w          {.shape = {hidden}, .add = 1}
 *   rotary pairs to halves {.shape = {heads * d, hidden}, .group = d, .dealt = rotary_dim, .stride = 2}
 *   a bias of zeros        {.rows = n}
 *   an order as numbers    {.rows = n, .row_order = order} */
#ifndef BUILDER_WEIGHTS_SOURCE_H
#define BUILDER_WEIGHTS_SOURCE_H

#include "formats/checkpoint/safetensors.h"
#include "formats/encoding/encoding.h"

/* A rank's part of a source: an equal share, if the import names a direction. */
enum shard {
    SHARD_NONE,       /* all of it */
    SHARD_ROWS,       /* rows of heads or of the MLP's inner width */
    SHARD_KV_ROWS,    /* rows of KV heads; ranks share a head where there are more ranks than heads */
    SHARD_GROUP_ROWS, /* rows of groups of heads with recurrent state (B and C), likewise */
    SHARD_VOCABULARY, /* rows of tokens, the last ranks' padded */
    SHARD_COLUMNS,    /* so that the product is a part of a sum */
    SHARD_MATRICES, /* whole sources: an equal part of a weight's matrices, in order, each with all rows and columns */
    SHARD_FIRST_RANK, /* all on rank 0, zeros elsewhere: a term that is added once to such a sum */
};

enum { SOURCE_MAX_RANK = 4 };

/* Columns of a quantised tensor by rising group, those of a group by rising number. */
struct column_order {
    uint64_t count;
    uint32_t *columns; /* [count] */
};

/* 0 in a field: absent, or the most there is. */
struct weight_source {
    char *tensor;  /* owned; NULL: not from the checkpoint */
    float *values; /* owned; without a tensor: [rows, columns]; NULL: every element is `add` */
    uint64_t shape
        [SOURCE_MAX_RANK]; /* of the tensor in the checkpoint, up to the first 0. All but the last dimension are rows. */
    bool
        transposed; /* the source's rows are the columns of the tensor, or of each of its matrices, one after the other */
    bool flat;      /* all dimensions are rows */
    bool again;     /* another source takes the same elements */
    /* The tensor must have codes, which this encoding holds: without them its dimensions would mean something else. NONE: it
     * need not have any. */
    enum encoding_id codes;
    uint64_t first_row, rows, run, period;
    uint64_t first_column, columns;
    uint64_t group, dealt, stride, repeat;
    const struct column_order *row_order, *column_order; /* borrowed */
    float scale, add;
    enum shard shard;
    uint64_t rank_rows, rank_columns; /* of each rank; pass_shard makes them differ from rows and columns */
};

/* Replaces every 0 that stands for a default. */
void source_complete(struct weight_source *source);
/* The contradiction in a completed source, or NULL. */
const char *source_fault(const struct weight_source *source);
void source_free(struct weight_source *source);

/* The tensor as it is read: a matrix, a vector being one of a single column. */
uint64_t source_tensor_rows(const struct weight_source *source);
uint64_t source_tensor_columns(const struct weight_source *source);
uint64_t source_tensor_row(const struct weight_source *source, uint64_t row); /* that row `row` comes from */
/* Elements of the tensor that the source takes, each once; 0 without a tensor. */
uint64_t source_elements(const struct weight_source *source);
/* Whether its elements are those of a tensor, unchanged. */
bool source_is_exact(const struct weight_source *source);
/* Whether its elements are in the tensor's element type, or known to fit any. */
bool source_keeps_type(const struct weight_source *source);

/* Index in the tensor of an element of the source. */
uint64_t source_element(const struct weight_source *source, uint64_t row, uint64_t column);
/* Elements [first_column, first_column + count) of a row; `tensor` has the source's shape, NULL without one. */
void source_read(const struct weight_source *source, const struct tensor_view *tensor, uint64_t row,
                 uint64_t first_column, uint64_t count, float *values);
/* One element of a tensor. */
float source_tensor_element(const struct tensor_view *tensor, uint64_t index);

#endif
