/* SPDX-License-Identifier: Apache-2.0 */
/* In plans of many rows each rank keeps the residual stream of the rows that it owns: the owner of a row adds to its stream
 * and computes its norm, and the other ranks receive the normed row alone. This holds for a sum only where all later
 * readers of its stream are sums that do the same; for any other reader every rank gets every row. */
#include "builder/lower/residual_rows.h"

static bool works_on_own_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows,
                              uint64_t out_rows)
{
    if (node->op != OP_ALL_REDUCE || node->operands[ALL_REDUCE_NORMED] < 0) return false;
    const struct graph_value *x = &graph->values[node->operands[ALL_REDUCE_X]];
    return all_reduce_device_is_large(x->rows == ROWS_TOKENS ? rows : out_rows, x->width, graph->ranks, x->dtype);
}

static bool own_rows_suffice(const struct graph *graph, int value, uint64_t rows, uint64_t out_rows)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *reader = &graph->nodes[n];
        for (int i = 0; !reader->removed && i < PLAN_MAX_OPERANDS; i++)
            if (graph_reads(reader, i) && reader->operands[i] == value &&
                (i != ALL_REDUCE_RESIDUAL || !works_on_own_rows(graph, reader, rows, out_rows)))
                return false;
    }
    return true;
}

void residual_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows, uint64_t out_rows,
                   int64_t *params)
{
    if (!works_on_own_rows(graph, node, rows, out_rows)) return;
    if (params[ALL_REDUCE_HAS_RESIDUAL]) params[ALL_REDUCE_HAS_RESIDUAL] = ALL_REDUCE_OWN_ROWS;
    if (own_rows_suffice(graph, node->operands[ALL_REDUCE_OUT], rows, out_rows))
        params[ALL_REDUCE_HAS_NORM] = ALL_REDUCE_OWN_ROWS;
}
