/* SPDX-License-Identifier: Apache-2.0 */
/* Of many rows each rank keeps the residual stream of those that it owns, as long as nobody else reads it: a row's owner adds
 * it and forms the norm, and what goes to the other ranks is the normed row alone. Who reads the stream but for a sum that
 * works so gets every row. */
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
