/* SPDX-License-Identifier: Apache-2.0 */
/* On devices the thread blocks of a matmul over experts each multiply by one expert's matrix, and none of them has all addends of an
 * output: they are kept, and another launch adds them, in an order that does not depend on the thread blocks. With the fewest rows
 * matmul_gemv sums by itself. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"
#include "kernels/sum_parts/sum_parts.h"

static bool run(struct graph *graph, struct status *status)
{
    for (int n = 0; n < graph->node_count && !graph->out_of_memory; n++) {
        struct graph_node *matmul = &graph->nodes[n];
        if (matmul->removed || matmul->op != OP_MATMUL || !matmul_sums_choices(matmul->params) ||
            (graph_has_few_rows(graph) && graph_gemv_has_experts(graph, matmul, 1)))
            continue;
        const int out = matmul->operands[MATMUL_OUT], residual = matmul->operands[MATMUL_RESIDUAL];
        const struct graph_value value = graph->values[out];
        const uint64_t parts = graph->values[matmul->operands[MATMUL_ROUTES]].width / 2;
        const int addends = graph_value(graph, value.rows, parts * value.width, "%.40s.parts", value.name);
        struct graph_node *sum = graph_insert(graph, n + 1, OP_SUM_PARTS, matmul->layer);
        if (!sum) break;
        matmul = &graph->nodes[n];
        matmul->params[MATMUL_PARTS] = 1;
        matmul->operands[MATMUL_OUT] = addends;
        matmul->operands[MATMUL_RESIDUAL] = GRAPH_ABSENT;
        sum->params[SUM_PARTS_PARTS] = (int64_t)parts;
        sum->operands[SUM_PARTS_X] = addends;
        sum->operands[SUM_PARTS_RESIDUAL] = residual;
        sum->operands[SUM_PARTS_OUT] = out;
    }
    return !graph->out_of_memory || status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
}

const struct pass pass_expert_sums = {"expert_sums", "the sum over a row's experts as a launch of its own", run,
                                      PASS_FOR(TARGET_CUDA)};
