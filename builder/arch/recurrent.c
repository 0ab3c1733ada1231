/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with recurrent state: short convolutions, linear attention by the gated delta rule, and state spaces (Mamba-2). */
#include "builder/arch/family.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/group_norm/group_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/sigmoid_gate/sigmoid_gate.h"
#include "kernels/state_space/state_space.h"

/* Rows of a layer's tensor. */
struct rows {
    const char *tensor; /* after the layer's prefix */
    uint64_t first, count, run, period;
    bool of_groups;     /* ranks share groups of heads: SHARD_GROUP_ROWS */
    const char *layers; /* module of the layers; NULL: model.layers */
    float scale;        /* of the kernels of a convolution; 0: 1 */
};

static const char *layers_of(const struct rows *rows) { return rows->layers ? rows->layers : "model.layers"; }

static void share_parts(struct graph *graph, int weight, const struct rows *parts, int count, enum shard shard)
{
    graph_shard(graph, weight, shard);
    for (int i = 0; weight >= 0 && i < count && i < graph->weights[weight].source_count; i++)
        if (parts[i].of_groups) graph->weights[weight].sources[i].shard = SHARD_GROUP_ROWS;
}

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
            weight = graph_weight_from(graph, layer, columns ? WEIGHT_MATRIX : WEIGHT_ROW_MAJOR, &source, "%s.%u.%s",
                                       layers_of(&parts[i]), layer, parts[i].tensor);
        else
            graph_weight_append(graph, weight, &source, "%s.%u.%s", layers_of(&parts[i]), layer, parts[i].tensor);
    }
    share_parts(graph, weight, parts, count, shard);
    if (weight >= 0) snprintf(graph->weights[weight].name, GRAPH_NAME_BYTES, "model.layers.%u.%s", layer, name);
    return weight;
}

/* The kernels of a convolution, [channels, 1, kernel] in the checkpoint, as a vector. `parts`: of the channels. */
static int conv_weight(struct graph *graph, uint32_t layer, const struct rows *parts, int count)
{
    const struct model_recurrent *sizes = &graph->config->recurrent;
    int weight = -1;
    for (int i = 0; i < count; i++) {
        const struct weight_source source = {.shape = {sizes->channels, 1, sizes->kernel},
                                             .flat = true,
                                             .first_row = parts[i].first * sizes->kernel,
                                             .rows = parts[i].count * sizes->kernel,
                                             .scale = parts[i].scale};
        if (i == 0)
            weight = graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &source, "%s.%u.%s", layers_of(&parts[i]), layer,
                                       parts[i].tensor);
        else
            graph_weight_append(graph, weight, &source, "%s.%u.%s", layers_of(&parts[i]), layer, parts[i].tensor);
    }
    share_parts(graph, weight, parts, count, SHARD_ROWS);
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
    const bool bias = config->recurrent.projection_bias;
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
    const struct rows kernels = {.tensor = "conv.conv.weight", .count = hidden};
    const struct rows all = {.tensor = "conv.conv.bias", .count = hidden};
    const int weight = conv_weight(graph, layer, &kernels, 1);
    const int conv_bias = config->recurrent.conv_bias
                              ? weight_of(graph, layer, &all, 1, hidden, 0, SHARD_ROWS, "conv.conv.bias")
                              : GRAPH_ABSENT;
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
    const struct rows qkv[] = {{QKVZ, 0, keys, key, period, false, NULL, 0},
                               {QKVZ, key, keys, key, period, false, NULL, 0},
                               {QKVZ, 2 * key, values, value, period, false, NULL, 0}};
    const struct rows z = {QKVZ, 2 * key + value, values, value, period, false, NULL, 0};
    const struct rows ba[] = {{BA, 0, sizes->value_heads, per_key, 2 * per_key, false, NULL, 0},
                              {BA, per_key, sizes->value_heads, per_key, 2 * per_key, false, NULL, 0}};
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
    const char *conv = "linear_attn.conv1d.weight";
    const struct rows parts[] = {{.tensor = conv, .count = keys},
                                 {.tensor = conv, .first = keys, .count = keys},
                                 {.tensor = conv, .first = 2 * keys, .count = values}};
    const int kernels = conv_weight(graph, layer, parts, 3);
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

/* ---- a state space ---- */

/* Its modules, and rows of its first projection. */
struct state_space {
    const char *layers; /* module of the layers */
    char in[GRAPH_NAME_BYTES], in_bias[GRAPH_NAME_BYTES], conv[GRAPH_NAME_BYTES], conv_bias[GRAPH_NAME_BYTES];
    char out[GRAPH_NAME_BYTES], out_bias[GRAPH_NAME_BYTES], norm[GRAPH_NAME_BYTES];
    char a_log[GRAPH_NAME_BYTES], dt_bias[GRAPH_NAME_BYTES], skip[GRAPH_NAME_BYTES];
    uint64_t values, keys, heads, in_rows; /* of x and z, of B and C, of dt, of all */
};

static void name_state_space(struct state_space *own, const struct model_recurrent *sizes,
                             const struct decoder_modules *modules)
{
    const char *module = modules->state_space ? modules->state_space : "mamba";
    const struct {
        char *name;
        const char *tensor;
    } names[] = {{own->in, "in_proj.weight"},   {own->in_bias, "in_proj.bias"},
                 {own->conv, "conv1d.weight"},  {own->conv_bias, "conv1d.bias"},
                 {own->out, "out_proj.weight"}, {own->out_bias, "out_proj.bias"},
                 {own->norm, "norm.weight"},    {own->a_log, "A_log"},
                 {own->dt_bias, "dt_bias"},     {own->skip, "D"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        snprintf(names[i].name, GRAPH_NAME_BYTES, "%s.%s", module, names[i].tensor);
    own->layers = modules->layers;
    own->values = sizes->value_heads * sizes->value_dim;
    own->keys = sizes->key_heads * sizes->key_dim;
    own->heads = sizes->value_heads;
    own->in_rows = 2 * own->values + 2 * own->keys + own->heads;
}

/* The product of x and some rows of the first projection. */
static int project(struct graph *graph, const struct state_space *own, int x, uint32_t layer, struct rows *rows,
                   int count, double scale, const char *label)
{
    const uint64_t hidden = graph->config->hidden_size;
    char name[2 * GRAPH_NAME_BYTES];
    struct projection by = {.bias = -1};
    snprintf(name, sizeof name, "%s.%s", own->in, label);
    by.weight = weight_of(graph, layer, rows, count, own->in_rows, hidden, SHARD_ROWS, name);
    for (int i = 0; i < count; i++) rows[i].tensor = own->in_bias;
    snprintf(name, sizeof name, "%s.%s", own->in_bias, label);
    if (graph->config->recurrent.projection_bias)
        by.bias = weight_of(graph, layer, rows, count, own->in_rows, 0, SHARD_ROWS, name);
    return node_matmul(graph, x, layer, by, ACTIVATION_NONE, scale != 0 ? scale : 1, label);
}

static int heads_vector(struct graph *graph, const struct state_space *own, uint32_t layer, const char *tensor,
                        uint64_t count, enum shard shard)
{
    const struct rows all = {.tensor = tensor, .count = count, .layers = own->layers};
    return weight_of(graph, layer, &all, 1, count, 0, shard, tensor);
}

/* x, B and C of all heads, convolved. */
static int convolved_xbc(struct graph *graph, const struct state_space *own, int x, uint32_t layer)
{
    const struct model_recurrent *sizes = &graph->config->recurrent;
    const uint64_t counts[] = {own->values, own->keys, own->keys};
    struct rows in[3], conv[3], conv_bias[3];
    uint64_t first = 0;
    for (int i = 0; i < 3; i++) {
        conv[i] = (struct rows){.tensor = own->conv,
                                .first = first,
                                .count = counts[i],
                                .of_groups = i > 0,
                                .layers = own->layers};
        conv_bias[i] = in[i] = conv[i];
        conv[i].scale = (float)sizes->xbc_scale[i]; /* of the values that it takes */
        conv_bias[i].tensor = own->conv_bias;
        in[i].tensor = own->in;
        in[i].first += own->values; /* z comes before */
        first += counts[i];
    }
    const int mixed = project(graph, own, x, layer, in, 3, 1, "xbc");
    const int kernels = conv_weight(graph, layer, conv, 3);
    const int bias = sizes->conv_bias
                         ? weight_of(graph, layer, conv_bias, 3, sizes->channels, 0, SHARD_ROWS, own->conv_bias)
                         : GRAPH_ABSENT;
    int out;
    struct graph_node *node = convolve(graph, mixed, kernels, layer, &out);
    node->operands[SHORT_CONV_BIAS] = bias;
    node->params[SHORT_CONV_ACTIVATION] = ACTIVATION_SILU;
    return out;
}

static int normalise_groups(struct graph *graph, const struct state_space *own, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const int weight = heads_vector(graph, own, layer, own->norm, own->values, SHARD_ROWS);
    const int out = graph_value(graph, ROWS_TOKENS, own->values, "group_normed%u", layer);
    struct graph_node *node = graph_append(graph, OP_GROUP_NORM, layer);
    node->operands[GROUP_NORM_X] = x;
    node->operands[GROUP_NORM_WEIGHT] = weight;
    node->operands[GROUP_NORM_OUT] = out;
    node->params[GROUP_NORM_GROUPS] = (int64_t)config->recurrent.norm_groups;
    node->params[GROUP_NORM_WIDTH] = (int64_t)own->values;
    node->params[GROUP_NORM_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    return out;
}

static int scan(struct graph *graph, const struct state_space *own, int z, int xbc, int dt, uint32_t layer)
{
    const struct model_recurrent *sizes = &graph->config->recurrent;
    const int out = graph_value(graph, ROWS_TOKENS, own->values, "state_space%u", layer);
    const int a_log = heads_vector(graph, own, layer, own->a_log, own->heads, SHARD_ROWS);
    const int dt_bias = heads_vector(graph, own, layer, own->dt_bias, own->heads, SHARD_ROWS);
    const int skip = heads_vector(graph, own, layer, own->skip, own->heads, SHARD_ROWS);
    struct graph_node *node = graph_append(graph, OP_STATE_SPACE, layer);
    node->operands[STATE_SPACE_XBC] = xbc;
    node->operands[STATE_SPACE_Z] = z;
    node->operands[STATE_SPACE_DT] = dt;
    node->operands[STATE_SPACE_A_LOG] = a_log;
    node->operands[STATE_SPACE_DT_BIAS] = dt_bias;
    node->operands[STATE_SPACE_D] = skip;
    node->operands[STATE_SPACE_OUT] = out;
    node->params[STATE_SPACE_GROUPS] = (int64_t)sizes->key_heads;
    node->params[STATE_SPACE_HEADS] = (int64_t)sizes->value_heads;
    node->params[STATE_SPACE_STATE_DIM] = (int64_t)sizes->key_dim;
    node->params[STATE_SPACE_HEAD_DIM] = (int64_t)sizes->value_dim;
    node->params[STATE_SPACE_DT_MIN_BITS] = float_to_bits((float)sizes->dt_min);
    node->params[STATE_SPACE_DT_MAX_BITS] = float_to_bits((float)sizes->dt_max);
    node->params[STATE_SPACE_SCATTERED] = graph->target == TARGET_CUDA && graph->kind != PLAN_PREFILL;
    return out;
}

/* out_proj(norm(scan(conv(x, B, C), dt) * silu(z))), with z, x, B, C and dt from in_proj, whose rows they are in this order. */
static int state_space(struct graph *graph, const struct decoder_modules *modules, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    struct state_space own;
    name_state_space(&own, &config->recurrent, modules);
    struct rows of_z = {.tensor = own.in, .count = own.values, .layers = own.layers};
    struct rows of_dt = {.tensor = own.in, .count = own.heads, .layers = own.layers};
    of_dt.first = own.in_rows - own.heads;
    const int z = project(graph, &own, x, layer, &of_z, 1, config->recurrent.z_scale, "z");
    const int xbc = convolved_xbc(graph, &own, x, layer);
    const int dt = project(graph, &own, x, layer, &of_dt, 1, config->recurrent.dt_scale, "dt");
    int out = scan(graph, &own, z, xbc, dt, layer);
    if (config->recurrent.norm_groups) out = normalise_groups(graph, &own, out, layer);
    const struct rows rows = {.tensor = own.out, .count = config->hidden_size, .layers = own.layers};
    struct projection by = {.bias = -1};
    by.weight = weight_of(graph, layer, &rows, 1, config->hidden_size, own.values, SHARD_COLUMNS, own.out);
    if (config->recurrent.projection_bias)
        by.bias = heads_vector(graph, &own, layer, own.out_bias, config->hidden_size, SHARD_FIRST_RANK);
    const double scale = config->recurrent.out_scale != 0 ? config->recurrent.out_scale : 1;
    return node_matmul(graph, out, layer, by, ACTIVATION_NONE, config->residual_scale * scale, "state_space_out");
}

int recurrent_mixer(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer)
{
    switch (graph->config->layer[layer].mixer) {
    case MIXER_SHORT_CONV: return short_conv(graph, x, layer);
    case MIXER_STATE_SPACE:
    case MIXER_BOTH: return state_space(graph, &traits->modules, x, layer);
    default: return gated_delta_rule(graph, x, layer);
    }
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
