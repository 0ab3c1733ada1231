/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/column_orders.h"

#include <stdlib.h>
#include <string.h>

#include "builder/weights/coded.h"
#include "builder/weights/weights.h"
#include "formats/checkpoint/quantised.h"
#include "kernels/matmul/matmul.h"
#include "kernels/select_columns/select_columns.h"

/* ---- orders ---- */

static int compare_keys(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* False after an allocation failure. */
static bool sort_columns(struct column_order *order, const uint8_t *groups, uint64_t count)
{
    uint64_t *keys = malloc(count * sizeof *keys); /* group, then column */
    *order = (struct column_order){count, malloc(count * sizeof *order->columns)};
    if (keys && order->columns) {
        for (uint64_t i = 0; i < count; i++) {
            uint32_t group;
            memcpy(&group, groups + i * sizeof group, sizeof group);
            keys[i] = (uint64_t)group << 32 | i;
        }
        qsort(keys, count, sizeof *keys, compare_keys);
        for (uint64_t i = 0; i < count; i++) order->columns[i] = (uint32_t)keys[i];
    }
    const bool ok = keys && order->columns;
    free(keys);
    return ok;
}

static const struct column_order *find_order(const struct column_orders *orders, const struct quantised *matrix)
{
    for (size_t i = 0; i < orders->count; i++)
        if (orders->orders[i].count == matrix->columns &&
            memcmp(orders->groups[i], matrix->groups, matrix->columns * sizeof(uint32_t)) == 0)
            return &orders->orders[i];
    return NULL;
}

bool column_orders_open(struct column_orders *orders, const struct checkpoint *checkpoint, struct status *status)
{
    const struct quantised_tensors *tensors = &checkpoint->quantised;
    *orders = (struct column_orders){.orders = calloc(tensors->matrix_count + 1, sizeof *orders->orders),
                                     .groups = calloc(tensors->matrix_count + 1, sizeof *orders->groups)};
    bool ok = orders->orders && orders->groups;
    for (size_t i = 0; ok && i < tensors->matrix_count; i++) {
        const struct quantised *matrix = &tensors->matrices[i];
        if (!matrix->groups || matrix->columns > SELECT_COLUMNS_MOST || find_order(orders, matrix)) continue;
        ok = sort_columns(&orders->orders[orders->count], matrix->groups, matrix->columns);
        orders->groups[orders->count++] = matrix->groups;
    }
    return ok || status_fail(status, STATUS_MACHINE, "out of memory while ordering columns");
}

void column_orders_close(struct column_orders *orders)
{
    for (size_t i = 0; i < orders->count; i++) free(orders->orders[i].columns);
    free(orders->orders);
    free(orders->groups);
    *orders = (struct column_orders){0};
}

/* ---- graphs ---- */

struct ordering {
    struct graph *graph;
    const struct column_orders *orders;
    const struct checkpoint *checkpoint;
    const struct weight_types *types;
};

/* The order of the columns of all sources; NULL: they have none in common. */
static const struct column_order *order_of(const struct ordering *o, const struct graph_weight *weight)
{
    const struct column_order *order = NULL;
    for (int i = 0; i < weight->source_count; i++) {
        const struct weight_source *source = &weight->sources[i];
        const struct tensor_view *tensor = source->tensor ? checkpoint_find(o->checkpoint, source->tensor) : NULL;
        if (!tensor || !tensor->quantised || !tensor->quantised->groups || source->transposed || source->first_column ||
            !source_is_exact(source) || source->columns != tensor->quantised->columns)
            return NULL;
        const struct column_order *own = find_order(o->orders, tensor->quantised);
        if (i && own != order) return NULL;
        order = own;
    }
    return order;
}

static void set_column_order(struct graph_weight *weight, const struct column_order *order)
{
    for (int i = 0; i < weight->source_count; i++) weight->sources[i].column_order = order;
}

/* Columns of a rank's share, as pass_shard will set them, or with 1 rank as they are before it. */
static void share_columns(struct graph_weight *weight, uint32_t ranks)
{
    for (int i = 0; i < weight->source_count; i++)
        if (weight->sources[i].shard == SHARD_COLUMNS)
            weight->sources[i].rank_columns = weight->sources[i].columns / ranks;
}

/* Whether the engine keeps the codes of a weight that has its order. */
static bool keeps_codes(const struct ordering *o, struct graph_weight *weight)
{
    share_columns(weight, o->graph->ranks);
    const char *why;
    const bool exactly = o->graph->target == TARGET_CPU;
    const enum encoding_id found = coded_encoding(weight, o->checkpoint, o->graph->ranks, exactly, &why),
                           asked = weight_types_ask(o->types, weight);
    share_columns(weight, 1);
    return found != ENCODING_NONE && (asked == ENCODING_NONE || asked == found);
}

/* Operands for which `is` holds, graph_reads or graph_has_weight, and that are `id`. */
static int count_uses(const struct graph *graph, bool (*is)(const struct graph_node *, int), int id)
{
    int uses = 0;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; i < PLAN_MAX_OPERANDS; i++)
            uses += is(&graph->nodes[n], i) && graph->nodes[n].operands[i] == id;
    return uses;
}

/* Whether a matrix or a bias (-1: none) has a row for each column of the order in each of its sources, and one reader. Sources without a tensor
 * have one value for all rows. */
static bool has_rows(const struct graph *graph, int weight, const struct column_order *order)
{
    if (weight < 0) return true;
    bool has = count_uses(graph, graph_has_weight, weight) == 1;
    for (int i = 0; i < graph->weights[weight].source_count; i++) {
        const struct weight_source *source = &graph->weights[weight].sources[i];
        has = has && source->rows == order->count && source->repeat == 1 && !source->values;
    }
    return has;
}

static void set_row_order(struct graph *graph, int weight, const struct column_order *order)
{
    for (int i = 0; weight >= 0 && i < graph->weights[weight].source_count; i++)
        if (graph->weights[weight].sources[i].tensor) graph->weights[weight].sources[i].row_order = order;
}

/* The matmul that makes x for one reader, column after column from the rows of its weight; NULL: none does. */
static const struct graph_node *maker_of(const struct graph *graph, int x, const struct column_order *order)
{
    if (count_uses(graph, graph_reads, x) != 1) return NULL;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->op != OP_MATMUL || node->operands[MATMUL_OUT] != x) continue;
        const int weight = node->operands[MATMUL_W], sources = matmul_is_gated(node->params) ? 2 : 1;
        const bool is_plain = !node->params[MATMUL_EXPERTS] && !node->params[MATMUL_BLOCK_N];
        return is_plain && graph->weights[weight].source_count == sources && has_rows(graph, weight, order) &&
                       has_rows(graph, node->operands[MATMUL_BIAS], order)
                   ? node
                   : NULL;
    }
    return NULL;
}

/* The order as a weight of the engine, named after the first that has it. */
static int order_weight(struct graph *graph, const struct column_order *order, int of)
{
    for (int w = 0; w < graph->weight_count; w++) {
        const struct graph_weight *weight = &graph->weights[w];
        if (weight->source_count && !weight->sources[0].tensor && weight->sources[0].row_order == order) return w;
    }
    char name[GRAPH_NAME_BYTES];
    snprintf(name, sizeof name, "%.57s.order", graph->weights[of].name);
    const struct weight_source source = {.rows = order->count, .row_order = order};
    return graph_weight_from(graph, graph->weights[of].layer, WEIGHT_ROW_MAJOR, &source, "%s", name);
}

/* x in the order: what an earlier matmul reads, too, or made by a new node before *n. -1: out of memory. */
static int select_x(struct graph *graph, int *n, int x, int order)
{
    for (int i = 0; i < *n; i++) {
        const struct graph_node *node = &graph->nodes[i];
        if (node->op == OP_SELECT_COLUMNS && node->operands[SELECT_COLUMNS_X] == x &&
            node->operands[SELECT_COLUMNS_ORDER] == order)
            return node->operands[SELECT_COLUMNS_OUT];
    }
    const struct graph_value before = graph->values[x];
    const int out = graph_value(graph, before.rows, before.width, "%.50s.ordered", before.name);
    struct graph_node *node = graph_insert(graph, *n, OP_SELECT_COLUMNS, graph->nodes[*n].layer);
    if (!node) return -1;
    node->operands[SELECT_COLUMNS_X] = x;
    node->operands[SELECT_COLUMNS_ORDER] = order;
    node->operands[SELECT_COLUMNS_OUT] = out;
    ++*n;
    return out;
}

/* Gives the weight of node *n, a matmul, its order. Nodes may be inserted before it. */
static void order_matmul(const struct ordering *o, int *n)
{
    struct graph *graph = o->graph;
    const int w = graph->nodes[*n].operands[MATMUL_W], x = graph->nodes[*n].operands[MATMUL_X];
    struct graph_weight *weight = &graph->weights[w];
    const struct column_order *order = order_of(o, weight);
    if (!order || weight->experts || count_uses(graph, graph_has_weight, w) != 1) return;
    const struct graph_node *maker = maker_of(graph, x, order);
    const bool is_shared = graph->ranks > 1 && weight->sources[0].shard == SHARD_COLUMNS;
    if (!maker && (is_shared || graph->values[x].width != order->count)) return;
    set_column_order(weight, order);
    if (!keeps_codes(o, weight)) {
        set_column_order(weight, NULL);
    } else if (maker) {
        set_row_order(graph, maker->operands[MATMUL_W], order);
        set_row_order(graph, maker->operands[MATMUL_BIAS], order);
    } else {
        const int by = order_weight(graph, order, w);
        const int ordered = by < 0 ? -1 : select_x(graph, n, x, by);
        if (ordered >= 0) graph->nodes[*n].operands[MATMUL_X] = ordered;
    }
}

bool column_orders_add(struct graph *graph, const struct column_orders *orders, const struct checkpoint *checkpoint,
                       const struct weight_types *types, struct status *status)
{
    const struct ordering o = {graph, orders, checkpoint, types};
    if (!orders->count) return true;
    weights_take_short_names(graph, checkpoint);
    for (int n = 0; n < graph->node_count && !graph->out_of_memory; n++)
        if (graph->nodes[n].op == OP_MATMUL) order_matmul(&o, &n);
    return !graph->out_of_memory || status_fail(status, STATUS_MACHINE, "out of memory while ordering columns");
}
