/* SPDX-License-Identifier: Apache-2.0 */
/* Operands and parameters of a node by its op's schema. */
#include <stdlib.h>
#include <string.h>

#include "builder/graph/graph.h"

static bool has_role(const struct graph_node *node, int operand, enum op_role role)
{
    const struct op_descriptor *op = op_find(node->op);
    return operand < op->operand_count && op->operands[operand].role == role && node->operands[operand] >= 0;
}

bool graph_reads(const struct graph_node *node, int operand) { return has_role(node, operand, ROLE_INPUT); }
bool graph_makes(const struct graph_node *node, int operand) { return has_role(node, operand, ROLE_OUTPUT); }
bool graph_has_weight(const struct graph_node *node, int operand) { return has_role(node, operand, ROLE_WEIGHT); }

enum row_space graph_node_rows(const struct graph *graph, const struct graph_node *node)
{
    if (op_is_of_out_rows(op_find(node->op))) return ROWS_OUT;
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
        if (graph_makes(node, i)) return graph->values[node->operands[i]].rows;
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
        if (graph_reads(node, i)) return graph->values[node->operands[i]].rows;
    return ROWS_TOKENS;
}

/* ---- index ---- */

bool graph_index_open(struct graph_index *index, const struct graph *graph, struct status *status)
{
    const size_t count = (size_t)graph->value_count + 1;
    index->producer = malloc(count * sizeof *index->producer);
    index->uses = calloc(count, sizeof *index->uses);
    if (!index->producer || !index->uses) {
        graph_index_close(index);
        return status_fail(status, STATUS_MACHINE, "out of memory while rewriting the graph");
    }
    for (size_t v = 0; v < count; v++) index->producer[v] = -1;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        for (int i = 0; !node->removed && i < PLAN_MAX_OPERANDS; i++) {
            if (graph_reads(node, i)) index->uses[node->operands[i]]++;
            if (graph_makes(node, i)) index->producer[node->operands[i]] = n;
        }
    }
    return true;
}

void graph_index_close(struct graph_index *index)
{
    free(index->producer);
    free(index->uses);
    *index = (struct graph_index){0};
}

void graph_replace_uses(struct graph *graph, int from, int to)
{
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(&graph->nodes[n], i) && graph->nodes[n].operands[i] == from)
                graph->nodes[n].operands[i] = to;
}

/* ---- parameters ---- */

static uint64_t width_of(const struct graph *graph, const struct graph_node *node, int operand)
{
    if (!graph_has_weight(node, operand)) return graph->values[node->operands[operand]].width;
    const struct graph_weight *weight = &graph->weights[node->operands[operand]];
    return weight->columns ? weight->columns : weight->rows;
}

static bool is_present(const struct graph *graph, const struct graph_node *node, int operand)
{
    if (op_find(node->op)->operands[operand].role == ROLE_HEADER) return graph->ranks > 1;
    return node->operands[operand] >= 0;
}

static int64_t dtype_of(const struct graph *graph, const struct graph_node *node, const struct op_param *param)
{
    if (graph_has_weight(node, param->operand)) return graph->weights[node->operands[param->operand]].encoding;
    return is_present(graph, node, param->operand) ? (int64_t)graph->values[node->operands[param->operand]].dtype
                                                   : param->fallback;
}

static int64_t layout_of(const struct graph *graph, const struct graph_node *node, int operand)
{
    return graph_weight_layout(graph, &graph->weights[node->operands[operand]]);
}

static int64_t param_of(const struct graph *graph, const struct graph_node *node, int index,
                        const struct graph_step *step)
{
    const struct op_param *param = &op_find(node->op)->params[index];
    const bool tokens = graph_node_rows(graph, node) == ROWS_TOKENS;
    const bool there = is_present(graph, node, param->operand);
    uint64_t field = 0;
    switch ((enum op_param_source)param->source) {
    case PARAM_OF_NODE: return node->params[index];
    case PARAM_OF_ROWS: return tokens ? step->rows : step->out_rows;
    case PARAM_OF_COUNT: return tokens ? 0 : 1;
    case PARAM_OF_STEP: return step->rows;
    case PARAM_OF_DRAWS:
        return node->params[op_find(node->op)->operands[param->operand].present] ? step->out_rows : param->fallback;
    case PARAM_OF_WIDTH: return there ? (int64_t)width_of(graph, node, param->operand) : param->fallback;
    case PARAM_OF_WIDER: return 0; /* known with all others */
    case PARAM_OF_HEIGHT: return there ? (int64_t)graph->weights[node->operands[param->operand]].rows : param->fallback;
    case PARAM_OF_PITCH: return (int64_t)graph->weights[node->operands[param->operand]].depth;
    case PARAM_OF_DTYPE: return dtype_of(graph, node, param);
    case PARAM_OF_LAYOUT: return layout_of(graph, node, param->operand);
    case PARAM_OF_KV: return step->kv_dtype;
    case PARAM_OF_PRESENT: return there;
    case PARAM_OF_ENGINE:
        if (step->geometry) memcpy(&field, (const uint8_t *)step->geometry + param->field, sizeof field);
        return (int64_t)field;
    }
    return param->fallback;
}

void graph_node_params(const struct graph *graph, const struct graph_node *node, const struct graph_step *step,
                       int64_t *params)
{
    const struct op_descriptor *op = op_find(node->op);
    for (int i = 0; i < op->param_count; i++) params[i] = param_of(graph, node, i, step);
    for (int i = 0; i < op->param_count; i++) {
        const int operand = op->params[i].operand;
        if (op->params[i].source != PARAM_OF_WIDER || !is_present(graph, node, operand)) continue;
        const uint64_t width = width_of(graph, node, operand);
        if (width > op_operand_width(&op->operands[operand], params)) params[i] = (int64_t)width;
    }
}
