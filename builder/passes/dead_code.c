/* SPDX-License-Identifier: Apache-2.0 */
/* Removes nodes whose outputs are not read, backwards from the sampled tokens, and marks the weights that remain in
 * use. A node that writes the KV cache is live: later steps read it. */
#include "builder/passes/pass.h"

static bool is_read(const struct graph *graph, const struct graph_index *index, const struct graph_node *node)
{
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
        if (graph_makes(node, i) &&
            (index->uses[node->operands[i]] > 0 || graph->values[node->operands[i]].place != VALUE_ARENA))
            return true;
    return false;
}

static void mark_weights(struct graph *graph)
{
    for (int w = 0; w < graph->weight_count; w++) graph->weights[w].used = false;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            if (graph_has_weight(&graph->nodes[n], i)) graph->weights[graph->nodes[n].operands[i]].used = true;
}

static bool run(struct graph *graph, struct status *status)
{
    struct graph_index index;
    int kept = 0;
    if (!graph_index_open(&index, graph, status)) return false;
    for (int n = graph->node_count - 1; n >= 0; n--) {
        struct graph_node *node = &graph->nodes[n];
        if (node->removed || op_has_effect(op_find(node->op)) || is_read(graph, &index, node)) continue;
        node->removed = true;
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(node, i)) index.uses[node->operands[i]]--;
    }
    graph_index_close(&index);
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed) graph->nodes[kept++] = graph->nodes[n];
    graph->node_count = kept;
    mark_weights(graph);
    return true;
}

const struct pass pass_dead_code = {"dead_code", "removes nodes whose outputs are not read", run, 0};
