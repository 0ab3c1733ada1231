/* SPDX-License-Identifier: Apache-2.0 */
/* The residual addition and the norm after a sum of all ranks become part of it: both work on rows that are in
 * registers when the other ranks' parts arrive. */
#include "builder/passes/pass.h"
#include "kernels/add/add.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/rms_norm/rms_norm.h"

/* The addition to a sum that no other node reads. */
static void take_residual(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *add = &graph->nodes[n];
    for (int side = ADD_B; side >= ADD_A; side--) {
        const int value = add->operands[side], residual = add->operands[ADD_A + ADD_B - side];
        const int sum = add->operands[ADD_OUT], producer = index->producer[value];
        if (producer < 0 || graph->nodes[producer].op != OP_ALL_REDUCE || index->uses[value] != 1) continue;
        /* At the place of the addition the residual exists. */
        *add = graph->nodes[producer];
        add->operands[ALL_REDUCE_RESIDUAL] = residual;
        add->operands[ALL_REDUCE_OUT] = sum;
        graph->nodes[producer].removed = true;
        index->producer[sum] = n;
        return;
    }
}

/* The first norm of a sum. */
static void take_norm(struct graph *graph, const struct graph_index *index, struct graph_node *norm)
{
    const int producer = norm->operands[RMS_NORM_RESIDUAL] < 0 ? index->producer[norm->operands[RMS_NORM_X]] : -1;
    if (producer < 0) return;
    struct graph_node *reduce = &graph->nodes[producer];
    if (reduce->op != OP_ALL_REDUCE || reduce->operands[ALL_REDUCE_NORMED] >= 0) return;
    reduce->operands[ALL_REDUCE_NORMED] = norm->operands[RMS_NORM_OUT];
    reduce->operands[ALL_REDUCE_NORM] = norm->operands[RMS_NORM_WEIGHT];
    reduce->params[ALL_REDUCE_EPS_BITS] = norm->params[RMS_NORM_EPS_BITS];
    norm->removed = true;
}

static bool run(struct graph *graph, struct status *status)
{
    struct graph_index index;
    if (!graph_index_open(&index, graph, status)) return false;
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == OP_ADD) take_residual(graph, &index, n);
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == OP_RMS_NORM) take_norm(graph, &index, &graph->nodes[n]);
    graph_index_close(&index);
    return true;
}

const struct pass pass_fuse_all_reduce = {"fuse_all_reduce", "residual and norm inside the sum of all ranks", run,
                                          PASS_FOR(TARGET_CUDA)};
