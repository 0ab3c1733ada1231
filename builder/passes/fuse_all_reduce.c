/* SPDX-License-Identifier: Apache-2.0 */
/* What follows the sum of all ranks becomes part of it: the residual addition, and the norm of the result. Both work on
 * rows that are in registers when the other ranks' parts have come. */
#include "builder/passes/pass.h"

/* The addition to a sum that nobody else reads. */
static void take_residual(struct graph *graph, struct graph_node *add)
{
    for (int side = 1; side >= 0; side--) {
        int value = add->inputs[side], residual = add->inputs[1 - side], sum = add->outputs[0];
        int producer = graph_producer(graph, value);
        if (producer < 0 || graph->nodes[producer].op != OP_ALL_REDUCE || graph_use_count(graph, value) != 1) continue;
        /* Where the addition stood, the residual exists. */
        *add = graph->nodes[producer];
        add->inputs[1] = residual;
        add->outputs[0] = sum;
        graph->nodes[producer].removed = true;
        return;
    }
}

/* The first norm of a sum. */
static void take_norm(struct graph *graph, struct graph_node *norm)
{
    int producer = norm->inputs[1] < 0 ? graph_producer(graph, norm->inputs[0]) : -1;
    if (producer < 0) return;
    struct graph_node *reduce = &graph->nodes[producer];
    if (reduce->op != OP_ALL_REDUCE || reduce->outputs[1] >= 0) return;
    reduce->outputs[1] = norm->outputs[0];
    reduce->weights[0] = norm->weights[0];
    reduce->eps = norm->eps;
    norm->removed = true;
}

static bool run(struct graph *graph, struct status *status)
{
    (void)status;
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == OP_ADD) take_residual(graph, &graph->nodes[n]);
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == OP_RMS_NORM) take_norm(graph, &graph->nodes[n]);
    return true;
}

const struct pass pass_fuse_all_reduce = {"fuse_all_reduce", "residual and norm inside the sum of all ranks", run,
                                          PASS_FOR(TARGET_CUDA)};
