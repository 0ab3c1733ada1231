/* SPDX-License-Identifier: Apache-2.0 */
/* The graph: a model as ops over named values, before rows, offsets and tunables are known.
 *
 * Import files build it, passes rewrite it, lowering turns it into one plan per row count. Nodes are kept in
 * execution order. A node's inputs and outputs stand in fixed places that each op's comment below names; -1 =
 * absent. */
#ifndef BUILDER_GRAPH_GRAPH_H
#define BUILDER_GRAPH_GRAPH_H

#include <stdio.h>

#include "builder/weights/source.h"
#include "formats/engine/engine_file.h"
#include "formats/checkpoint/model_config.h"
#include "formats/engine/plan.h"

enum { GRAPH_MAX_INPUTS = 6, GRAPH_MAX_OUTPUTS = 2, GRAPH_MAX_WEIGHTS = 3, GRAPH_NAME_BYTES = 64 };
#define GRAPH_NO_LAYER UINT32_MAX

/* How a weight lies in the engine file. */
enum weight_form {
    WEIGHT_ROW_MAJOR, /* row by row: vectors, untied embedding */
    WEIGHT_MATRIX,    /* the layout that the target's matmul reads: PANEL16 on the CPU, row by row on devices */
};

struct graph_weight {
    char name[GRAPH_NAME_BYTES]; /* name in the engine file */
    enum weight_form form;
    struct weight_source *sources; /* owned [source_count]; each with the weight's columns */
    int source_count;
    uint64_t
        interleave; /* rows of each source in turn, each source padded to a multiple; 0: one source after the other */
    uint64_t rows, columns; /* logical shape, on each rank; columns 0: a vector */
    uint64_t depth;         /* columns as stored, >= columns, the rest zeros (K of a matmul) */
    uint32_t layer;
    bool used; /* set by dead_code: some node reads it */
    /* set by bind_weights and plan_weights */
    enum encoding_id encoding; /* in the engine file */
    uint64_t offset, bytes;    /* in the weight section */
};

/* Rows of a value: one per token of the step, or one per row that needs logits. */
enum row_space { ROWS_TOKENS, ROWS_OUT };

enum value_place { VALUE_ARENA, VALUE_LOGITS /* STEP_LOGITS */, VALUE_NEXT_TOKENS /* STEP_NEXT_TOKENS */ };

struct graph_value {
    char name[GRAPH_NAME_BYTES];
    enum value_place place;
    enum row_space rows;
    uint64_t width;   /* elements per row */
    enum dtype dtype; /* F32; on devices also that of the weights: pass_activation_dtypes */
};

/* Inputs of each op, by place:
 *   EMBED        -                              weight                   -> x
 *   ROPE_TABLE   -                              inv_freq                 -> table
 *   RMS_NORM     x, residual or -1              weight                   -> y, sum (-1 without residual)
 *   MATMUL       x, residual or -1              weight, bias or -1, norm or -1 (RMS norm of x)  -> y
 *   ROPE_APPEND  q, k, v (fused: qkv, -1, -1), table    norm_q, norm_k or -1  -> q
 *   ROPE_ATTENTION  qkv, -1, -1, table          norm_q, norm_k or -1     -> y
 *   ATTENTION    q                                                       -> y
 *   SWIGLU       gate, up                                                -> y
 *   ADD          a, b                                                    -> y
 *   SELECT_ROWS  x                                                       -> y
 *   SAMPLE       logits                                                  -> next tokens
 *   ALL_REDUCE   x, residual or -1              norm of y or -1          -> y, its norm or -1
 *   ALL_GATHER   x                                                       -> y */
struct graph_node {
    enum plan_op op;
    int inputs[GRAPH_MAX_INPUTS];   /* value ids */
    int weights[GRAPH_MAX_WEIGHTS]; /* weight ids */
    int outputs[GRAPH_MAX_OUTPUTS]; /* value ids */
    uint32_t layer;
    bool removed;
    bool swiglu;     /* MATMUL: fused gate/up epilogue */
    float eps;       /* RMS_NORM, MATMUL and ALL_REDUCE with a norm, ROPE_APPEND with norms */
    float scale;     /* ATTENTION: softmax scale; ROPE_TABLE: scaling */
    uint64_t window; /* ATTENTION: 0 = none */
};

struct graph {
    const struct model_config *config;      /* borrowed: the whole model's; behind pass_shard that of one rank */
    const struct model_config *rank_config; /* borrowed; with one rank NULL */
    uint32_t ranks;                         /* 1, or what pass_shard splits the model into */
    enum plan_kind kind;
    enum engine_target target; /* TARGET_CPU unless the builder says otherwise */
    enum dtype half;           /* devices: dtype of matrices and of 16-bit values, F16 or BF16 */
    bool narrow;               /* devices: at most GRAPH_NARROW_ROWS token rows, so that fusions for few rows pay */
    struct graph_node *nodes;
    int node_count, node_capacity;
    struct graph_value *values;
    int value_count, value_capacity;
    struct graph_weight *weights; /* both kinds of one model create the same weights in the same order */
    int weight_count, weight_capacity;
    bool out_of_memory; /* sticky: checked once after import and after each pass */
};

enum { GRAPH_NARROW_ROWS = 8 };

void graph_init(struct graph *graph, const struct model_config *config, enum plan_kind kind);
void graph_free(struct graph *graph);

/* Each returns an id, -1 after an allocation failure (ids of -1 are accepted by all, so that imports need no checks).
 * `format` gives the name; layer GRAPH_NO_LAYER outside the layers. */
int graph_value(struct graph *graph, enum row_space rows, uint64_t width, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int graph_matrix(struct graph *graph, uint32_t layer, uint64_t rows, uint64_t columns, enum weight_form form,
                 const char *tensor_format, ...) __attribute__((format(printf, 6, 7)));
int graph_vector(struct graph *graph, uint32_t layer, uint64_t rows, const char *tensor_format, ...)
    __attribute__((format(printf, 4, 5)));
/* A weight that is not all of one tensor as it stands: builder/weights/source.h has examples. `source` is copied and
 * completed; `tensor_format` gives its tensor, or, without a shape, the weight's name alone. */
int graph_weight_from(struct graph *graph, uint32_t layer, enum weight_form form, const struct weight_source *source,
                      const char *tensor_format, ...) __attribute__((format(printf, 5, 6)));
/* One more source, whose rows follow those that the weight has. Without a shape it has no tensor, and the
 * format is not read. */
void graph_weight_append(struct graph *graph, int weight, const struct weight_source *source, const char *tensor_format,
                         ...) __attribute__((format(printf, 4, 5)));
/* Moves the sources of `from` to the end of those of `to`. False after an allocation failure. */
bool graph_weight_join(struct graph *graph, int to, int from);
int graph_constant(struct graph *graph, const float *values, uint64_t count, const char *name);
/* Appends a node with all places -1; NULL after an allocation failure. */
struct graph_node *graph_append(struct graph *graph, enum plan_op op, uint32_t layer);
/* Makes room for a node before position `index` (ids of values do not change). */
struct graph_node *graph_insert(struct graph *graph, int index, enum plan_op op, uint32_t layer);

/* Rows of gate, then of up, that alternate where a matmul has the SwiGLU epilogue: a panel on the CPU; on devices half of the
 * 16 rows of a matrix instruction, so that both halves of a product meet in one thread. */
uint64_t graph_interleave(const struct graph *graph);
/* Whether matrices for matmul are in PANEL16 layout. */
bool graph_has_panels(const struct graph *graph);
/* Whether this weight is: panels hold elements of plain encodings alone. */
bool graph_weight_has_panels(const struct graph *graph, const struct graph_weight *weight);
/* At most GRAPH_NARROW_ROWS rows, for sure. */
bool graph_is_narrow(const struct graph *graph, int value);

/* Of all sources that the matrix or vector `weight` (or -1) has so far. */
void graph_shard(struct graph *graph, int weight, enum shard shard);

int graph_producer(const struct graph *graph, int value);  /* node index, -1 if none */
int graph_use_count(const struct graph *graph, int value); /* inputs of live nodes that name it */
void graph_replace_uses(struct graph *graph, int from, int to);
bool graph_is_row_wise(enum plan_op op); /* row r of the output depends on row r of the inputs alone */

/* Structural check after import and each pass: ids in range, every input produced earlier, one producer per value,
 * widths and row spaces that fit the op. A failure is a defect of ours (STATUS_INTERNAL). */
bool graph_check(const struct graph *graph, const char *after, struct status *status);

/* Text form, one node a line. */
void graph_dump(const struct graph *graph, FILE *out);

#endif
