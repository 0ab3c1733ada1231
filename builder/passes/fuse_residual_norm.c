/* SPDX-License-Identifier: Apache-2.0 */
/* An addition that feeds a norm becomes part of it: the sum is formed while the norm reads its input, once. */
#include "builder/passes/pass.h"

static bool run(struct graph *graph, struct status *status)
{
    (void)status;
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *norm = &graph->nodes[n];
        if (norm->removed || norm->op != OP_RMS_NORM || norm->inputs[1] >= 0) continue;
        int sum = norm->inputs[0], producer = graph_producer(graph, sum);
        if (producer < 0 || graph->nodes[producer].op != OP_ADD) continue;
        /* The sum appears where the norm stands, so nobody may read it before. */
        bool read_before = false;
        for (int i = producer + 1; i < n; i++)
            for (int k = 0; !graph->nodes[i].removed && k < GRAPH_MAX_INPUTS; k++)
                read_before |= graph->nodes[i].inputs[k] == sum;
        if (read_before) continue;
        struct graph_node *add = &graph->nodes[producer];
        norm->inputs[0] = add->inputs[1];
        norm->inputs[1] = add->inputs[0];
        norm->outputs[1] = sum;
        add->removed = true;
    }
    return true;
}

const struct pass pass_fuse_residual_norm = {"fuse_residual_norm", "the residual addition inside the norm after it",
                                             run, PASS_FOR(TARGET_CPU)};
