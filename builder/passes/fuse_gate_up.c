/* SPDX-License-Identifier: Apache-2.0 */
/* gate, up and their activation become one matmul whose epilogue forms silu(gate) * up in registers: the rows of both
 * matrices are interleaved, so both halves of a product meet in one register tile. */
#include "builder/passes/pass.h"

static bool has_one_source(const struct graph *graph, int weight)
{
    return weight < 0 || graph->weights[weight].source_count == 1;
}

static bool fusible(const struct graph *graph, const struct graph_node *gate, const struct graph_node *up)
{
    for (int w = 0; w < 2; w++)
        if (!has_one_source(graph, gate->weights[w]) || !has_one_source(graph, up->weights[w])) return false;
    return gate->op == OP_MATMUL && up->op == OP_MATMUL && !gate->swiglu && !up->swiglu && gate->inputs[1] < 0 &&
           up->inputs[1] < 0 && gate->inputs[0] == up->inputs[0] && (gate->weights[1] >= 0) == (up->weights[1] >= 0) &&
           graph->weights[gate->weights[0]].rows == graph->weights[up->weights[0]].rows &&
           graph_use_count(graph, gate->outputs[0]) == 1 && graph_use_count(graph, up->outputs[0]) == 1;
}

/* The output is padded to whole groups of interleaved rows; every consumer must be a matmul whose K can be padded with zero columns. */
static bool consumers_can_pad(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        for (int i = 0; !node->removed && i < GRAPH_MAX_INPUTS; i++)
            if (node->inputs[i] == value && (node->op != OP_MATMUL || i != 0)) return false;
    }
    return true;
}

static bool interleave(struct graph *graph, int gate, int up, uint64_t group, uint64_t padded_rows)
{
    if (!graph_weight_join(graph, gate, up)) return false;
    graph->weights[gate].interleave = group;
    graph->weights[gate].rows = 2 * padded_rows;
    return true;
}

static bool run(struct graph *graph, struct status *status)
{
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *swiglu = &graph->nodes[n];
        if (swiglu->op != OP_SWIGLU || swiglu->removed) continue;
        struct graph_node *gate = &graph->nodes[graph_producer(graph, swiglu->inputs[0])];
        struct graph_node *up = &graph->nodes[graph_producer(graph, swiglu->inputs[1])];
        int out = swiglu->outputs[0];
        if (!fusible(graph, gate, up) || !consumers_can_pad(graph, out)) continue;

        uint64_t group = graph_interleave(graph);
        uint64_t padded = (graph->values[out].width + group - 1) / group * group;
        for (int i = 0; i < graph->node_count; i++)
            if (!graph->nodes[i].removed && graph->nodes[i].inputs[0] == out)
                graph->weights[graph->nodes[i].weights[0]].depth = padded;
        graph->values[out].width = padded;
        if (!interleave(graph, gate->weights[0], up->weights[0], group, padded) ||
            (gate->weights[1] >= 0 && !interleave(graph, gate->weights[1], up->weights[1], group, padded)))
            return status_fail(status, STATUS_MACHINE, "out of memory while fusing gate and up");
        snprintf(graph->weights[gate->weights[0]].name, GRAPH_NAME_BYTES, "model.layers.%u.mlp.gate_up_proj.weight",
                 swiglu->layer);
        if (gate->weights[1] >= 0)
            snprintf(graph->weights[gate->weights[1]].name, GRAPH_NAME_BYTES, "model.layers.%u.mlp.gate_up_proj.bias",
                     swiglu->layer);
        gate->outputs[0] = out;
        gate->swiglu = true;
        up->removed = true;
        swiglu->removed = true;
    }
    return true;
}

const struct pass pass_fuse_gate_up = {"fuse_gate_up", "one matmul with a SwiGLU epilogue for gate and up", run, 0};
