/* SPDX-License-Identifier: Apache-2.0 */
/* Decode: rows are of different sequences, so each can rotate, append and attend on its own: one launch instead of two.
 * In a prefill a row attends to what other rows of the step append. */
#include "builder/passes/pass.h"

static bool run(struct graph *graph, struct status *status)
{
    (void)status;
    if (graph->kind != PLAN_DECODE) return true;
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *attention = &graph->nodes[n];
        if (attention->removed || attention->op != OP_ATTENTION) continue;
        int q = attention->inputs[0], producer = graph_producer(graph, q);
        if (producer < 0 || graph_use_count(graph, q) != 1) continue;
        struct graph_node *rope = &graph->nodes[producer];
        if (rope->op != OP_ROPE_APPEND || rope->inputs[1] >= 0) continue;
        attention->op = OP_ROPE_ATTENTION;
        for (int i = 0; i < GRAPH_MAX_INPUTS; i++) attention->inputs[i] = rope->inputs[i];
        for (int w = 0; w < 2; w++) attention->weights[w] = rope->weights[w];
        attention->eps = rope->eps;
        rope->removed = true;
    }
    return true;
}

const struct pass pass_fuse_rope_attention = {"fuse_rope_attention",
                                              "decode: rotation, KV append and attention in one launch", run,
                                              PASS_FOR(TARGET_CUDA)};
