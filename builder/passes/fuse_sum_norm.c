/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over a row's experts becomes part of the norm that reads it first: a launch less in each layer. */
#include "builder/passes/pass.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/sum_parts/sum_parts.h"

static void fuse(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *norm = &graph->nodes[n];
    const int total = norm->operands[RMS_NORM_X], producer = index->producer[total];
    if (norm->operands[RMS_NORM_RESIDUAL] >= 0 || norm->operands[RMS_NORM_ADD_TO] >= 0 || producer < 0) return;
    struct graph_node *sum = &graph->nodes[producer];
    if (graph->values[total].width > RMS_NORM_MOST_SUMMED || sum->op != OP_SUM_PARTS || sum->removed ||
        sum->operands[SUM_PARTS_RESIDUAL] < 0 || pass_is_read_before(graph, total, producer + 1, n))
        return;
    norm->operands[RMS_NORM_X] = sum->operands[SUM_PARTS_X];
    norm->operands[RMS_NORM_RESIDUAL] = sum->operands[SUM_PARTS_RESIDUAL];
    norm->operands[RMS_NORM_SUM] = total;
    norm->params[RMS_NORM_PARTS] = sum->params[SUM_PARTS_PARTS];
    index->producer[total] = n;
    sum->removed = true;
}

static bool run(struct graph *graph, struct status *status) { return pass_visit(graph, OP_RMS_NORM, fuse, status); }

const struct pass pass_fuse_sum_norm = {"fuse_sum_norm", "the sum over experts inside the norm after it", run,
                                        PASS_FOR(TARGET_CUDA)};
