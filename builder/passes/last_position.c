/* SPDX-License-Identifier: Apache-2.0 */
/* Logits are wanted for few rows. Decode: for every row, so the selection disappears. Prefill: for the last
 * row, so the selection moves up past everything that works row by row: through the final norm and the last
 * layer's MLP and output projection, as far as that layer's attention. */
#include "builder/passes/pass.h"

/* Decode: row o of the out rows is token row o. */
static void drop_selection(struct graph *graph, struct graph_node *select)
{
    int from = select->outputs[0], to = select->inputs[0];
    select->removed = true;
    graph_replace_uses(graph, from, to);
    for (int v = 0; v < graph->value_count; v++) graph->values[v].rows = ROWS_TOKENS;
}

static bool only_selected(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        for (int i = 0; !node->removed && i < GRAPH_MAX_INPUTS; i++)
            if (node->inputs[i] == value && node->op != OP_SELECT_ROWS) return false;
    }
    return true;
}

/* The selected form of `value`, as a new value or the one that an earlier selection made; a new selection
 * stands right before node `before`, and the index of that node may move. */
static int selected_form(struct graph *graph, int value, int *before)
{
    for (int n = 0; n < *before; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == OP_SELECT_ROWS && graph->nodes[n].inputs[0] == value)
            return graph->nodes[n].outputs[0];
    int selected = graph_value(graph, ROWS_OUT, graph->values[value].width, "last_%.50s", graph->values[value].name);
    struct graph_node *select = graph_insert(graph, *before, OP_SELECT_ROWS, graph->nodes[*before].layer);
    if (!select) return -1;
    select->inputs[0] = value;
    select->outputs[0] = selected;
    ++*before;
    return selected;
}

/* Moves one selection above the row-wise node that makes its input. Returns whether it could. */
static bool hoist(struct graph *graph, int select)
{
    int value = graph->nodes[select].inputs[0], producer = graph_producer(graph, value);
    if (producer < 0 || !graph_is_row_wise(graph->nodes[producer].op) || graph->nodes[producer].outputs[1] >= 0 ||
        !only_selected(graph, value))
        return false;
    for (int i = 0; i < GRAPH_MAX_INPUTS; i++) {
        int input = graph->nodes[producer].inputs[i];
        if (input < 0) continue;
        int selected = selected_form(graph, input, &producer);
        if (graph->out_of_memory) return false;
        graph->nodes[producer].inputs[i] = selected;
    }
    graph->values[value].rows = ROWS_OUT;
    /* Every reader of the value is a selection that has become the identity. */
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *node = &graph->nodes[n];
        if (node->removed || node->op != OP_SELECT_ROWS || node->inputs[0] != value) continue;
        node->removed = true;
        graph_replace_uses(graph, node->outputs[0], value);
    }
    return true;
}

static bool run(struct graph *graph, struct status *status)
{
    (void)status;
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *node = &graph->nodes[n];
        if (node->removed || node->op != OP_SELECT_ROWS) continue;
        if (graph->kind == PLAN_DECODE)
            drop_selection(graph, node);
        else if (hoist(graph, n))
            n = -1; /* the graph changed: look again from the start */
    }
    return true;
}

const struct pass pass_last_position = {"last_position", "prefill: only the last row beyond the last attention", run,
                                        0};
