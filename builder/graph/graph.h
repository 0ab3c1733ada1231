/* SPDX-License-Identifier: Apache-2.0 */
/* The graph: a model as ops over named values, before rows, offsets and tunables are known.
 *
 * Import files build it, passes rewrite it, lowering turns it into one plan per row count. Nodes are kept in execution
 * order. The schema of a node's op (kernels/op/schema.h) says what its operands and parameters are. */
#ifndef BUILDER_GRAPH_GRAPH_H
#define BUILDER_GRAPH_GRAPH_H

#include <stdio.h>

#include "builder/weights/source.h"
#include "formats/engine/engine_file.h"
#include "formats/checkpoint/model_config.h"
#include "kernels/op/op.h"

enum { GRAPH_MAX_PARAMS = 40, GRAPH_NAME_BYTES = 64 };
enum { GRAPH_ABSENT = -1 }; /* an operand that a node does not have */
#define GRAPH_NO_LAYER UINT32_MAX

/* Layout of a weight in the engine file. */
enum weight_form {
    WEIGHT_ROW_MAJOR, /* row by row: vectors, untied embedding; with codes like a matrix */
    WEIGHT_TABLE,     /* row by row, in the type of its tensors, which --dtype does not change */
    WEIGHT_MATRIX,    /* the layout that the target's matmul reads: weight_layout_of (kernels/matmul/weight_layout.h) */
};

/* Ways to make one weight, multiplied in one launch, of two that could be apart: bits. */
enum graph_join {
    GRAPH_JOIN_SHARED = 1, /* the shared expert as experts of the routed ones' matrices */
    GRAPH_JOIN_LATENT = 2, /* of latent attention: q and the latent row, products of one x */
};

struct graph_weight {
    char name[GRAPH_NAME_BYTES]; /* name in the engine file */
    enum weight_form form;
    struct weight_source *sources; /* owned [source_count]; each with the weight's columns */
    int source_count;
    uint64_t
        interleave; /* rows of each source in turn, each source padded to a multiple; 0: one source after the other */
    uint64_t
        experts; /* matrices of so many experts or blocks, one after the other, each of equally many sources; 0: one matrix */
    uint8_t join; /* the way that joined sources joined_from.. to those before; 0: none did */
    int joined_from;
    bool exact; /* --dtype makes no codes of it (--keep may), and --compute rounds nothing that it is multiplied by */
    uint64_t rows, columns; /* logical shape, on each rank; columns 0: a vector */
    uint64_t depth;         /* columns as stored, >= columns, the rest zeros (K of a matmul) */
    uint32_t layer;
    bool used; /* set by dead_code: some node reads it */
    /* set by bind_weights and plan_weights; in a graph with input_codes or of few rows the first two by share_encodings, before its
     * passes */
    enum encoding_id encoding; /* in the engine file */
    bool keeps_codes;          /* of the quantised tensors that it is of */
    uint64_t offset, bytes;    /* in the weight section */
};

/* Rows of a value: one per token of the step, or one per row that needs logits. */
enum row_space { ROWS_TOKENS, ROWS_OUT };

enum value_place { VALUE_ARENA, VALUE_LOGITS /* STEP_LOGITS */, VALUE_HIDDEN /* STEP_HIDDEN */ };

struct graph_value {
    char name[GRAPH_NAME_BYTES];
    enum value_place place;
    enum row_space rows;
    uint64_t width;   /* elements per row */
    enum dtype dtype; /* F32; on devices also that of the weights, F8_E4M3 or I8: pass_activation_dtypes */
};

/* Operands and parameters stand at their places in the op's schema. */
struct graph_node {
    enum plan_op op;
    int operands[PLAN_MAX_OPERANDS];  /* inputs and outputs: value ids; weights: weight ids; all others: GRAPH_ABSENT */
    int64_t params[GRAPH_MAX_PARAMS]; /* those that the schema takes from the node (PARAM_OF_NODE), else 0 */
    uint32_t layer;
    bool removed;
};

/* Token rows of the plans that a graph is for. */
enum graph_rows {
    GRAPH_ROWS_ANY,
    GRAPH_ROWS_SMALL_BATCH, /* at most GRAPH_SMALL_BATCH */
    GRAPH_ROWS_ROUTED_MLP,  /* likewise, and an MLP over experts may be one launch */
    GRAPH_ROWS_ROUTER_BATCH /* at most GRAPH_ROUTER_BATCH: a router and its norm in one launch */
};

struct graph {
    const struct model_config *config;      /* borrowed: the whole model's; after pass_shard that of one rank */
    const struct model_config *rank_config; /* borrowed; with one rank NULL */
    uint32_t ranks;                         /* 1, or what pass_shard splits the model into */
    enum plan_kind kind;
    enum engine_target target;  /* TARGET_CPU unless the builder says otherwise */
    enum dtype compute_dtype;   /* CUDA: dtype of matrices without codes and of 16-bit values, F16 or BF16 */
    enum encoding_id rounds_to; /* CPU: what matmuls round activations to, BF16 or INT8_G32; else they do not */
    bool has_routed_matmul;     /* CUDA: the GPU takes routed_matmul and norm_router */
    int64_t shared_per_block;   /* CUDA: bytes of shared memory that a thread block of the GPU may take; 0: not known */
    int multiprocessors;        /* CUDA: of the GPU; 0: not known */
    bool gives_hidden;          /* the plans have STEP_HIDDEN */
    enum graph_rows plan_rows;  /* CUDA; few rows require share_encodings, as input_codes does */
    /* CUDA: F8_E4M3 or I8: matmuls of weights with such codes multiply codes of activations; NONE: none does. Requires, if not NONE:
     * the weights have their encodings before the passes run (share_encodings). */
    enum dtype input_codes;
    struct graph_node *nodes;
    int node_count, node_capacity;
    struct graph_value *values;
    int value_count, value_capacity;
    struct graph_weight *weights; /* both kinds of one model create the same weights in the same order */
    int weight_count, weight_capacity;
    const uint8_t *joins; /* borrowed [layers]: bits of enum graph_join that the import may use; NULL: none */
    const struct calibration *calibration; /* borrowed: of the weights (builder/weights/calibration.h); NULL: none */
    const struct channel_scales *scales;   /* borrowed: of the weights (builder/weights/channel_scales.h); NULL: none */
    bool out_of_memory;                    /* sticky: checked once after import and after each pass */
    struct graph_node lost;                /* what graph_append returns then, to be written and never read */
};

enum { GRAPH_SMALL_BATCH = 8, GRAPH_ROUTER_BATCH = 64 };
/* Least token rows of plans that a graph with input_codes is for. With fewer, reading the weights takes nearly all of the time, and
 * activations of fewer bits save none of it. Codes of 4 bits take half the time to read, and longer to become bfloat16 than int8. */
enum { GRAPH_EIGHT_BIT_ROWS = 32, GRAPH_FOUR_BIT_ROWS = 16 };
/* After pass_eight_bit_inputs. */
uint32_t graph_least_rows_of_codes(const struct graph *graph);

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
/* A weight that is not one whole, unchanged tensor: builder/weights/source.h has examples. `source` is copied and
 * completed; `tensor_format` gives its tensor, or, without a shape, only the weight's name. */
int graph_weight_from(struct graph *graph, uint32_t layer, enum weight_form form, const struct weight_source *source,
                      const char *tensor_format, ...) __attribute__((format(printf, 5, 6)));
/* One more source, whose rows follow those that the weight has. Without a shape it has no tensor, and the
 * format is not read. */
void graph_weight_append(struct graph *graph, int weight, const struct weight_source *source, const char *tensor_format,
                         ...) __attribute__((format(printf, 4, 5)));
/* Moves the sources of `from` to the end of those of `to`. False after an allocation failure. */
bool graph_weight_join(struct graph *graph, int to, int from);
/* The same with rows in turn, `group` of each source, each source padded to a multiple. */
bool graph_weight_interleave(struct graph *graph, int to, int from, uint64_t group);
/* Rows on each rank, as they follow from the sources. */
uint64_t graph_weight_rows(const struct graph_weight *weight);
int graph_constant(struct graph *graph, const float *values, uint64_t count, const char *name);
/* Appends a node without operands, its parameters the schema's defaults; &graph->lost after an allocation failure. */
struct graph_node *graph_append(struct graph *graph, enum plan_op op, uint32_t layer);
/* Makes room for a node before position `index` (ids of values do not change). */
struct graph_node *graph_insert(struct graph *graph, int index, enum plan_op op, uint32_t layer);

/* Rows of gate, then of up, that alternate where a matmul has the SwiGLU epilogue: a panel on the CPU; on devices half of the
 * 16 rows of a matrix instruction, so that both halves of a product meet in one thread. */
uint64_t graph_interleave(const struct graph *graph);
/* A matrix, or an embedding, which may double as one. */
static inline bool graph_is_multiplied(const struct graph_weight *weight)
{
    return weight->columns && weight->form != WEIGHT_TABLE;
}
/* Layout of a weight in the engine file; that of matrices depends on their encoding. */
enum tensor_layout graph_weight_layout(const struct graph *graph, const struct graph_weight *weight);
/* Whether matmul_gemv, at so many rows, does this matmul over experts with all that it alone has: the norm of x with a gate, and
 * without one the sum over a row's choices. */
bool graph_gemv_has_experts(const struct graph *graph, const struct graph_node *matmul, uint32_t rows);
/* At most GRAPH_SMALL_BATCH token rows, so that fusions for few rows pay. */
static inline bool graph_has_few_rows(const struct graph *graph)
{
    return graph->plan_rows == GRAPH_ROWS_SMALL_BATCH || graph->plan_rows == GRAPH_ROWS_ROUTED_MLP;
}
/* Most rows of plans that a graph of few rows is for: GRAPH_SMALL_BATCH, fewer where its matmuls over experts need it. */
uint32_t graph_small_batch_rows(const struct graph *graph);
/* Likewise one of GRAPH_ROWS_ROUTED_MLP, 0 where no MLP has become one launch. */
uint32_t graph_routed_mlp_rows(const struct graph *graph);
/* Likewise one of GRAPH_ROWS_ROUTER_BATCH: GRAPH_ROUTER_BATCH, 0 where no router has become one launch with its norm. */
uint32_t graph_router_batch_rows(const struct graph *graph);
/* Whether the value has at most GRAPH_SMALL_BATCH rows in every plan. */
bool graph_is_small_batch(const struct graph *graph, int value);

/* Whether the import may join so in this layer. */
bool graph_may_join(const struct graph *graph, uint32_t layer, enum graph_join join);
/* Marks the sources that the weight has got since it had `from`; -1: no weight, nothing to mark. */
void graph_mark_join(struct graph *graph, int weight, enum graph_join join, int from);

/* Sets how ranks share the sources that the weight has so far; -1: no weight, nothing to set. */
void graph_shard(struct graph *graph, int weight, enum shard shard);

/* The node that makes each value, and the number of operands of live nodes that read it. Describes the graph at the
 * time of the call. */
struct graph_index {
    int *producer; /* [value_count]: node index, -1 if none */
    int *uses;     /* [value_count] */
};
bool graph_index_open(struct graph_index *index, const struct graph *graph, struct status *status);
void graph_index_close(struct graph_index *index);

/* Replaces value `from` by `to` in the operands of live nodes. */
void graph_replace_uses(struct graph *graph, int from, int to);

/* Whether the node has this operand, an index of its op's schema, and the schema says that it is a value that the node reads,
 * a value that it makes, or a weight. */
bool graph_reads(const struct graph_node *node, int operand);
bool graph_makes(const struct graph_node *node, int operand);
bool graph_has_weight(const struct graph_node *node, int operand);
/* Rows of a node: those that its op is for, else those of its first output, else of its first input. */
enum row_space graph_node_rows(const struct graph *graph, const struct graph_node *node);

/* Facts of a step that are known to lowering but not part of the graph. */
struct graph_step {
    int64_t rows, out_rows;
    const struct plan_geometry *geometry; /* NULL: parameters that come from it stay 0 */
    enum encoding_id kv_dtype;
};
/* Parameters of the op's schema for a node: params[op->param_count]. */
void graph_node_params(const struct graph *graph, const struct graph_node *node, const struct graph_step *step,
                       int64_t *params);

/* Structural check after import and each pass: ids in range, every input produced earlier, one producer per value, and by
 * the op's schema all operands that it needs, with widths and rows as it says. A failure is a defect of ours
 * (STATUS_INTERNAL). */
bool graph_check(const struct graph *graph, const char *after, struct status *status);

/* Text form, one node a line. */
void graph_dump(const struct graph *graph, FILE *out);

#endif
