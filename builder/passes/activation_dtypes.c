/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA: chooses the 16-bit values. Inputs of tensor cores have the weights' dtype, unless pass_eight_bit_inputs made codes of
 * them; the residual stream, the rotary table and the logits stay float32. */
#include <stdlib.h>

#include "builder/passes/pass.h"
#include "kernels/all_gather/all_gather.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/draft/draft.h"
#include "kernels/matmul/matmul.h"
#include "kernels/multiply/multiply.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/router/router.h"
#include "kernels/select_rows/select_rows.h"
#include "kernels/state_space/state_space.h"
#include "kernels/sum_parts/sum_parts.h"

/* What the readers of each value ask for; [value_count]. */
struct choice {
    bool *stays_float, *multiplied, *added; /* added: to a product or a sum */
};

/* Values that stay float32 because of their readers: logits, hidden states or a rank's part of them, also a router's; what a norm reads
 * or adds to; what the decay of a state comes from; in fp16, whose range is too small for sums, a rank's part of a sum. */
static void mark(const struct graph *graph, struct choice *choice)
{
    bool *stays_float = choice->stays_float;
    for (int v = 0; v < graph->value_count; v++) stays_float[v] = graph->values[v].place != VALUE_ARENA;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->removed) continue;
        if (node->op == OP_RMS_NORM) stays_float[node->operands[RMS_NORM_X]] = true;
        if (node->op == OP_RMS_NORM && node->operands[RMS_NORM_ADD_TO] >= 0)
            stays_float[node->operands[RMS_NORM_ADD_TO]] = true;
        if (node->op == OP_DELTA_RULE) stays_float[node->operands[DELTA_RULE_BA]] = true;
        if (node->op == OP_STATE_SPACE) stays_float[node->operands[STATE_SPACE_DT]] = true;
        if (node->op == OP_ROUTER) stays_float[node->operands[ROUTER_LOGITS]] = true;
        if (node->op == OP_DRAFT) stays_float[node->operands[DRAFT_LOGITS]] = true;
        if (node->op == OP_ALL_GATHER) stays_float[node->operands[ALL_GATHER_X]] = true;
        if (node->op == OP_ALL_REDUCE && graph->compute_dtype == DTYPE_F16)
            stays_float[node->operands[ALL_REDUCE_X]] = true;
        if (node->op == OP_MATMUL && node->operands[MATMUL_RESIDUAL] >= 0)
            choice->added[node->operands[MATMUL_RESIDUAL]] = true;
        if (node->op == OP_SUM_PARTS && node->operands[SUM_PARTS_RESIDUAL] >= 0)
            choice->added[node->operands[SUM_PARTS_RESIDUAL]] = true;
        if (node->op == OP_MATMUL)
            (node->operands[MATMUL_NORM] < 0 ? choice->multiplied : stays_float)[node->operands[MATMUL_X]] = true;
        if (node->op == OP_QUANTISE) choice->multiplied[node->operands[QUANTISE_X]] = true;
    }
    for (int n = graph->node_count - 1; n >= 0; n--) { /* selections come after what they select of */
        const struct graph_node *node = &graph->nodes[n];
        if (!node->removed && node->op == OP_SELECT_ROWS && choice->multiplied[node->operands[SELECT_ROWS_OUT]])
            choice->multiplied[node->operands[SELECT_ROWS_X]] = true;
    }
}

/* The dtype of an output whose dtype the op leaves open. */
static enum dtype choose(const struct graph *graph, const struct graph_node *node, int operand,
                         const struct choice *choice)
{
    switch (node->op) {
    case OP_MATMUL:
        return node->operands[MATMUL_RESIDUAL] >= 0 || node->params[MATMUL_PARTS] ||
                       choice->stays_float[node->operands[operand]] || choice->added[node->operands[operand]]
                   ? DTYPE_F32
                   : graph->compute_dtype;
    case OP_SUM_PARTS:
        return node->operands[SUM_PARTS_RESIDUAL] >= 0 || choice->stays_float[node->operands[operand]] ||
                       choice->added[node->operands[operand]]
                   ? DTYPE_F32
                   : graph->compute_dtype;
    case OP_MULTIPLY: /* a product of the residual stream stays in it */
        return choice->stays_float[node->operands[operand]] ||
                       graph->values[node->operands[MULTIPLY_X]].dtype == DTYPE_F32
                   ? DTYPE_F32
                   : graph->compute_dtype;
    case OP_EMBED: /* 16 bits for the other ranks, and for matmuls (pass_matmul_inputs) or their codes */
        return graph->ranks > 1 || choice->multiplied[node->operands[operand]] ? graph->compute_dtype : DTYPE_F32;
    case OP_RMS_NORM:
        if (operand == RMS_NORM_OUT && node->operands[RMS_NORM_SCALES] >= 0) return graph->input_codes;
        return operand == RMS_NORM_OUT &&
                       (node->operands[RMS_NORM_ADD_TO] >= 0 || choice->stays_float[node->operands[operand]])
                   ? DTYPE_F32
                   : graph->compute_dtype;
    case OP_QUANTISE: return graph->input_codes;
    case OP_ALL_REDUCE: return choice->stays_float[node->operands[operand]] ? DTYPE_F32 : graph->compute_dtype;
    case OP_SELECT_ROWS: return graph->values[node->operands[SELECT_ROWS_X]].dtype;
    default: return graph->compute_dtype;
    }
}

static bool run(struct graph *graph, struct status *status)
{
    const size_t count = (size_t)graph->value_count + 1;
    struct choice choice = {calloc(count, sizeof(bool)), calloc(count, sizeof(bool)), calloc(count, sizeof(bool))};
    bool ok = choice.stays_float && choice.multiplied && choice.added;
    if (ok)
        mark(graph, &choice);
    else
        status_fail(status, STATUS_MACHINE, "out of memory while choosing dtypes");
    for (int n = 0; ok && n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        const struct op_descriptor *op = op_find(node->op);
        if (node->removed) continue;
        if (node->op == OP_ADD || (node->op == OP_RMS_NORM && node->operands[RMS_NORM_RESIDUAL] >= 0))
            ok = status_fail(
                status, STATUS_BAD_INPUT,
                "the model adds values that neither a matmul nor a norm produces, which the cuda target cannot; use "
                "--target cpu");
        for (int i = 0; ok && i < op->operand_count; i++)
            if (graph_makes(node, i))
                graph->values[node->operands[i]].dtype =
                    op->operands[i].dtype ? choose(graph, node, i, &choice) : (enum dtype)op->operands[i].fixed;
    }
    free(choice.stays_float), free(choice.multiplied), free(choice.added);
    return ok;
}

const struct pass pass_activation_dtypes = {"activation_dtypes", "which values are 16-bit", run, PASS_FOR(TARGET_CUDA)};
