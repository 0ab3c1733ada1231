/* SPDX-License-Identifier: Apache-2.0 */
/* The residual addition and the norm after a sum of all ranks become part of it: both work on rows that are in
 * registers when the other ranks' parts arrive. */
#include "builder/passes/pass.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/rms_norm/rms_norm.h"

static void take_residual(struct graph *graph, struct graph_index *index, int add)
{
    static const struct pass_adder reduce = {OP_ALL_REDUCE, ALL_REDUCE_RESIDUAL, ALL_REDUCE_OUT, NULL};
    pass_take_addition(graph, index, add, &reduce);
}

/* The first norm of a sum; one that an addition has become a part of, or that gives hidden states, stays by itself. */
static void take_norm(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *norm = &graph->nodes[n];
    const int producer = norm->operands[RMS_NORM_RESIDUAL] < 0 ? index->producer[norm->operands[RMS_NORM_X]] : -1;
    if (producer < 0 || norm->params[RMS_NORM_CENTRED] || norm->operands[RMS_NORM_BIAS] >= 0 ||
        norm->operands[RMS_NORM_ADD_TO] >= 0 || graph->values[norm->operands[RMS_NORM_OUT]].place != VALUE_ARENA)
        return;
    struct graph_node *reduce = &graph->nodes[producer];
    if (reduce->op != OP_ALL_REDUCE || reduce->operands[ALL_REDUCE_NORMED] >= 0) return;
    reduce->operands[ALL_REDUCE_NORMED] = norm->operands[RMS_NORM_OUT];
    reduce->operands[ALL_REDUCE_NORM] = norm->operands[RMS_NORM_WEIGHT];
    reduce->params[ALL_REDUCE_EPS_BITS] = norm->params[RMS_NORM_EPS_BITS];
    norm->removed = true;
}

static bool run(struct graph *graph, struct status *status)
{
    return pass_visit(graph, OP_ADD, take_residual, status) && pass_visit(graph, OP_RMS_NORM, take_norm, status);
}

const struct pass pass_fuse_all_reduce = {"fuse_all_reduce", "residual and norm inside the sum of all ranks", run,
                                          PASS_FOR(TARGET_CUDA)};
