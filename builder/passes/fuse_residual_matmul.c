/* SPDX-License-Identifier: Apache-2.0 */
/* An addition to a matmul's result becomes its epilogue: the sum is formed while the product is in registers, and the
 * residual stream is read and written once. */
#include "builder/passes/pass.h"

static bool fusible(const struct graph *graph, int producer, int value)
{
    if (producer < 0) return false;
    const struct graph_node *matmul = &graph->nodes[producer];
    return matmul->op == OP_MATMUL && !matmul->swiglu && matmul->inputs[1] < 0 && graph_use_count(graph, value) == 1;
}

static bool run(struct graph *graph, struct status *status)
{
    (void)status;
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *add = &graph->nodes[n];
        if (add->removed || add->op != OP_ADD) continue;
        for (int side = 1; side >= 0; side--) {
            int product = add->inputs[side], residual = add->inputs[1 - side], sum = add->outputs[0];
            int producer = graph_producer(graph, product);
            if (!fusible(graph, producer, product)) continue;
            /* Where the addition stood both inputs exist, and nobody else reads the product. */
            *add = graph->nodes[producer];
            add->inputs[1] = residual;
            add->outputs[0] = sum;
            graph->nodes[producer].removed = true;
            break;
        }
    }
    return true;
}

const struct pass pass_fuse_residual_matmul = {"fuse_residual_matmul",
                                               "the residual addition inside the matmul before it", run,
                                               PASS_FOR(TARGET_CUDA)};
