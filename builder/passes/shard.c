/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism: every rank computes with an equal share of each matrix, as the import marked it, and collectives
 * join the ranks' results: a sum after a matmul over a share of its K and after an embedding over a share of the
 * vocabulary, concatenated columns after the LM head. A norm of q and k over all heads, and one of a group of columns that ranks share,
 * take their mean squares from a sum over the ranks. All ranks get the same graph; the ranks differ in their weights only. */
#include <stdlib.h>

#include "builder/passes/pass.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/embed/embed.h"
#include "kernels/group_norm/group_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/mean_squares/mean_squares.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/short_conv/short_conv.h"

static uint64_t share_rows(const struct graph *graph, uint32_t layer, const struct weight_source *source)
{
    const struct model_config *whole = graph->config, *rank = graph->rank_config;
    switch (source->shard) {
    case SHARD_ROWS: return source->rows / graph->ranks;
    case SHARD_KV_ROWS: return source->rows / model_kv_heads(whole, layer) * model_kv_heads(rank, layer);
    case SHARD_GROUP_ROWS: return source->rows / whole->recurrent.key_heads * rank->recurrent.key_heads;
    case SHARD_VOCABULARY: return (source->rows + graph->ranks - 1) / graph->ranks;
    default: return source->rows;
    }
}

static void share_weight(const struct graph *graph, struct graph_weight *weight)
{
    for (int i = 0; i < weight->source_count; i++) {
        struct weight_source *source = &weight->sources[i];
        source->rank_rows = share_rows(graph, weight->layer, source);
        if (source->shard == SHARD_COLUMNS) source->rank_columns = source->columns / graph->ranks;
        weight->columns = weight->depth = source->rank_columns;
    }
    weight->rows = graph_weight_rows(weight);
    if (weight->source_count && weight->sources[0].shard == SHARD_MATRICES) {
        weight->experts /= graph->ranks;
        weight->rows /= graph->ranks;
    }
}

/* A rank's heads, and the widths that follow from them. */
static void share_node(struct graph *graph, struct graph_node *node)
{
    const struct op_descriptor *op = op_find(node->op);
    const struct graph_step step = {.rows = 1, .out_rows = 1, .kv_dtype = ENCODING_F32};
    int64_t params[PLAN_MAX_PARAMS];
    for (int i = 0; i < op->param_count; i++) {
        if (op->params[i].share == SHARE_HEADS) node->params[i] /= graph->ranks;
        if (op->params[i].share == SHARE_KV_HEADS)
            node->params[i] = (int64_t)rank_kv_heads((uint64_t)node->params[i], graph->ranks);
    }
    if (node->op == OP_SHORT_CONV) node->params[SHORT_CONV_CHANNELS] = (int64_t)graph->rank_config->recurrent.channels;
    if (node->op == OP_MATMUL &&
        (node->params[MATMUL_EXPERTS] || !node->params[MATMUL_BLOCK_N])) {                 /* blocks are whole */
        const bool parts = node->params[MATMUL_EXPERTS] && !matmul_shares_x(node->params); /* of x: for each choice */
        struct graph_weight *weight = &graph->weights[node->operands[MATMUL_W]];
        const uint64_t count = parts ? graph->values[node->operands[MATMUL_ROUTES]].width / 2 : 1;
        weight->depth = graph->values[node->operands[MATMUL_X]].width / count;
    }
    graph_node_params(graph, node, &step, params);
    for (int i = 0; i < op->operand_count; i++)
        if (graph_makes(node, i)) graph->values[node->operands[i]].width = op_operand_width(&op->operands[i], params);
}

/* The collective that joins the ranks' parts of a node's output; 0: none. */
static enum plan_op collective_after(const struct graph *graph, const struct graph_node *node)
{
    if (node->op != OP_MATMUL && node->op != OP_EMBED) return 0;
    const int weight = node->operands[node->op == OP_MATMUL ? (int)MATMUL_W : (int)EMBED_TABLE];
    switch (graph->weights[weight].sources[0].shard) {
    case SHARD_COLUMNS: return OP_ALL_REDUCE;
    case SHARD_VOCABULARY: return node->op == OP_EMBED ? OP_ALL_REDUCE : OP_ALL_GATHER;
    default: return 0;
    }
}

_Static_assert((int)ALL_REDUCE_X == (int)ALL_GATHER_X && (int)ALL_REDUCE_OUT == (int)ALL_GATHER_OUT &&
                   (int)MATMUL_OUT == (int)EMBED_OUT,
               "one form");
/* Nodes after it read the whole instead of the part: renamed[part]. */
static bool join(struct graph *graph, int n, enum plan_op op, int *renamed)
{
    int part = graph->nodes[n].operands[MATMUL_OUT];
    struct graph_value before = graph->values[part];
    uint64_t width = op == OP_ALL_GATHER ? graph->config->vocab_size : before.width;
    int whole = graph_value(graph, before.rows, width, "%s", before.name);
    struct graph_node *node = graph_insert(graph, n + 1, op, graph->nodes[n].layer);
    if (!node || whole < 0) return false;
    renamed[part] = whole;
    node->operands[ALL_REDUCE_X] = part;
    node->operands[ALL_REDUCE_OUT] = whole;
    graph->values[whole].place = before.place;
    graph->values[part].place = VALUE_ARENA;
    snprintf(graph->values[part].name, GRAPH_NAME_BYTES, "%.50s.part", before.name);
    return true;
}

/* Where each head has a weight of its own, ranks share the heads, but not one of them. */
static bool check_norms(const struct graph *graph, struct status *status)
{
    for (int n = 0; n < graph->node_count; n++) {
        const int64_t *params = graph->nodes[n].params;
        if (graph->nodes[n].op != OP_ROPE_APPEND) continue;
        if (params[ROPE_APPEND_NORM_SCOPE] == ROPE_APPEND_NORM_HEADS && params[ROPE_APPEND_KV_HEADS] % graph->ranks)
            return status_fail(status, STATUS_BAD_INPUT,
                               "--gpus %u: each KV head of this model has a norm of its own, and %u ranks cannot share "
                               "%d KV heads equally; expected a number that divides them",
                               (unsigned)graph->ranks, (unsigned)graph->ranks, (int)params[ROPE_APPEND_KV_HEADS]);
    }
    return true;
}

/* Two nodes before node n give it the mean squares of operand `x`: those of q and k before a rope_append, those of all columns of all
 * heads before a group_norm. */
static bool insert_mean_squares(struct graph *graph, int n, int x, int means)
{
    const struct model_recurrent *recurrent = &graph->config->recurrent;

    const uint32_t layer = graph->nodes[n].layer;
    const int part = graph_value(graph, ROWS_TOKENS, MEAN_SQUARES_WIDTH, "mean_squares%u.part", layer);
    const int whole = graph_value(graph, ROWS_TOKENS, MEAN_SQUARES_WIDTH, "mean_squares%u", layer);
    struct graph_node *reduce = graph_insert(graph, n, OP_ALL_REDUCE, layer);
    if (!reduce || part < 0 || whole < 0) return false;
    reduce->operands[ALL_REDUCE_X] = part;
    reduce->operands[ALL_REDUCE_OUT] = whole;
    struct graph_node *squares = graph_insert(graph, n, OP_MEAN_SQUARES, layer);
    if (!squares) return false;
    struct graph_node *norm = &graph->nodes[n + 2];
    const bool is_rope = norm->op == OP_ROPE_APPEND;
    squares->operands[MEAN_SQUARES_QKV] = norm->operands[x];
    squares->operands[MEAN_SQUARES_OUT] = part;
    squares->params[MEAN_SQUARES_HEADS] = is_rope ? norm->params[ROPE_APPEND_HEADS] : (int64_t)recurrent->value_heads;
    squares->params[MEAN_SQUARES_KV_HEADS] = is_rope ? norm->params[ROPE_APPEND_KV_HEADS] : 0;
    squares->params[MEAN_SQUARES_HEAD_DIM] =
        is_rope ? norm->params[ROPE_APPEND_HEAD_DIM] : (int64_t)recurrent->value_dim;
    norm->operands[means] = whole;
    return true;
}

static bool add_mean_squares(struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        const bool is_rope = node->op == OP_ROPE_APPEND;
        if (is_rope ? node->params[ROPE_APPEND_NORM_SCOPE] != ROPE_APPEND_NORM_WIDTH
                    : node->op != OP_GROUP_NORM || node->params[GROUP_NORM_GROUPS] > 1)
            continue;
        if (!insert_mean_squares(graph, n, is_rope ? (int)ROPE_APPEND_QKV : (int)GROUP_NORM_X,
                                 is_rope ? (int)ROPE_APPEND_MEANS : (int)GROUP_NORM_MEANS))
            return false;
        n += 2;
    }
    return true;
}

static bool run(struct graph *graph, struct status *status)
{
    if (graph->ranks == 1) return true;
    if (!check_norms(graph, status)) return false;
    if (!add_mean_squares(graph)) return status_fail(status, STATUS_MACHINE, "out of memory while sharding");
    const int value_count = graph->value_count;
    int *renamed = malloc(((size_t)value_count + 1) * sizeof *renamed);
    bool ok = renamed || status_fail(status, STATUS_MACHINE, "out of memory while sharding");
    for (int v = 0; ok && v < value_count; v++) renamed[v] = v;
    for (int w = 0; w < graph->weight_count; w++) share_weight(graph, &graph->weights[w]);
    for (int n = 0; ok && n < graph->node_count; n++) {
        struct graph_node *node = &graph->nodes[n];
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(node, i)) node->operands[i] = renamed[node->operands[i]];
        share_node(graph, node);
        enum plan_op op = collective_after(graph, node);
        if (op && !join(graph, n++, op, renamed))
            ok = status_fail(status, STATUS_MACHINE, "out of memory while sharding");
    }
    free(renamed);
    graph->config = graph->rank_config;
    return ok;
}

const struct pass pass_shard = {"shard", "with several GPUs: equal shares of the matrices, and collectives", run, 0};
