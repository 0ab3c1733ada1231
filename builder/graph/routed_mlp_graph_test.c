/* SPDX-License-Identifier: Apache-2.0 */
/* pass_fuse_routed_mlp: which graphs of few rows have a routed_mlp, and what it takes of the launches that it replaces. */
#include "builder/arch/arch.h"
#include "builder/passes/pass.h"
#include "builder/test_device_model.h"
#include "builder/weights/weights.h"
#include "formats/base/test_program.h"
#include "kernels/all_reduce/all_reduce.h"
#include "kernels/matmul/matmul.h"
#include "kernels/routed_mlp/routed_mlp.h"

enum { LAYERS = 2, H200_SHARED = 232448 };

static const char qwen3[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
    "\"num_experts\": 128, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 768}";

/* Encodings of the experts' matrices. */
struct matrices {
    enum encoding_id up, down;
};
static const struct matrices plain = {ENCODING_BF16, ENCODING_BF16};

/* The graph of few rows, as build_make_graph makes it. */
static void open_graph(struct graph *graph, const struct test_device_model *model, int64_t shared_per_block,
                       struct matrices matrices)
{
    struct status status = {0};
    graph_init(graph, &model->config, PLAN_DECODE);
    graph->target = TARGET_CUDA;
    graph->compute_dtype = DTYPE_BF16;
    graph->plan_rows = GRAPH_ROWS_ROUTED_MLP;
    graph->has_routed_matmul = true;
    graph->shared_per_block = shared_per_block;
    graph->multiprocessors = 132;
    graph->ranks = model->ranks;
    if (model->ranks > 1) graph->rank_config = &model->rank_config;
    test_expect_success(import_graph(graph, &status), &status);
    test_expect_success(share_encodings(graph, &model->graphs[TEST_LARGE_BATCH], &status), &status);
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        if (node->op == OP_MATMUL && node->params[MATMUL_EXPERTS])
            graph->weights[node->operands[MATMUL_W]].encoding =
                matmul_shares_x(node->params) ? matrices.up : matrices.down;
    }
    test_expect_success(run_passes(graph, NULL, NULL, &status), &status);
}

static int count(const struct graph *graph, enum plan_op op)
{
    int found = 0;
    for (int n = 0; n < graph->node_count; n++) found += !graph->nodes[n].removed && graph->nodes[n].op == op;
    return found;
}

/* Each layer's experts are one launch, or two of which the second one reads the routes early. */
static void expect_fused(const struct graph *graph, bool fused)
{
    int early = 0;
    for (int n = 0; n < graph->node_count; n++)
        early +=
            !graph->nodes[n].removed && graph->nodes[n].op == OP_MATMUL && graph->nodes[n].params[MATMUL_EARLY_ROUTES];
    assert_int_equal(count(graph, OP_ROUTER), 0);
    assert_int_equal(count(graph, OP_ROUTED_MLP), fused ? LAYERS : 0);
    assert_int_equal(count(graph, OP_ROUTED_MATMUL), fused ? 0 : LAYERS);
    assert_int_equal(early, fused ? 0 : LAYERS);
}

/* Legal with so many rows, on an H200. */
static void expect_kernels(const struct graph *graph, uint32_t rows)
{
    const struct device_facts gpu = {.capability = 90,
                                     .multiprocessors = 132,
                                     .shared_per_sm = 233472,
                                     .shared_per_block = H200_SHARED};
    const struct graph_step step = {.rows = rows, .out_rows = rows, .kv_dtype = ENCODING_BF16};
    int64_t found[1][PLAN_MAX_PARAMS] = {{0}};
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        int64_t params[PLAN_MAX_PARAMS] = {0};
        if (node->removed || node->op != OP_ROUTED_MLP) continue;
        graph_node_params(graph, node, &step, params);
        const char *why = op_params_illegal(&op_routed_mlp, params);
        if (why) fail_msg("node %d, %u rows: %s", n, rows, why);
        assert_int_equal(device_routed_mlp.candidates(params, &gpu, found, 1), 1);
    }
}

static void check(const char *config, uint32_t ranks, int64_t shared_per_block, struct matrices matrices, bool fused)
{
    struct test_device_model model;
    struct graph graph;
    test_device_model_open_routed(&model, config, ranks);
    open_graph(&graph, &model, shared_per_block, matrices);
    expect_fused(&graph, fused);
    for (uint32_t rows = 1; fused && rows <= graph_small_batch_rows(&graph); rows++) expect_kernels(&graph, rows);
    graph_free(&graph);
    test_device_model_close(&model);
}

TEST(experts_are_one_launch)
{
    check(qwen3, 1, H200_SHARED, plain, true);
    check(qwen3, 1, H200_SHARED, (struct matrices){ENCODING_E4M3_CHANNEL, ENCODING_E4M3_CHANNEL}, true);
    check(qwen3, 1, H200_SHARED, (struct matrices){ENCODING_INT4_G128, ENCODING_INT8_CHANNEL}, true);
}

/* The sum of the ranks comes after it, with the residual. */
TEST(a_rank_has_its_share_in_one_launch)
{
    struct test_device_model model;
    struct graph graph;
    check(qwen3, 2, H200_SHARED, plain, true);
    test_device_model_open_routed(&model, qwen3, 2);
    open_graph(&graph, &model, H200_SHARED, plain);
    for (int n = 0; n < graph.node_count; n++) {
        const struct graph_node *node = &graph.nodes[n];
        int summed = 0;
        if (node->removed || node->op != OP_ROUTED_MLP) continue;
        for (int other = n + 1; other < graph.node_count; other++)
            summed += !graph.nodes[other].removed && graph.nodes[other].op == OP_ALL_REDUCE &&
                      graph.nodes[other].operands[ALL_REDUCE_X] == node->operands[ROUTED_MLP_OUT];
        assert_int_equal(summed, 1);
        assert_int_equal(node->operands[ROUTED_MLP_RESIDUAL], GRAPH_ABSENT);
        assert_int_equal(graph.weights[node->operands[ROUTED_MLP_DOWN]].depth, 768 / 2);
    }
    graph_free(&graph);
    test_device_model_close(&model);
}

TEST(one_matrix_with_codes_stays_apart)
{
    check(qwen3, 1, H200_SHARED, (struct matrices){ENCODING_E4M3_CHANNEL, ENCODING_BF16}, false);
    check(qwen3, 1, H200_SHARED, (struct matrices){ENCODING_BF16, ENCODING_E4M3_CHANNEL}, false);
}

/* A GPU with just enough shared memory for x, activations and rings; one with a byte less; one whose size is not known. */
TEST(what_does_not_fit_stays_apart)
{
    const int64_t rows = 4, x = (rows + 4) * 2048 * 2, activations = rows * 8 * 768 * 2;
    const int64_t least = x + activations + (96 << 10) + (12 << 10);
    check(qwen3, 1, least, plain, true);
    check(qwen3, 1, least - 1, plain, false);
    check(qwen3, 1, 0, plain, false);
}

TEST(unequal_shares_stay_apart)
{
    /* gpt-oss: 180 tiles of the second matmul for 132 multiprocessors. */
    static const char gpt_oss[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2880, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
        "\"num_experts\": 32, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 768}";
    check(gpt_oss, 1, H200_SHARED, plain, false);
    assert_true(routed_mlp_is_balanced(2048, 132));  /* 128 tiles */
    assert_true(routed_mlp_is_balanced(4096, 132));  /* 256 */
    assert_true(routed_mlp_is_balanced(64, 132));    /* one for each of four blocks */
    assert_false(routed_mlp_is_balanced(2880, 132)); /* 180 */
    assert_true(routed_mlp_is_balanced(2880, 90));
}

/* Without the sum over choices in the second matmul there is no launch to join. */
TEST(parts_stay_apart)
{
    static const char many[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
        "\"num_experts\": 16, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 4608}";
    struct test_device_model model;
    struct graph graph;
    test_device_model_open_routed(&model, many, 1);
    open_graph(&graph, &model, H200_SHARED, plain);
    assert_int_equal(count(&graph, OP_ROUTED_MLP), 0);
    assert_int_equal(count(&graph, OP_ROUTED_MATMUL), LAYERS);
    assert_int_equal(count(&graph, OP_SUM_PARTS), LAYERS);
    /* Their routes are of the launch before. */
    for (int n = 0; n < graph.node_count; n++)
        assert_false(graph.nodes[n].op == OP_MATMUL && graph.nodes[n].params[MATMUL_EARLY_ROUTES]);
    graph_free(&graph);
    test_device_model_close(&model);
}

int main(void) { return test_run(); }
