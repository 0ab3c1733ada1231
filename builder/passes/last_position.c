/* SPDX-License-Identifier: Apache-2.0 */
/* Logits are wanted for few rows. Decode: for every row, so the selection disappears. Prefill: for the last row,
 * mixed: for one of each sequence, verify: for any, so the selection moves up past everything that works row by row: through the final norm and the last
 * layer's MLP and output projection, as far as that layer's attention. */
#include "builder/passes/pass.h"
#include "kernels/select_rows/select_rows.h"

/* Decode: row o of the out rows is token row o. */
static void drop_selection(struct graph *graph, struct graph_node *select)
{
    select->removed = true;
    graph_replace_uses(graph, select->operands[SELECT_ROWS_OUT], select->operands[SELECT_ROWS_X]);
    for (int v = 0; v < graph->value_count; v++) graph->values[v].rows = ROWS_TOKENS;
}

static bool is_selection_of(const struct graph_node *node, int value)
{
    return !node->removed && node->op == OP_SELECT_ROWS && node->operands[SELECT_ROWS_X] == value;
}

static bool only_selected(const struct graph *graph, int value)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        for (int i = 0; !node->removed && i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(node, i) && node->operands[i] == value && node->op != OP_SELECT_ROWS) return false;
    }
    return true;
}

/* The selected form of `value`, as a new value or the one that an earlier selection made; a new selection
 * stands right before node `before`, and the index of that node may move. */
static int selected_form(struct graph *graph, int value, int *before)
{
    for (int n = 0; n < *before; n++)
        if (is_selection_of(&graph->nodes[n], value)) return graph->nodes[n].operands[SELECT_ROWS_OUT];
    int selected = graph_value(graph, ROWS_OUT, graph->values[value].width, "last_%.50s", graph->values[value].name);
    struct graph_node *select = graph_insert(graph, *before, OP_SELECT_ROWS, graph->nodes[*before].layer);
    if (!select) return -1;
    select->operands[SELECT_ROWS_X] = value;
    select->operands[SELECT_ROWS_OUT] = selected;
    ++*before;
    return selected;
}

/* No other node reads any value that the node makes. */
static bool all_selected(const struct graph *graph, const struct graph_node *node)
{
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
        if (graph_makes(node, i) && !only_selected(graph, node->operands[i])) return false;
    return true;
}

static int find_producer(const struct graph *graph, int value, int before)
{
    for (int n = before - 1; n >= 0; n--)
        for (int i = 0; !graph->nodes[n].removed && i < PLAN_MAX_OPERANDS; i++)
            if (graph_makes(&graph->nodes[n], i) && graph->nodes[n].operands[i] == value) return n;
    return -1;
}

/* The value has the selected rows alone: every reader of it is a selection that has become the identity. */
static void drop_selections_of(struct graph *graph, int value)
{
    graph->values[value].rows = ROWS_OUT;
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *node = &graph->nodes[n];
        if (!is_selection_of(node, value)) continue;
        node->removed = true;
        graph_replace_uses(graph, node->operands[SELECT_ROWS_OUT], value);
    }
}

/* Moves one selection above the row-wise node that makes its input. Returns whether it could. */
static bool hoist(struct graph *graph, int select)
{
    const int value = graph->nodes[select].operands[SELECT_ROWS_X];
    int producer = find_producer(graph, value, select);
    if (producer < 0 || !op_is_row_wise(op_find(graph->nodes[producer].op)) ||
        !all_selected(graph, &graph->nodes[producer]))
        return false;
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) {
        if (!graph_reads(&graph->nodes[producer], i)) continue;
        const int selected = selected_form(graph, graph->nodes[producer].operands[i], &producer);
        if (graph->out_of_memory) return false;
        graph->nodes[producer].operands[i] = selected;
    }
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
        if (graph_makes(&graph->nodes[producer], i)) drop_selections_of(graph, graph->nodes[producer].operands[i]);
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

const struct pass pass_last_position = {"last_position",
                                        "all but decode: only rows that need logits beyond the last attention", run, 0};
