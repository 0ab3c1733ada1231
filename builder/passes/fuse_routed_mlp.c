/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows: the router with the experts' first matmul, and the second one, become one launch. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul_device.h"
#include "kernels/routed_mlp/routed_mlp.h"

_Static_assert((int)ROUTED_MLP_DOWN_SCALE_BITS < (int)GRAPH_MAX_PARAMS, "the last parameter that a node has");

/* The only reader of what the node makes, a matmul that the launch can take; NULL: there is none. */
static struct graph_node *find_down(struct graph *graph, const struct graph_index *index, const struct graph_node *up)
{
    const int activations = up->operands[ROUTED_MATMUL_OUT], routes = up->operands[ROUTED_MATMUL_ROUTES];
    if (index->uses[activations] != 1 || index->uses[routes] != 1) return NULL;
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *down = &graph->nodes[n];
        if (!down->removed && down->op == OP_MATMUL && down->operands[MATMUL_X] == activations)
            return matmul_sums_choices(down->params) && !down->params[MATMUL_PARTS] &&
                           down->operands[MATMUL_ROUTES] == routes && down->operands[MATMUL_NORM] < 0 &&
                           down->operands[MATMUL_X_SCALES] < 0
                       ? down
                       : NULL;
    }
    return NULL;
}

/* Whether it is faster: a matmul alone may divide k where its tiles do not make equal shares. */
static bool pays(const struct graph *graph, const struct graph_node *down)
{
    return routed_mlp_is_balanced((int64_t)graph->values[down->operands[MATMUL_OUT]].width, graph->multiprocessors);
}

/* Whether the kernel takes as many rows as the two that it replaces. */
static bool fits(const struct graph *graph, const struct graph_node *up, const struct graph_node *down)
{
    const struct graph_weight *first = &graph->weights[up->operands[ROUTED_MATMUL_W]],
                              *second = &graph->weights[down->operands[MATMUL_W]],
                              *matrix = &graph->weights[up->operands[ROUTED_MATMUL_MATRIX]];
    const int64_t top_k = (int64_t)graph->values[up->operands[ROUTED_MATMUL_ROUTES]].width / 2;
    const int64_t shares = ((int64_t)matrix->rows + graph->multiprocessors - 1) / graph->multiprocessors;
    if (graph->values[up->operands[ROUTED_MATMUL_OUT]].dtype == DTYPE_F32 ||
        encoding_is_plain(first->encoding) != encoding_is_plain(second->encoding))
        return false;
    uint32_t rows = GRAPH_SMALL_BATCH;
    while (rows > 1 && (rows * top_k > MATMUL_GEMV_MOST_CHOICES || !graph_gemv_has_experts(graph, down, rows))) rows--;
    return routed_mlp_fits(rows, (int64_t)first->depth, shares, top_k, (int64_t)second->depth, graph->shared_per_block);
}

static void visit(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *up = &graph->nodes[n], *down = find_down(graph, index, up);
    if (!down || graph->multiprocessors < 1 || !fits(graph, up, down) || !pays(graph, down)) return;
    struct graph_node node = *up;
    node.op = OP_ROUTED_MLP;
    node.layer = down->layer;
    node.params[ROUTED_MATMUL_OUT_DTYPE] = graph->values[up->operands[ROUTED_MATMUL_OUT]].dtype;
    node.params[ROUTED_MATMUL_ROUTE_WIDTH] = (int64_t)graph->values[up->operands[ROUTED_MATMUL_ROUTES]].width;
    node.params[ROUTED_MLP_DOWN_SCALE_BITS] = down->params[MATMUL_SCALE_BITS];
    node.operands[ROUTED_MLP_OUT] = down->operands[MATMUL_OUT];
    node.operands[ROUTED_MLP_DOWN] = down->operands[MATMUL_W];
    node.operands[ROUTED_MLP_DOWN_BIAS] = down->operands[MATMUL_BIAS];
    node.operands[ROUTED_MLP_RESIDUAL] = down->operands[MATMUL_RESIDUAL];
    *down = node;
    up->removed = true;
}

static bool run(struct graph *graph, struct status *status)
{
    return graph->plan_rows != GRAPH_ROWS_ROUTED_MLP || pass_visit(graph, OP_ROUTED_MATMUL, visit, status);
}

const struct pass pass_fuse_routed_mlp =
    {"fuse_routed_mlp", "few rows: the experts' second matmul in the launch of the router and of their first", run,
     PASS_FOR(TARGET_CUDA)};
