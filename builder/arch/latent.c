/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention with the products of the latent row absorbed: instead of making keys and values of all tokens from the cached
 * latent rows, each head's q is multiplied by its matrix from latent rows to keys, transposed, attention runs over the latent rows
 * themselves, and each head's result is multiplied by its matrix from latent rows to values. */
#include "builder/arch/family.h"
#include "kernels/attention/attention.h"
#include "kernels/latent_append/latent_append.h"
#include "kernels/matmul/matmul.h"

/* The classes give these norms no other one, whatever rms_norm_eps is. */
static const double latent_norm_eps = 1e-6;

#define MODULE "model.layers.%u.self_attn."

static void name_weight(struct graph *graph, int weight, uint32_t layer, const char *name)
{
    if (weight >= 0) snprintf(graph->weights[weight].name, GRAPH_NAME_BYTES, MODULE "%s", layer, name);
}

/* Rows of rotary pairs become the halves that the kernels rotate. */
static void deal_pairs(const struct graph *graph, struct weight_source *source)
{
    if (!graph->config->rotary_pairs) return;
    source->group = source->dealt = graph->config->latent.rope_dim;
    source->stride = 2;
}

static struct projection whole(struct graph *graph, uint32_t layer, const char *module, uint64_t rows, uint64_t columns,
                               bool bias)
{
    struct projection made = {.bias = -1};
    made.weight = graph_matrix(graph, layer, rows, columns, WEIGHT_MATRIX, MODULE "%s.weight", layer, module);
    if (bias) made.bias = graph_vector(graph, layer, rows, MODULE "%s.bias", layer, module);
    return made;
}

/* `run` rows of each head's, from row `first` of the head on, of a projection of q. */
static struct weight_source part_of_q(const struct graph *graph, uint64_t columns, uint64_t first, uint64_t run)
{
    const struct model_config *config = graph->config;
    const uint64_t period = config->latent.nope_dim + config->latent.rope_dim;
    struct weight_source source = {.shape = {config->heads * period, columns},
                                   .first_row = first,
                                   .rows = config->heads * run,
                                   .run = run,
                                   .period = period};
    if (first) deal_pairs(graph, &source);
    return source;
}

/* The latent row and the shared key that rotates, as a weight, or as further rows of `weight`, a matrix. */
static int latent_row(struct graph *graph, uint32_t layer, int weight, bool bias)
{
    static const char module[] = "kv_a_proj_with_mqa";
    const struct model_config *config = graph->config;
    const struct model_latent *latent = &config->latent;
    const uint64_t rows = latent->kv_rank + latent->rope_dim;
    struct weight_source row = {.shape = {rows, bias ? 0 : config->hidden_size}, .rows = latent->kv_rank};
    const char *kind = bias ? "bias" : "weight";
    if (weight < 0) {
        weight = graph_weight_from(graph, layer, bias ? WEIGHT_ROW_MAJOR : WEIGHT_MATRIX, &row, MODULE "%s.%s", layer,
                                   module, kind);
        name_weight(graph, weight, layer, bias ? "kv_a_proj_with_mqa.bias" : "kv_a_proj_with_mqa.weight");
    } else {
        graph_weight_append(graph, weight, &row, MODULE "%s.%s", layer, module, kind);
    }
    row.first_row = latent->kv_rank;
    row.rows = latent->rope_dim;
    deal_pairs(graph, &row);
    graph_weight_append(graph, weight, &row, MODULE "%s.%s", layer, module, kind);
    return weight;
}

/* Products of the layer's input, or of the row that q is a product of. Each value has columns of its own, or those that `q_first`
 * says and the last ones of a value that it shares. */
struct projections {
    int q_nope, q_rope, kv_row; /* values */
    uint64_t q_first;           /* the column of q_rope */
};

/* Rows of values that several products share begin at multiples of 16 bytes on every rank. */
static bool can_share_rows(const struct graph *graph)
{
    enum { ALIGNED_ELEMENTS = 8 };
    const struct model_config *config = graph->config;
    const struct model_latent *latent = &config->latent;
    return config->heads / graph->ranks * (latent->nope_dim + latent->rope_dim) % ALIGNED_ELEMENTS == 0 &&
           config->head_dim % ALIGNED_ELEMENTS == 0;
}

/* The elements of all heads of q that do not rotate, then those that do, then with `joined` the latent row. */
static int shared_rows(struct graph *graph, int q_in, uint32_t layer, const char *module, uint64_t columns, bool joined)
{
    const struct model_latent *latent = &graph->config->latent;
    const struct weight_source nope = part_of_q(graph, columns, 0, latent->nope_dim),
                               rope = part_of_q(graph, columns, latent->nope_dim, latent->rope_dim);
    const char *name = joined ? "q_kv_proj.weight" : latent->q_rank ? "q_b_proj.weight" : "q_proj.weight";
    const int weight = graph_weight_from(graph, layer, WEIGHT_MATRIX, &nope, MODULE "%s.weight", layer, module);
    graph_weight_append(graph, weight, &rope, MODULE "%s.weight", layer, module);
    graph_shard(graph, weight, SHARD_ROWS);
    name_weight(graph, weight, layer, name);
    if (joined) {
        enum { OF_Q = 2 };
        latent_row(graph, layer, weight, false);
        graph_mark_join(graph, weight, GRAPH_JOIN_LATENT, OF_Q);
    }
    return node_matmul(graph, q_in, layer, (struct projection){weight, -1}, ACTIVATION_NONE, 1.0,
                       joined ? "q_kv" : "q_parts");
}

/* A projection of q by a matmul of its own. */
static int part_alone(struct graph *graph, int q_in, uint32_t layer, const char *module,
                      const struct weight_source *source, const char *name, const char *label)
{
    const int weight = graph_weight_from(graph, layer, WEIGHT_MATRIX, source, MODULE "%s.weight", layer, module);
    graph_shard(graph, weight, SHARD_ROWS);
    name_weight(graph, weight, layer, name);
    return node_matmul(graph, q_in, layer, (struct projection){weight, -1}, ACTIVATION_NONE, 1.0, label);
}

static struct projections project(struct graph *graph, int x, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const struct model_latent *latent = &config->latent;
    const char *module = latent->q_rank ? "q_b_proj" : "q_proj";
    const uint64_t columns = latent->q_rank ? latent->q_rank : config->hidden_size;
    struct projections made = {.q_first = 0};
    int q_in = x;
    if (latent->q_rank) {
        const struct projection q_a =
            whole(graph, layer, "q_a_proj", latent->q_rank, config->hidden_size, config->qkv_bias);
        q_in = node_matmul(graph, x, layer, q_a, ACTIVATION_NONE, 1.0, "q_a");
        const int norm = graph_vector(graph, layer, latent->q_rank, MODULE "q_a_layernorm.weight", layer);
        q_in = node_rms_norm(graph, q_in, layer, norm, latent_norm_eps, "q_a_norm");
    }
    const bool shares = can_share_rows(graph);
    const bool joined = shares && q_in == x && !config->qkv_bias && graph_may_join(graph, layer, GRAPH_JOIN_LATENT);
    if (shares) {
        made.q_nope = made.q_rope = shared_rows(graph, q_in, layer, module, columns, joined);
        made.q_first = config->heads * latent->nope_dim;
    } else {
        const struct weight_source nope = part_of_q(graph, columns, 0, latent->nope_dim),
                                   rope = part_of_q(graph, columns, latent->nope_dim, latent->rope_dim);
        made.q_nope = part_alone(graph, q_in, layer, module, &nope, "q_nope_proj.weight", "q_nope");
        made.q_rope = part_alone(graph, q_in, layer, module, &rope, "q_rope_proj.weight", "q_rope");
    }
    made.kv_row = made.q_rope;
    if (joined) return made;
    const struct projection row = {latent_row(graph, layer, -1, false),
                                   config->qkv_bias ? latent_row(graph, layer, -1, true) : -1};
    made.kv_row = node_matmul(graph, x, layer, row, ACTIVATION_NONE, 1.0, "kv_row");
    return made;
}

/* Every head's matrix from latent rows to keys, transposed, or from latent rows to values: the blocks of one weight. */
static int blocks(struct graph *graph, uint32_t layer, bool of_values, const char *name)
{
    const struct model_config *config = graph->config;
    const struct model_latent *latent = &config->latent;
    const uint64_t period = latent->nope_dim + latent->value_dim;
    int weight = -1;
    for (uint64_t head = 0; head < config->heads; head++) {
        struct weight_source source = {.shape = {config->heads * period, latent->kv_rank}};
        if (of_values) {
            source.first_row = head * period + latent->nope_dim;
            source.rows = latent->value_dim;
        } else {
            source.transposed = true;
            source.first_column = head * period;
            source.columns = latent->nope_dim;
        }
        if (head == 0)
            weight = graph_weight_from(graph, layer, WEIGHT_MATRIX, &source, MODULE "kv_b_proj.weight", layer);
        else
            graph_weight_append(graph, weight, &source, MODULE "kv_b_proj.weight", layer);
    }
    if (graph->out_of_memory) return -1;
    struct graph_weight *made = &graph->weights[weight];
    made->experts = config->heads;
    made->interleave = PANEL_ROWS; /* each block is padded to whole panels */
    made->rows = graph_weight_rows(made);
    graph_shard(graph, weight, SHARD_MATRICES);
    name_weight(graph, weight, layer, name);
    return weight;
}

/* `block_n`: rows of each block without padding; rows of x may go on after the last block's part. */
static int block_product(struct graph *graph, int x, uint32_t layer, int weight, uint64_t block_n, const char *label)
{
    const int y = graph_value(graph, ROWS_TOKENS, graph->config->heads * block_n, "%s%u", label, layer);
    struct graph_node *node = graph_append(graph, OP_MATMUL, layer);
    node->operands[MATMUL_X] = x;
    node->operands[MATMUL_W] = weight;
    node->operands[MATMUL_OUT] = y;
    node->params[MATMUL_BLOCK_N] = (int64_t)block_n;
    return y;
}

static void set_row(const struct model_config *config, int64_t *params)
{
    params[PAGED_HEADS] = (int64_t)config->heads;
    params[PAGED_KV_HEADS] = 1;
    params[PAGED_HEAD_DIM] = (int64_t)config->head_dim;
}

int latent_attention(struct graph *graph, int x, int table, uint32_t layer)
{
    const struct model_config *config = graph->config;
    const struct model_latent *latent = &config->latent;
    const uint64_t hidden = config->hidden_size, heads = config->heads;
    const struct projections of_x = project(graph, x, layer);
    const int q_latent = block_product(graph, of_x.q_nope, layer, blocks(graph, layer, false, "q_latent_proj.weight"),
                                       latent->kv_rank, "q_latent");

    const int q = graph_value(graph, ROWS_TOKENS, heads * config->head_dim, "q%u", layer);
    struct graph_node *append = graph_append(graph, OP_LATENT_APPEND, layer);
    append->operands[LATENT_APPEND_Q_LATENT] = q_latent;
    append->operands[LATENT_APPEND_Q_ROPE] = of_x.q_rope;
    append->operands[LATENT_APPEND_KV_ROW] = of_x.kv_row;
    append->operands[LATENT_APPEND_TABLE] = table;
    append->operands[LATENT_APPEND_Q] = q;
    set_row(config, append->params);
    append->params[LATENT_APPEND_Q_FIRST] = (int64_t)of_x.q_first;
    append->params[LATENT_APPEND_VALUE_DIM] = (int64_t)latent->kv_rank;
    append->params[LATENT_APPEND_EPS_BITS] = float_to_bits((float)latent_norm_eps);
    append->operands[LATENT_APPEND_NORM] =
        graph_vector(graph, layer, latent->kv_rank, MODULE "kv_a_layernorm.weight", layer);

    const int mixed = graph_value(graph, ROWS_TOKENS, heads * latent->kv_rank, "attention%u", layer);
    struct graph_node *attention = graph_append(graph, OP_ATTENTION, layer);
    attention->operands[ATTENTION_Q] = q;
    attention->operands[ATTENTION_OUT] = mixed;
    set_row(config, attention->params);
    attention->params[ATTENTION_SCATTERED] = graph->target == TARGET_CUDA && graph->kind != PLAN_PREFILL;
    attention->params[ATTENTION_VALUE_DIM] = (int64_t)latent->kv_rank;
    attention->params[ATTENTION_SCALE_BITS] =
        float_to_bits((float)(config->attention_scale * rope_latent_score_scale(&config->rope)));

    const int values =
        block_product(graph, mixed, layer, blocks(graph, layer, true, "v_proj.weight"), latent->value_dim, "values");
    const struct projection o = whole(graph, layer, "o_proj", hidden, heads * latent->value_dim, config->output_bias);
    graph_shard(graph, o.weight, SHARD_COLUMNS);
    graph_shard(graph, o.bias, SHARD_FIRST_RANK);
    return node_matmul(graph, values, layer, o, ACTIVATION_NONE, config->residual_scale, "o");
}
