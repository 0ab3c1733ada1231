/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of a graph: one node per line, names from the ops' schemas. */
#include <inttypes.h>

#include "builder/graph/graph.h"

static void dump_value(const struct graph *graph, int id, FILE *out)
{
    const struct graph_value *value = &graph->values[id];
    fprintf(out, "%%%s[%s,%" PRIu64 "]", value->name, value->rows == ROWS_TOKENS ? "T" : "R", value->width);
}

static void dump_weight(const struct graph *graph, int id, FILE *out)
{
    const struct graph_weight *weight = &graph->weights[id];
    const bool matrix = weight->form == WEIGHT_MATRIX, constant = weight->source_count && weight->sources[0].values;
    const char *form = weight->interleave ? (matrix ? "gate/up" : "bias gate/up")
                       : constant         ? "constant"
                       : matrix           ? "matrix"
                                          : "row-major";
    fprintf(out, "@%s[%" PRIu64, weight->name, weight->rows);
    if (weight->columns) fprintf(out, ",%" PRIu64, weight->columns);
    fprintf(out, " %s]", form);
}

static void dump_outputs(const struct graph *graph, const struct graph_node *node, FILE *out)
{
    const char *separator = "";
    for (int i = 0; i < PLAN_MAX_OPERANDS; i++) {
        if (!graph_makes(node, i)) continue;
        fputs(separator, out);
        dump_value(graph, node->operands[i], out);
        separator = ", ";
    }
    fputs(*separator ? " = " : "", out);
}

static void dump_inputs(const struct graph *graph, const struct graph_node *node, FILE *out)
{
    const struct op_descriptor *op = op_find(node->op);
    const char *separator = "";
    for (int i = 0; i < op->operand_count; i++) {
        const bool value = graph_reads(node, i);
        if (!value && !graph_has_weight(node, i)) continue;
        fprintf(out, "%s%s=", separator, op->operands[i].name);
        if (value)
            fprintf(out, "%%%s", graph->values[node->operands[i]].name);
        else
            dump_weight(graph, node->operands[i], out);
        separator = ", ";
    }
}

/* Parameters that differ from their defaults. */
static void dump_params(const struct graph_node *node, FILE *out)
{
    const struct op_descriptor *op = op_find(node->op);
    for (int i = 0; i < op->param_count; i++) {
        const struct op_param *param = &op->params[i];
        if (param->source != PARAM_OF_NODE || node->params[i] == param->fallback) continue;
        if (param->type == PARAM_FLOAT)
            fprintf(out, " %s=%.9g", param->name, (double)float_from_bits((uint32_t)node->params[i]));
        else
            fprintf(out, " %s=%" PRId64, param->name, node->params[i]);
    }
}

void graph_dump(const struct graph *graph, FILE *out)
{
    fprintf(out, "# %s graph of %s; T = token rows, R = rows that need logits", plan_kind_name(graph->kind),
            graph->config->model_type);
    if (graph->ranks > 1) fprintf(out, "; %u ranks", graph->ranks);
    if (graph->input_codes) fprintf(out, "; for %u rows or more", graph_least_rows_of_codes(graph));
    fputc('\n', out);
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->removed) continue;
        dump_outputs(graph, node, out);
        fprintf(out, "%s(", plan_op_name(node->op));
        dump_inputs(graph, node, out);
        fputc(')', out);
        dump_params(node, out);
        if (node->layer != GRAPH_NO_LAYER) fprintf(out, " # layer %u", node->layer);
        fputc('\n', out);
    }
}
