/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders that normalise what attention and MLP give: the addition to the residual stream becomes part of the norm, which
 * has the result in registers. */
#include "builder/passes/pass.h"
#include "kernels/add/add.h"
#include "kernels/rms_norm/rms_norm.h"

static bool fusible(const struct graph *graph, const struct graph_index *index, int value)
{
    if (index->producer[value] < 0 || index->uses[value] != 1) return false;
    const struct graph_node *norm = &graph->nodes[index->producer[value]];
    return norm->op == OP_RMS_NORM && norm->operands[RMS_NORM_RESIDUAL] < 0 && norm->operands[RMS_NORM_ADD_TO] < 0;
}

static void fuse(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *add = &graph->nodes[n];
    for (int side = ADD_B; side >= ADD_A; side--) {
        const int normed = add->operands[side], stream = add->operands[ADD_A + ADD_B - side];
        const int sum = add->operands[ADD_OUT];
        if (!fusible(graph, index, normed)) continue;
        /* Both inputs exist at the addition, and nothing else reads the norm's result. */
        *add = graph->nodes[index->producer[normed]];
        add->operands[RMS_NORM_ADD_TO] = stream;
        add->operands[RMS_NORM_OUT] = sum;
        graph->nodes[index->producer[normed]].removed = true;
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

const struct pass pass_fuse_norm_add = {"fuse_norm_add", "the residual addition inside the norm before it", run,
                                        PASS_FOR(TARGET_CUDA)};
