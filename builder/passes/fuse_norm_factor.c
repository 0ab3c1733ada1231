/* SPDX-License-Identifier: Apache-2.0 */
/* The factors of a sum that a norm forms become a part of the norm: decoders whose layers end with a factor. */
#include "builder/passes/pass.h"
#include "kernels/multiply/multiply.h"
#include "kernels/rms_norm/rms_norm.h"

static void visit(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *multiply = &graph->nodes[n];
    const int x = multiply->operands[MULTIPLY_X], weight = multiply->operands[MULTIPLY_WEIGHT];
    const int producer = index->producer[x];
    if (weight < 0 || producer < 0 || index->uses[x] != 1) return;
    struct graph_node *norm = &graph->nodes[producer];
    if (norm->op != OP_RMS_NORM || norm->operands[RMS_NORM_ADD_TO] < 0 || norm->operands[RMS_NORM_FACTOR] >= 0) return;
    norm->operands[RMS_NORM_FACTOR] = weight;
    norm->operands[RMS_NORM_OUT] = multiply->operands[MULTIPLY_OUT];
    index->producer[norm->operands[RMS_NORM_OUT]] = producer;
    multiply->removed = true;
}

static bool run(struct graph *graph, struct status *status) { return pass_visit(graph, OP_MULTIPLY, visit, status); }

const struct pass pass_fuse_norm_factor = {"fuse_norm_factor", "factors of a sum inside the norm that forms it", run,
                                           PASS_FOR(TARGET_CUDA)};
