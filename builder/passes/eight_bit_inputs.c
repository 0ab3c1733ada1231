/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor cores multiply codes of 8 bits twice as fast as 16-bit values. Where the graph has input_codes, matmuls whose weights have
 * such codes read codes of x and a scale for each row. A norm that only they read makes the codes itself; any other value becomes codes once, in an
 * op after the one that makes it, for all of them. Values of the rows that need logits stay 16-bit: in a prefill plan these are few.
 *
 * With several ranks each multiplies its own part of x, with scales of that part, before the sums are added. */
#include "builder/passes/pass.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantise/quantise.h"
#include "kernels/rms_norm/rms_norm.h"

static bool takes_codes(const struct graph *graph, const struct graph_node *node)
{
    if (node->removed || node->op != OP_MATMUL || node->operands[MATMUL_NORM] >= 0 || node->params[MATMUL_EXPERTS] ||
        node->params[MATMUL_BLOCK_N])
        return false;
    const struct graph_weight *weight = &graph->weights[node->operands[MATMUL_W]];
    return matmul_codes_of_x(weight->encoding, weight->depth) == graph->input_codes &&
           weight->depth % QUANTISE_GROUP == 0 && graph_node_rows(graph, node) == ROWS_TOKENS;
}

static int count_readers(const struct graph *graph, int value)
{
    int count = 0;
    for (int n = 0; n < graph->node_count; n++)
        count += takes_codes(graph, &graph->nodes[n]) && graph->nodes[n].operands[MATMUL_X] == value;
    return count;
}

/* Its other output or the sum that it makes would need the value in more bits. */
static bool can_make_codes(const struct graph_node *node, int value)
{
    return node->op == OP_RMS_NORM && node->operands[RMS_NORM_OUT] == value && node->operands[RMS_NORM_ADD_TO] < 0 &&
           node->operands[RMS_NORM_RESIDUAL] < 0 && node->operands[RMS_NORM_COPY] < 0;
}

/* Gives the matmuls that read `value`, made by node n, codes of it. Returns whether a node was inserted after n. */
static bool convert(struct graph *graph, const struct graph_index *index, int n, int value)
{
    const int readers = count_readers(graph, value);
    if (!readers) return false;
    const bool by_norm = can_make_codes(&graph->nodes[n], value) && index->uses[value] == readers;
    const struct graph_value x = graph->values[value];
    const int codes = by_norm ? value : graph_value(graph, x.rows, x.width, "%.40s.codes", x.name);
    const int scales = graph_value(graph, x.rows, 1, "%.40s.scales", x.name);
    for (int m = 0; m < graph->node_count; m++) {
        struct graph_node *node = &graph->nodes[m];
        if (!takes_codes(graph, node) || node->operands[MATMUL_X] != value) continue;
        node->operands[MATMUL_X] = codes;
        node->operands[MATMUL_X_SCALES] = scales;
    }
    if (by_norm) {
        graph->nodes[n].operands[RMS_NORM_SCALES] = scales;
        return false;
    }
    struct graph_node *node = graph_insert(graph, n + 1, OP_QUANTISE, graph->nodes[n].layer);
    if (!node) return false;
    node->operands[QUANTISE_X] = value;
    node->operands[QUANTISE_OUT] = codes;
    node->operands[QUANTISE_SCALES] = scales;
    return true;
}

static bool run(struct graph *graph, struct status *status)
{
    struct graph_index index;
    if (!graph->input_codes) return true;
    if (!graph_index_open(&index, graph, status)) return false;
    for (int n = 0; n < graph->node_count; n++) {
        int inserted = 0;
        for (int i = 0; i < PLAN_MAX_OPERANDS && !graph->out_of_memory; i++)
            if (!graph->nodes[n].removed && graph_makes(&graph->nodes[n], i))
                inserted += convert(graph, &index, n, graph->nodes[n].operands[i]);
        n += inserted;
    }
    graph_index_close(&index);
    return !graph->out_of_memory || status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
}

const struct pass pass_eight_bit_inputs = {"eight_bit_inputs", "codes of activations for matmuls of codes of 8 bits",
                                           run, PASS_FOR(TARGET_CUDA)};
