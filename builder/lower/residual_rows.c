/* SPDX-License-Identifier: Apache-2.0 */
/* Of many rows each rank keeps the residual stream of those that it owns, as long as nobody else reads it: a row's owner adds
 * it and forms the norm, and what goes to the other ranks is the normed row alone. Who reads the stream but for a sum that
 * works so gets every row. */
#include "builder/lower/residual_rows.h"

static bool works_on_own_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows,
                              uint64_t out_rows)
{
    if (node->op != OP_ALL_REDUCE || node->outputs[1] < 0) return false;
    const struct graph_value *x = &graph->values[node->inputs[0]];
    return all_reduce_device_is_large(x->rows == ROWS_TOKENS ? rows : out_rows, x->width, graph->ranks, x->dtype);
}

static bool own_rows_suffice(const struct graph *graph, int value, uint64_t rows, uint64_t out_rows)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *reader = &graph->nodes[n];
        for (int i = 0; !reader->removed && i < GRAPH_MAX_INPUTS; i++)
            if (reader->inputs[i] == value && (i != 1 || !works_on_own_rows(graph, reader, rows, out_rows)))
                return false;
    }
    return true;
}

struct residual_rows residual_rows(const struct graph *graph, const struct graph_node *node, uint64_t rows,
                                   uint64_t out_rows)
{
    const bool own = works_on_own_rows(graph, node, rows, out_rows);
    const bool residual = node->inputs[1] >= 0, norm = node->outputs[1] >= 0;
    struct residual_rows found = {.residual = residual ? ALL_REDUCE_EVERY_ROW : ALL_REDUCE_NO_ROWS,
                                  .norm = norm ? ALL_REDUCE_EVERY_ROW : ALL_REDUCE_NO_ROWS,
                                  .given = graph->values[node->inputs[0]].dtype};
    if (norm && dtype_bytes(graph->values[node->outputs[1]].dtype) > dtype_bytes(found.given))
        found.given = graph->values[node->outputs[1]].dtype;
    if (!own) return found;
    if (residual) found.residual = ALL_REDUCE_OWN_ROWS;
    if (own_rows_suffice(graph, node->outputs[0], rows, out_rows))
        found.norm = ALL_REDUCE_OWN_ROWS;
    else if (residual)
        found.given = DTYPE_F32;
    return found;
}
