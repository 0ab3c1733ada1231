/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that several parts of a decoder consist of. */
#include "builder/arch/family.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"

int node_matmul(struct graph *graph, int x, uint32_t layer, struct projection by, int epilogue, double scale,
                const char *label)
{
    if (graph->out_of_memory) return -1;
    const uint64_t rows = graph->weights[by.weight].rows;
    const uint64_t width = EPILOGUE_IS_GATED(epilogue) ? rows / 2 : rows;
    int y = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_MATMUL, layer);
    graph->weights[by.weight].depth = graph->values[x].width; /* which may be padded */
    node->operands[MATMUL_X] = x;
    node->operands[MATMUL_W] = by.weight;
    node->operands[MATMUL_BIAS] = by.bias;
    node->operands[MATMUL_OUT] = y;
    node->params[MATMUL_EPILOGUE] = epilogue;
    node->params[MATMUL_SCALE_BITS] = float_to_bits((float)scale);
    return y;
}

int node_rms_norm(struct graph *graph, int x, uint32_t layer, int weight, double eps, const char *label)
{
    if (graph->out_of_memory) return -1;
    const int y = graph_value(graph, ROWS_TOKENS, graph->values[x].width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_RMS_NORM, layer);
    node->operands[RMS_NORM_X] = x;
    node->operands[RMS_NORM_WEIGHT] = weight;
    node->operands[RMS_NORM_OUT] = y;
    node->params[RMS_NORM_EPS_BITS] = float_to_bits((float)eps);
    return y;
}
