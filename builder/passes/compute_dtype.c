/* SPDX-License-Identifier: Apache-2.0 */
/* CPU: matmuls round activations to the graph's compute_dtype. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"

static void set_compute_dtype(struct graph *graph, struct graph_index *index, int node)
{
    (void)index;
    graph->nodes[node].params[MATMUL_COMPUTE_DTYPE] = DTYPE_BF16;
}

static bool run(struct graph *graph, struct status *status)
{
    return graph->compute_dtype != DTYPE_BF16 || pass_visit(graph, OP_MATMUL, set_compute_dtype, status);
}

const struct pass pass_compute_dtype = {
    .name = "compute_dtype",
    .what = "matmuls round activations to the type that --compute names",
    .run = run,
    .targets = PASS_FOR(TARGET_CPU),
};
