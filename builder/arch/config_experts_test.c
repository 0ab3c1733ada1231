/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration keys of experts: which layers have them, how a row chooses some, and values that are refused. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

#include "formats/base/test_support.h"
#include "kernels/router/router.h"

#define MIXED   "\"layer_types\": [\"conv\", \"full_attention\", \"conv\", \"full_attention\"]"
#define DENSE_2 "[\"dense\", \"dense\", \"sparse\", \"sparse\"]"
#define HUNYUAN "\"num_experts\": 8"
#define DOTS1   "\"num_key_value_heads\": 8, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2"

/* The layers that have experts: "-x-x". */
static void expect_experts(const char *model_type, const char *fields, const char *layers)
{
    const struct model_config config = test_config_accepted(model_type, fields);
    for (uint64_t i = 0; i < config.layers; i++) assert_int_equal(config.layer[i].experts, layers[i] == 'x');
}

TEST(test_experts)
{
    struct model_config config =
        test_config_accepted("mixtral", "\"num_local_experts\": 6, \"num_experts_per_tok\": 3");
    assert_int_equal(config.experts.count, 6);
    assert_int_equal(config.experts.top_k, 3);
    assert_int_equal(config.experts.intermediate_size, config.intermediate_size);
    assert_int_equal(config.experts.renormalise, ROUTER_SUM_PLUS_EPS);
    config = test_config_accepted("qwen3_moe",
                                  "\"num_experts\": 16, \"norm_topk_prob\": false, \"moe_intermediate_size\": 24");
    assert_int_equal(config.experts.count, 16);
    assert_int_equal(config.experts.top_k, 8);
    assert_int_equal(config.experts.intermediate_size, 24);
    assert_int_equal(config.experts.renormalise, ROUTER_AS_THEY_ARE);
    config =
        test_config_accepted("glm4_moe",
                             "\"n_routed_experts\": 16, \"n_group\": 4, \"topk_group\": 2, \"n_shared_experts\": 2,"
                             " \"routed_scaling_factor\": 2.5, \"moe_intermediate_size\": 8,"
                             " \"partial_rotary_factor\": 0.5, \"num_nextn_predict_layers\": 1");
    assert_int_equal(config.experts.score, ROUTER_SIGMOID);
    assert_int_equal(config.experts.groups, 4);
    assert_int_equal(config.experts.top_groups, 2);
    assert_int_equal(config.experts.shared_size, 16);
    assert_int_equal(config.ignored_layers, 1);
    assert_true(config.experts.scale == 2.5 && config.no_qk_norm);

    expect_experts("mixtral", "\"router_jitter_noise\": 0.1", "xxxx");
    expect_experts("qwen3_moe", "\"decoder_sparse_step\": 2", "-x-x");
    expect_experts("qwen2_moe", "\"num_key_value_heads\": 8, \"mlp_only_layers\": [0, 2]", "-x-x");
    expect_experts("glm4_moe", "\"first_k_dense_replace\": 3, \"partial_rotary_factor\": 0.5", "---x");
    expect_experts("ernie4_5_moe", "\"moe_layer_start_index\": 0, \"moe_layer_end_index\": -1", "xxxx");
    expect_experts("ernie4_5_moe", "\"moe_layer_interval\": 2, \"moe_layer_end_index\": 2", "-x--");
    expect_experts("lfm2_moe", "\"num_dense_layers\": 3, " MIXED, "---x");
    expect_experts("glm4_moe_lite", "\"first_k_dense_replace\": null", "-xxx");
    expect_experts("glm4_moe_lite", "\"mlp_layer_types\": " DENSE_2 ", \"first_k_dense_replace\": 2", "--xx");
    expect_experts("exaone_moe", "\"num_key_value_heads\": 8, \"first_k_dense_replace\": 3", "---x");
    expect_experts("exaone_moe",
                   "\"num_key_value_heads\": 8, \"mlp_layer_types\": " DENSE_2 ", \"first_last_k_dense_replace\": 2, "
                   "\"is_moe_layer\": [false, false, true, true]",
                   "--xx");
    expect_experts("solar_open", "\"moe_intermediate_size\": 48, \"first_k_dense_replace\": 0", "xxxx");
    config = test_config_accepted("lfm2_moe", "\"routed_scaling_factor\": 1.5, \"tie_embedding\": false, " MIXED);
    assert_int_equal(config.experts.score, ROUTER_SIGMOID);
    assert_true(config.experts.scale == 1.5 && config.experts.eps == 1e-6 && !config.tie_word_embeddings);
    config = test_config_accepted("minimax_m2", "\"rotary_dim\": 32, \"partial_rotary_factor\": 0.25");
    assert_int_equal(config.rope.rotary_dim, 32);
    assert_true(config.experts.score == ROUTER_SIGMOID && config.experts.eps == 0);
    config = test_config_accepted("dots1", DOTS1 ", \"max_window_layers\": 3, \"sliding_window\": 64");
    assert_true(config.layer[3].window == 64 && !config.layer[2].window);
    assert_true(test_config_accepted("solar_open", "\"moe_intermediate_size\": 40").experts.intermediate_size == 40);
    config = test_config_accepted("exaone_moe", "\"architectures\": [\"ExaoneMoEForCausalLM\"], "
                                                "\"num_key_value_heads\": 8, \"num_nextn_predict_layers\": 1");
    assert_true(config.ignored_layers == 1 && config.ignored_prefix);
    expect_experts("afmoe", "\"num_dense_layers\": 2", "--xx");
    config = test_config_accepted("afmoe", "\"mup_enabled\": true, \"route_scale\": 2.5, \"num_shared_experts\": 3");
    assert_true(config.embedding_scale == 8 && config.experts.scale == 2.5);
    assert_int_equal(config.experts.shared_size, 3 * 1408);
    assert_int_equal(test_config_accepted("granitemoeshared", "\"shared_intermediate_size\": 48").experts.shared_size,
                     48);
    assert_int_equal(test_config_accepted("granitemoeshared", "").experts.shared_size, 0);
    config = test_config_accepted("hunyuan_v1_moe",
                                  HUNYUAN ", \"moe_topk\": [2, 2, 2, 2], \"num_shared_expert\": [1, 1, 1, 1], "
                                          "\"moe_intermediate_size\": [96, 96, 96, 96]");
    assert_int_equal(config.experts.top_k, 2);
    assert_true(config.experts.shared_size == 96 && config.experts.renormalise == ROUTER_SUM_PLUS_EPS);
    expect_experts("hy_v3", "", "-xxx");
    expect_experts("hy_v3", "\"mlp_layer_types\": " DENSE_2, "--xx");
    config = test_config_accepted("hy_v3", "\"router_scaling_factor\": 1.5, \"num_nextn_predict_layers\": 1");
    assert_true(config.experts.scale == 1.5 && config.experts.score == ROUTER_SIGMOID && config.ignored_layers == 1);
    expect_experts("mellum", "\"mlp_layer_types\": " DENSE_2, "--xx");
    config = test_config_accepted("mellum", "\"layer_types\": [\"sliding_attention\", \"full_attention\", "
                                            "\"full_attention\", \"full_attention\"], \"sliding_window\": 64");
    assert_true(config.layer[0].window == 64 && !config.layer[1].window && config.local_rope.theta == 1e4);
    assert_int_equal(config.layer[0].rope, LAYER_ROPE_LOCAL);
    expect_experts("axk1", "", "-xxx");
    expect_experts("kimi_k2", "\"first_k_dense_replace\": 1", "-xxx");
    config = test_config_accepted(
        "mistral4",
        "\"head_dim\": 128, \"qk_head_dim\": 128, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, "
        "\"partial_rotary_factor\": 0.5, \"llama_4_scaling_beta\": 0.1, "
        "\"original_max_position_embeddings\": 8192}");
    assert_true(config.max_position == 8192 && config.position_limit && config.experts.score == ROUTER_SOFTMAX);
    static const struct {
        const char *model_type, *fields, *words;
    } cases[] = {
        {"granitemoeshared", "\"shared_intermediate_size\": -1", "'shared_intermediate_size'|found -1"},
        {"granitemoe", "\"shared_intermediate_size\": 48", "'shared_intermediate_size'|not understood"},
        {"hunyuan_v1_moe", HUNYUAN ", \"moe_topk\": [2, 2, 2, 1]", "'moe_topk'|num_hidden_layers (4)"},
        {"hunyuan_v1_moe", HUNYUAN ", \"moe_topk\": [2]", "'moe_topk'|num_hidden_layers (4)"},
        {"hunyuan_v1_moe", HUNYUAN ", \"num_shared_expert\": 2", "'num_shared_expert'|expected 1|found 2"},
        {"hunyuan_v1_moe", HUNYUAN ", \"moe_intermediate_size\": 64", "'moe_intermediate_size'|intermediate_size"},
        {"hunyuan_v1_moe", "\"num_experts\": [8, 8, 8, 8]", "'num_experts'|an integer"},
        {"hunyuan_v1_moe", HUNYUAN ", \"moe_layer_num_skipped\": 1", "'moe_layer_num_skipped'|0"},
        {"hy_v3", "\"route_norm\": false", "'route_norm'|true"},
        {"mellum", "\"decoder_sparse_step\": 2", "'decoder_sparse_step'|not understood"},
        {"mellum", "\"rope_theta\": 1e6", "'rope_theta'|expected 500000, or one in"},
        {"mellum", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}", "'rope_scaling'"},
        {"hy_v3", "\"n_group\": 4", "'n_group'|expected 1"},
        {"hy_v3", "\"topk_group\": 2", "'topk_group'"},
        {"hy_v3", "\"norm_topk_prob\": false", "'norm_topk_prob'|expected true"},
        {"hy_v3", "\"routed_scaling_factor\": 2.0", "'routed_scaling_factor'"},
        {"hy_v3", "\"first_k_dense_replace\": 2", "'first_k_dense_replace'|expected 1"},
        {"axk1", "\"scoring_func\": \"softmax\"", "'scoring_func'|\"sigmoid\"|softmax"},
        {"kimi_k2", "\"architectures\": [\"KimiForCausalLM\"]", "'architectures'|DeepseekV3ForCausalLM"},
        {"mistral4", "\"n_group\": 1", "'rope_parameters'|an object"},
        {"mistral4", "\"head_dim\": 64, \"rope_parameters\": {\"rope_type\": \"default\"}",
         "'head_dim'|(128)|found 64"},
        {"mistral4", "\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.25}",
         "'partial_rotary_factor'|qk_rope_head_dim (64)|found 0.25"},
        {"mixtral", "\"num_local_experts\": 0", "'num_local_experts'|from 1|found 0"},
        {"mixtral", "\"num_local_experts\": 100000", "'num_local_experts'|found 100000"},
        {"mixtral", "\"num_local_experts\": 2, \"num_experts_per_tok\": 3", "'num_experts_per_tok'|(2)|found 3"},
        {"mixtral", "\"num_local_experts\": 2, \"num_experts\": 3", "'num_experts'|num_local_experts|found 3"},
        {"mixtral", "\"norm_topk_prob\": true", "'norm_topk_prob'|not understood"},
        {"llama", "\"num_experts\": 4", "'num_experts'|not understood"},
        {"qwen3_moe", "\"mlp_only_layers\": [4]", "'mlp_only_layers'|num_hidden_layers|found 4"},
        {"qwen3_moe", "\"mlp_only_layers\": 1", "'mlp_only_layers'|array"},
        {"qwen3_moe", "\"mlp_only_layers\": [-1]", "'mlp_only_layers'|found -1"},
        {"qwen3_moe", "\"decoder_sparse_step\": 0", "'decoder_sparse_step'|from 1"},
        {"qwen2_moe", "\"num_key_value_heads\": 8, \"shared_expert_intermediate_size\": 0",
         "'shared_expert_intermediate_size'|from 1"},
        {"olmoe", "\"clip_qkv\": 8.0", "'clip_qkv'|found 8"},
        {"ernie4_5_moe", "\"use_bias\": true", "'use_bias'|false"},
        {"ernie4_5_moe", "\"moe_norm_min\": 0", "'moe_norm_min'|above 0"},
        {"ernie4_5_moe", "\"moe_num_shared_experts\": 64, \"moe_intermediate_size\": 1000000",
         "moe_num_shared_experts times"},
        {"glm4_moe", "\"partial_rotary_factor\": 0.5, \"n_group\": 3", "'n_group'|128|found 3"},
        {"lfm2_moe", "\"use_expert_bias\": false, " MIXED, "'use_expert_bias'|true"},
        {"lfm2_moe", "\"num_experts\": 4", "'layer_types'|nothing"},
        {"lfm2_moe", "\"layer_types\": [\"conv\", \"conv\", \"conv\", \"conv\"]", "at least one layer of attention"},
        {"lfm2_moe", "\"block_dim\": 64, " MIXED, "'block_dim'|not understood"},
        {"glm4_moe_lite", "\"first_k_dense_replace\": 2", "'first_k_dense_replace'|mlp_layer_types|found 2"},
        {"glm4_moe_lite", "\"first_k_dense_replace\": 1, \"mlp_layer_types\": " DENSE_2,
         "'mlp_layer_types'|first_k_dense_replace"},
        {"glm4_moe_lite", "\"mlp_layer_types\": [\"dense\"]", "'mlp_layer_types'|num_hidden_layers (4)"},
        {"glm4_moe_lite", "\"mlp_layer_types\": [\"dense\", \"dense\", \"dense\", \"none\"]",
         "'mlp_layer_types'|\"sparse\"|none"},
        {"glm4_moe_lite", "\"topk_method\": \"greedy\"", "'topk_method'|noaux_tc|greedy"},
        {"dots1", "\"num_key_value_heads\": 8, \"num_experts_per_tok\": 2", "'n_routed_experts'"},
        {"dots1", DOTS1 ", \"scoring_func\": \"softmax\"", "'scoring_func'|\"sigmoid\"|softmax"},
        {"dots1", DOTS1 ", \"use_sliding_window\": false, \"max_window_layers\": 2", "'use_sliding_window'"},
        {"exaone_moe", "\"num_key_value_heads\": 8, \"is_moe_layer\": [true, true, true, true]",
         "'is_moe_layer'|first_k_dense_replace"},
        {"exaone_moe", "\"num_key_value_heads\": 8, \"is_moe_layer\": [false]", "'is_moe_layer'"},
        {"exaone_moe", "\"architectures\": [\"Exaone4ForCausalLM\"]", "'architectures'|ExaoneMoeForCausalLM"},
        {"solar_open", "\"moe_intermediate_size\": 48, \"first_k_dense_replace\": 1", "'first_k_dense_replace'|0"},
        {"solar_open", "\"n_group\": 1", "'moe_intermediate_size'"},
        {"minimax_m2", "\"rotary_dim\": 33", "'rotary_dim'|even"},
        {"minimax_m2", "\"rotary_dim\": 64, \"partial_rotary_factor\": 0.25", "'rotary_dim'|partial_rotary_factor"},
        {"minimax_m2", "\"attn_type_list\": [1, 1, 0, 1]", "'attn_type_list'|attention"},
        {"minimax_m2", "\"attn_type_list\": [1]", "'attn_type_list'"},
        {"minimax_m2", "\"use_routing_bias\": false", "'use_routing_bias'|true"},
        {"minimax_m2", "\"qk_norm_type\": \"per_head\"", "'qk_norm_type'|per_layer"},
        {"minimax_m2", "\"shared_intermediate_size\": 96", "'shared_intermediate_size'|0"},
        {"afmoe", "\"sliding_window\": null", "'sliding_window'|an integer"},
        {"afmoe", "\"route_norm\": false", "'route_norm'|true"},
        {"afmoe", "\"num_expert_groups\": 2", "'num_expert_groups'|1"},
        {"afmoe", "\"score_func\": \"softmax\"", "'score_func'|\"sigmoid\""},
        {"afmoe", "\"num_shared_experts\": 64, \"moe_intermediate_size\": 1000000", "num_shared_experts times"},
        {"youtu", "\"num_experts\": 4", "'num_experts'|not understood"},
        {"flex_olmo", "\"clip_qkv\": 8.0", "'clip_qkv'|not understood"},
        {"glm4_moe", "\"partial_rotary_factor\": 0.5, \"n_group\": 64, \"topk_group\": 2", "'n_group'|found 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_config_refused(cases[i].model_type, cases[i].fields, cases[i].words);
}

int main(void) { return test_run(); }
