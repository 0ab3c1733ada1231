/* SPDX-License-Identifier: Apache-2.0 */
/* Removes nodes whose outputs nobody reads, backwards from the sampled tokens, and marks the weights that remain in
 * use. What writes the KV cache is alive: later steps read it. */
#include "builder/passes/pass.h"

static bool has_effect(const struct graph *graph, const struct graph_node *node)
{
    if (node->op == OP_ROPE_APPEND || node->op == OP_ROPE_ATTENTION || node->op == OP_SAMPLE) return true;
    for (int o = 0; o < GRAPH_MAX_OUTPUTS; o++)
        if (node->outputs[o] >= 0 && graph->values[node->outputs[o]].place != VALUE_ARENA) return true;
    return false;
}

static bool run(struct graph *graph, struct status *status)
{
    (void)status;
    for (int n = graph->node_count - 1; n >= 0; n--) {
        struct graph_node *node = &graph->nodes[n];
        if (node->removed || has_effect(graph, node)) continue;
        bool read = false;
        for (int o = 0; o < GRAPH_MAX_OUTPUTS; o++)
            read |= node->outputs[o] >= 0 && graph_use_count(graph, node->outputs[o]) > 0;
        if (!read) node->removed = true;
    }
    for (int w = 0; w < graph->weight_count; w++) graph->weights[w].used = false;
    int kept = 0;
    for (int n = 0; n < graph->node_count; n++) {
        if (graph->nodes[n].removed) continue;
        for (int w = 0; w < GRAPH_MAX_WEIGHTS; w++)
            if (graph->nodes[n].weights[w] >= 0) graph->weights[graph->nodes[n].weights[w]].used = true;
        graph->nodes[kept++] = graph->nodes[n];
    }
    graph->node_count = kept;
    return true;
}

const struct pass pass_dead_code = {"dead_code", "drops what nobody reads", run, 0};
