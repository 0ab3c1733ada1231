/* SPDX-License-Identifier: Apache-2.0 */
/* An addition to a matmul's result becomes its epilogue: the sum is formed while the product is in registers, and the
 * residual stream is read and written once. */
#include "builder/passes/pass.h"
#include "kernels/add/add.h"
#include "kernels/matmul/matmul.h"

static bool fusible(const struct graph *graph, const struct graph_index *index, int value)
{
    if (index->producer[value] < 0 || index->uses[value] != 1) return false;
    const struct graph_node *matmul = &graph->nodes[index->producer[value]];
    return matmul->op == OP_MATMUL && matmul->params[MATMUL_EPILOGUE] == ACTIVATION_NONE &&
           matmul->operands[MATMUL_RESIDUAL] < 0;
}

static void fuse(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *add = &graph->nodes[n];
    for (int side = ADD_B; side >= ADD_A; side--) {
        const int product = add->operands[side], residual = add->operands[ADD_A + ADD_B - side];
        const int sum = add->operands[ADD_OUT];
        if (!fusible(graph, index, product)) continue;
        /* At the place of the addition both inputs exist, and no other node reads the product. */
        *add = graph->nodes[index->producer[product]];
        add->operands[MATMUL_RESIDUAL] = residual;
        add->operands[MATMUL_OUT] = sum;
        graph->nodes[index->producer[product]].removed = true;
        index->producer[sum] = n;
        return;
    }
}

static bool run(struct graph *graph, struct status *status)
{
    struct graph_index index;
    if (!graph_index_open(&index, graph, status)) return false;
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == OP_ADD) fuse(graph, &index, n);
    graph_index_close(&index);
    return true;
}

const struct pass pass_fuse_residual_matmul = {"fuse_residual_matmul",
                                               "the residual addition inside the matmul before it", run,
                                               PASS_FOR(TARGET_CUDA)};
