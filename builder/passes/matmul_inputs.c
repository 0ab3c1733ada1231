/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor cores multiply 16-bit values. A matmul that reads the float32 residual stream without a norm between them reads a
 * 16-bit copy: a norm writes it as its second output, an embedding is looked up once more, and a sum over ranks, such as that of
 * an embedding they share, is rounded by a launch of its own. Rows are selected of the copy as of the stream. */
#include "builder/passes/pass.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/select_rows/select_rows.h"
#include "kernels/sum_parts/sum_parts.h"

static int new_copy(struct graph *graph, int value)
{
    const struct graph_value *from = &graph->values[value];
    return graph_value(graph, from->rows, from->width, "%.40s.copy", from->name);
}

static bool multiplies(const struct graph_node *node)
{
    return !node->removed && node->op == OP_MATMUL && node->operands[MATMUL_NORM] < 0;
}

/* The matmuls after node `n` that read `value` read a copy of it instead: `copy`, -1: one that is made as they are found, and
 * returned. */
static int replace_inputs(struct graph *graph, int n, int value, int copy)
{
    for (int i = n + 1; i < graph->node_count; i++) {
        if (!multiplies(&graph->nodes[i]) || graph->nodes[i].operands[MATMUL_X] != value) continue;
        if (copy < 0) copy = new_copy(graph, value);
        graph->nodes[i].operands[MATMUL_X] = copy;
    }
    return copy;
}

/* Rows that are selected of `value`, which matmuls read: of the copy, too. Returns it as replace_inputs does. */
static int copy_selections(struct graph *graph, int n, int value, int copy)
{
    for (int i = n + 1; i < graph->node_count; i++) {
        const struct graph_node *select = &graph->nodes[i];
        if (select->removed || select->op != OP_SELECT_ROWS || select->operands[SELECT_ROWS_X] != value) continue;
        const uint32_t layer = select->layer;
        const int selected = replace_inputs(graph, i, select->operands[SELECT_ROWS_OUT], GRAPH_ABSENT);
        if (selected < 0) continue;
        if (copy < 0) copy = new_copy(graph, value);
        struct graph_node *made = graph_insert(graph, ++i, OP_SELECT_ROWS, layer);
        if (!made) return GRAPH_ABSENT;
        made->operands[SELECT_ROWS_X] = copy;
        made->operands[SELECT_ROWS_OUT] = selected;
    }
    return copy;
}

/* A node after node n, an embedding or a sum over ranks, that makes a copy for the matmuls that read what it makes. */
static bool add_copy(struct graph *graph, int n)
{
    const bool embeds = graph->nodes[n].op == OP_EMBED;
    const int value = graph->nodes[n].operands[embeds ? (int)EMBED_OUT : (int)ALL_REDUCE_OUT];
    const int copy = copy_selections(graph, n, value, replace_inputs(graph, n, value, GRAPH_ABSENT));
    if (copy < 0 || graph->out_of_memory) return !graph->out_of_memory;
    struct graph_node *made = graph_insert(graph, n + 1, embeds ? OP_EMBED : OP_SUM_PARTS, graph->nodes[n].layer);
    if (!made) return false;
    if (embeds) {
        *made = graph->nodes[n];
        made->operands[EMBED_OUT] = copy;
    } else {
        made->operands[SUM_PARTS_X] = value;
        made->operands[SUM_PARTS_OUT] = copy;
        made->params[SUM_PARTS_PARTS] = 1;
    }
    return true;
}

static bool convert(struct graph *graph, const struct graph_index *index, struct graph_node *matmul,
                    struct status *status)
{
    const int value = matmul->operands[MATMUL_X], producer = index->producer[value];
    struct graph_node *node = producer < 0 ? NULL : &graph->nodes[producer];
    if (node && node->op == OP_RMS_NORM && node->operands[RMS_NORM_ADD_TO] >= 0) {
        if (node->operands[RMS_NORM_COPY] < 0) node->operands[RMS_NORM_COPY] = new_copy(graph, value);
        matmul->operands[MATMUL_X] = node->operands[RMS_NORM_COPY];
    } else if (node && node->op == OP_MATMUL && node->operands[MATMUL_RESIDUAL] >= 0) {
        return status_fail(status, STATUS_BAD_INPUT,
                           "the model multiplies a sum that no norm follows, which the cuda target cannot; use "
                           "--target cpu");
    }
    return true;
}

static bool run(struct graph *graph, struct status *status)
{
    struct graph_index index;
    bool ok = true;
    for (int n = 0; ok && n < graph->node_count; n++)
        if (!graph->nodes[n].removed && (graph->nodes[n].op == OP_EMBED || graph->nodes[n].op == OP_ALL_REDUCE)) {
            const int count = graph->node_count;
            ok = add_copy(graph, n);
            n += graph->node_count > count; /* the copy; selections of it stand farther below */
        }
    if (!ok) return status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
    if (!graph_index_open(&index, graph, status)) return false;
    for (int n = 0; ok && n < graph->node_count; n++)
        if (multiplies(&graph->nodes[n])) ok = convert(graph, &index, &graph->nodes[n], status);
    graph_index_close(&index);
    if (ok && graph->out_of_memory) ok = status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
    return ok;
}

const struct pass pass_matmul_inputs = {"matmul_inputs", "16-bit copies of sums that a matmul reads", run,
                                        PASS_FOR(TARGET_CUDA)};
