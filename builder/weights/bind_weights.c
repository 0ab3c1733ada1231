/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "builder/weights/weights.h"
#include "formats/base/checked.h"
#include "kernels/matmul/panel.h"

static bool readable(enum dtype dtype) { return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16; }

static void shape_text(const uint64_t *shape, int rank, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, i ? ", %" PRIu64 : "%" PRIu64, shape[i]);
    if (used < size) snprintf(out + used, size - used, "]");
}

static bool check_tensor(const struct weight_piece *piece, const struct tensor_view *tensor, struct status *status)
{
    if (!tensor)
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s' is missing; config.json asks for it (is the checkpoint complete?)",
                           piece->tensor);
    uint64_t wanted[2] = {piece->rows, piece->columns};
    int rank = piece->columns ? 2 : 1;
    if (tensor->rank != rank || memcmp(tensor->shape, wanted, (size_t)rank * sizeof *wanted) != 0) {
        char expected[64], found[128];
        shape_text(wanted, rank, expected, sizeof expected);
        shape_text(tensor->shape, tensor->rank, found, sizeof found);
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s': expected shape %s from config.json, found %s", piece->tensor,
                           expected, found);
    }
    if (!readable(tensor->dtype))
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor '%s': expected dtype F32, F16 or BF16, found %s (quantised checkpoints "
                           "are not supported)",
                           piece->tensor, dtype_name(tensor->dtype));
    return true;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

/* Tensors that some writers store although they say nothing new. */
static bool redundant(const struct graph *graph, const struct checkpoint *checkpoint, const struct tensor_view *tensor,
                      struct status *status)
{
    if (ends_with(tensor->name, ".rotary_emb.inv_freq")) return true; /* computed from config.json */
    if (strcmp(tensor->name, "lm_head.weight") == 0 && graph->config->tie_word_embeddings) {
        const struct tensor_view *embedding = checkpoint_find(checkpoint, "model.embed_tokens.weight");
        if (embedding && embedding->dtype == tensor->dtype && embedding->bytes == tensor->bytes &&
            memcmp(embedding->data, tensor->data, tensor->bytes) == 0)
            return true;
        return status_fail(status, STATUS_BAD_INPUT,
                           "checkpoint: tensor 'lm_head.weight' differs from 'model.embed_tokens.weight' although "
                           "config.json says tie_word_embeddings = true; set it to false to use both");
    }
    return status_fail(status, STATUS_BAD_INPUT,
                       "checkpoint: tensor '%s' is not used by model_type '%s' as config.json describes it; an engine "
                       "without it would compute something else",
                       tensor->name, graph->config->model_type);
}

/* rope_append and rope_attention read both head norms in one dtype; a checkpoint may mix them. */
static void unify_head_norms(struct graph *graph)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        bool rope = node->op == OP_ROPE_APPEND || node->op == OP_ROPE_ATTENTION;
        if (!rope || node->weights[0] < 0) continue;
        struct graph_weight *q = &graph->weights[node->weights[0]], *k = &graph->weights[node->weights[1]];
        if (q->dtype != k->dtype) q->dtype = k->dtype = DTYPE_F32;
    }
}

bool bind_weights(struct graph *graph, const struct checkpoint *checkpoint, enum dtype matrix_dtype,
                  struct status *status)
{
    bool ok = false;
    bool *consumed = calloc(checkpoint->tensor_count + 1, sizeof *consumed);
    if (!consumed) return status_fail(status, STATUS_MACHINE, "out of memory while binding weights");
    for (int w = 0; w < graph->weight_count; w++) {
        struct graph_weight *weight = &graph->weights[w];
        enum dtype common = DTYPE_NONE;
        for (int p = 0; p < weight->piece_count; p++) {
            const struct tensor_view *tensor = checkpoint_find(checkpoint, weight->pieces[p].tensor);
            if (!check_tensor(&weight->pieces[p], tensor, status)) goto done;
            consumed[tensor - checkpoint->tensors] = true;
            common = p == 0 || common == tensor->dtype ? tensor->dtype : DTYPE_F32;
        }
        if (weight->form != WEIGHT_CONSTANT && weight->piece_count > 0)
            weight->dtype = matrix_dtype != DTYPE_NONE && weight->columns ? matrix_dtype : common;
    }
    for (size_t t = 0; t < checkpoint->tensor_count; t++)
        if (!consumed[t] && !redundant(graph, checkpoint, &checkpoint->tensors[t], status)) goto done;
    unify_head_norms(graph);
    ok = true;
done:
    free(consumed);
    return ok;
}

void assume_weights(struct graph *graph, enum dtype dtype)
{
    for (int w = 0; w < graph->weight_count; w++)
        if (graph->weights[w].form != WEIGHT_CONSTANT) graph->weights[w].dtype = dtype;
}

static uint64_t packed_bytes(const struct graph *graph, const struct graph_weight *weight)
{
    if (weight->form == WEIGHT_MATRIX || weight->form == WEIGHT_GATE_UP)
        return graph_has_panels(graph) ? panel_count(weight->rows) * panel_bytes(weight->depth, weight->dtype)
                                       : weight->rows * weight->depth * dtype_bytes(weight->dtype);
    return weight->rows * (weight->columns ? weight->columns : 1) * dtype_bytes(weight->dtype);
}

bool plan_weights(struct graph *graph, uint64_t *total_bytes, struct status *status)
{
    enum { BIG_BYTES = 64 << 10, BIG_ALIGNMENT = 4096 }; /* big matrices begin on a page of their own */
    uint64_t end = 0;
    for (int w = 0; w < graph->weight_count; w++) {
        struct graph_weight *weight = &graph->weights[w];
        if (!weight->used) continue;
        weight->bytes = packed_bytes(graph, weight);
        /* Devices copy in whole 128-byte lines and like to begin on one. */
        uint64_t small = graph->target == TARGET_CPU ? PLAN_ALIGNMENT : 4 * PLAN_ALIGNMENT;
        uint64_t alignment = weight->bytes >= BIG_BYTES ? BIG_ALIGNMENT : small;
        if (!checked_align(end, alignment, &weight->offset) || !checked_add(weight->offset, weight->bytes, &end))
            return status_fail(status, STATUS_BAD_INPUT, "the weights do not fit into 64-bit sizes");
    }
    /* Each rank's share is a region of its own: checked and uploaded by itself. */
    uint64_t unit = graph->ranks > 1 ? (uint64_t)ENGINE_REGION_ALIGNMENT : (uint64_t)PLAN_ALIGNMENT;
    if (!checked_align(end, unit, &end) || !checked_mul(end, graph->ranks, total_bytes))
        return status_fail(status, STATUS_BAD_INPUT, "the weights do not fit into 64-bit sizes");
    return true;
}

bool share_weights(struct graph *to, const struct graph *from, struct status *status)
{
    if (to->weight_count != from->weight_count)
        return status_fail(status, STATUS_INTERNAL, "decode and prefill graphs have different weights");
    for (int w = 0; w < to->weight_count; w++) {
        struct graph_weight *weight = &to->weights[w];
        const struct graph_weight *source = &from->weights[w];
        if (strcmp(weight->name, source->name) != 0 || weight->form != source->form || weight->used != source->used)
            return status_fail(status, STATUS_INTERNAL, "decode and prefill graphs differ in weight '%s'",
                               source->name);
        weight->dtype = source->dtype;
        weight->offset = source->offset;
        weight->bytes = source->bytes;
    }
    return true;
}

uint64_t count_parameters(const struct graph *graph)
{
    uint64_t total = 0;
    for (int w = 0; w < graph->weight_count; w++)
        for (int p = 0; p < graph->weights[w].piece_count; p++) {
            const struct weight_piece *piece = &graph->weights[w].pieces[p];
            total += piece->rows * (piece->columns ? piece->columns : 1);
        }
    return total;
}
