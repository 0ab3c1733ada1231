/* SPDX-License-Identifier: Apache-2.0 */
/* q, k and v of a layer read the same input: one matmul over the stacked rows reads it once and is one launch. */
#include <string.h>

#include "builder/passes/pass.h"

static bool fusible(const struct graph *graph, const struct graph_node *const parts[3])
{
    for (int i = 0; i < 3; i++) {
        const struct graph_node *part = parts[i];
        if (part->op != OP_MATMUL || part->swiglu || part->inputs[1] >= 0) return false;
        if (part->inputs[0] != parts[0]->inputs[0]) return false;
        if ((part->weights[1] >= 0) != (parts[0]->weights[1] >= 0)) return false;
        if (graph_use_count(graph, part->outputs[0]) != 1) return false;
    }
    return true;
}

static bool run(struct graph *graph, struct status *status)
{
    for (int n = 0; n < graph->node_count; n++) {
        struct graph_node *rope = &graph->nodes[n];
        if (rope->op != OP_ROPE_APPEND || rope->removed || rope->inputs[1] < 0) continue;
        struct graph_node *parts[3];
        for (int i = 0; i < 3; i++) parts[i] = &graph->nodes[graph_producer(graph, rope->inputs[i])];
        if (!fusible(graph, (const struct graph_node *const *)parts)) continue;

        struct graph_value *out = &graph->values[parts[0]->outputs[0]];
        for (int i = 1; i < 3; i++) {
            out->width += graph->values[parts[i]->outputs[0]].width;
            for (int w = 0; w < 2; w++)
                if (parts[i]->weights[w] >= 0 && !graph_weight_join(graph, parts[0]->weights[w], parts[i]->weights[w]))
                    return status_fail(status, STATUS_MACHINE, "out of memory while fusing q, k and v");
            parts[i]->removed = true;
            rope->inputs[i] = -1;
        }
        snprintf(out->name, sizeof out->name, "qkv%u", rope->layer);
        for (int w = 0; w < 2; w++)
            if (parts[0]->weights[w] >= 0)
                snprintf(graph->weights[parts[0]->weights[w]].name, GRAPH_NAME_BYTES,
                         "model.layers.%u.self_attn.qkv_proj.%s", rope->layer, w == 0 ? "weight" : "bias");
    }
    return true;
}

const struct pass pass_fuse_qkv = {"fuse_qkv", "one matmul for the q, k and v projections of a layer", run, 0};
