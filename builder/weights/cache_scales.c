/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/cache_scales.h"

#include <stdlib.h>

#include "kernels/rope_append/rope_append.h"

bool cache_is_e4m3(const struct checkpoint *checkpoint)
{
    return checkpoint->config.quantisation.cache == QUANT_CACHE_E4M3;
}

/* To one node. */
static bool add(struct graph *graph, int n, const struct quantised_cache_scales *of_layer, struct status *status)
{
    struct graph_node *node = &graph->nodes[n];
    const uint64_t kv_heads = (uint64_t)node->params[ROPE_APPEND_KV_HEADS];
    const uint32_t layer = node->layer;
    char name[GRAPH_NAME_BYTES];
    float *scales = calloc(kv_heads, 2 * sizeof *scales);
    if (!scales) return status_fail(status, STATUS_MACHINE, "out of memory");
    bool ok =
        quantised_read_cache_scales(of_layer->k, kv_heads, 2, OP_LEAST_KV_SCALE, OP_MOST_KV_SCALE, scales, status) &&
        quantised_read_cache_scales(of_layer->v, kv_heads, 2, OP_LEAST_KV_SCALE, OP_MOST_KV_SCALE, scales + 1, status);
    if (ok) {
        snprintf(name, sizeof name, "model.layers.%u.self_attn.kv_scales", layer);
        const int weight = graph_constant(graph, scales, 2 * kv_heads, name);
        if (weight < 0) {
            ok = status_fail(status, STATUS_MACHINE, "out of memory");
        } else {
            graph->weights[weight].layer = layer;
            graph_shard(graph, weight, SHARD_KV_ROWS);
            node->operands[ROPE_APPEND_KV_SCALES] = weight;
        }
    }
    free(scales);
    return ok;
}

bool cache_scales_add(struct graph *graph, const struct checkpoint *checkpoint, uint32_t *layers, struct status *status)
{
    struct quantised_cache_scales *scales;
    bool *used, ok = true;
    *layers = 0;
    if (!checkpoint->quantised.cache_scale_count || checkpoint->config.quantisation.cache == QUANT_CACHE_OTHER)
        return true;
    scales = calloc(graph->config->layers, sizeof *scales);
    used = calloc(graph->config->layers, sizeof *used);
    if (!scales || !used) ok = status_fail(status, STATUS_MACHINE, "out of memory");
    for (int n = 0; ok && n < graph->node_count; n++)
        if (graph->nodes[n].op == OP_ROPE_APPEND) used[graph->nodes[n].layer] = true;
    ok = ok && quantised_find_cache_scales(&checkpoint->quantised, graph->config->layers, used,
                                           graph->config->ignored_prefix, scales, status);
    for (int n = 0; ok && n < graph->node_count; n++) {
        if (graph->nodes[n].op != OP_ROPE_APPEND || !scales[graph->nodes[n].layer].k) continue;
        ok = add(graph, n, &scales[graph->nodes[n].layer], status);
        *layers += ok;
    }
    free(used);
    free(scales);
    return ok;
}
