/* SPDX-License-Identifier: Apache-2.0 */
/* With few rows a norm costs a launch and no time to speak of: the matmul that reads it normalises its input itself.
 * With many rows every thread block would repeat it, so the norm stays. */
#include "builder/passes/pass.h"

/* Every reader of the norm can take it over. */
static bool fusible(const struct graph *graph, int value)
{
    int readers = 0;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        for (int i = 0; !node->removed && i < GRAPH_MAX_INPUTS; i++) {
            if (node->inputs[i] != value) continue;
            if (node->op != OP_MATMUL || i != 0 || node->weights[2] >= 0) return false;
            readers++;
        }
    }
    return readers > 0;
}

static bool run(struct graph *graph, struct status *status)
{
    (void)status;
    /* The matmul rounds x times the norm's weight before it divides by the row's size: fp16 has not the range for that. */
    if (graph->half == DTYPE_F16) return true;
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *norm = &graph->nodes[n];
        int value = norm->outputs[0];
        if (norm->removed || norm->op != OP_RMS_NORM || norm->inputs[1] >= 0) continue;
        if (!graph_is_narrow(graph, value) || !fusible(graph, value)) continue;
        for (int i = 0; i < graph->node_count; i++) {
            struct graph_node *matmul = &graph->nodes[i];
            if (matmul->removed || matmul->op != OP_MATMUL || matmul->inputs[0] != value) continue;
            matmul->inputs[0] = norm->inputs[0];
            matmul->weights[2] = norm->weights[0];
            matmul->eps = norm->eps;
        }
        norm->removed = true;
    }
    return true;
}

const struct pass pass_fuse_norm_matmul = {"fuse_norm_matmul", "few rows: the norm inside the matmul that reads it",
                                           run, PASS_FOR(TARGET_CUDA)};
