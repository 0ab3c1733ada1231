/* SPDX-License-Identifier: Apache-2.0 */
/* The shared body of the Llama-like decoders. Tensor names are those of Hugging Face checkpoints. */
#include <math.h>
#include <stdlib.h>

#include "builder/arch/arch.h"
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

/* `shard`: of the weight; the bias follows. */
static struct projection projection(struct graph *graph, uint32_t layer, uint64_t rows, uint64_t columns, bool bias,
                                    enum shard shard, const char *module)
{
    struct projection made = {.bias = -1};
    made.weight = graph_matrix(graph, layer, rows, columns, WEIGHT_MATRIX, "model.layers.%u.%s.weight", layer, module);
    if (bias) made.bias = graph_vector(graph, layer, rows, "model.layers.%u.%s.bias", layer, module);
    graph_shard(graph, made.weight, shard);
    graph_shard(graph, made.bias, shard == SHARD_COLUMNS ? SHARD_FIRST_RANK : shard);
    return made;
}

/* Rows of `from` come after those of `to`, or with a group in turn with them. One matmul then reads its input once. */
static void join(struct graph *graph, struct projection to, struct projection from, uint64_t group, const char *module)
{
    const int into[] = {to.weight, to.bias}, taken[] = {from.weight, from.bias};
    for (int i = 0; i < 2; i++) {
        if (into[i] < 0 || taken[i] < 0) continue;
        struct graph_weight *weight = &graph->weights[into[i]];
        if (!graph_weight_interleave(graph, into[i], taken[i], group)) return;
        snprintf(weight->name, sizeof weight->name, "model.layers.%u.%s.%s", weight->layer, module,
                 i == 0 ? "weight" : "bias");
    }
}

static int matmul(struct graph *graph, int x, uint32_t layer, struct projection by, enum matmul_epilogue epilogue,
                  const char *label)
{
    if (graph->out_of_memory) return -1;
    const uint64_t rows = graph->weights[by.weight].rows;
    const uint64_t width = epilogue == MATMUL_EPILOGUE_SWIGLU ? rows / 2 : rows;
    int y = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_MATMUL, layer);
    if (!node) return -1;
    graph->weights[by.weight].depth = graph->values[x].width; /* which may be padded */
    node->operands[MATMUL_X] = x;
    node->operands[MATMUL_W] = by.weight;
    node->operands[MATMUL_BIAS] = by.bias;
    node->operands[MATMUL_OUT] = y;
    node->params[MATMUL_EPILOGUE] = epilogue;
    return y;
}

static int rms_norm(struct graph *graph, int x, uint32_t layer, int weight, const char *label)
{
    const struct model_config *config = graph->config;
    int y = graph_value(graph, ROWS_TOKENS, config->hidden_size, layer == GRAPH_NO_LAYER ? "%s" : "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_RMS_NORM, layer);
    if (!node) return -1;
    node->operands[RMS_NORM_X] = x;
    node->operands[RMS_NORM_WEIGHT] = weight;
    node->operands[RMS_NORM_OUT] = y;
    node->params[RMS_NORM_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    return y;
}

static int add(struct graph *graph, int a, int b, uint64_t width, uint32_t layer, const char *label)
{
    int y = graph_value(graph, ROWS_TOKENS, width, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_ADD, layer);
    if (!node) return -1;
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
    const bool bias = traits->qkv_bias;
    const struct projection q = projection(graph, layer, q_width, hidden, bias, SHARD_ROWS, "self_attn.q_proj");
    const struct projection k = projection(graph, layer, kv_width, hidden, bias, SHARD_KV_ROWS, "self_attn.k_proj");
    const struct projection v = projection(graph, layer, kv_width, hidden, bias, SHARD_KV_ROWS, "self_attn.v_proj");
    join(graph, q, k, 0, "self_attn.qkv_proj");
    join(graph, q, v, 0, "self_attn.qkv_proj");
    int qkv = matmul(graph, x, layer, q, MATMUL_EPILOGUE_NONE, "qkv");
    int norm_q = -1, norm_k = -1;
    if (traits->qk_norm) {
        norm_q = graph_vector(graph, layer, head_dim, "model.layers.%u.self_attn.q_norm.weight", layer);
        norm_k = graph_vector(graph, layer, head_dim, "model.layers.%u.self_attn.k_norm.weight", layer);
    }
    int rotated = graph_value(graph, ROWS_TOKENS, q_width, "rotated%u", layer);
    struct graph_node *rope = graph_append(graph, OP_ROPE_APPEND, layer);
    if (rope) {
        rope->operands[ROPE_APPEND_QKV] = qkv;
        rope->operands[ROPE_APPEND_TABLE] = table;
        rope->operands[ROPE_APPEND_NORM_Q] = norm_q;
        rope->operands[ROPE_APPEND_NORM_K] = norm_k;
        rope->operands[ROPE_APPEND_Q] = rotated;
        set_heads(config, rope->params);
        if (traits->qk_norm) rope->params[ROPE_APPEND_EPS_BITS] = float_to_bits((float)config->rms_norm_eps);
    }
    int mixed = graph_value(graph, ROWS_TOKENS, q_width, "attention%u", layer);
    struct graph_node *attention = graph_append(graph, OP_ATTENTION, layer);
    if (attention) {
        attention->operands[ATTENTION_Q] = rotated;
        attention->operands[ATTENTION_OUT] = mixed;
        set_heads(config, attention->params);
        attention->params[ATTENTION_SCALE_BITS] = float_to_bits((float)(1.0 / sqrt((double)head_dim)));
        attention->params[ATTENTION_WINDOW] = config->layer_slides[layer] ? (int64_t)config->sliding_window : 0;
    }
    const struct projection o =
        projection(graph, layer, hidden, q_width, traits->output_bias, SHARD_COLUMNS, "self_attn.o_proj");
    return matmul(graph, mixed, layer, o, MATMUL_EPILOGUE_NONE, "o");
}

static int gated_mlp(struct graph *graph, const struct decoder_traits *traits, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    uint64_t hidden = config->hidden_size, inner = config->intermediate_size;
    const bool bias = traits->mlp_bias;
    const struct projection gate = projection(graph, layer, inner, hidden, bias, SHARD_ROWS, "mlp.gate_proj");
    const struct projection up = projection(graph, layer, inner, hidden, bias, SHARD_ROWS, "mlp.up_proj");
    join(graph, gate, up, graph_interleave(graph), "mlp.gate_up_proj");
    int activated = matmul(graph, x, layer, gate, MATMUL_EPILOGUE_SWIGLU, "activated");
    const struct projection down = projection(graph, layer, hidden, inner, bias, SHARD_COLUMNS, "mlp.down_proj");
    return matmul(graph, activated, layer, down, MATMUL_EPILOGUE_NONE, "down");
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
            node->operands[ROPE_TABLE_INV_FREQ] = weight;
            node->operands[ROPE_TABLE_OUT] = table;
            node->params[ROPE_TABLE_SCALING_BITS] = float_to_bits(scaling);
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
        embed->operands[EMBED_TABLE] = embedding;
        embed->operands[EMBED_OUT] = x;
    }
    int table = rope_table(graph, status);
    if (table < 0 && !graph->out_of_memory) return false;

    for (uint32_t layer = 0; layer < config->layers; layer++) {
        int weight = graph_vector(graph, layer, hidden, "model.layers.%u.input_layernorm.weight", layer);
        int normed = rms_norm(graph, x, layer, weight, "attention_in");
        int mixed = self_attention(graph, traits, normed, table, layer);
        x = add(graph, x, mixed, hidden, layer, "after_attention");
        weight = graph_vector(graph, layer, hidden, "model.layers.%u.post_attention_layernorm.weight", layer);
        normed = rms_norm(graph, x, layer, weight, "mlp_in");
        int inner = gated_mlp(graph, traits, normed, layer);
        x = add(graph, x, inner, hidden, layer, "after_mlp");
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
        select->operands[SELECT_ROWS_X] = x;
        select->operands[SELECT_ROWS_OUT] = selected;
    }
    int logits = graph_value(graph, ROWS_OUT, vocab, "logits");
    struct graph_node *lm_head = graph_append(graph, OP_MATMUL, GRAPH_NO_LAYER);
    if (lm_head) {
        lm_head->operands[MATMUL_X] = selected;
        lm_head->operands[MATMUL_W] = head;
        lm_head->operands[MATMUL_OUT] = logits;
    }
    struct graph_node *sample = graph_append(graph, OP_SAMPLE, GRAPH_NO_LAYER);
    if (sample) {
        sample->operands[SAMPLE_LOGITS] = logits;
        /* On a GPU, decode steps can be queued before the tokens of the step before are known. */
        sample->params[SAMPLE_FEEDBACK] = graph->target == TARGET_CUDA && graph->kind == PLAN_DECODE;
    }
    if (graph->out_of_memory) return status_fail(status, STATUS_MACHINE, "out of memory while importing the model");
    graph->values[logits].place = VALUE_LOGITS;
    return true;
}
