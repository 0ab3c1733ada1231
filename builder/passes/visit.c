/* SPDX-License-Identifier: Apache-2.0 */
/* What passes share: a walk over the nodes of an op, who reads a value, and moving an addition into its producer. */
#include "builder/passes/pass.h"
#include "kernels/add/add.h"

bool pass_visit(struct graph *graph, enum plan_op op, pass_visitor *visit, struct status *status)
{
    struct graph_index index;
    if (!graph_index_open(&index, graph, status)) return false;
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == op) visit(graph, &index, n);
    graph_index_close(&index);
    return true;
}

bool pass_is_read_before(const struct graph *graph, int value, int first, int last)
{
    for (int n = first; n < last; n++)
        for (int i = 0; !graph->nodes[n].removed && i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(&graph->nodes[n], i) && graph->nodes[n].operands[i] == value) return true;
    return false;
}

void pass_take_addition(struct graph *graph, struct graph_index *index, int add, const struct pass_adder *adder)
{
    struct graph_node *node = &graph->nodes[add];
    for (int side = ADD_B; side >= ADD_A; side--) {
        const int value = node->operands[side], residual = node->operands[ADD_A + ADD_B - side];
        const int sum = node->operands[ADD_OUT], producer = index->producer[value];
        if (producer < 0 || index->uses[value] != 1 || graph->nodes[producer].op != adder->op) continue;
        if (adder->fits && !adder->fits(&graph->nodes[producer])) continue;
        /* At the place of the addition both inputs exist. */
        *node = graph->nodes[producer];
        node->operands[adder->residual] = residual;
        node->operands[adder->out] = sum;
        graph->nodes[producer].removed = true;
        index->producer[sum] = add;
        return;
    }
}
