/* SPDX-License-Identifier: Apache-2.0 */
/* The shared body of decoders. Tensor names are those of Hugging Face checkpoints. */
#include <math.h>
#include <stdlib.h>

#include "builder/arch/family.h"
#include "kernels/add/add.h"
#include "kernels/attention/attention.h"
#include "kernels/draft/draft.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_query/rope_query.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/sample/sample.h"
#include "kernels/select_rows/select_rows.h"
#include "kernels/xielu/xielu.h"

/* Rows of a tensor that hold a projection: all, or some where the checkpoint has several projections in one tensor. */
struct part {
    const char *module;
    uint64_t rows;
    enum shard shard;             /* of the weight; the bias follows */
    bool again;                   /* another part has the same rows */
    uint64_t first_row, all_rows; /* all_rows 0: the tensor has no other rows */
    uint64_t run, period;         /* of each `period` rows, `run` are of the projection; 0: its rows are consecutive */
    uint64_t head,
        turned; /* of each `head` rows the first `turned` are rotary pairs by turns in the checkpoint; 0: they are not */
    float scale; /* of the projection; 0: 1. Requires: it has no bias, if not 0 */
};

/* A factor of struct model_config, 0 for 1. */
static double factor_of(double scale) { return scale != 0 ? scale : 1; }

static const char *or_usual(const char *name, const char *usual) { return name ? name : usual; }

static struct projection projection(struct graph *graph, const struct decoder_traits *traits, uint32_t layer,
                                    const struct part *part, uint64_t columns, bool bias)
{
    const uint64_t all_rows = part->all_rows ? part->all_rows : part->rows;
    const char *layers = decoder_layers(traits);
    struct weight_source source = {.shape = {all_rows},
                                   .first_row = part->first_row,
                                   .rows = part->rows,
                                   .run = part->run,
                                   .period = part->period,
                                   .group = part->head,
                                   .dealt = part->turned,
                                   .stride = part->head ? 2 : 0,
                                   .scale = part->scale,
                                   .again = part->again};
    const struct weight_source vector = source;
    source.transposed = traits->transposed;
    source.shape[source.transposed ? 1 : 0] = all_rows;
    source.shape[source.transposed ? 0 : 1] = columns;
    struct projection made = {.bias = -1};
    made.weight =
        graph_weight_from(graph, layer, WEIGHT_MATRIX, &source, "%s.%u.%s.weight", layers, layer, part->module);
    if (bias)
        made.bias =
            graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &vector, "%s.%u.%s.bias", layers, layer, part->module);
    graph_shard(graph, made.weight, part->shard);
    graph_shard(graph, made.bias, part->shard == SHARD_COLUMNS ? SHARD_FIRST_RANK : part->shard);
    return made;
}

/* Rows of `from` come after those of `to`, or with a group in turn with them. */
static void join(struct graph *graph, struct projection to, struct projection from, uint64_t group)
{
    const int into[] = {to.weight, to.bias}, taken[] = {from.weight, from.bias};
    for (int i = 0; i < 2; i++)
        if (into[i] >= 0 && taken[i] >= 0) graph_weight_interleave(graph, into[i], taken[i], group);
}

/* Projections of one input, by one matmul that reads it once. `fused`: the module that has all of their rows in the
 * checkpoint; NULL: each part has a module of its own. `name`: the module's in the engine. */
static struct projection joined(struct graph *graph, const struct decoder_traits *traits, uint32_t layer,
                                struct part *parts, int count, const char *fused, uint64_t columns, bool bias,
                                uint64_t group, const char *name)
{
    const uint64_t heads = traits->fused == FUSED_BY_KV_HEAD ? graph->config->kv_heads : 1;
    uint64_t all_rows = 0;
    struct projection all = {-1, -1};
    for (int i = 0; i < count && fused; i++) {
        parts[i].module = fused;
        parts[i].first_row = all_rows / heads;
        all_rows += parts[i].rows;
    }
    for (int i = 0; i < count; i++) {
        if (fused) parts[i].all_rows = all_rows;
        if (fused && heads > 1) parts[i].run = parts[i].rows / heads, parts[i].period = all_rows / heads;
        const struct projection made = projection(graph, traits, layer, &parts[i], columns, bias);
        if (i == 0)
            all = made;
        else
            join(graph, all, made, group);
    }
    const int weights[] = {all.weight, all.bias};
    for (int i = 0; i < 2; i++)
        if (weights[i] >= 0)
            snprintf(graph->weights[weights[i]].name, GRAPH_NAME_BYTES, "model.layers.%u.%s.%s", layer, name,
                     i == 0 ? "weight" : "bias");
    return all;
}

static int norm_weight(struct graph *graph, const struct decoder_traits *traits, uint32_t layer, uint64_t width,
                       const char *name)
{
    const bool plus_one = traits->norm == NORM_RMS_PLUS_ONE || traits->norm == NORM_LAYER_BIAS_PLUS_ONE;
    const bool plain = traits->norm == NORM_RMS_PLAIN || traits->norm == NORM_LAYER_PLAIN; /* weights of 1 */
    struct weight_source source = {.rows = width, .add = plus_one || plain ? 1.0f : 0.0f};
    if (!plain) source.shape[0] = width;
    return graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &source, "%s.weight", name);
}

/* The norm whose tensors are called `name`. */
static int norm(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer, const char *name,
                const char *label)
{
    const struct model_config *config = graph->config;
    const bool has_bias = traits->norm == NORM_LAYER_BIAS || traits->norm == NORM_LAYER_BIAS_PLUS_ONE;
    const int weight = norm_weight(graph, traits, layer, config->hidden_size, name);
    const int bias = has_bias ? graph_vector(graph, layer, config->hidden_size, "%s.bias", name) : -1;
    const int y =
        graph_value(graph, ROWS_TOKENS, config->hidden_size, layer == GRAPH_NO_LAYER ? "%s" : "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_RMS_NORM, layer);
    node->operands[RMS_NORM_X] = x;
    node->operands[RMS_NORM_WEIGHT] = weight;
    node->operands[RMS_NORM_BIAS] = bias;
    node->operands[RMS_NORM_OUT] = y;
    node->params[RMS_NORM_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    node->params[RMS_NORM_CENTRED] = traits->norm >= NORM_LAYER;
    return y;
}

/* The norm of a layer that is called `module`; without a name x itself. */
static int layer_norm(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer,
                      const char *module, const char *label)
{
    char name[GRAPH_NAME_BYTES];
    if (!module) return x;
    snprintf(name, sizeof name, "%s.%u.%s", decoder_layers(traits), layer, module);
    return norm(graph, traits, x, layer, name, label);
}

static int add(struct graph *graph, int a, int b, uint64_t width, uint32_t layer, const char *label)
{
    int y = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_ADD, layer);
    node->operands[ADD_A] = a;
    node->operands[ADD_B] = b;
    node->operands[ADD_OUT] = y;
    return y;
}

/* Weights of the norms of q or k: of one head for all, of all together, or of each, in one tensor or in tensors of their own.
 * `shard`: of the heads. */
static int qk_norm_weight(struct graph *graph, const struct decoder_traits *traits, uint32_t layer, uint64_t heads,
                          enum shard shard, const char *module)
{
    const uint64_t head_dim = model_head_dim(graph->config, layer);
    char name[2 * GRAPH_NAME_BYTES];
    if (traits->qk_norm == QK_NORM_HEADS && !traits->norms_apart) {
        struct weight_source source = {.shape = {heads, head_dim}, .flat = true};
        if (graph->config->rotary_pairs) /* as the rows of q and k */
            source.group = head_dim, source.dealt = graph->config->rope.rotary_dim, source.stride = 2;
        const int made =
            graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &source, "model.layers.%u.%s.weight", layer, module);
        graph_shard(graph, made, shard);
        return made;
    }
    if (traits->qk_norm != QK_NORM_HEADS) {
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, module);
        const bool over_width = traits->qk_norm == QK_NORM_WIDTH;
        const int made = norm_weight(graph, traits, layer, over_width ? heads * head_dim : head_dim, name);
        if (over_width) graph_shard(graph, made, shard);
        return made;
    }
    int weight = -1;
    for (uint64_t head = 0; head < heads; head++) {
        const struct weight_source source = {.shape = {head_dim}};
        snprintf(name, sizeof name, "model.layers.%u.%s.norms.%u.weight", layer, module, (unsigned)head);
        if (head == 0)
            weight = graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &source, "%s", name);
        else
            graph_weight_append(graph, weight, &source, "%s", name);
    }
    if (weight >= 0)
        snprintf(graph->weights[weight].name, GRAPH_NAME_BYTES, "model.layers.%u.%s.weight", layer, module);
    graph_shard(graph, weight, SHARD_MATRICES);
    return weight;
}

static void set_heads(const struct model_config *config, uint32_t layer, int64_t *params)
{
    params[PAGED_HEADS] = (int64_t)config->heads;
    params[PAGED_KV_HEADS] = (int64_t)model_kv_heads(config, layer);
    params[PAGED_HEAD_DIM] = (int64_t)model_head_dim(config, layer);
}

static uint64_t rotary_dim_of(const struct model_config *config, uint32_t layer)
{
    return (config->layer[layer].rope == LAYER_ROPE_LOCAL ? &config->local_rope : &config->rope)->rotary_dim;
}

/* q of a layer that reads the keys and values of another one. */
static int query_alone(struct graph *graph, const struct decoder_traits *traits, int x, int table, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const char *norm = or_usual(traits->modules.q_norm, "self_attn.q_norm");
    const uint64_t width = config->heads * model_head_dim(config, layer);
    const struct part part = {or_usual(traits->modules.q, "self_attn.q_proj"), width, SHARD_ROWS, .head = 0};
    const struct projection by = projection(graph, traits, layer, &part, config->hidden_size, config->qkv_bias);
    const int q = node_matmul(graph, x, layer, by, ACTIVATION_NONE, 1.0, "q");
    const int weight =
        traits->qk_norm ? qk_norm_weight(graph, traits, layer, config->heads, SHARD_ROWS, norm) : GRAPH_ABSENT;
    const int rotated = graph_value(graph, ROWS_TOKENS, width, "rotated%u", layer);
    struct graph_node *rope = graph_append(graph, OP_ROPE_QUERY, layer);
    rope->operands[ROPE_QUERY_X] = q;
    rope->operands[ROPE_QUERY_TABLE] = table;
    rope->operands[ROPE_QUERY_NORM] = weight;
    rope->operands[ROPE_QUERY_OUT] = rotated;
    rope->params[ROPE_QUERY_HEADS] = (int64_t)config->heads;
    rope->params[ROPE_QUERY_HEAD_DIM] = (int64_t)model_head_dim(config, layer);
    rope->params[ROPE_QUERY_ROTARY_DIM] = (int64_t)rotary_dim_of(config, layer);
    rope->params[ROPE_QUERY_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    return rotated;
}

/* The projection of q's gate has q's tensor, but a name of its own. */
static void name_gate(struct graph *graph, struct projection gate, uint32_t layer)
{
    const int weights[] = {gate.weight, gate.bias};
    for (int i = 0; i < 2; i++)
        if (weights[i] >= 0)
            snprintf(graph->weights[weights[i]].name, GRAPH_NAME_BYTES, "model.layers.%u.self_attn.gate_proj.%s", layer,
                     i == 0 ? "weight" : "bias");
}

/* q, rotated; k and v go to the KV cache. *gate: of the output, -1: none. */
static int query_and_append(struct graph *graph, const struct decoder_traits *traits, int x, int table, uint32_t layer,
                            int *gate)
{
    const struct model_config *config = graph->config;
    const uint64_t hidden = config->hidden_size, head_dim = model_head_dim(config, layer);
    const uint64_t q_width = config->heads * head_dim, kv_width = model_kv_heads(config, layer) * head_dim;
    const uint64_t head = config->rotary_pairs ? head_dim : 0, turned = head ? config->rope.rotary_dim : 0;
    const struct decoder_modules *modules = &traits->modules;
    struct part parts[] = {
        {or_usual(modules->q, "self_attn.q_proj"), q_width, SHARD_ROWS, .head = head, .turned = turned},
        {or_usual(modules->k, "self_attn.k_proj"), kv_width, SHARD_KV_ROWS, .head = head, .turned = turned},
        {or_usual(modules->v, "self_attn.v_proj"), kv_width, SHARD_KV_ROWS, .head = 0},
    };
    if (config->layer[layer].keys_are_values) parts[2].module = parts[1].module, parts[2].again = true;
    if (config->output_gate) { /* of each head, rows of q and then as many of its gate */
        struct part of_gate = parts[0];
        of_gate.run = parts[0].run = head_dim;
        of_gate.period = parts[0].period = 2 * head_dim;
        of_gate.all_rows = parts[0].all_rows = 2 * q_width;
        of_gate.first_row = head_dim;
        const struct projection by = projection(graph, traits, layer, &of_gate, hidden, config->qkv_bias);
        *gate = node_matmul(graph, x, layer, by, ACTIVATION_NONE, 1.0, "attention_gate");
        name_gate(graph, by, layer);
    }
    if (modules->output_gate) {
        const struct part of_gate = {modules->output_gate, q_width, SHARD_ROWS, .head = 0};
        const struct projection by = projection(graph, traits, layer, &of_gate, hidden, false);
        *gate = node_matmul(graph, x, layer, by, ACTIVATION_NONE, 1.0, "attention_gate");
    }
    const struct projection q =
        joined(graph, traits, layer, parts, 3, traits->fused_qkv, hidden, config->qkv_bias, 0, "self_attn.qkv_proj");
    const int qkv = node_matmul(graph, x, layer, q, ACTIVATION_NONE, 1.0, "qkv");
    int norm_q = -1, norm_k = -1;
    if (traits->qk_norm) {
        norm_q = qk_norm_weight(graph, traits, layer, config->heads, SHARD_ROWS,
                                or_usual(modules->q_norm, "self_attn.q_norm"));
        norm_k = qk_norm_weight(graph, traits, layer, model_kv_heads(config, layer), SHARD_KV_ROWS,
                                or_usual(modules->k_norm, "self_attn.k_norm"));
    }
    const int rotated = graph_value(graph, ROWS_TOKENS, q_width, "rotated%u", layer);
    struct graph_node *rope = graph_append(graph, OP_ROPE_APPEND, layer);
    rope->operands[ROPE_APPEND_QKV] = qkv;
    rope->operands[ROPE_APPEND_TABLE] = table;
    rope->operands[ROPE_APPEND_NORM_Q] = norm_q;
    rope->operands[ROPE_APPEND_NORM_K] = norm_k;
    rope->operands[ROPE_APPEND_Q] = rotated;
    set_heads(config, layer, rope->params);
    const uint64_t rotary_dim = rotary_dim_of(config, layer);
    if (rotary_dim != head_dim) rope->params[ROPE_APPEND_ROTARY_DIM] = (int64_t)rotary_dim;
    if (traits->qk_norm || config->value_norms)
        rope->params[ROPE_APPEND_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    if (traits->qk_norm == QK_NORM_WIDTH) rope->params[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_WIDTH;
    if (traits->qk_norm == QK_NORM_HEADS) rope->params[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_HEADS;
    if (traits->qk_norm == QK_NORM_ROTATED) rope->params[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_ROTATED;
    rope->params[ROPE_APPEND_CENTRED] = traits->qk_norm == QK_NORM_HEADS;
    rope->params[ROPE_APPEND_NORM_V] = config->value_norms;
    return rotated;
}

static int self_attention(struct graph *graph, const struct decoder_traits *traits, int x, int table, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const uint64_t q_width = config->heads * model_head_dim(config, layer);
    int gate = -1;
    const int rotated = config->layer[layer].shares ? query_alone(graph, traits, x, table, layer)
                                                    : query_and_append(graph, traits, x, table, layer, &gate);
    int sinks = -1;
    if (traits->sinks) {
        sinks = graph_vector(graph, layer, config->heads, "%s.%u.%s", decoder_layers(traits), layer, traits->sinks);
        graph_shard(graph, sinks, SHARD_ROWS);
    }
    int mixed = graph_value(graph, ROWS_TOKENS, q_width, "attention%u", layer);
    struct graph_node *attention = graph_append(graph, OP_ATTENTION, layer);
    attention->operands[ATTENTION_Q] = rotated;
    attention->operands[ATTENTION_OUT] = mixed;
    set_heads(config, layer, attention->params);
    const double scale = config->attention_scale / (config->scores_by_layer ? layer + 1 : 1);
    attention->params[ATTENTION_SCALE_BITS] = float_to_bits((float)scale);
    attention->params[ATTENTION_SCATTERED] = graph->target == TARGET_CUDA && graph->kind != PLAN_PREFILL;
    attention->params[ATTENTION_WINDOW] = (int64_t)config->layer[layer].window;
    attention->params[ATTENTION_CAP_BITS] = float_to_bits((float)config->scores_cap);
    attention->operands[ATTENTION_SINKS] = sinks;
    if (gate >= 0) mixed = node_sigmoid_gate(graph, mixed, gate, layer, "gated_attention");
    const struct part output = {or_usual(traits->modules.output, "self_attn.o_proj"), config->hidden_size,
                                SHARD_COLUMNS, .head = 0};
    const struct projection o = projection(graph, traits, layer, &output, q_width, config->output_bias);
    return node_matmul(graph, mixed, layer, o, ACTIVATION_NONE,
                       config->residual_scale * factor_of(config->attention_out_scale), "o");
}

/* xielu of x, with the numbers of the layer. */
static int xielu(struct graph *graph, const struct decoder_traits *traits, int x, uint64_t width, uint32_t layer)
{
    static const char *const names[XIELU_NUMBER_COUNT] = {"alpha_p", "alpha_n", "beta", "eps"};
    const struct weight_source number = {.shape = {1}};
    const char *layers = decoder_layers(traits), *module = traits->modules.xielu;
    const int numbers =
        graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &number, "%s.%u.%s.%s", layers, layer, module, names[0]);
    for (int i = 1; i < XIELU_NUMBER_COUNT; i++)
        graph_weight_append(graph, numbers, &number, "%s.%u.%s.%s", layers, layer, module, names[i]);
    if (numbers >= 0)
        snprintf(graph->weights[numbers].name, GRAPH_NAME_BYTES, "model.layers.%u.mlp.xielu.numbers", layer);
    const int out = graph_value(graph, ROWS_TOKENS, width, "activated%u", layer);
    struct graph_node *node = graph_append(graph, OP_XIELU, layer);
    node->operands[XIELU_X] = x;
    node->operands[XIELU_NUMBERS] = numbers;
    node->operands[XIELU_OUT] = out;
    return out;
}

/* `modules`: the names of its matrices where they are not the usual ones in `module`. */
static int dense_mlp(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer,
                     const struct decoder_modules *modules, const char *module, uint64_t inner)
{
    const struct model_config *config = graph->config;
    const uint64_t hidden = config->hidden_size;
    char names[4][GRAPH_NAME_BYTES];
    static const char *const usual[] = {"gate_proj", "up_proj", "down_proj", "gate_up_proj"};
    for (int i = 0; i < 4; i++) snprintf(names[i], sizeof names[i], "%s.%s", module, usual[i]);
    struct part parts[] = {{or_usual(modules->gate, names[0]), inner, SHARD_ROWS, .scale = (float)config->gate_scale},
                           {or_usual(modules->up, names[1]), inner, SHARD_ROWS, .head = 0}};
    struct projection in;
    if (traits->plain_mlp)
        in = projection(graph, traits, layer, &parts[1], hidden, config->mlp_bias);
    else
        in = joined(graph, traits, layer, parts, 2, traits->fused_gate_up, hidden, config->mlp_bias,
                    graph_interleave(graph), names[3]);
    const int epilogue = modules->xielu ? ACTIVATION_NONE : decoder_mlp_epilogue(traits, config);
    int activated = node_matmul(graph, x, layer, in, epilogue, 1.0, modules->xielu ? "up" : "activated");
    if (modules->xielu) activated = xielu(graph, traits, activated, inner, layer);
    const struct part output = {or_usual(modules->down, names[2]), hidden, SHARD_COLUMNS, .head = 0};
    const struct projection down = projection(graph, traits, layer, &output, inner, config->mlp_bias);
    return node_matmul(graph, activated, layer, down, ACTIVATION_NONE,
                       config->residual_scale * factor_of(config->mlp_out_scale), "down");
}

static int shared_expert(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer)
{
    const struct expert_names *names = traits->experts;
    static const struct decoder_modules usual;
    if (names->shared_gate) return experts_shared(graph, traits, x, layer);
    return dense_mlp(graph, traits, x, layer, names->shared_is_mlp ? &traits->modules : &usual, names->shared,
                     graph->config->experts.shared_size);
}

/* sum + norm(norm(mlp(x)) + norm(experts(norm(sum)))): what chooses the experts has a norm of its own. */
static int add_mlp_and_experts(struct graph *graph, const struct decoder_traits *traits, int sum, int x, uint64_t inner,
                               uint32_t layer)
{
    const struct model_config *config = graph->config;
    const uint64_t hidden = config->hidden_size;
    const struct weight_source scale = {.shape = {hidden}, .scale = (float)(1 / sqrt((double)hidden))};
    int dense = dense_mlp(graph, traits, x, layer, &traits->modules, "mlp", inner);
    dense = layer_norm(graph, traits, dense, layer, "post_feedforward_layernorm_1", "mlp_normed");
    const int weight =
        graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &scale, "%s.%u.router.scale", decoder_layers(traits), layer);
    const int routed_by = node_rms_norm(graph, sum, layer, weight, config->rms_norm_eps, "router_in");
    const int in = layer_norm(graph, traits, sum, layer, "pre_feedforward_layernorm_2", "experts_in");
    int out = experts_mlp(graph, traits, routed_by, in, 0, layer);
    out = layer_norm(graph, traits, out, layer, "post_feedforward_layernorm_2", "experts_normed");
    out = layer_norm(graph, traits, add(graph, dense, out, hidden, layer, "both"), layer, traits->norms.mlp_out,
                     "mlp_out");
    return add(graph, sum, out, hidden, layer, "after_mlp");
}

/* sum + mlp(x). A shared expert that is not joined is added on its own, since either side may take an addition over; before a norm of
 * the output to the sum of the experts. */
static int add_mlp(struct graph *graph, const struct decoder_traits *traits, int sum, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const struct decoder_norms *norms = config->other_norms ? traits->other_norms : &traits->norms;
    const uint64_t shared_size = config->experts.shared_size, hidden = config->hidden_size;
    const bool routed = config->layer[layer].experts;
    const uint64_t inner = config->layer[layer].inner ? config->layer[layer].inner : config->intermediate_size;
    if (routed && config->experts_beside) return add_mlp_and_experts(graph, traits, sum, x, inner, layer);
    const uint64_t joined = routed ? experts_shared_joined(graph, traits->experts, layer) : 0;
    const bool alone = routed && shared_size && !joined;
    const char *norm_out = routed || !traits->norm_of_experts ? norms->mlp_out : NULL;
    int out = routed ? experts_mlp(graph, traits, x, x, joined, layer)
                     : dense_mlp(graph, traits, x, layer, &traits->modules, "mlp", inner);
    if (alone && norm_out) {
        const int shared = shared_expert(graph, traits, x, layer);
        out = add(graph, out, shared, hidden, layer, "with_shared");
    }
    out = layer_norm(graph, traits, out, layer, norm_out, "mlp_out");
    sum = add(graph, sum, out, hidden, layer, "after_mlp");
    if (!alone || norm_out) return sum;
    return add(graph, sum, shared_expert(graph, traits, x, layer), hidden, layer, "after_shared");
}

/* Cosine and sine table of the step for the layers of a kind; its inverse frequencies become a constant of the engine. Those
 * of layers that do not rotate are 0: cosines of 1 and sines of 0 leave q and k as they are. */
static int rope_table(struct graph *graph, const struct decoder_traits *traits, enum layer_rope kind,
                      struct status *status)
{
    static const char *const names[LAYER_ROPE_KINDS] = {"rope", "rope.local", "rope.none"};
    const struct model_config *config = graph->config;
    const struct rope_config *rope = kind == LAYER_ROPE_LOCAL ? &config->local_rope : &config->rope;
    float scaling = 1.0f;
    const uint64_t rotary_dim = rope->rotary_dim;
    const uint64_t sets = kind == LAYER_ROPE_NONE ? 1 : rope_sets(rope, config->max_position);
    float *inv_freq = calloc(sets * (rotary_dim / 2), sizeof *inv_freq);
    if (!inv_freq) {
        graph->out_of_memory = true;
        return -1;
    }
    int table = -1;
    if (kind == LAYER_ROPE_NONE || rope_frequencies(rope, config->max_position, inv_freq, &scaling, status)) {
        char name[GRAPH_NAME_BYTES];
        for (uint64_t i = 0; i < sets * (rotary_dim / 2) && traits->turns_back; i++) inv_freq[i] = -inv_freq[i];
        snprintf(name, sizeof name, "%s.inv_freq", names[kind]);
        int weight = graph_constant(graph, inv_freq, sets * (rotary_dim / 2), name);
        table = graph_value(graph, ROWS_TOKENS, rotary_dim, "%s", names[kind]);
        struct graph_node *node = graph_append(graph, OP_ROPE_TABLE, GRAPH_NO_LAYER);
        node->operands[ROPE_TABLE_INV_FREQ] = weight;
        node->operands[ROPE_TABLE_OUT] = table;
        node->params[ROPE_TABLE_SCALING_BITS] = float_to_bits(scaling);
        node->params[ROPE_TABLE_SWITCHES] = sets > 1;
    }
    free(inv_freq);
    return table;
}

static bool rope_tables(struct graph *graph, const struct decoder_traits *traits, int tables[LAYER_ROPE_KINDS],
                        struct status *status)
{
    for (int kind = 0; kind < LAYER_ROPE_KINDS; kind++) {
        bool needed = false;
        for (uint64_t layer = 0; layer < graph->config->layers; layer++)
            needed |= (int)graph->config->layer[layer].rope == kind;
        tables[kind] = needed ? rope_table(graph, traits, (enum layer_rope)kind, status) : -1;
        if (needed && tables[kind] < 0 && !graph->out_of_memory) return false;
    }
    return true;
}

/* x + attention(x), then x + mlp(x); with a parallel residual x + attention(x) + mlp(x); one of the two alone where a layer lacks the
 * other. */
static int decoder_layer(struct graph *graph, const struct decoder_traits *traits, int x, int table, uint32_t layer)
{
    const bool other = graph->config->other_norms;
    const struct decoder_norms *norms = other ? traits->other_norms : &traits->norms;
    const uint64_t hidden = graph->config->hidden_size;
    const bool parallel = graph->config->parallel_residual;
    if (graph->config->layer[layer].mixer == MIXER_NONE)
        return add_mlp(graph, traits, x, layer_norm(graph, traits, x, layer, norms->mlp_in, "mlp_in"), layer);
    const int in = layer_norm(graph, traits, x, layer, norms->attention_in, "attention_in");
    int mlp_in = in;
    if (parallel && (other || !traits->shares_norm))
        mlp_in = layer_norm(graph, traits, x, layer, norms->mlp_in, "mlp_in");
    const enum layer_mixer mixer = graph->config->layer[layer].mixer;
    int out = !mixer_attends(mixer)           ? recurrent_mixer(graph, traits, in, layer)
              : graph->config->latent.kv_rank ? latent_attention(graph, in, table, layer)
                                              : self_attention(graph, traits, in, table, layer);
    out = layer_norm(graph, traits, out, layer, norms->attention_out, "attention_out");
    x = add(graph, x, out, hidden, layer, "after_attention");
    if (mixer == MIXER_BOTH)
        x = add(graph, x, recurrent_mixer(graph, traits, in, layer), hidden, layer, "after_state_space");
    if (graph->config->layer[layer].no_mlp) return x;
    if (!parallel) mlp_in = layer_norm(graph, traits, x, layer, norms->mlp_in, "mlp_in");
    return add_mlp(graph, traits, x, mlp_in, layer);
}

/* Learned positions; -1: none. */
static int position_table(struct graph *graph, const struct decoder_modules *modules)
{
    const uint64_t first = modules->first_position;
    struct weight_source source = {.shape = {graph->config->max_position + first, graph->config->hidden_size},
                                   .rows = first};
    if (!modules->positions) return -1;
    if (first) {
        const int unread =
            graph_weight_from(graph, GRAPH_NO_LAYER, WEIGHT_TABLE, &source, "%s.weight", modules->positions);
        if (unread >= 0) snprintf(graph->weights[unread].name, GRAPH_NAME_BYTES, "%s.unread", modules->positions);
    }
    source.first_row = first;
    source.rows = 0;
    return graph_weight_from(graph, GRAPH_NO_LAYER, WEIGHT_TABLE, &source, "%s.weight", modules->positions);
}

/* Rows of the embedding, and of learned positions where the model has them. A tied embedding is stored once, in the LM head's
 * layout; embed can read both. */
static int embed(struct graph *graph, const struct decoder_traits *traits, int *embedding)
{
    const struct model_config *config = graph->config;
    const uint64_t hidden = config->hidden_size;
    *embedding = graph_matrix(graph, GRAPH_NO_LAYER, config->vocab_size, hidden,
                              config->tie_word_embeddings ? WEIGHT_MATRIX : WEIGHT_ROW_MAJOR, "%s.weight",
                              or_usual(traits->modules.embedding, "model.embed_tokens"));
    graph_shard(graph, *embedding, SHARD_VOCABULARY);
    const int positions = position_table(graph, &traits->modules);
    const int x = graph_value(graph, ROWS_TOKENS, hidden, "embedded");
    struct graph_node *node = graph_append(graph, OP_EMBED, GRAPH_NO_LAYER);
    node->operands[EMBED_TABLE] = *embedding;
    node->operands[EMBED_POSITION_TABLE] = positions;
    node->operands[EMBED_OUT] = x;
    node->params[EMBED_SCALE_BITS] = float_to_bits((float)config->embedding_scale);
    return x;
}

static void set_cap(struct graph_node *lm_head, double cap)
{
    if (cap == 0) return;
    lm_head->params[MATMUL_EPILOGUE] = EPILOGUE_PLAIN + ACTIVATION_SOFTCAP;
    lm_head->params[MATMUL_CAP_BITS] = float_to_bits((float)cap);
}

/* One more node of the final norm, which is node `norm`: passes fuse that one into the LM head or round its output. */
static void final_norm_again(struct graph *graph, int norm, int x, int out)
{
    struct graph_node *again = graph_append(graph, OP_RMS_NORM, GRAPH_NO_LAYER);
    if (graph->out_of_memory) return;
    *again = graph->nodes[norm];
    again->operands[RMS_NORM_X] = x;
    again->operands[RMS_NORM_OUT] = out;
}

/* The hidden states of rows that get logits. */
static void give_hidden(struct graph *graph, int norm, int x)
{
    const uint64_t width = graph->config->hidden_size;
    const int selected = graph_value(graph, ROWS_OUT, width, "hidden_in");
    const int hidden = graph_value(graph, ROWS_OUT, width, "hidden");
    struct graph_node *select = graph_append(graph, OP_SELECT_ROWS, GRAPH_NO_LAYER);
    select->operands[SELECT_ROWS_X] = x;
    select->operands[SELECT_ROWS_OUT] = selected;
    final_norm_again(graph, norm, selected, hidden);
    if (hidden >= 0) graph->values[hidden].place = VALUE_HIDDEN;
}

static struct projection head_of(struct graph *graph, const char *module)
{
    const struct model_config *config = graph->config;
    struct projection head = {.bias = -1};
    head.weight = graph_matrix(graph, GRAPH_NO_LAYER, config->vocab_size, config->hidden_size, WEIGHT_MATRIX,
                               "%s.weight", module);
    if (config->head_bias) head.bias = graph_vector(graph, GRAPH_NO_LAYER, config->vocab_size, "%s.bias", module);
    graph_shard(graph, head.weight, SHARD_VOCABULARY);
    graph_shard(graph, head.bias, SHARD_VOCABULARY);
    return head;
}

/* Logits of the rows of x that draw. `label`: begins the names of values. */
static int logits_of(struct graph *graph, int x, struct projection head, const char *label)
{
    const struct model_config *config = graph->config;
    const int selected = graph_value(graph, ROWS_OUT, config->hidden_size, "%sselected", label);
    struct graph_node *select = graph_append(graph, OP_SELECT_ROWS, GRAPH_NO_LAYER);
    select->operands[SELECT_ROWS_X] = x;
    select->operands[SELECT_ROWS_OUT] = selected;
    const int logits = graph_value(graph, ROWS_OUT, config->vocab_size, "%slogits", label);
    struct graph_node *lm_head = graph_append(graph, OP_MATMUL, GRAPH_NO_LAYER);
    lm_head->operands[MATMUL_X] = selected;
    lm_head->operands[MATMUL_W] = head.weight;
    lm_head->operands[MATMUL_BIAS] = head.bias;
    lm_head->operands[MATMUL_OUT] = logits;
    lm_head->params[MATMUL_SCALE_BITS] = float_to_bits((float)config->logits_scale);
    set_cap(lm_head, config->logits_cap);
    return logits;
}

/* ---- the layer that predicts the token after the next one (DeepSeek-V3, arXiv:2412.19437, section 2.2) ---- */

/* x times the columns of eh_proj from `first` on. */
static int project_half(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer, uint64_t first,
                        const char *label)
{
    const uint64_t hidden = graph->config->hidden_size;
    const struct weight_source source = {.shape = {hidden, 2 * hidden}, .first_column = first, .columns = hidden};
    const struct projection half = {.weight = graph_weight_from(graph, layer, WEIGHT_MATRIX, &source,
                                                                "%s.%u.eh_proj.weight", decoder_layers(traits), layer),
                                    .bias = -1};
    if (half.weight >= 0)
        snprintf(graph->weights[half.weight].name, GRAPH_NAME_BYTES, "model.layers.%u.eh_proj.%s.weight", layer, label);
    return node_matmul(graph, x, layer, half, ACTIVATION_NONE, 1.0, label);
}

/* For each row the embedding of the token after it and the output of the final norm, each normalised, go side by side through eh_proj and
 * a decoder layer with keys and values of its own; of rows that draw, the LM head's likeliest token is drafted. The token after the row is
 * one of the prompt, or the one that was just drawn. */
static void predict(struct graph *graph, const struct decoder_traits *traits, int norm, int last, int embedding,
                    struct projection head, const int *tables)
{
    const struct model_config *config = graph->config;
    const uint32_t layer = (uint32_t)config->layers - 1;
    const uint64_t hidden = config->hidden_size;
    const struct predictor_names *names = traits->predictor;
    const int first_weight = graph->weight_count;
    char name[GRAPH_NAME_BYTES];
    if (config->predictor_embedding) {
        embedding = graph_matrix(graph, GRAPH_NO_LAYER, config->vocab_size, hidden, WEIGHT_ROW_MAJOR,
                                 "%s.%u.embed_tokens.weight", decoder_layers(traits), layer);
        graph_shard(graph, embedding, SHARD_VOCABULARY);
    }
    const int following = graph_value(graph, ROWS_TOKENS, hidden, "following");
    const int final = graph_value(graph, ROWS_TOKENS, hidden, "final_of_all");
    struct graph_node *embed = graph_append(graph, OP_EMBED, layer);
    embed->operands[EMBED_TABLE] = embedding;
    embed->operands[EMBED_OUT] = following;
    embed->params[EMBED_SCALE_BITS] = float_to_bits((float)config->embedding_scale);
    embed->params[EMBED_FOLLOWS] = 1;
    final_norm_again(graph, norm, last, final);
    const int token = layer_norm(graph, traits, following, layer, "enorm", "following_normed");
    const int state = layer_norm(graph, traits, final, layer, "hnorm", "final_normed");
    const int of_token = project_half(graph, traits, token, layer, 0, "of_token");
    const int of_state = project_half(graph, traits, state, layer, hidden, "of_state");
    int x = add(graph, of_token, of_state, hidden, layer, "both_halves");
    x = decoder_layer(graph, traits, x, tables[config->layer[layer].rope], layer);
    if (names && !names->norm) {
        const int predicted = graph_value(graph, ROWS_TOKENS, hidden, "predicted");
        final_norm_again(graph, norm, x, predicted);
        x = predicted;
    } else {
        x = layer_norm(graph, traits, x, layer, "shared_head.norm", "predicted");
    }
    if (config->predictor_head) {
        snprintf(name, sizeof name, "%s.%u.shared_head.head", decoder_layers(traits), layer);
        head = head_of(graph, name);
    }
    const int logits = logits_of(graph, x, head, "predicted_");
    struct graph_node *draft = graph_append(graph, OP_DRAFT, layer);
    draft->operands[DRAFT_LOGITS] = logits;
    draft->params[DRAFT_FEEDBACK] = graph->target == TARGET_CUDA && graph->kind == PLAN_DECODE;
    if (names) predictor_rename(graph, first_weight, layer, names);
}

bool import_decoder(struct graph *graph, const struct decoder_traits *traits, struct status *status)
{
    const struct model_config *config = graph->config;
    int embedding, tables[LAYER_ROPE_KINDS];
    int x = embed(graph, traits, &embedding);
    if (!rope_tables(graph, traits, tables, status)) return false;
    if (traits->embedding_norm) x = norm(graph, traits, x, GRAPH_NO_LAYER, "model.embed_norm", "embedding_normed");
    const struct per_layer inputs = per_layer_begin(graph, x);
    for (uint32_t layer = 0; layer < config->layers - config->predicts; layer++) {
        x = decoder_layer(graph, traits, x, tables[config->layer[layer].rope], layer);
        x = per_layer_end(graph, traits, &inputs, x, layer, layer_norm);
    }
    const int last = x;
    x = norm(graph, traits, x, GRAPH_NO_LAYER, or_usual(traits->modules.final_norm, "model.norm"), "final");
    const int final_norm = graph->node_count - 1;
    if (graph->gives_hidden) give_hidden(graph, final_norm, last);
    const struct projection tied = {embedding, -1};
    const struct projection head =
        config->tie_word_embeddings ? tied : head_of(graph, or_usual(traits->modules.head, "lm_head"));
    const int logits = logits_of(graph, x, head, "");
    struct graph_node *sample = graph_append(graph, OP_SAMPLE, GRAPH_NO_LAYER);
    sample->operands[SAMPLE_LOGITS] = logits;
    /* On a GPU, decode steps can be queued before the tokens of the step before are known. The last op feeds them back. */
    sample->params[SAMPLE_FEEDBACK] = graph->target == TARGET_CUDA && graph->kind == PLAN_DECODE && !config->predicts;
    sample->params[SAMPLE_VERIFIES] = graph->kind == PLAN_VERIFY;
    if (config->predicts) predict(graph, traits, final_norm, last, embedding, head, tables);
    if (graph->out_of_memory) return status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
    graph->values[logits].place = VALUE_LOGITS;
    return true;
}
