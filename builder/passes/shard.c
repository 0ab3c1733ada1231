/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism: every rank computes with an equal share of each matrix, as the import marked it, and collectives
 * join what the ranks have: a sum behind a matmul over a share of its K and behind an embedding over a share of the
 * vocabulary, columns side by side behind the LM head. All ranks get the same graph; which share is theirs is a matter
 * of the weights. */
#include "builder/passes/pass.h"

static uint64_t share_rows(const struct graph *graph, const struct weight_source *source)
{
    const struct model_config *whole = graph->config, *rank = graph->rank_config;
    switch (source->shard) {
    case SHARD_ROWS: return source->rows / graph->ranks;
    case SHARD_KV_ROWS: return source->rows / whole->kv_heads * rank->kv_heads;
    case SHARD_VOCABULARY: return (source->rows + graph->ranks - 1) / graph->ranks;
    default: return source->rows;
    }
}

static void share_weight(const struct graph *graph, struct graph_weight *weight)
{
    weight->rows = 0;
    for (int i = 0; i < weight->source_count; i++) {
        struct weight_source *source = &weight->sources[i];
        source->rank_rows = share_rows(graph, source);
        if (source->shard == SHARD_COLUMNS) source->rank_columns = source->columns / graph->ranks;
        weight->rows += source->rank_rows;
        weight->columns = weight->depth = source->rank_columns;
    }
}

/* Widths follow from the weights. */
static void share_value(struct graph *graph, const struct graph_node *node)
{
    struct graph_value *out = &graph->values[node->outputs[0]];
    switch (node->op) {
    case OP_MATMUL: out->width = graph->weights[node->weights[0]].rows; break;
    case OP_ROPE_APPEND:
    case OP_ATTENTION:
    case OP_SWIGLU: out->width = graph->values[node->inputs[0]].width; break;
    default: break;
    }
}

static enum plan_op collective_behind(const struct graph *graph, const struct graph_node *node)
{
    if (node->op != OP_MATMUL && node->op != OP_EMBED) return 0;
    switch (graph->weights[node->weights[0]].sources[0].shard) {
    case SHARD_COLUMNS: return OP_ALL_REDUCE;
    case SHARD_VOCABULARY: return node->op == OP_EMBED ? OP_ALL_REDUCE : OP_ALL_GATHER;
    default: return 0;
    }
}

static bool join(struct graph *graph, int n, enum plan_op op)
{
    int part = graph->nodes[n].outputs[0];
    struct graph_value before = graph->values[part];
    uint64_t width = op == OP_ALL_GATHER ? graph->config->vocab_size : before.width;
    int whole = graph_value(graph, before.rows, width, "%s", before.name);
    struct graph_node *node = graph_insert(graph, n + 1, op, graph->nodes[n].layer);
    if (!node || whole < 0) return false;
    graph_replace_uses(graph, part, whole);
    node->inputs[0] = part;
    node->outputs[0] = whole;
    graph->values[whole].place = before.place;
    graph->values[part].place = VALUE_ARENA;
    snprintf(graph->values[part].name, GRAPH_NAME_BYTES, "%.50s.part", before.name);
    return true;
}

static bool run(struct graph *graph, struct status *status)
{
    if (graph->ranks == 1) return true;
    for (int w = 0; w < graph->weight_count; w++) share_weight(graph, &graph->weights[w]);
    for (int n = 0; n < graph->node_count; n++) {
        share_value(graph, &graph->nodes[n]);
        enum plan_op op = collective_behind(graph, &graph->nodes[n]);
        if (op && !join(graph, n++, op)) return status_fail(status, STATUS_MACHINE, "out of memory while sharding");
    }
    graph->config = graph->rank_config;
    return true;
}

const struct pass pass_shard = {"shard", "with several GPUs: equal shares of the matrices, and collectives", run, 0};
