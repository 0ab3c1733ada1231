/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA: which values are 16-bit. What tensor cores multiply is of the weights' dtype; the residual stream, the rotary
 * table and the logits stay float32. */
#include <stdlib.h>

#include "builder/passes/pass.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/select_rows/select_rows.h"

/* Values that stay float32 because of what reads them: logits or a rank's part of them; in fp16, which has not the range
 * of what is summed, a rank's part of a sum. */
static void mark_float(const struct graph *graph, bool *stays_float)
{
    for (int v = 0; v < graph->value_count; v++) stays_float[v] = graph->values[v].place == VALUE_LOGITS;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->removed) continue;
        if (node->op == OP_ALL_GATHER) stays_float[node->operands[ALL_GATHER_X]] = true;
        if (node->op == OP_ALL_REDUCE && graph->compute_dtype == DTYPE_F16)
            stays_float[node->operands[ALL_REDUCE_X]] = true;
    }
}

/* The dtype of an output whose dtype the op leaves open. */
static enum dtype choose(const struct graph *graph, const struct graph_node *node, int operand, const bool *stays_float)
{
    switch (node->op) {
    case OP_MATMUL:
        return node->operands[MATMUL_RESIDUAL] >= 0 || stays_float[node->operands[operand]] ? DTYPE_F32
                                                                                            : graph->compute_dtype;
    case OP_EMBED: return graph->ranks > 1 ? graph->compute_dtype : DTYPE_F32; /* on its way to the other ranks */
    case OP_SELECT_ROWS: return graph->values[node->operands[SELECT_ROWS_X]].dtype;
    default: return graph->compute_dtype;
    }
}

static bool run(struct graph *graph, struct status *status)
{
    bool ok = true, *stays_float = calloc((size_t)graph->value_count + 1, sizeof *stays_float);
    if (!stays_float) return status_fail(status, STATUS_MACHINE, "out of memory while choosing dtypes");
    mark_float(graph, stays_float);
    for (int n = 0; ok && n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        const struct op_descriptor *op = op_find(node->op);
        if (node->removed) continue;
        if (node->op == OP_ADD || (node->op == OP_RMS_NORM && node->operands[RMS_NORM_RESIDUAL] >= 0))
            ok = status_fail(status, STATUS_BAD_INPUT,
                             "the model adds values that no matmul produces, which the cuda target cannot; use "
                             "--target cpu");
        for (int i = 0; ok && i < op->operand_count; i++)
            if (graph_makes(node, i))
                graph->values[node->operands[i]].dtype =
                    op->operands[i].dtype ? choose(graph, node, i, stays_float) : (enum dtype)op->operands[i].fixed;
    }
    free(stays_float);
    return ok;
}

const struct pass pass_activation_dtypes = {"activation_dtypes", "which values are 16-bit", run, PASS_FOR(TARGET_CUDA)};
