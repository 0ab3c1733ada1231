/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/weights/channel_links.h"

#include <stdlib.h>

#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_attention/rope_attention.h"

/* The part of a joined weight whose rows are channels. */
enum { SOURCE_ALL = 0, SOURCES_ALL = 1, SOURCE_UP = 1, SOURCES_GATE_UP = 2, SOURCE_V = 2, SOURCES_QKV = 3 };

struct search {
    const struct graph *model, *engine;
    struct graph_index index;
};

/* By live nodes. */
static int times_read(const struct graph *graph, int weight)
{
    int times = 0;
    for (int n = 0; n < graph->node_count; n++)
        for (int i = 0; !graph->nodes[n].removed && i < PLAN_MAX_OPERANDS; i++)
            times += graph_has_weight(&graph->nodes[n], i) && graph->nodes[n].operands[i] == weight;
    return times;
}

/* The node that makes a value for a single reader; NULL: there is none. */
static const struct graph_node *maker_of(const struct search *search, int value)
{
    if (value < 0 || search->index.producer[value] < 0 || search->index.uses[value] != 1) return NULL;
    return &search->model->nodes[search->index.producer[value]];
}

/* Rows of codes with scales of their own take a factor without loss; elements of a matrix of floats would be rounded once more. */
static bool takes_factors(const struct search *search, int weight, int sources)
{
    const struct graph_weight *found = &search->engine->weights[weight];
    const struct encoding *encoding = encoding_find(found->encoding);
    if (found->source_count != sources || found->keeps_codes || times_read(search->model, weight) != 1) return false;
    return !found->columns || (!encoding_is_plain(found->encoding) && encoding->block_rows == 1);
}

static bool link_norm(const struct search *search, const struct graph_node *norm, struct channel_link *link)
{
    const int weight = norm->operands[RMS_NORM_WEIGHT];
    if (norm->operands[RMS_NORM_ADD_TO] >= 0 || norm->operands[RMS_NORM_COPY] >= 0 ||
        norm->operands[RMS_NORM_BIAS] >= 0 || !takes_factors(search, weight, SOURCES_ALL) ||
        search->model->weights[weight].sources[0].shard != SHARD_NONE)
        return false;
    link->maker = weight;
    link->source = SOURCE_ALL;
    link->is_shared = true;
    return true;
}

/* The rows of a joined matrix, and of its bias. */
static bool link_matmul(const struct search *search, const struct graph_node *matmul, int source, int sources,
                        struct channel_link *link)
{
    const int weight = matmul->operands[MATMUL_W], bias = matmul->operands[MATMUL_BIAS];
    if (matmul->operands[MATMUL_RESIDUAL] >= 0 || !takes_factors(search, weight, sources) ||
        (bias >= 0 && !takes_factors(search, bias, sources)))
        return false;
    link->maker = weight;
    link->bias = bias;
    link->source = source;
    return true;
}

/* Whether the KV cache of a layer has scales that the checkpoint was calibrated for: with v as it is. The engine's nodes have them. */
static bool has_static_scales(const struct graph *engine, uint32_t layer)
{
    for (int n = 0; n < engine->node_count; n++) {
        const struct graph_node *node = &engine->nodes[n];
        if (node->removed || node->layer != layer) continue;
        if ((node->op == OP_ROPE_APPEND && node->operands[ROPE_APPEND_KV_SCALES] >= 0) ||
            (node->op == OP_ROPE_ATTENTION && node->operands[ROPE_ATTENTION_KV_SCALES] >= 0))
            return true;
    }
    return false;
}

/* v goes through the KV cache of its layer. */
static bool link_attention(const struct search *search, const struct graph_node *attention, struct channel_link *link)
{
    const struct graph *model = search->model;
    const int64_t *params = attention->params;
    if (has_static_scales(search->engine, attention->layer)) return false;
    for (int n = 0; n < model->node_count; n++) {
        const struct graph_node *append = &model->nodes[n];
        if (append->removed || append->op != OP_ROPE_APPEND || append->layer != attention->layer) continue;
        if (append->params[ROPE_APPEND_NORM_V]) return false; /* which would take a factor out again */
        const struct graph_node *matmul = maker_of(search, append->operands[ROPE_APPEND_QKV]);
        if (!matmul || matmul->op != OP_MATMUL || matmul_is_gated(matmul->params)) return false;
        link->head_dim = (uint64_t)params[PAGED_HEAD_DIM];
        link->heads = (uint64_t)(params[PAGED_HEADS] / params[PAGED_KV_HEADS]);
        return link_matmul(search, matmul, SOURCE_V, SOURCES_QKV, link);
    }
    return false;
}

/* Integers are equally far apart. Numbers of e2m1 are the farther apart the larger they are, so that the error of a scaled column
 * grows with it: measurements show no gain for mxfp4 and nvfp4. */
static bool gains(const struct graph *engine, const struct calibration *calibration, int weight)
{
    return calibration_factors(calibration, 0, weight) &&
           encoding_find(engine->weights[weight].encoding)->code == CODE_UINT4;
}

static bool find_link(const struct search *search, const struct graph_node *reader, struct channel_link *link)
{
    *link =
        (struct channel_link){.matrix = reader->operands[MATMUL_W], .maker = -1, .bias = -1, .head_dim = 1, .heads = 1};
    const struct graph_node *node = maker_of(search, reader->operands[MATMUL_X]);
    if (!node || times_read(search->model, link->matrix) != 1) return false;
    if (node->op == OP_RMS_NORM) return link_norm(search, node, link);
    if (node->op == OP_ATTENTION) return link_attention(search, node, link);
    /* The limit of a clamped SwiGLU is for up as the checkpoint has it. */
    return node->op == OP_MATMUL && matmul_is_gated(node->params) &&
           matmul_activation(node->params) != ACTIVATION_CLAMPED &&
           link_matmul(search, node, SOURCE_UP, SOURCES_GATE_UP, link);
}

bool channel_links_find(const struct graph *model, const struct graph *engine, const struct calibration *calibration,
                        struct channel_link **links, int *count, struct status *status)
{
    struct search search = {.model = model, .engine = engine};
    *count = 0;
    *links = malloc(((size_t)model->node_count + 1) * sizeof **links);
    if (!*links) return status_fail(status, STATUS_MACHINE, "out of memory while calibrating");
    if (!graph_index_open(&search.index, model, status)) return false;
    for (int n = 0; n < model->node_count; n++) {
        const struct graph_node *node = &model->nodes[n];
        if (!node->removed && node->op == OP_MATMUL && gains(engine, calibration, node->operands[MATMUL_W]) &&
            find_link(&search, node, &(*links)[*count]))
            ++*count;
    }
    graph_index_close(&search.index);
    return true;
}

uint64_t channel_link_row(const struct channel_link *link, uint64_t column)
{
    return column / (link->head_dim * link->heads) * link->head_dim + column % link->head_dim;
}
