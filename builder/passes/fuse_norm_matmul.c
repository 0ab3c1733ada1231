/* SPDX-License-Identifier: Apache-2.0 */
/* With few rows a norm costs a launch and little more: the matmul that reads it normalises its input itself. With many
 * rows every thread block would repeat it, so the norm stays. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"

/* Every reader of the norm can take it over; all readers follow the norm. With `take` they do. */
static bool offer(struct graph *graph, const struct graph_index *index, int n, bool take)
{
    const struct graph_node *norm = &graph->nodes[n];
    const int value = norm->operands[RMS_NORM_OUT];
    int left = index->uses[value];
    if (left == 0) return false;
    for (int i = n + 1; left > 0 && i < graph->node_count; i++) {
        struct graph_node *reader = &graph->nodes[i];
        for (int o = 0; !reader->removed && o < PLAN_MAX_OPERANDS; o++) {
            if (!graph_reads(reader, o) || reader->operands[o] != value) continue;
            if (reader->op != OP_MATMUL || o != MATMUL_X || reader->operands[MATMUL_NORM] >= 0) return false;
            if (reader->params[MATMUL_EXPERTS] &&
                (!matmul_shares_x(reader->params) || !graph_gemv_has_experts(graph, reader, 1)))
                return false;
            left--;
            if (!take) continue;
            reader->operands[MATMUL_X] = norm->operands[RMS_NORM_X];
            reader->operands[MATMUL_NORM] = norm->operands[RMS_NORM_WEIGHT];
            reader->params[MATMUL_EPS_BITS] = norm->params[RMS_NORM_EPS_BITS];
        }
    }
    return true;
}

static void fuse(struct graph *graph, struct graph_index *index, int n)
{
    struct graph_node *norm = &graph->nodes[n];
    if (norm->operands[RMS_NORM_RESIDUAL] >= 0 || norm->params[RMS_NORM_CENTRED] ||
        norm->operands[RMS_NORM_BIAS] >= 0 || norm->operands[RMS_NORM_ADD_TO] >= 0 ||
        !graph_is_small_batch(graph, norm->operands[RMS_NORM_OUT]) || !offer(graph, index, n, false))
        return;
    offer(graph, index, n, true);
    norm->removed = true;
}

static bool run(struct graph *graph, struct status *status)
{
    /* The matmul rounds x times the norm's weight before it divides by the row's size, which exceeds the range of
     * fp16. */
    return graph->compute_dtype == DTYPE_F16 || pass_visit(graph, OP_RMS_NORM, fuse, status);
}

const struct pass pass_fuse_norm_matmul = {"fuse_norm_matmul", "few rows: the norm inside the matmul that reads it",
                                           run, PASS_FOR(TARGET_CUDA)};
