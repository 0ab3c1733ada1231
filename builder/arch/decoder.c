/* SPDX-License-Identifier: Apache-2.0 */
/* The shared body of the Llama-like decoders. Tensor names are those of Hugging Face checkpoints. */
#include <stdlib.h>

#include "builder/arch/family.h"
#include "kernels/add/add.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_table/rope_table.h"
#include "kernels/sample/sample.h"
#include "kernels/select_rows/select_rows.h"

/* A matrix and its bias, -1 if it has none. */
struct projection {
    int weight, bias;
};

/* Rows of a tensor that hold a projection: all, or some where the checkpoint has several projections in one tensor. */
struct part {
    const char *module;
    uint64_t rows;
    enum shard shard;             /* of the weight; the bias follows */
    uint64_t first_row, all_rows; /* all_rows 0: the tensor has no other rows */
    uint64_t pairs;               /* rows of a head whose halves are interleaved in the checkpoint; 0: they are not */
};

static struct projection projection(struct graph *graph, uint32_t layer, const struct part *part, uint64_t columns,
                                    bool bias)
{
    const uint64_t all_rows = part->all_rows ? part->all_rows : part->rows;
    const struct weight_source matrix = {.shape = {all_rows, columns},
                                         .first_row = part->first_row,
                                         .rows = part->rows,
                                         .group = part->pairs,
                                         .stride = part->pairs ? 2 : 0};
    const struct weight_source vector = {.shape = {all_rows},
                                         .first_row = part->first_row,
                                         .rows = part->rows,
                                         .group = part->pairs,
                                         .stride = part->pairs ? 2 : 0};
    struct projection made = {.bias = -1};
    made.weight =
        graph_weight_from(graph, layer, WEIGHT_MATRIX, &matrix, "model.layers.%u.%s.weight", layer, part->module);
    if (bias)
        made.bias =
            graph_weight_from(graph, layer, WEIGHT_ROW_MAJOR, &vector, "model.layers.%u.%s.bias", layer, part->module);
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
 * checkpoint, one part after the other; NULL: each part has a module of its own. `name`: the module's in the engine. */
static struct projection joined(struct graph *graph, uint32_t layer, struct part *parts, int count, const char *fused,
                                uint64_t columns, bool bias, uint64_t group, const char *name)
{
    uint64_t all_rows = 0;
    struct projection all = {-1, -1};
    for (int i = 0; i < count && fused; i++) {
        parts[i].module = fused;
        parts[i].first_row = all_rows;
        all_rows += parts[i].rows;
    }
    for (int i = 0; i < count; i++) {
        parts[i].all_rows = all_rows;
        const struct projection made = projection(graph, layer, &parts[i], columns, bias);
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

static int matmul(struct graph *graph, int x, uint32_t layer, struct projection by, enum activation epilogue,
                  double scale, const char *label)
{
    if (graph->out_of_memory) return -1;
    const uint64_t rows = graph->weights[by.weight].rows;
    const uint64_t width = epilogue != ACTIVATION_NONE ? rows / 2 : rows;
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

static int rms_norm(struct graph *graph, int x, uint32_t layer, int weight, const char *label)
{
    const struct model_config *config = graph->config;
    int y = graph_value(graph, ROWS_TOKENS, config->hidden_size, layer == GRAPH_NO_LAYER ? "%s" : "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_RMS_NORM, layer);
    node->operands[RMS_NORM_X] = x;
    node->operands[RMS_NORM_WEIGHT] = weight;
    node->operands[RMS_NORM_OUT] = y;
    node->params[RMS_NORM_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    return y;
}

/* The norm of a layer that is called `module`; without a name x itself. */
static int layer_norm(struct graph *graph, int x, uint32_t layer, const char *module, const char *label)
{
    if (!module) return x;
    int weight = graph_vector(graph, layer, graph->config->hidden_size, "model.layers.%u.%s.weight", layer, module);
    return rms_norm(graph, x, layer, weight, label);
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

static void set_heads(const struct model_config *config, int64_t *params)
{
    params[PAGED_HEADS] = (int64_t)config->heads;
    params[PAGED_KV_HEADS] = (int64_t)config->kv_heads;
    params[PAGED_HEAD_DIM] = (int64_t)config->head_dim;
}

static int self_attention(struct graph *graph, const struct decoder_traits *traits, int x, int table, uint32_t layer)
{
    const struct model_config *config = graph->config;
    uint64_t hidden = config->hidden_size, head_dim = config->head_dim;
    uint64_t q_width = config->heads * head_dim, kv_width = config->kv_heads * head_dim;
    struct part parts[] = {
        {"self_attn.q_proj", q_width, SHARD_ROWS, 0, 0, config->rotary_pairs ? head_dim : 0},
        {"self_attn.k_proj", kv_width, SHARD_KV_ROWS, 0, 0, config->rotary_pairs ? head_dim : 0},
        {"self_attn.v_proj", kv_width, SHARD_KV_ROWS, 0, 0, 0},
    };
    const struct projection q =
        joined(graph, layer, parts, 3, traits->fused_qkv, hidden, config->qkv_bias, 0, "self_attn.qkv_proj");
    int qkv = matmul(graph, x, layer, q, ACTIVATION_NONE, 1.0, "qkv");
    int norm_q = -1, norm_k = -1;
    if (traits->qk_norm) {
        const bool over_width = traits->qk_norm == QK_NORM_WIDTH;
        norm_q = graph_vector(graph, layer, over_width ? q_width : head_dim, "model.layers.%u.self_attn.q_norm.weight",
                              layer);
        norm_k = graph_vector(graph, layer, over_width ? kv_width : head_dim, "model.layers.%u.self_attn.k_norm.weight",
                              layer);
    }
    int rotated = graph_value(graph, ROWS_TOKENS, q_width, "rotated%u", layer);
    struct graph_node *rope = graph_append(graph, OP_ROPE_APPEND, layer);
    rope->operands[ROPE_APPEND_QKV] = qkv;
    rope->operands[ROPE_APPEND_TABLE] = table;
    rope->operands[ROPE_APPEND_NORM_Q] = norm_q;
    rope->operands[ROPE_APPEND_NORM_K] = norm_k;
    rope->operands[ROPE_APPEND_Q] = rotated;
    set_heads(config, rope->params);
    if (config->rope.rotary_dim != head_dim) rope->params[ROPE_APPEND_ROTARY_DIM] = (int64_t)config->rope.rotary_dim;
    if (traits->qk_norm) rope->params[ROPE_APPEND_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    if (traits->qk_norm == QK_NORM_WIDTH) rope->params[ROPE_APPEND_NORM_SCOPE] = ROPE_APPEND_NORM_WIDTH;
    int mixed = graph_value(graph, ROWS_TOKENS, q_width, "attention%u", layer);
    struct graph_node *attention = graph_append(graph, OP_ATTENTION, layer);
    attention->operands[ATTENTION_Q] = rotated;
    attention->operands[ATTENTION_OUT] = mixed;
    set_heads(config, attention->params);
    attention->params[ATTENTION_SCALE_BITS] = float_to_bits((float)config->attention_scale);
    attention->params[ATTENTION_SCATTERED] = graph->target == TARGET_CUDA && graph->kind == PLAN_DECODE;
    attention->params[ATTENTION_WINDOW] = (int64_t)config->layer[layer].window;
    const struct part output = {"self_attn.o_proj", hidden, SHARD_COLUMNS, 0, 0, 0};
    const struct projection o = projection(graph, layer, &output, q_width, config->output_bias);
    return matmul(graph, mixed, layer, o, ACTIVATION_NONE, config->residual_scale, "o");
}

static int gated_mlp(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer,
                     const char *module, uint64_t inner)
{
    const struct model_config *config = graph->config;
    uint64_t hidden = config->hidden_size;
    char gate_module[GRAPH_NAME_BYTES], up_module[GRAPH_NAME_BYTES], down_module[GRAPH_NAME_BYTES],
        joined_module[GRAPH_NAME_BYTES];
    snprintf(gate_module, sizeof gate_module, "%s.gate_proj", module);
    snprintf(up_module, sizeof up_module, "%s.up_proj", module);
    snprintf(down_module, sizeof down_module, "%s.down_proj", module);
    snprintf(joined_module, sizeof joined_module, "%s.gate_up_proj", module);
    struct part parts[] = {{gate_module, inner, SHARD_ROWS, 0, 0, 0}, {up_module, inner, SHARD_ROWS, 0, 0, 0}};
    const struct projection gate = joined(graph, layer, parts, 2, traits->fused_gate_up, hidden, config->mlp_bias,
                                          graph_interleave(graph), joined_module);
    int activated = matmul(graph, x, layer, gate, (enum activation)config->activation, 1.0, "activated");
    const struct part output = {down_module, hidden, SHARD_COLUMNS, 0, 0, 0};
    const struct projection down = projection(graph, layer, &output, inner, config->mlp_bias);
    return matmul(graph, activated, layer, down, ACTIVATION_NONE, config->residual_scale, "down");
}

static int mlp(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const struct expert_names *names = traits->experts;
    const uint64_t shared_size = config->experts.shared_size;
    if (!config->layer[layer].experts) return gated_mlp(graph, traits, x, layer, "mlp", config->intermediate_size);
    const int out = experts_mlp(graph, names, x, layer);
    if (!shared_size) return out;
    const int shared = names->shared_gate ? experts_shared(graph, names, x, layer)
                                          : gated_mlp(graph, traits, x, layer, names->shared, shared_size);
    return add(graph, out, shared, config->hidden_size, layer, "experts_and_shared");
}

/* Cosine and sine table of the step; its inverse frequencies become a constant of the engine. */
static int rope_table(struct graph *graph, struct status *status)
{
    const struct model_config *config = graph->config;
    float scaling = 1.0f;
    const uint64_t rotary_dim = config->rope.rotary_dim;
    const uint64_t sets = rope_sets(config);
    float *inv_freq = malloc(sets * (rotary_dim / 2) * sizeof *inv_freq);
    if (!inv_freq) {
        graph->out_of_memory = true;
        return -1;
    }
    int table = -1;
    if (rope_frequencies(config, inv_freq, &scaling, status)) {
        int weight = graph_constant(graph, inv_freq, sets * (rotary_dim / 2), "rope.inv_freq");
        table = graph_value(graph, ROWS_TOKENS, rotary_dim, "rope");
        struct graph_node *node = graph_append(graph, OP_ROPE_TABLE, GRAPH_NO_LAYER);
        node->operands[ROPE_TABLE_INV_FREQ] = weight;
        node->operands[ROPE_TABLE_OUT] = table;
        node->params[ROPE_TABLE_SCALING_BITS] = float_to_bits(scaling);
        node->params[ROPE_TABLE_SWITCHES] = sets > 1;
    }
    free(inv_freq);
    return table;
}

bool import_decoder(struct graph *graph, const struct decoder_traits *traits, struct status *status)
{
    const struct model_config *config = graph->config;
    uint64_t hidden = config->hidden_size, vocab = config->vocab_size;

    /* A tied embedding is stored once, in the LM head's layout; embed can read both. */
    int embedding =
        graph_matrix(graph, GRAPH_NO_LAYER, vocab, hidden,
                     config->tie_word_embeddings ? WEIGHT_MATRIX : WEIGHT_ROW_MAJOR, "model.embed_tokens.weight");
    graph_shard(graph, embedding, SHARD_VOCABULARY);
    int x = graph_value(graph, ROWS_TOKENS, hidden, "embedded");
    if (traits->experts && graph->target != TARGET_CPU)
        return status_fail(status, STATUS_BAD_INPUT,
                           "model_type '%s': the cuda target has no kernels for experts yet; use --target cpu",
                           config->model_type);
    struct graph_node *embed = graph_append(graph, OP_EMBED, GRAPH_NO_LAYER);
    embed->operands[EMBED_TABLE] = embedding;
    embed->operands[EMBED_OUT] = x;
    embed->params[EMBED_SCALE_BITS] = float_to_bits((float)config->embedding_scale);
    int table = rope_table(graph, status);
    if (table < 0 && !graph->out_of_memory) return false;

    for (uint32_t layer = 0; layer < config->layers; layer++) {
        const struct decoder_norms *norms = &traits->norms;
        int in = layer_norm(graph, x, layer, norms->attention_in, "attention_in");
        int out = self_attention(graph, traits, in, table, layer);
        out = layer_norm(graph, out, layer, norms->attention_out, "attention_out");
        x = add(graph, x, out, hidden, layer, "after_attention");
        in = layer_norm(graph, x, layer, norms->mlp_in, "mlp_in");
        out = mlp(graph, traits, in, layer);
        out = layer_norm(graph, out, layer, norms->mlp_out, "mlp_out");
        x = add(graph, x, out, hidden, layer, "after_mlp");
    }

    int weight = graph_vector(graph, GRAPH_NO_LAYER, hidden, "model.norm.weight");
    x = rms_norm(graph, x, GRAPH_NO_LAYER, weight, "final");
    int head = config->tie_word_embeddings
                   ? embedding
                   : graph_matrix(graph, GRAPH_NO_LAYER, vocab, hidden, WEIGHT_MATRIX, "lm_head.weight");
    graph_shard(graph, head, SHARD_VOCABULARY);
    int selected = graph_value(graph, ROWS_OUT, hidden, "selected");
    struct graph_node *select = graph_append(graph, OP_SELECT_ROWS, GRAPH_NO_LAYER);
    select->operands[SELECT_ROWS_X] = x;
    select->operands[SELECT_ROWS_OUT] = selected;
    int logits = graph_value(graph, ROWS_OUT, vocab, "logits");
    struct graph_node *lm_head = graph_append(graph, OP_MATMUL, GRAPH_NO_LAYER);
    lm_head->operands[MATMUL_X] = selected;
    lm_head->operands[MATMUL_W] = head;
    lm_head->operands[MATMUL_OUT] = logits;
    lm_head->params[MATMUL_SCALE_BITS] = float_to_bits((float)config->logits_scale);
    struct graph_node *sample = graph_append(graph, OP_SAMPLE, GRAPH_NO_LAYER);
    sample->operands[SAMPLE_LOGITS] = logits;
    /* On a GPU, decode steps can be queued before the tokens of the step before are known. */
    sample->params[SAMPLE_FEEDBACK] = graph->target == TARGET_CUDA && graph->kind == PLAN_DECODE;
    if (graph->out_of_memory) return status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
    graph->values[logits].place = VALUE_LOGITS;
    return true;
}
