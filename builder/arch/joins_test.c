/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs whose import may join weights: shared experts as experts of the routed ones' matrices, the products of latent attention's
 * input; what their nodes and sources say, on one rank and on two. */
#include "builder/arch/arch.h"
#include "builder/arch/test_config.h"
#include "builder/passes/pass.h"
#include "builder/weights/shard.h"
#include "formats/base/test_support.h"
#include "kernels/latent_append/latent_append.h"
#include "kernels/matmul/matmul.h"
#include "kernels/router/router.h"

enum { LAYERS = 2, ROUTED = 6, TOP_K = 2, WIDTH = 32, HIDDEN = 64, HEADS = 4, NOPE = 16, ROPE = 8, LATENT = 24 };

#define SIZES                                                                                                   \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"moe_intermediate_size\": 32, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"vocab_size\": 128, \"max_position_embeddings\": 128, "
#define LATENT_SIZES                                                                                \
    "\"kv_lora_rank\": 24, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, " \
    "\"n_routed_experts\": 6, \"num_experts_per_tok\": 2, \"topk_method\": \"greedy\", \"n_shared_experts\": 2"

struct imported {
    struct model_config config, rank;
    struct graph graph;
};

static void import(struct imported *made, const char *text, uint32_t ranks, const uint8_t *joins)
{
    struct status status = {0};
    test_expect_success(test_config_parse(&made->config, text, &status), &status);
    test_expect_success(shard_config(&made->config, ranks, &made->rank, &status), &status);
    graph_init(&made->graph, &made->config, PLAN_DECODE);
    made->graph.ranks = ranks;
    made->graph.rank_config = &made->rank;
    made->graph.joins = joins;
    test_expect_success(import_graph(&made->graph, &status) && graph_check(&made->graph, "import", &status), &status);
    test_expect_success(pass_shard.run(&made->graph, &status) && graph_check(&made->graph, "shard", &status), &status);
}

static const struct graph_node *find(const struct graph *graph, enum plan_op op, uint32_t layer, int index)
{
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].op == op && graph->nodes[n].layer == layer && index-- == 0) return &graph->nodes[n];
    return NULL;
}

static int count(const struct graph *graph, enum plan_op op, uint32_t layer)
{
    int found = 0;
    while (find(graph, op, layer, found)) found++;
    return found;
}

/* The matmul over experts of a layer that has a gate, or the other one. */
static const struct graph_node *over_experts(const struct graph *graph, uint32_t layer, bool gated)
{
    const struct graph_node *node;
    for (int i = 0; (node = find(graph, OP_MATMUL, layer, i)); i++)
        if (node->params[MATMUL_EXPERTS] && matmul_is_gated(node->params) == gated) return node;
    fail_msg("layer %u has no such matmul", (unsigned)layer);
    return NULL;
}

static void expect_source(const struct weight_source *source, const char *tensor, uint64_t first_row, uint64_t rows,
                          uint64_t first_column, uint64_t columns)
{
    assert_string_equal(source->tensor, tensor);
    assert_int_equal(source->first_row, first_row);
    assert_int_equal(source->rows, rows);
    assert_int_equal(source->first_column, first_column);
    assert_int_equal(source->columns, columns);
    assert_null(source_fault(source));
}

TEST(a_gated_shared_expert_of_three_widths)
{
    static const char text[] =
        "{\"model_type\": \"qwen2_moe\", " SIZES
        "\"num_experts\": 6, \"num_experts_per_tok\": 2, \"shared_expert_intermediate_size\": 96}";
    static const uint8_t joins[LAYERS] = {GRAPH_JOIN_SHARED, 0};
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct imported made;
        import(&made, text, ranks, joins);
        const struct graph *graph = &made.graph;
        assert_int_equal(count(graph, OP_ROUTER, 0), 1);
        assert_int_equal(count(graph, OP_ROUTER, 1), 2); /* that layer may not join */
        const struct graph_node *router = find(graph, OP_ROUTER, 0, 0);
        assert_int_equal(router->params[ROUTER_SHARED], 3);
        assert_int_equal(router->params[ROUTER_SHARED_GATE], 1);
        assert_int_equal(graph->values[router->operands[ROUTER_LOGITS]].width, ROUTED + 1);
        assert_int_equal(graph->values[router->operands[ROUTER_OUT]].width, 2 * (TOP_K + 3));
        const struct graph_node *up = over_experts(graph, 0, true), *down = over_experts(graph, 0, false);
        const struct graph_weight *up_weight = &graph->weights[up->operands[MATMUL_W]];
        const struct graph_weight *down_weight = &graph->weights[down->operands[MATMUL_W]];
        assert_int_equal(up->params[MATMUL_EXPERTS], ROUTED + 3);
        assert_int_equal(down->params[MATMUL_EXPERTS], ROUTED + 3);
        assert_int_equal(up_weight->experts, ROUTED + 3);
        assert_int_equal(up_weight->source_count, 2 * (ROUTED + 3));
        assert_int_equal(down_weight->source_count, ROUTED + 3);
        assert_true(up_weight->join == GRAPH_JOIN_SHARED && up_weight->joined_from == 2 * ROUTED);
        assert_true(down_weight->join == GRAPH_JOIN_SHARED && down_weight->joined_from == ROUTED);
        for (uint64_t i = 0; i < 3; i++) {
            const struct weight_source *gate = &up_weight->sources[2 * (ROUTED + i)];
            expect_source(gate, "model.layers.0.mlp.shared_expert.gate_proj.weight", i * WIDTH, WIDTH, 0, HIDDEN);
            expect_source(gate + 1, "model.layers.0.mlp.shared_expert.up_proj.weight", i * WIDTH, WIDTH, 0, HIDDEN);
            assert_int_equal(gate->rank_rows, WIDTH / ranks);
            const struct weight_source *part = &down_weight->sources[ROUTED + i];
            expect_source(part, "model.layers.0.mlp.shared_expert.down_proj.weight", 0, HIDDEN, i * WIDTH, WIDTH);
            assert_int_equal(part->rank_columns, WIDTH / ranks);
        }
        graph_free(&made.graph);
    }
}

TEST(a_shared_expert_that_no_experts_make_up)
{
    static const char *const fields[] = {
        "\"num_experts\": 6, \"num_experts_per_tok\": 2, \"shared_expert_intermediate_size\": 80",
        "\"num_experts\": 6, \"num_experts_per_tok\": 2, \"shared_expert_intermediate_size\": 16",
        "\"num_experts\": 1024, \"num_experts_per_tok\": 2, \"shared_expert_intermediate_size\": 32",
        "\"num_experts\": 70, \"num_experts_per_tok\": 63, \"shared_expert_intermediate_size\": 64",
    };
    static const uint8_t joins[LAYERS] = {GRAPH_JOIN_SHARED, GRAPH_JOIN_SHARED};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        struct imported made;
        char text[1024];
        snprintf(text, sizeof text, "{\"model_type\": \"qwen2_moe\", " SIZES "%s}", fields[i]);
        import(&made, text, 1, joins);
        assert_int_equal(count(&made.graph, OP_ROUTER, 0), 2);
        for (int w = 0; w < made.graph.weight_count; w++) assert_int_equal(made.graph.weights[w].join, 0);
        graph_free(&made.graph);
    }
}

TEST(products_of_the_input_of_latent_attention)
{
    static const char text[] = "{\"model_type\": \"deepseek_v2\", \"q_lora_rank\": null, " SIZES LATENT_SIZES "}";
    static const uint8_t joins[LAYERS] = {GRAPH_JOIN_LATENT, GRAPH_JOIN_SHARED};
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct imported made;
        const uint64_t heads = HEADS / ranks, q_width = heads * (NOPE + ROPE);
        import(&made, text, ranks, joins);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const struct graph_node *append = find(&made.graph, OP_LATENT_APPEND, layer, 0);
            const struct graph_node *product = find(&made.graph, OP_MATMUL, layer, 0);
            const struct graph_weight *weight = &made.graph.weights[product->operands[MATMUL_W]];
            const bool joined = layer == 0;
            assert_int_equal(append->operands[LATENT_APPEND_Q_ROPE], product->operands[MATMUL_OUT]);
            assert_int_equal(append->operands[LATENT_APPEND_Q_ROPE] == append->operands[LATENT_APPEND_KV_ROW], joined);
            assert_int_equal(append->params[LATENT_APPEND_Q_FIRST], heads * NOPE);
            assert_int_equal(weight->rows, q_width + (joined ? LATENT + ROPE : 0));
            assert_int_equal(weight->source_count, joined ? 4 : 2);
            assert_int_equal(weight->join, joined ? GRAPH_JOIN_LATENT : 0);
            if (joined) assert_int_equal(weight->joined_from, 2);
            int64_t params[PLAN_MAX_PARAMS];
            const struct graph_step step = {.rows = 1, .out_rows = 1, .kv_dtype = ENCODING_F32};
            graph_node_params(&made.graph, append, &step, params);
            assert_int_equal(params[LATENT_APPEND_Q_PITCH], weight->rows);
            assert_int_equal(params[LATENT_APPEND_KV_PITCH], joined ? weight->rows : 0);
            for (int i = 0; (product = find(&made.graph, OP_MATMUL, layer, i)); i++) {
                if (product->operands[MATMUL_X] != append->operands[LATENT_APPEND_Q_ROPE]) continue;
                graph_node_params(&made.graph, product, &step, params);
                assert_int_equal(params[MATMUL_X_PITCH], weight->rows);
                assert_int_equal(params[MATMUL_BLOCK_N], LATENT);
            }
        }
        graph_free(&made.graph);
    }
}

/* Rows of values that several readers share would not begin at multiples of 16 bytes; a bias is for the latent row alone. */
TEST(products_that_stay_apart)
{
    static const uint8_t joins[LAYERS] = {GRAPH_JOIN_LATENT, GRAPH_JOIN_LATENT};
    static const struct {
        const char *fields;
        int products; /* of the layer's input by matmuls that are no blocks, and of q's row */
    } cases[] = {
        {"\"q_lora_rank\": null, \"qk_nope_head_dim\": 15, \"qk_rope_head_dim\": 8, \"kv_lora_rank\": 24", 3},
        {"\"q_lora_rank\": null, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"kv_lora_rank\": 20", 3},
        {"\"q_lora_rank\": null, \"attention_bias\": true, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, "
         "\"kv_lora_rank\": 24",
         2},
        {"\"q_lora_rank\": 20, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"kv_lora_rank\": 24", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct imported made;
        char text[1024];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"deepseek_v2\", " SIZES "\"v_head_dim\": 16, \"n_routed_experts\": 6, "
                 "\"num_experts_per_tok\": 2, \"topk_method\": \"greedy\", \"n_shared_experts\": 0, %s}",
                 cases[i].fields);
        import(&made, text, 1, joins);
        int products = 0;
        for (const struct graph_node *node; (node = find(&made.graph, OP_MATMUL, 0, products));) {
            if (node->params[MATMUL_BLOCK_N]) break;
            assert_int_equal(made.graph.weights[node->operands[MATMUL_W]].join, 0);
            products++;
        }
        assert_int_equal(products, cases[i].products);
        graph_free(&made.graph);
    }
}

/* The rows of an expert's last matrix are padded where hidden_size is no multiple of a panel's rows: the output has no padding. */
TEST(padded_experts)
{
    static struct imported made;
    static const char text[] = "{\"model_type\": \"mixtral\", \"hidden_size\": 72, \"intermediate_size\": 96, "
                               "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
                               "\"vocab_size\": 128, \"num_local_experts\": 6}";
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        import(&made, text, ranks, NULL);
        const struct graph_node *down = over_experts(&made.graph, 1, false);
        assert_int_equal(down->params[MATMUL_BLOCK_N], 72);
        assert_int_equal(made.graph.values[down->operands[MATMUL_OUT]].width, 72);
        assert_int_equal(made.graph.weights[down->operands[MATMUL_W]].rows, 6 * 80);
        assert_int_equal(over_experts(&made.graph, 1, true)->params[MATMUL_BLOCK_N], 0);
        graph_free(&made.graph);
    }
    struct status status = {0};
    test_expect_success(test_config_parse(&made.config, text, &status), &status);
    graph_init(&made.graph, &made.config, PLAN_DECODE);
    made.graph.target = TARGET_CUDA;
    test_expect_failure(import_graph(&made.graph, &status), &status, STATUS_BAD_INPUT,
                        "'hidden_size'|multiple of 16 in a model with experts on a GPU|found 72");
    graph_free(&made.graph);
}

int main(void) { return test_run(); }
