/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with recurrent state: short convolutions, and linear attention by the gated delta rule. */
#include "builder/arch/family.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/matmul/matmul.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/sigmoid_gate/sigmoid_gate.h"

/* Rows of a layer's tensor. */
struct rows {
    const char *tensor; /* after the layer's prefix */
    uint64_t first, count, run, period;
};

/* A weight of rows of one tensor: those of each part, one part after the other. `columns` 0: a vector. */
static int weight_of(struct graph *graph, uint32_t layer, const struct rows *parts, int count, uint64_t all_rows,
                     uint64_t columns, enum shard shard, const char *name)
{
    int weight = -1;
    for (int i = 0; i < count; i++) {
        const struct weight_source source = {.shape = {all_rows, columns},
                                             .first_row = parts[i].first,
                                             .rows = parts[i].count,
                                             .run = parts[i].run,
                                             .period = parts[i].period};
        if (i == 0)
            weight = graph_weight_from(graph, layer, columns ? WEIGHT_MATRIX : WEIGHT_ROW_MAJOR, &source,
                                       "model.layers.%u.%s", layer, parts[i].tensor);
        else
            graph_weight_append(graph, weight, &source, "model.layers.%u.%s", layer, parts[i].tensor);
    }
    graph_shard(graph, weight, shard);
    if (weight >= 0) snprintf(graph->weights[weight].name, GRAPH_NAME_BYTES, "model.layers.%u.%s", layer, name);
    return weight;
}

/* The kernels of a convolution, [channels, 1, kernel] in the checkpoint, as a vector. `parts`: of the channels, each of which ranks
 * share equally. */
static int conv_weight(struct graph *graph, uint32_t layer, const char *tensor, const uint64_t *parts, int count)
{
    const struct model_recurrent *sizes = &graph->config->recurrent;
    uint64_t first = 0;
    int weight = -1;
    for (int i = 0; i < count; i++) {
        const struct weight_source source = {.shape = {sizes->channels, 1, sizes->kernel},
                                             .flat = true,
                                             .first_row = first * sizes->kernel,
                                             .rows = parts[i] * sizes->kernel};
        if (i == 0)
            weight = graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &source, "model.layers.%u.%s", layer, tensor);
        else
            graph_weight_append(graph, weight, &source, "model.layers.%u.%s", layer, tensor);
        first += parts[i];
    }
    graph_shard(graph, weight, SHARD_ROWS);
    return weight;
}

static struct graph_node *convolve(struct graph *graph, int x, int weight, uint32_t layer, int *out)
{
    const struct model_recurrent *sizes = &graph->config->recurrent;
    *out = graph_value(graph, ROWS_TOKENS, sizes->channels, "convolved%u", layer);
    struct graph_node *node = graph_append(graph, OP_SHORT_CONV, layer);
    node->operands[SHORT_CONV_X] = x;
    node->operands[SHORT_CONV_W] = weight;
    node->operands[SHORT_CONV_OUT] = *out;
    node->params[SHORT_CONV_CHANNELS] = (int64_t)sizes->channels;
    node->params[SHORT_CONV_KERNEL] = (int64_t)sizes->kernel;
    return node;
}

/* out_proj(C * conv(B * x)), with B, C and x from in_proj. */
static int short_conv(struct graph *graph, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const uint64_t hidden = config->hidden_size;
    const bool bias = config->recurrent.conv_bias;
    struct rows in[3], in_bias[3];
    for (uint64_t i = 0; i < 3; i++) { /* ranks share each of the three */
        in[i] = (struct rows){.tensor = "conv.in_proj.weight", .first = i * hidden, .count = hidden};
        in_bias[i] = (struct rows){.tensor = "conv.in_proj.bias", .first = i * hidden, .count = hidden};
    }
    struct projection by = {.bias = -1};
    by.weight = weight_of(graph, layer, in, 3, 3 * hidden, hidden, SHARD_ROWS, "conv.in_proj.weight");
    if (bias) by.bias = weight_of(graph, layer, in_bias, 3, 3 * hidden, 0, SHARD_ROWS, "conv.in_proj.bias");
    const int bcx = node_matmul(graph, x, layer, by, ACTIVATION_NONE, 1.0, "bcx");
    int out;
    const int weight = conv_weight(graph, layer, "conv.conv.weight", &hidden, 1);
    const struct rows all = {.tensor = "conv.conv.bias", .count = hidden};
    const int conv_bias =
        bias ? weight_of(graph, layer, &all, 1, hidden, 0, SHARD_ROWS, "conv.conv.bias") : GRAPH_ABSENT;
    struct graph_node *node = convolve(graph, bcx, weight, layer, &out);
    node->params[SHORT_CONV_GATED] = 1;
    node->operands[SHORT_CONV_BIAS] = conv_bias;
    const struct rows rows = {.tensor = "conv.out_proj.weight", .count = hidden};
    const struct rows row = {.tensor = "conv.out_proj.bias", .count = hidden};
    by = (struct projection){.bias = -1};
    by.weight = weight_of(graph, layer, &rows, 1, hidden, hidden, SHARD_COLUMNS, "conv.out_proj.weight");
    if (bias) by.bias = weight_of(graph, layer, &row, 1, hidden, 0, SHARD_FIRST_RANK, "conv.out_proj.bias");
    return node_matmul(graph, out, layer, by, ACTIVATION_NONE, config->residual_scale, "o");
}

static int vector(struct graph *graph, uint32_t layer, const char *tensor, uint64_t count, enum shard shard)
{
    const struct rows all = {.tensor = tensor, .count = count};
    return weight_of(graph, layer, &all, 1, count, 0, shard, tensor);
}

#define QKVZ "linear_attn.in_proj_qkvz.weight"
#define QKV  "linear_attn.in_proj_qkv.weight"
#define Z    "linear_attn.in_proj_z.weight"
#define BA   "linear_attn.in_proj_ba.weight"

/* Weights of the three products that the delta rule is of: q, k and v of all heads, z, and b and a. */
struct delta_rule_inputs {
    int qkv, z, ba;
};

/* The rows of a projection come by key heads: q, k, v and z of each, and b and a. */
static struct delta_rule_inputs inputs_by_heads(struct graph *graph, uint32_t layer)
{
    const struct model_recurrent *sizes = &graph->config->recurrent;
    const uint64_t hidden = graph->config->hidden_size, per_key = sizes->value_heads / sizes->key_heads;
    const uint64_t key = sizes->key_dim, value = per_key * sizes->value_dim, period = 2 * key + 2 * value;
    const uint64_t keys = sizes->key_heads * key, values = sizes->key_heads * value;
    const struct rows qkv[] = {{QKVZ, 0, keys, key, period},
                               {QKVZ, key, keys, key, period},
                               {QKVZ, 2 * key, values, value, period}};
    const struct rows z = {QKVZ, 2 * key + value, values, value, period};
    const struct rows ba[] = {{BA, 0, sizes->value_heads, per_key, 2 * per_key},
                              {BA, per_key, sizes->value_heads, per_key, 2 * per_key}};
    const uint64_t rows = sizes->key_heads * period;
    struct delta_rule_inputs made;
    made.qkv = weight_of(graph, layer, qkv, 3, rows, hidden, SHARD_ROWS, QKV);
    made.z = weight_of(graph, layer, &z, 1, rows, hidden, SHARD_ROWS, Z);
    made.ba = weight_of(graph, layer, ba, 2, 2 * sizes->value_heads, hidden, SHARD_ROWS, BA);
    return made;
}

/* Tensors of their own for q, k and v, for z, b and a. Ranks share each of q, k and v. */
static struct delta_rule_inputs inputs_apart(struct graph *graph, uint32_t layer)
{
    const struct model_recurrent *sizes = &graph->config->recurrent;
    const uint64_t hidden = graph->config->hidden_size, heads = sizes->value_heads;
    const uint64_t keys = sizes->key_heads * sizes->key_dim, values = heads * sizes->value_dim;
    const struct rows qkv[] = {{.tensor = QKV, .first = 0, .count = keys},
                               {.tensor = QKV, .first = keys, .count = keys},
                               {.tensor = QKV, .first = 2 * keys, .count = values}};
    const struct rows z = {.tensor = Z, .count = values};
    const struct rows ba[] = {{.tensor = "linear_attn.in_proj_b.weight", .count = heads},
                              {.tensor = "linear_attn.in_proj_a.weight", .count = heads}};
    struct delta_rule_inputs made;
    made.qkv = weight_of(graph, layer, qkv, 3, 2 * keys + values, hidden, SHARD_ROWS, QKV);
    made.z = weight_of(graph, layer, &z, 1, values, hidden, SHARD_ROWS, Z);
    made.ba = weight_of(graph, layer, ba, 2, heads, hidden, SHARD_ROWS, BA);
    return made;
}

static int gated_delta_rule(struct graph *graph, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const struct model_recurrent *sizes = &config->recurrent;
    const uint64_t hidden = config->hidden_size;
    const uint64_t keys = sizes->key_heads * sizes->key_dim, values = sizes->value_heads * sizes->value_dim;
    const struct delta_rule_inputs in = sizes->apart ? inputs_apart(graph, layer) : inputs_by_heads(graph, layer);
    struct projection by = {.weight = in.qkv, .bias = -1};
    const int mixed = node_matmul(graph, x, layer, by, ACTIVATION_NONE, 1.0, "linear_qkv");
    by.weight = in.z;
    const int gate = node_matmul(graph, x, layer, by, ACTIVATION_NONE, 1.0, "linear_z");
    by.weight = in.ba;
    const int beta = node_matmul(graph, x, layer, by, ACTIVATION_NONE, 1.0, "linear_ba");

    int convolved;
    const uint64_t parts[] = {keys, keys, values};
    const int kernels = conv_weight(graph, layer, "linear_attn.conv1d.weight", parts, 3);
    convolve(graph, mixed, kernels, layer, &convolved)->params[SHORT_CONV_ACTIVATION] = ACTIVATION_SILU;

    const int out = graph_value(graph, ROWS_TOKENS, values, "linear%u", layer);
    const int a_log = vector(graph, layer, "linear_attn.A_log", sizes->value_heads, SHARD_ROWS);
    const int dt_bias = vector(graph, layer, "linear_attn.dt_bias", sizes->value_heads, SHARD_ROWS);
    const int norm = vector(graph, layer, "linear_attn.norm.weight", sizes->value_dim, SHARD_NONE);
    struct graph_node *node = graph_append(graph, OP_DELTA_RULE, layer);
    node->operands[DELTA_RULE_QKV] = convolved;
    node->operands[DELTA_RULE_Z] = gate;
    node->operands[DELTA_RULE_BA] = beta;
    node->operands[DELTA_RULE_A_LOG] = a_log;
    node->operands[DELTA_RULE_DT_BIAS] = dt_bias;
    node->operands[DELTA_RULE_NORM] = norm;
    node->operands[DELTA_RULE_OUT] = out;
    node->params[DELTA_RULE_KEY_HEADS] = (int64_t)sizes->key_heads;
    node->params[DELTA_RULE_VALUE_HEADS] = (int64_t)sizes->value_heads;
    node->params[DELTA_RULE_KEY_DIM] = (int64_t)sizes->key_dim;
    node->params[DELTA_RULE_VALUE_DIM] = (int64_t)sizes->value_dim;
    node->params[DELTA_RULE_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    node->params[DELTA_RULE_SCATTERED] = graph->target == TARGET_CUDA && graph->kind != PLAN_PREFILL;

    const struct rows output = {.tensor = "linear_attn.out_proj.weight", .count = hidden};
    by.weight = weight_of(graph, layer, &output, 1, hidden, values, SHARD_COLUMNS, "linear_attn.out_proj.weight");
    return node_matmul(graph, out, layer, by, ACTIVATION_NONE, config->residual_scale, "o");
}

int recurrent_mixer(struct graph *graph, int x, uint32_t layer)
{
    return graph->config->layer[layer].mixer == MIXER_SHORT_CONV ? short_conv(graph, x, layer)
                                                                 : gated_delta_rule(graph, x, layer);
}

int node_sigmoid_gate(struct graph *graph, int x, int gate, uint32_t layer, const char *label)
{
    const uint64_t width = x >= 0 ? graph->values[x].width : 0;
    const int out = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_SIGMOID_GATE, layer);
    node->operands[SIGMOID_GATE_X] = x;
    node->operands[SIGMOID_GATE_GATE] = gate;
    node->operands[SIGMOID_GATE_OUT] = out;
    return out;
}
