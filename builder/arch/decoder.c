/* SPDX-License-Identifier: Apache-2.0 */
/* The shared body of the Llama-like decoders. Tensor names are those of Hugging Face checkpoints. */
#include <math.h>
#include <stdlib.h>

#include "builder/arch/arch.h"

/* `shard`: of the weight; the bias follows. */
static int linear(struct graph *graph, int x, uint32_t layer, uint64_t rows, uint64_t columns, bool bias,
                  enum shard shard, const char *label, const char *module)
{
    int weight = graph_matrix(graph, layer, rows, columns, WEIGHT_MATRIX, "model.layers.%u.%s.weight", layer, module);
    int bias_weight = bias ? graph_vector(graph, layer, rows, "model.layers.%u.%s.bias", layer, module) : -1;
    graph_shard(graph, weight, shard);
    graph_shard(graph, bias_weight, shard == SHARD_COLUMNS ? SHARD_FIRST_RANK : shard);
    int y = graph_value(graph, ROWS_TOKENS, rows, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_MATMUL, layer);
    if (!node) return -1;
    node->inputs[0] = x;
    node->weights[0] = weight;
    node->weights[1] = bias_weight;
    node->outputs[0] = y;
    return y;
}

static int rms_norm(struct graph *graph, int x, uint32_t layer, int weight, const char *label)
{
    const struct model_config *config = graph->config;
    int y = graph_value(graph, ROWS_TOKENS, config->hidden_size, layer == GRAPH_NO_LAYER ? "%s" : "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_RMS_NORM, layer);
    if (!node) return -1;
    node->inputs[0] = x;
    node->weights[0] = weight;
    node->eps = (float)config->rms_norm_eps;
    node->outputs[0] = y;
    return y;
}

static int binary(struct graph *graph, enum plan_op op, int a, int b, uint64_t width, uint32_t layer, const char *label)
{
    int y = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, op, layer);
    if (!node) return -1;
    node->inputs[0] = a;
    node->inputs[1] = b;
    node->outputs[0] = y;
    return y;
}

static int self_attention(struct graph *graph, const struct decoder_traits *traits, int x, int table, uint32_t layer)
{
    const struct model_config *config = graph->config;
    uint64_t hidden = config->hidden_size, head_dim = config->head_dim;
    uint64_t q_width = config->heads * head_dim, kv_width = config->kv_heads * head_dim;
    int q = linear(graph, x, layer, q_width, hidden, traits->qkv_bias, SHARD_ROWS, "q", "self_attn.q_proj");
    int k = linear(graph, x, layer, kv_width, hidden, traits->qkv_bias, SHARD_KV_ROWS, "k", "self_attn.k_proj");
    int v = linear(graph, x, layer, kv_width, hidden, traits->qkv_bias, SHARD_KV_ROWS, "v", "self_attn.v_proj");
    int norm_q = -1, norm_k = -1;
    if (traits->qk_norm) {
        norm_q = graph_vector(graph, layer, head_dim, "model.layers.%u.self_attn.q_norm.weight", layer);
        norm_k = graph_vector(graph, layer, head_dim, "model.layers.%u.self_attn.k_norm.weight", layer);
    }
    int rotated = graph_value(graph, ROWS_TOKENS, q_width, "rotated%u", layer);
    struct graph_node *rope = graph_append(graph, OP_ROPE_APPEND, layer);
    if (rope) {
        rope->inputs[0] = q;
        rope->inputs[1] = k;
        rope->inputs[2] = v;
        rope->inputs[3] = table;
        rope->weights[0] = norm_q;
        rope->weights[1] = norm_k;
        rope->eps = (float)config->rms_norm_eps;
        rope->outputs[0] = rotated;
    }
    int mixed = graph_value(graph, ROWS_TOKENS, q_width, "attention%u", layer);
    struct graph_node *attention = graph_append(graph, OP_ATTENTION, layer);
    if (attention) {
        attention->inputs[0] = rotated;
        attention->outputs[0] = mixed;
        attention->scale = (float)(1.0 / sqrt((double)head_dim));
        attention->window = config->layer_slides[layer] ? config->sliding_window : 0;
    }
    return linear(graph, mixed, layer, hidden, q_width, traits->output_bias, SHARD_COLUMNS, "o", "self_attn.o_proj");
}

static int gated_mlp(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    uint64_t hidden = config->hidden_size, inner = config->intermediate_size;
    int gate = linear(graph, x, layer, inner, hidden, traits->mlp_bias, SHARD_ROWS, "gate", "mlp.gate_proj");
    int up = linear(graph, x, layer, inner, hidden, traits->mlp_bias, SHARD_ROWS, "up", "mlp.up_proj");
    int activated = binary(graph, OP_SWIGLU, gate, up, inner, layer, "activated");
    return linear(graph, activated, layer, hidden, inner, traits->mlp_bias, SHARD_COLUMNS, "down", "mlp.down_proj");
}

/* Cosine and sine table of the step; its inverse frequencies become a constant of the engine. */
static int rope_table(struct graph *graph, struct status *status)
{
    const struct model_config *config = graph->config;
    float scaling = 1.0f;
    float *inv_freq = malloc(config->head_dim / 2 * sizeof *inv_freq);
    if (!inv_freq) {
        graph->out_of_memory = true;
        return -1;
    }
    int table = -1;
    if (rope_frequencies(config, inv_freq, &scaling, status)) {
        int weight = graph_constant(graph, inv_freq, config->head_dim / 2, "rope.inv_freq");
        table = graph_value(graph, ROWS_TOKENS, config->head_dim, "rope");
        struct graph_node *node = graph_append(graph, OP_ROPE_TABLE, GRAPH_NO_LAYER);
        if (node) {
            node->weights[0] = weight;
            node->outputs[0] = table;
            node->scale = scaling;
        }
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
    struct graph_node *embed = graph_append(graph, OP_EMBED, GRAPH_NO_LAYER);
    if (embed) {
        embed->weights[0] = embedding;
        embed->outputs[0] = x;
    }
    int table = rope_table(graph, status);
    if (table < 0 && !graph->out_of_memory) return false;

    for (uint32_t layer = 0; layer < config->layers; layer++) {
        int weight = graph_vector(graph, layer, hidden, "model.layers.%u.input_layernorm.weight", layer);
        int normed = rms_norm(graph, x, layer, weight, "attention_in");
        int mixed = self_attention(graph, traits, normed, table, layer);
        x = binary(graph, OP_ADD, x, mixed, hidden, layer, "after_attention");
        weight = graph_vector(graph, layer, hidden, "model.layers.%u.post_attention_layernorm.weight", layer);
        normed = rms_norm(graph, x, layer, weight, "mlp_in");
        int inner = gated_mlp(graph, traits, normed, layer);
        x = binary(graph, OP_ADD, x, inner, hidden, layer, "after_mlp");
    }

    int weight = graph_vector(graph, GRAPH_NO_LAYER, hidden, "model.norm.weight");
    x = rms_norm(graph, x, GRAPH_NO_LAYER, weight, "final");
    int head = config->tie_word_embeddings
                   ? embedding
                   : graph_matrix(graph, GRAPH_NO_LAYER, vocab, hidden, WEIGHT_MATRIX, "lm_head.weight");
    graph_shard(graph, head, SHARD_VOCABULARY);
    int selected = graph_value(graph, ROWS_OUT, hidden, "selected");
    struct graph_node *select = graph_append(graph, OP_SELECT_ROWS, GRAPH_NO_LAYER);
    if (select) {
        select->inputs[0] = x;
        select->outputs[0] = selected;
    }
    int logits = graph_value(graph, ROWS_OUT, vocab, "logits");
    struct graph_node *lm_head = graph_append(graph, OP_MATMUL, GRAPH_NO_LAYER);
    if (lm_head) {
        lm_head->inputs[0] = selected;
        lm_head->weights[0] = head;
        lm_head->outputs[0] = logits;
    }
    int next = graph_value(graph, ROWS_OUT, 1, "next_tokens");
    struct graph_node *sample = graph_append(graph, OP_SAMPLE, GRAPH_NO_LAYER);
    if (sample) {
        sample->inputs[0] = logits;
        sample->outputs[0] = next;
    }
    if (graph->out_of_memory) return status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
    graph->values[logits].place = VALUE_LOGITS;
    graph->values[next].place = VALUE_NEXT_TOKENS;
    return true;
}
