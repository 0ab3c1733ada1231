/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of each layer: for every layer the model has a table of a short vector for each token, and a matrix that makes another one of
 * the token's embedding. Their sum is the layer's input, which a gate of x multiplies. The checkpoint has the tables of all layers in one
 * tensor, side by side, and the matrices in another, one after the other. */
#include <math.h>

#include "builder/arch/family.h"
#include "kernels/add/add.h"
#include "kernels/embed/embed.h"
#include "kernels/multiply/multiply.h"

/* The sum of the two vectors is divided by the root of 2: both are. */
static const double half_root = 0.70710678118654752440;

struct per_layer per_layer_begin(struct graph *graph, int embedded)
{
    const uint64_t size = graph->config->per_layer_size;
    const struct weight_source norm = {.shape = {size}, .scale = (float)half_root};
    struct per_layer made = {.embedded = embedded, .norm = GRAPH_ABSENT};
    if (size)
        made.norm =
            graph_weight_from(graph, GRAPH_NO_LAYER, WEIGHT_ROW_MAJOR, &norm, "model.per_layer_projection_norm.weight");
    return made;
}

static void name_weight(struct graph *graph, int weight, uint32_t layer, const char *name)
{
    if (weight >= 0) snprintf(graph->weights[weight].name, GRAPH_NAME_BYTES, "model.layers.%u.%s", layer, name);
}

/* Rows of the layer's table. */
static int of_token(struct graph *graph, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const uint64_t size = config->per_layer_size;
    const struct weight_source columns = {.shape = {config->vocab_size, config->layers * size},
                                          .first_column = layer * size,
                                          .columns = size};
    const int table =
        graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &columns, "model.embed_tokens_per_layer.weight");
    graph_shard(graph, table, SHARD_VOCABULARY);
    name_weight(graph, table, layer, "per_layer_embedding.weight");
    const int out = graph_value(graph, ROWS_TOKENS, size, "per_layer_token%u", layer);
    struct graph_node *node = graph_append(graph, OP_EMBED, layer);
    node->operands[EMBED_TABLE] = table;
    node->operands[EMBED_OUT] = out;
    node->params[EMBED_SCALE_BITS] = float_to_bits((float)(sqrt((double)size) * half_root));
    return out;
}

static int of_embedding(struct graph *graph, const struct per_layer *inputs, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const uint64_t size = config->per_layer_size;
    const struct weight_source rows = {.shape = {config->layers * size, config->hidden_size},
                                       .first_row = layer * size,
                                       .rows = size};
    struct projection by = {.bias = -1};
    by.weight = graph_weight_from(graph, layer, WEIGHT_MATRIX, &rows, "model.per_layer_model_projection.weight");
    name_weight(graph, by.weight, layer, "per_layer_model_projection.weight");
    const double scale = 1 / sqrt((double)config->hidden_size);
    const int product = node_matmul(graph, inputs->embedded, layer, by, ACTIVATION_NONE, scale, "per_layer_product");
    return node_rms_norm(graph, product, layer, inputs->norm, config->rms_norm_eps, "per_layer_normed");
}

static int add(struct graph *graph, int a, int b, uint64_t width, uint32_t layer, const char *label)
{
    const int out = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_ADD, layer);
    node->operands[ADD_A] = a;
    node->operands[ADD_B] = b;
    node->operands[ADD_OUT] = out;
    return out;
}

/* x times a value, or times a weight; the other is absent. */
static int multiply(struct graph *graph, int x, int by, int weight, uint64_t width, uint32_t layer, const char *label)
{
    const int out = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_MULTIPLY, layer);
    node->operands[MULTIPLY_X] = x;
    node->operands[MULTIPLY_BY] = by;
    node->operands[MULTIPLY_WEIGHT] = weight;
    node->operands[MULTIPLY_OUT] = out;
    return out;
}

static struct projection whole(struct graph *graph, uint32_t layer, const char *module, uint64_t rows, uint64_t columns)
{
    return (struct projection){graph_matrix(graph, layer, rows, columns, WEIGHT_MATRIX, "model.layers.%u.%s.weight",
                                            layer, module),
                               -1};
}

int per_layer_end(struct graph *graph, const struct decoder_traits *traits, const struct per_layer *inputs, int x,
                  uint32_t layer, decoder_layer_norm *norm)
{
    const struct model_config *config = graph->config;
    const uint64_t hidden = config->hidden_size, size = config->per_layer_size;
    if (size) {
        const int input =
            add(graph, of_embedding(graph, inputs, layer), of_token(graph, layer), size, layer, "per_layer_input");
        const int gate = node_matmul(graph, x, layer, whole(graph, layer, "per_layer_input_gate", size, hidden),
                                     config->activation + EPILOGUE_PLAIN, 1.0, "per_layer_gate");
        const int gated = multiply(graph, gate, input, GRAPH_ABSENT, size, layer, "per_layer_gated");
        const int made = node_matmul(graph, gated, layer, whole(graph, layer, "per_layer_projection", hidden, size),
                                     ACTIVATION_NONE, 1.0, "per_layer_made");
        x = add(graph, x, norm(graph, traits, made, layer, "post_per_layer_input_norm", "per_layer_out"), hidden, layer,
                "after_per_layer");
    }
    if (!config->layer_scalars) return x;
    const struct weight_source number = {.shape = {1}, .rows = hidden, .repeat = hidden};
    const int weight =
        graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &number, "model.layers.%u.layer_scalar", layer);
    return multiply(graph, x, GRAPH_ABSENT, weight, hidden, layer, "scaled");
}
