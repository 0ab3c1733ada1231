/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: which values are 16-bit. What tensor cores multiply is of the weights' dtype; the residual stream, the
 * rotary table and the logits stay float32. */
#include "builder/passes/pass.h"

static bool goes_to(const struct graph *graph, int value, enum plan_op op)
{
    for (int n = 0; n < graph->node_count; n++)
        if (!graph->nodes[n].removed && graph->nodes[n].op == op && graph->nodes[n].inputs[0] == value) return true;
    return false;
}

/* Logits, or a rank's part of them; in fp16, which has not the range of what is summed, a rank's part of a sum. */
static bool stays_float(const struct graph *graph, int value)
{
    return graph->values[value].place == VALUE_LOGITS || goes_to(graph, value, OP_ALL_GATHER) ||
           (graph->half == DTYPE_F16 && goes_to(graph, value, OP_ALL_REDUCE));
}

static bool is_half(const struct graph *graph, const struct graph_node *node)
{
    switch (node->op) {
    case OP_RMS_NORM:
    case OP_ROPE_APPEND:
    case OP_ATTENTION:
    case OP_ROPE_ATTENTION:
    case OP_SWIGLU: return true;
    case OP_MATMUL: return node->inputs[1] < 0 && !stays_float(graph, node->outputs[0]);
    case OP_EMBED: return graph->ranks > 1; /* on its way to the other ranks */
    case OP_SELECT_ROWS: return graph->values[node->inputs[0]].dtype != DTYPE_F32;
    default: return false;
    }
}

static bool run(struct graph *graph, struct status *status)
{
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->removed) continue;
        if (node->op == OP_ADD || (node->op == OP_RMS_NORM && node->inputs[1] >= 0))
            return status_fail(status, STATUS_BAD_INPUT,
                               "the model adds values that no matmul produces, which the cuda target cannot; use "
                               "--target cpu");
        graph->values[node->outputs[0]].dtype = is_half(graph, node) ? graph->half : DTYPE_F32;
        if (node->op == OP_ALL_REDUCE && node->outputs[1] >= 0) graph->values[node->outputs[1]].dtype = graph->half;
    }
    return true;
}

const struct pass pass_activation_dtypes = {"activation_dtypes", "which values are 16-bit", run, PASS_FOR(TARGET_CUDA)};
