/* SPDX-License-Identifier: Apache-2.0 */
/* CPU: matmuls round activations to what the graph says. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"

static void set_compute_dtype(struct graph *graph, struct graph_index *index, int node)
{
    (void)index;
    if (graph->weights[graph->nodes[node].operands[MATMUL_W]].exact) return;
    graph->nodes[node].params[MATMUL_COMPUTE_DTYPE] = graph->rounds_to;
}

static bool run(struct graph *graph, struct status *status)
{
    const bool rounds = graph->rounds_to == ENCODING_BF16 || graph->rounds_to == ENCODING_INT8_G32;
    return !rounds || pass_visit(graph, OP_MATMUL, set_compute_dtype, status);
}

const struct pass pass_compute_dtype = {
    .name = "compute_dtype",
    .what = "matmuls round activations to the type that --compute names",
    .run = run,
    .targets = PASS_FOR(TARGET_CPU),
};
