/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering for devices: plans of models with experts, latent attention, recurrent layers, and heads of several sizes. */
#include "builder/lower/test_lower_cuda.h"
#include "formats/base/test_program.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/draft/draft.h"
#include "kernels/embed/embed.h"
#include "kernels/group_norm/group_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/multiply/multiply.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/routed_mlp/routed_mlp.h"
#include "kernels/sample/sample.h"
#include "kernels/select_columns/select_columns.h"
#include "kernels/state_space/state_space.h"

/* A prompt's last layer routes its last row alone, whose seed is that of a token row: the router finds it. */
TEST(experts)
{
    static const char source[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"intermediate_size\": 100, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
        "\"num_experts\": 16, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48}";
    struct test_device_model model;
    test_device_model_open(&model, source, DTYPE_BF16);
    test_device_model_scratch(&model, &test_gpus[0], test_decode_rows, TEST_DECODES);
    for (uint32_t rows = 1; rows <= 64; rows *= 2) test_lower_and_check(&model, &test_gpus[0], PLAN_DECODE, rows);
    for (uint32_t rows = 1; rows <= 512; rows *= 8) test_lower_and_check(&model, &test_gpus[0], PLAN_PREFILL, rows);
    const struct graph *graph = test_device_model_graph(&model, PLAN_PREFILL, 64);
    int of_out_rows = 0, routers = 0;
    for (int n = 0; n < graph->node_count; n++) {
        if (graph->nodes[n].removed || graph->nodes[n].op != OP_ROUTER) continue;
        routers++;
        of_out_rows += graph_node_rows(graph, &graph->nodes[n]) == ROWS_OUT;
    }
    assert_int_equal(routers, 2);
    assert_int_equal(of_out_rows, 1);
    test_device_model_close(&model);
}

TEST(latent_attention)
{
    static const char source[] =
        "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"vocab_size\": 50, \"first_k_dense_replace\": 1, \"n_routed_experts\": 8, "
        "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, \"n_shared_experts\": 1, \"kv_lora_rank\": 32, "
        "\"q_lora_rank\": 24, \"qk_nope_head_dim\": 24, \"qk_rope_head_dim\": 16, \"v_head_dim\": 24, "
        "\"n_group\": 4, \"topk_group\": 2}";
    int refused = 0;
    for (int g = 0; g < TEST_GPUS; g++) {
        struct test_device_model model;
        test_device_model_open(&model, source, DTYPE_BF16);
        test_device_model_scratch(&model, &test_gpus[g], test_decode_rows, TEST_DECODES);
        for (uint32_t rows = 1; rows <= 64; rows *= 2) test_lower_and_check(&model, &test_gpus[g], PLAN_DECODE, rows);
        for (uint32_t rows = 1; rows <= 512; rows *= 8) test_lower_and_check(&model, &test_gpus[g], PLAN_PREFILL, rows);
        /* A prompt's few rows share their tokens among clusters, too. */
        static const uint32_t one[] = {1}, few[] = {1, 40};
        struct device_plan plan;
        struct status status = {0};
        const struct graph *prefill = test_device_model_graph(&model, PLAN_PREFILL, 40);
        test_device_model_scratch(&model, &test_gpus[g], few, 2);
        test_lower_and_check(&model, &test_gpus[g], PLAN_PREFILL, 40);
        test_device_model_scratch(&model, &test_gpus[g], one, 1);
        bool ok = lower_device_plan(prefill, &model.lowering, &test_gpus[g], 40, &plan, &status);
        if (!ok) test_expect_failure(ok, &status, STATUS_INTERNAL, "attention_latent|scratch memory");
        refused += !ok;
        device_plan_free(&plan);
        test_device_model_close(&model);
    }
    assert_true(refused > 0);
}

static int count(const struct graph *graph, enum plan_op op)
{
    int found = 0;
    for (int n = 0; n < graph->node_count; n++) found += graph->nodes[n].op == op;
    return found;
}

/* Experts' second matmuls that begin while the first one runs. */
static int count_early(const struct graph *graph)
{
    int found = 0;
    for (int n = 0; n < graph->node_count; n++) {
        const struct graph_node *node = &graph->nodes[n];
        found += node->op == OP_MATMUL && node->params[MATMUL_PARTS] && node->params[MATMUL_EARLY_ROUTES];
    }
    return found;
}

/* On GPUs that take it, plans of few rows have a routed_mlp in the place of a router, its matmul and the matmuls of the experts. Where
 * it does not fit the first of them is in a routed_matmul, whose routes the second one reads early. */
TEST(routers_of_few_rows)
{
    static const struct {
        const char *config;
        bool fits;
    } models[] = {
        {"{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"intermediate_size\": 100, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
         "\"num_experts\": 16, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48}",
         true},
        {"{\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "
         "\"num_attention_heads\": 4, \"vocab_size\": 50, \"first_k_dense_replace\": 1, \"n_routed_experts\": 8, "
         "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, \"n_shared_experts\": 1, \"kv_lora_rank\": 32, "
         "\"q_lora_rank\": 24, \"qk_nope_head_dim\": 24, \"qk_rope_head_dim\": 16, \"v_head_dim\": 24, "
         "\"n_group\": 4, \"topk_group\": 2}",
         true},
        /* x of all rows */
        {"{\"model_type\": \"qwen3_moe\", \"hidden_size\": 8192, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
         "\"num_experts\": 16, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 192}",
         false},
    };
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            struct test_device_model model;
            test_device_model_open_routed(&model, models[m].config, ranks);
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            test_lower_all(&model, &test_gpus[TEST_GPU_90]);
            const struct graph *small = &model.graphs[TEST_SMALL_BATCH];
            int early = 0;
            for (int n = 0; n < small->node_count; n++)
                early += small->nodes[n].op == OP_MATMUL && small->nodes[n].params[MATMUL_EARLY_ROUTES] &&
                         small->nodes[n - 1].op == OP_ROUTED_MATMUL;
            assert_int_equal(count(small, OP_ROUTED_MLP), models[m].fits ? 2 : 0);
            assert_int_equal(count(small, OP_ROUTED_MATMUL), models[m].fits ? 0 : 2);
            assert_int_equal(count(small, OP_ROUTER), 0);
            assert_int_equal(early, models[m].fits ? 0 : 2);
            for (int g = TEST_LARGE_BATCH; g <= TEST_PREFILL; g++) {
                assert_int_equal(count(&model.graphs[g], OP_ROUTED_MATMUL), 0);
                assert_int_equal(count(&model.graphs[g], OP_ROUTED_MLP), 0);
                assert_int_equal(count_early(&model.graphs[g]), 2);
            }
            test_device_model_close(&model);
        }
}

/* Plans of more rows have the sum over a row's experts in the norm that follows, but where a sum over ranks comes between: then no layer has
 * it. */
TEST(sums_over_experts_with_the_next_norm)
{
    static const char source[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"intermediate_size\": 100, \"num_hidden_layers\": 3, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
        "\"num_experts\": 16, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48}";
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct test_device_model model;
        test_device_model_open_routed(&model, source, ranks);
        if (ranks > 1) test_device_model_exchange(&model, 2048);
        test_lower_all(&model, &test_gpus[TEST_GPU_90]);
        const struct graph *large = &model.graphs[TEST_LARGE_BATCH];
        int fused = 0;
        for (int n = 0; n < large->node_count; n++)
            fused += large->nodes[n].op == OP_RMS_NORM && large->nodes[n].params[RMS_NORM_PARTS] == 2 &&
                     large->nodes[n].operands[RMS_NORM_SUM] >= 0;
        assert_int_equal(fused, ranks == 1 ? 3 : 0);
        assert_int_equal(count(large, OP_SUM_PARTS), ranks == 1 ? 0 : 3);
        test_device_model_close(&model);
    }
}

#define EXPERTS_OF(family, others)                                                                                \
    "{\"model_type\": \"" family "\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 320, \"max_position_embeddings\": "  \
    "2048, " others "}"

/* Plans of more rows have a norm_router in the place of a norm, the router's matmul and the router, where that norm is a launch of its own: a
 * sum of several ranks may have it. Where two routers read one norm (shared experts with a gate), the first one has it. */
TEST(routers_with_their_norm)
{
    static const struct {
        const char *config;
        int fused, left, of_ranks; /* routers of one rank with their norm, and without; of two ranks with their norm */
    } models[] = {
        {EXPERTS_OF("qwen3_moe", "\"head_dim\": 64, \"num_experts\": 16, \"num_experts_per_tok\": 2, "
                                 "\"moe_intermediate_size\": 48"),
         2, 0, 0},
        {EXPERTS_OF("gpt_oss", "\"head_dim\": 64, \"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
                               "\"sliding_window\": 128, \"layer_types\": [\"sliding_attention\", \"full_attention\"]"),
         2, 0, 0},
        {EXPERTS_OF("qwen2_moe", "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, "
                                 "\"shared_expert_intermediate_size\": 96"),
         2, 2, 0},
        {EXPERTS_OF("glm4_moe", "\"head_dim\": 64, \"first_k_dense_replace\": 1, \"n_routed_experts\": 8, "
                                "\"num_experts_per_tok\": 2, \"n_group\": 4, \"topk_group\": 2, "
                                "\"moe_intermediate_size\": 48, \"n_shared_experts\": 1"),
         1, 0, 0},
        {EXPERTS_OF("gemma4_text",
                    "\"head_dim\": 32, \"global_head_dim\": 64, \"sliding_window\": 128, "
                    "\"layer_types\": [\"sliding_attention\", \"full_attention\"], "
                    "\"vocab_size_per_layer_input\": 320, \"num_kv_shared_layers\": 0, "
                    "\"hidden_size_per_layer_input\": 0, \"enable_moe_block\": true, \"num_experts\": 8, "
                    "\"top_k_experts\": 3, \"moe_intermediate_size\": 48"),
         2, 0, 2},
    };
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            struct test_device_model model;
            test_device_model_open_routed(&model, models[m].config, ranks);
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            test_lower_all(&model, &test_gpus[TEST_GPU_90]);
            const int all = models[m].fused + models[m].left, fused = ranks > 1 ? models[m].of_ranks : models[m].fused;
            const struct graph *graph = test_device_model_graph(&model, PLAN_DECODE, 16);
            assert_int_equal(count(graph, OP_NORM_ROUTER), fused);
            assert_int_equal(count(graph, OP_ROUTER), all - fused);
            assert_ptr_equal(graph, &model.graphs[fused ? TEST_ROUTER_BATCH : TEST_LARGE_BATCH]);
            for (int g = 0; g < TEST_GRAPHS; g++)
                if (g != TEST_ROUTER_BATCH) assert_int_equal(count(&model.graphs[g], OP_NORM_ROUTER), 0);
            test_device_model_close(&model);
        }
}

/* Families whose blocks are those of models above, in other combinations. */
TEST(other_families_with_experts)
{
    static const struct {
        const char *config;
        int routers, convolutions, sums; /* sums of mean squares of two ranks */
    } models[] = {
        {EXPERTS_OF("lfm2_moe", "\"layer_types\": [\"conv\", \"full_attention\"], \"num_dense_layers\": 1, "
                                "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48"),
         1, 1, 0},
        {EXPERTS_OF("flex_olmo", "\"num_experts\": 8, \"num_experts_per_tok\": 2"), 2, 0, 2},
        {EXPERTS_OF("minimax_m2", "\"head_dim\": 64, \"rotary_dim\": 32, \"num_local_experts\": 8, "
                                  "\"num_experts_per_tok\": 2"),
         2, 0, 2},
        {EXPERTS_OF("dots1", "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_shared_experts\": 2, "
                             "\"first_k_dense_replace\": 1, \"moe_intermediate_size\": 48, \"sliding_window\": 128, "
                             "\"max_window_layers\": 1"),
         1, 0, 0},
        {EXPERTS_OF("exaone_moe", "\"head_dim\": 64, \"sliding_window\": 128, \"sliding_window_pattern\": 2, "
                                  "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48"),
         1, 0, 0},
        {EXPERTS_OF("afmoe", "\"head_dim\": 64, \"sliding_window\": 128, \"global_attn_every_n_layers\": 2, "
                             "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48"),
         1, 0, 0},
        {EXPERTS_OF("solar_open", "\"head_dim\": 64, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                                  "\"moe_intermediate_size\": 48"),
         2, 0, 0},
        {EXPERTS_OF("granitemoeshared", "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, "
                                        "\"shared_intermediate_size\": 48"),
         2, 0, 0},
        {EXPERTS_OF("hunyuan_v1_moe", "\"num_experts\": 8, \"moe_topk\": 2"), 2, 0, 0},
        {EXPERTS_OF("hy_v3", "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48"), 1, 0, 0},
        {EXPERTS_OF("mellum", "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, "
                              "\"layer_types\": [\"sliding_attention\", \"full_attention\"]"),
         2, 0, 0},
        {"{\"model_type\": \"axk1\", \"hidden_size\": 64, \"intermediate_size\": 96, "
         "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 50, \"n_routed_experts\": 8, "
         "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, \"kv_lora_rank\": 32, \"q_lora_rank\": 24, "
         "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 16, \"v_head_dim\": 24, \"n_group\": 1, \"topk_group\": 1}",
         1, 0, 0},
        {"{\"model_type\": \"glm4_moe_lite\", \"hidden_size\": 64, \"intermediate_size\": 96, "
         "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 50, \"n_routed_experts\": 8, "
         "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, \"kv_lora_rank\": 32, \"q_lora_rank\": 24, "
         "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 16, \"v_head_dim\": 24, \"rms_norm_eps\": 1e-6}", /* that of the norms of latent rows */
         1, 0, 0},
        {"{\"model_type\": \"minicpm3\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 4, \"vocab_size\": 50, \"kv_lora_rank\": 32, \"q_lora_rank\": 24, "
         "\"qk_nope_head_dim\": 16, "
         "\"qk_rope_head_dim\": 16, \"rms_norm_eps\": 1e-6}", /* that of the norms of latent rows */
         0, 0, 0},
        {"{\"model_type\": \"youtu\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 4, \"vocab_size\": 50, \"kv_lora_rank\": 32, \"q_lora_rank\": 24, "
         "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 16, \"v_head_dim\": 24}",
         0, 0, 0},
    };
    static struct test_device_model model;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            assert_true(test_device_model_open_ranks(&model, models[m].config, DTYPE_BF16, ranks));
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            const bool latent =
                model.config.latent.kv_rank != 0; /* more scratch memory elsewhere: see latent_attention */
            for (int g = 0; g < TEST_GPUS; g++)
                if (!latent || g == TEST_GPU_90) test_lower_all(&model, &test_gpus[g]);
            for (int g = 0; g < TEST_GRAPHS; g++) {
                const struct graph *graph = &model.graphs[g];
                const int routers =
                    count(graph, OP_ROUTER) + count(graph, OP_NORM_ROUTER) + count(graph, OP_ROUTED_MATMUL);
                assert_int_equal(routers, models[m].routers);
                assert_int_equal(count(graph, OP_SHORT_CONV), models[m].convolutions);
                assert_int_equal(count(graph, OP_MEAN_SQUARES), ranks > 1 ? models[m].sums : 0);
            }
            test_device_model_close(&model);
        }
}

/* Short convolutions, and the delta rule beside attention with a gate and experts. */
TEST(recurrent_layers)
{
    static const char *const sources[] = {
        "{\"model_type\": \"lfm2\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 5, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 50, \"max_position_embeddings\": 512, "
        "\"norm_eps\": 1e-6, \"full_attn_idxs\": [1, 3]}",
        "{\"model_type\": \"qwen3_next\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 4, "
        "\"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, \"linear_num_key_heads\": 2, "
        "\"linear_num_value_heads\": 4, \"linear_key_head_dim\": 32, \"linear_value_head_dim\": 64, "
        "\"num_experts\": 16, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, "
        "\"shared_expert_intermediate_size\": 48}",
    };
    static const int recurrent[] = {3, 3}, convolutions[] = {3, 3}, gates[] = {0, 1};
    struct test_device_model model;
    for (int s = 0; s < 2; s++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            assert_true(test_device_model_open_ranks(&model, sources[s], DTYPE_BF16, ranks));
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            for (int g = 0; g < TEST_GPUS; g++) test_lower_all(&model, &test_gpus[g]);
            for (int g = 0; g < TEST_GRAPHS; g++) {
                const struct graph *graph = &model.graphs[g];
                int found[3] = {0};
                for (int n = 0; n < graph->node_count; n++) {
                    const struct graph_node *node = &graph->nodes[n];
                    if (node->removed) continue;
                    found[0] += node->op == OP_SHORT_CONV;
                    found[1] += node->op == OP_DELTA_RULE;
                    found[2] += node->op == OP_SIGMOID_GATE;
                    if (node->op != OP_DELTA_RULE) continue;
                    assert_int_equal(node->params[DELTA_RULE_SCATTERED], graph->kind != PLAN_PREFILL);
                    assert_int_equal(graph->values[node->operands[DELTA_RULE_BA]].dtype, DTYPE_F32);
                    assert_int_equal(graph->values[node->operands[DELTA_RULE_QKV]].dtype, DTYPE_BF16);
                }
                assert_int_equal(found[0], convolutions[s]);
                assert_int_equal(found[1], s ? recurrent[s] : 0);
                assert_int_equal(found[2], gates[s]);
            }
            test_device_model_close(&model);
        }
}

/* A first matrix of experts without a gate, on its own or with the router. */
static bool has_activated_experts(const struct graph *graph, const struct graph_node *node, uint32_t ranks)
{
    enum { EXPERTS = 16, TOP_K = 2, WHOLE = 48, PADDED = 32 }; /* rows of an expert on one rank, on each of two */
    const bool with_router = node->op == OP_ROUTED_MATMUL;
    const int64_t epilogue = with_router             ? node->params[ROUTED_MATMUL_EPILOGUE]
                             : node->op == OP_MATMUL ? node->params[MATMUL_EPILOGUE]
                                                     : 0;
    if (!with_router && (node->op != OP_MATMUL || !matmul_shares_x(node->params))) return false;
    const uint64_t rows = ranks == 1 ? WHOLE : PADDED;
    assert_int_equal(epilogue, EPILOGUE_PLAIN + ACTIVATION_RELU2);
    assert_int_equal(graph->weights[node->operands[with_router ? (int)ROUTED_MATMUL_W : (int)MATMUL_W]].rows,
                     EXPERTS * rows);
    assert_int_equal(graph->values[node->operands[with_router ? (int)ROUTED_MATMUL_OUT : (int)MATMUL_OUT]].width,
                     TOP_K * rows);
    return true;
}

/* A norm of one group, whose columns two ranks share; norms of groups, layers of an MLP alone; experts without a gate, whose rows are
 * no multiple of 16 on each of two ranks. */
TEST(state_spaces)
{
    static const char *const sources[] = {
        "{\"model_type\": \"granitemoehybrid\", \"hidden_size\": 64, \"intermediate_size\": 48, \"num_hidden_layers\": "
        "3, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 50, \"max_position_embeddings\": 512, "
        "\"layer_types\": [\"mamba\", \"attention\", \"mamba\"], \"num_local_experts\": 8, "
        "\"shared_intermediate_size\": 96, \"mamba_n_heads\": 4, \"mamba_d_state\": 64}",
        "{\"model_type\": \"nemotron_h\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 5, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
        "\"max_position_embeddings\": 512, \"hybrid_override_pattern\": \"M-*M-\", \"mamba_num_heads\": 4, "
        "\"n_groups\": 2, "
        "\"ssm_state_size\": 64, \"mamba_head_dim\": 32}",
        "{\"model_type\": \"falcon_h1\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 50, \"max_position_embeddings\": 512, "
        "\"mamba_d_ssm\": 128, \"mamba_n_heads\": 4, \"mamba_n_groups\": 2, \"mamba_d_state\": 64, "
        "\"mlp_multipliers\": [0.5, 2]}",
        "{\"model_type\": \"nemotron_h\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 5, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
        "\"max_position_embeddings\": 512, \"hybrid_override_pattern\": \"ME*M-\", \"mamba_num_heads\": 4, "
        "\"n_groups\": 2, \"ssm_state_size\": 64, \"mamba_head_dim\": 32, \"n_routed_experts\": 16, "
        "\"moe_intermediate_size\": 48, \"moe_shared_expert_intermediate_size\": 96}",
    };
    static const int layers[][3] = {{2, 2, 1},
                                    {2, 2, 1},
                                    {3, 0, 3},
                                    {2, 2, 1}}; /* state spaces, norms after them, attention */
    struct test_device_model model;
    for (int s = 0; s < 4; s++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            assert_true(test_device_model_open_ranks(&model, sources[s], DTYPE_BF16, ranks));
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            for (int g = 0; g < TEST_GPUS; g++) test_lower_all(&model, &test_gpus[g]);
            for (int g = 0; g < TEST_GRAPHS; g++) {
                const struct graph *graph = &model.graphs[g];
                int found[4] = {0}, activated = 0;
                for (int n = 0; n < graph->node_count; n++) {
                    const struct graph_node *node = &graph->nodes[n];
                    if (node->removed) continue;
                    found[0] += node->op == OP_STATE_SPACE;
                    found[1] += node->op == OP_GROUP_NORM;
                    found[2] += node->op == OP_MEAN_SQUARES;
                    found[3] += node->op == OP_ATTENTION || node->op == OP_ROPE_ATTENTION;
                    activated += s == 3 && has_activated_experts(graph, node, ranks);
                    if (node->op == OP_GROUP_NORM) assert_int_equal(node->params[GROUP_NORM_GROUPS], s ? 2 / ranks : 1);
                    if (node->op != OP_STATE_SPACE) continue;
                    assert_int_equal(node->params[STATE_SPACE_SCATTERED], graph->kind != PLAN_PREFILL);
                    assert_int_equal(node->params[STATE_SPACE_HEADS], 4 / ranks);
                    assert_int_equal(node->params[STATE_SPACE_GROUPS], s ? 2 / ranks : 1);
                    assert_int_equal(graph->values[node->operands[STATE_SPACE_DT]].dtype, DTYPE_F32);
                    assert_int_equal(graph->values[node->operands[STATE_SPACE_XBC]].dtype, DTYPE_BF16);
                }
                assert_int_equal(found[0], layers[s][0]);
                assert_int_equal(found[1], layers[s][1]);
                assert_int_equal(found[2], s == 0 && ranks == 2 ? 2 : 0);
                assert_int_equal(found[3], layers[s][2]);
                assert_int_equal(activated, s == 3);
            }
            test_device_model_close(&model);
        }
}

#define GEMMA4                                                                                                      \
    "{\"model_type\": \"gemma4_text\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 6, "  \
    "\"num_attention_heads\": 4, \"vocab_size\": 320, \"max_position_embeddings\": 2048, \"sliding_window\": 128, " \
    "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"sliding_attention\", "   \
    "\"sliding_attention\", \"full_attention\"], \"vocab_size_per_layer_input\": 320, "

/* Heads of two sizes, layers that read what others append, norms of v, inputs of each layer; and norms of each head of q and k. */
TEST(heads_of_several_sizes)
{
    static const struct {
        const char *config;
        int sharing, products; /* layers without keys; multiplications by values */
    } models[] = {
        {GEMMA4 "\"head_dim\": 256, \"global_head_dim\": 512, \"num_key_value_heads\": 1, \"num_kv_shared_layers\": 3, "
                "\"use_double_wide_mlp\": true, \"hidden_size_per_layer_input\": 16}",
         3, 6},
        {GEMMA4 "\"head_dim\": 32, \"global_head_dim\": 64, \"num_key_value_heads\": 4, \"attention_k_eq_v\": true, "
                "\"num_global_key_value_heads\": 2, \"hidden_size_per_layer_input\": 0}",
         0, 0},
        {GEMMA4 "\"head_dim\": 16, \"global_head_dim\": 32, \"num_key_value_heads\": 2, \"num_kv_shared_layers\": 2, "
                "\"hidden_size_per_layer_input\": 0, \"enable_moe_block\": true, \"num_experts\": 8, "
                "\"top_k_experts\": 3, \"moe_intermediate_size\": 48}",
         2, 0},
        {"{\"model_type\": \"stablelm\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 50, \"qk_layernorm\": true}",
         0, 0},
    };
    static struct test_device_model model;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            assert_true(test_device_model_open_ranks(&model, models[m].config, DTYPE_BF16, ranks));
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            for (int g = 0; g < TEST_GPUS; g++) test_lower_all(&model, &test_gpus[g]);
            for (int g = 0; g < TEST_GRAPHS; g++) {
                const struct graph *graph = &model.graphs[g];
                int found[5] = {0};
                for (int n = 0; n < graph->node_count; n++) {
                    const struct graph_node *node = &graph->nodes[n];
                    if (node->removed) continue;
                    found[3] += node->op == OP_MULTIPLY;
                    found[4] += node->op == OP_RMS_NORM && node->operands[RMS_NORM_FACTOR] >= 0;
                    found[0] += node->op == OP_ROPE_QUERY;
                    found[1] += node->op == OP_MULTIPLY && node->operands[MULTIPLY_BY] >= 0;
                    found[2] += node->op == OP_ROPE_ATTENTION && node->params[ROPE_ATTENTION_APPENDED];
                }
                assert_int_equal(found[0], graph->kind == PLAN_DECODE ? 0 : models[m].sharing);
                assert_int_equal(found[1], models[m].products);
                assert_int_equal(found[3], models[m].products); /* norms take the factors of layers */
                assert_int_equal(found[4], model.config.layer_scalars ? model.config.layers : 0);
                assert_int_equal(found[2], graph->kind == PLAN_DECODE ? models[m].sharing : 0);
            }
            test_device_model_close(&model);
        }
}

/* One rank: x of q, k, v, of o and of gate and up is selected, and down's is made in its order. Two: o is decoded. */
TEST(matrices_in_act_order)
{
    static struct test_device_model model;
    char source[512];
    if (!test_shared()) skip();
    snprintf(source, sizeof source, "%s/models/quantised/gptq-w4-g64-asym-actorder", test_shared());
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        assert_true(test_device_model_open_ranks(&model, source, ENCODING_NONE, ranks));
        if (ranks > 1) test_device_model_exchange(&model, 2048);
        for (int g = 0; g < TEST_GPUS; g++) test_lower_all(&model, &test_gpus[g]);
        for (int g = 0; g < TEST_GRAPHS; g++) {
            const struct graph *graph = &model.graphs[g];
            uint64_t selections = 0, coded = 0;
            for (int n = 0; n < graph->node_count; n++) {
                const struct graph_node *node = &graph->nodes[n];
                if (node->op == OP_MATMUL) coded += graph->weights[node->operands[MATMUL_W]].keeps_codes;
                if (node->op != OP_SELECT_COLUMNS) continue;
                selections++;
                assert_int_equal(graph->values[node->operands[SELECT_COLUMNS_OUT]].dtype, DTYPE_BF16);
            }
            assert_int_equal(selections, model.config.layers * (ranks == 1 ? 3 : 2));
            assert_int_equal(coded, model.config.layers * (ranks == 1 ? 4 : 3));
        }
        test_device_model_close(&model);
    }
}

/* The layer that predicts further tokens comes after sample: what feeds tokens back to a decode step is its last launch. */
TEST(plans_that_draft)
{
    static const char *const sources[] = {
        "{\"model_type\": \"glm4_moe\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 50, "
        "\"first_k_dense_replace\": 1, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 1, "
        "\"topk_group\": 1, \"moe_intermediate_size\": 48, \"n_shared_experts\": 1, \"num_nextn_predict_layers\": 1}",
        "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 4, \"vocab_size\": 50, \"first_k_dense_replace\": 1, \"n_routed_experts\": 8, "
        "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 48, \"n_shared_experts\": 1, \"kv_lora_rank\": 32, "
        "\"q_lora_rank\": 24, \"qk_nope_head_dim\": 24, \"qk_rope_head_dim\": 16, \"v_head_dim\": 24, "
        "\"n_group\": 4, \"topk_group\": 2}",
    };
    for (int s = 0; s < 2; s++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            struct test_device_model model;
            test_device_model_open_predicting(&model, sources[s], ranks);
            for (int g = 0; g < TEST_GRAPHS; g++) {
                const struct graph *graph = &model.graphs[g];
                const bool decodes = graph->kind == PLAN_DECODE;
                int drafts = 0, follows = 0, samples = 0;
                for (int n = 0; n < graph->node_count; n++) {
                    const struct graph_node *node = &graph->nodes[n];
                    if (node->op == OP_EMBED) follows += node->params[EMBED_FOLLOWS] != 0;
                    if (node->op == OP_SAMPLE && ++samples) assert_false(node->params[SAMPLE_FEEDBACK]);
                    if (node->op != OP_DRAFT) continue;
                    drafts++;
                    assert_int_equal(n, graph->node_count - 1);
                    assert_int_equal(node->params[DRAFT_FEEDBACK], decodes);
                    assert_int_equal(graph->values[node->operands[DRAFT_LOGITS]].dtype, DTYPE_F32);
                }
                assert_int_equal(drafts, 1);
                assert_int_equal(follows, 1);
                assert_int_equal(samples, 1);
            }
            if (ranks > 1) test_device_model_exchange(&model, 2048);
            test_lower_all(&model, &test_gpus[TEST_GPU_90]);
            test_device_model_close(&model);
        }
}

int main(void) { return test_run(); }
