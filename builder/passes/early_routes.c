/* SPDX-License-Identifier: Apache-2.0 */
/* Experts' second matmul, whose addends another launch sums: its routes are older than the launch before it, the first matmul over the
 * same experts. So it may read them, and ask for weights, while that one still runs. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"

static void visit(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *down = &graph->nodes[n];
    if (!down->params[MATMUL_PARTS]) return;
    const int producer = index->producer[down->operands[MATMUL_X]];
    if (producer < 0) return;
    const struct graph_node *up = &graph->nodes[producer];
    if (up->op == OP_MATMUL && up->params[MATMUL_EXPERTS] && matmul_shares_x(up->params) &&
        up->operands[MATMUL_ROUTES] == down->operands[MATMUL_ROUTES])
        down->params[MATMUL_EARLY_ROUTES] = 1;
}

static bool run(struct graph *graph, struct status *status) { return pass_visit(graph, OP_MATMUL, visit, status); }

const struct pass pass_early_routes = {"early_routes", "experts' second matmul begins while the first one runs", run,
                                       PASS_FOR(TARGET_CUDA)};
