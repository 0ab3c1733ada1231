/* SPDX-License-Identifier: Apache-2.0 */
/* The addition to a matmul's output becomes part of the matmul: the sum is formed while the output is in registers, and
 * the residual stream is read and written once. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"

static bool fits(const struct graph_node *matmul)
{
    return matmul->params[MATMUL_EPILOGUE] == ACTIVATION_NONE && matmul->operands[MATMUL_RESIDUAL] < 0;
}

static void visit(struct graph *graph, struct graph_index *index, int add)
{
    static const struct pass_adder matmul = {OP_MATMUL, MATMUL_RESIDUAL, MATMUL_OUT, fits};
    pass_take_addition(graph, index, add, &matmul);
}

static bool run(struct graph *graph, struct status *status) { return pass_visit(graph, OP_ADD, visit, status); }

const struct pass pass_fuse_residual_matmul = {"fuse_residual_matmul",
                                               "the residual addition inside the matmul before it", run,
                                               PASS_FOR(TARGET_CUDA)};
