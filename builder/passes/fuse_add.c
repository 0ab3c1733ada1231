/* SPDX-License-Identifier: Apache-2.0 */
/* An addition to what a matmul or a norm makes becomes part of it: the sum is formed while the result is in registers, and
 * the residual stream is read and written once. Norms: decoders that normalise what attention and MLP give. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"

static bool matmul_fits(const struct graph_node *matmul)
{
    return matmul->params[MATMUL_EPILOGUE] == ACTIVATION_NONE && matmul->operands[MATMUL_RESIDUAL] < 0;
}

static bool norm_fits(const struct graph_node *norm)
{
    return norm->operands[RMS_NORM_RESIDUAL] < 0 && norm->operands[RMS_NORM_ADD_TO] < 0;
}

static void into_matmul(struct graph *graph, struct graph_index *index, int add)
{
    static const struct pass_adder matmul = {OP_MATMUL, MATMUL_RESIDUAL, MATMUL_OUT, matmul_fits};
    pass_take_addition(graph, index, add, &matmul);
}

static void into_norm(struct graph *graph, struct graph_index *index, int add)
{
    static const struct pass_adder norm = {OP_RMS_NORM, RMS_NORM_ADD_TO, RMS_NORM_OUT, norm_fits};
    pass_take_addition(graph, index, add, &norm);
}

static bool run_matmul(struct graph *graph, struct status *status)
{
    return pass_visit(graph, OP_ADD, into_matmul, status);
}

static bool run_norm(struct graph *graph, struct status *status)
{
    return pass_visit(graph, OP_ADD, into_norm, status);
}

const struct pass pass_fuse_residual_matmul = {"fuse_residual_matmul",
                                               "the residual addition inside the matmul before it", run_matmul,
                                               PASS_FOR(TARGET_CUDA)};
const struct pass pass_fuse_norm_add = {"fuse_norm_add", "the residual addition inside the norm before it", run_norm,
                                        PASS_FOR(TARGET_CUDA)};
