/* SPDX-License-Identifier: Apache-2.0 */
/* The addition to a norm's output becomes part of the norm: decoders that normalise the outputs of attention and MLP. */
#include "builder/passes/pass.h"
#include "kernels/rms_norm/rms_norm.h"

static bool fits(const struct graph_node *norm)
{
    return norm->operands[RMS_NORM_RESIDUAL] < 0 && norm->operands[RMS_NORM_ADD_TO] < 0;
}

static void visit(struct graph *graph, struct graph_index *index, int add)
{
    static const struct pass_adder norm = {OP_RMS_NORM, RMS_NORM_ADD_TO, RMS_NORM_OUT, fits};
    pass_take_addition(graph, index, add, &norm);
}

static bool run(struct graph *graph, struct status *status) { return pass_visit(graph, OP_ADD, visit, status); }

const struct pass pass_fuse_norm_add = {"fuse_norm_add", "the residual addition inside the norm before it", run,
                                        PASS_FOR(TARGET_CUDA)};
