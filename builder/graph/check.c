/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that a graph is well formed and each node satisfies its op's schema. */
#include <inttypes.h>
#include <stdlib.h>

#include "builder/graph/graph.h"

struct checker {
    const struct graph *graph;
    bool *produced; /* [value_count] */
    struct status *status;
};

static bool fail(const struct checker *checker, const char *operand, const char *fault)
{
    return status_fail(checker->status, STATUS_INTERNAL, "operand %s %s", operand, fault);
}

static bool check_id(struct checker *checker, const struct graph_node *node, int operand, const char *name)
{
    const int id = node->operands[operand];
    if (id < 0) return true;
    if (graph_has_weight(node, operand))
        return id < checker->graph->weight_count || fail(checker, name, "is a weight that does not exist");
    if (graph_reads(node, operand))
        return (id < checker->graph->value_count && checker->produced[id]) ||
               fail(checker, name, "is a value that nothing before it produces");
    if (!graph_makes(node, operand)) return fail(checker, name, "is no value and no weight");
    if (id >= checker->graph->value_count || checker->produced[id]) return fail(checker, name, "is produced twice");
    return true;
}

/* An operand must exist if its op needs it, or if another operand that requires it exists. */
static bool check_presence(struct checker *checker, const struct op_descriptor *op, const struct graph_node *node,
                           int operand)
{
    const struct op_operand *schema = &op->operands[operand];
    const bool there = node->operands[operand] >= 0;
    if (schema->role != ROLE_INPUT && schema->role != ROLE_OUTPUT && schema->role != ROLE_WEIGHT) return true;
    if (schema->targets && !(schema->targets & 1u << checker->graph->target))
        return !there || fail(checker, schema->name, "is not for this target");
    if (!schema->present) return there || fail(checker, schema->name, "is missing");
    const struct op_param *present = &op->params[schema->present];
    if (present->source != PARAM_OF_PRESENT || (node->operands[present->operand] >= 0) == there) return true;
    return fail(checker, schema->name, there ? "is there without what it belongs to" : "is missing");
}

static bool check_shape(struct checker *checker, const struct op_descriptor *op, const struct graph_node *node,
                        int operand, const int64_t *params)
{
    const struct graph *graph = checker->graph;
    const struct op_operand *schema = &op->operands[operand];
    if (node->operands[operand] < 0) return true;
    const uint64_t wanted = op_operand_width(schema, params);
    uint64_t found;
    if (graph_has_weight(node, operand)) {
        const struct graph_weight *weight = &graph->weights[node->operands[operand]];
        if (weight->columns) return true; /* a matrix: parameters follow from it */
        found = weight->rows;
    } else {
        const struct graph_value *value = &graph->values[node->operands[operand]];
        const bool of_step = schema->rows != OP_NONE && op->params[schema->rows].source == PARAM_OF_STEP;
        const enum row_space rows = of_step ? ROWS_TOKENS : graph_node_rows(graph, node);
        /* Every token row of a decode step is an out row, too. */
        if (value->rows != rows && !(graph->kind == PLAN_DECODE && op_is_of_out_rows(op)))
            return fail(checker, schema->name, "mixes token rows and out rows");
        found = value->width;
    }
    return found == wanted ||
           status_fail(checker->status, STATUS_INTERNAL, "operand %s has width %" PRIu64 ", expected %" PRIu64,
                       schema->name, found, wanted);
}

static bool check_node(struct checker *checker, const struct graph_node *node)
{
    const struct op_descriptor *op = op_find(node->op);
    const struct graph_step step = {.rows = 1, .out_rows = 1, .kv_dtype = ENCODING_F32};
    int64_t params[PLAN_MAX_PARAMS];
    for (int i = 0; i < op->operand_count; i++)
        if (!check_id(checker, node, i, op->operands[i].name) || !check_presence(checker, op, node, i)) return false;
    graph_node_params(checker->graph, node, &step, params);
    for (int i = 0; i < op->operand_count; i++) {
        /* Parameters that come from the engine are not known yet. */
        const uint8_t columns = op->operands[i].columns;
        const bool known = op->operands[i].width || columns == OP_NONE || op->params[columns].source != PARAM_OF_ENGINE;
        if (known && !check_shape(checker, op, node, i, params)) return false;
    }
    for (int i = 0; i < op->operand_count; i++)
        if (graph_makes(node, i)) checker->produced[node->operands[i]] = true;
    return true;
}

bool graph_check(const struct graph *graph, const char *after, struct status *status)
{
    if (graph->out_of_memory) return status_fail(status, STATUS_MACHINE, "out of memory while building the graph");
    struct checker checker = {.graph = graph,
                              .produced = calloc((size_t)graph->value_count + 1, sizeof *checker.produced),
                              .status = status};
    bool ok = checker.produced || status_fail(status, STATUS_MACHINE, "out of memory while checking the graph");
    for (int n = 0; ok && n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->removed) continue;
        ok = op_find(node->op) ? check_node(&checker, node)
                               : status_fail(status, STATUS_INTERNAL, "op %d is unknown", (int)node->op);
        if (!ok) status_prefix(status, "graph after %s: node %d (%s)", after, n, plan_op_name(node->op));
    }
    free(checker.produced);
    return ok;
}
