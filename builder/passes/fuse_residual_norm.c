/* SPDX-License-Identifier: Apache-2.0 */
/* An addition that feeds a norm becomes part of it: the sum is formed while the norm reads its input, once. */
#include "builder/passes/pass.h"
#include "kernels/add/add.h"
#include "kernels/rms_norm/rms_norm.h"

static void fuse(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *norm = &graph->nodes[n];
    const int sum = norm->operands[RMS_NORM_X], producer = index->producer[sum];
    if (norm->operands[RMS_NORM_RESIDUAL] >= 0 || producer < 0) return;
    struct graph_node *add = &graph->nodes[producer];
    if (add->op != OP_ADD || add->removed || pass_is_read_before(graph, sum, producer + 1, n)) return;
    norm->operands[RMS_NORM_X] = add->operands[ADD_B];
    norm->operands[RMS_NORM_RESIDUAL] = add->operands[ADD_A];
    norm->operands[RMS_NORM_SUM] = sum;
    add->removed = true;
}

static bool run(struct graph *graph, struct status *status) { return pass_visit(graph, OP_RMS_NORM, fuse, status); }

const struct pass pass_fuse_residual_norm = {"fuse_residual_norm", "the residual addition inside the norm after it",
                                             run, PASS_FOR(TARGET_CPU)};
