/* SPDX-License-Identifier: Apache-2.0 */
/* Configs of families with state spaces: published ones as far as they were seen, fields that are read, fields that are refused. */
#include <float.h>

#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"
#include "kernels/router/router.h"

TEST(published_configs)
{
    static const struct test_published models[] = {
        {"ibm-granite/granite-4.0-h-350m",
         "{'architectures': ['GraniteMoeHybridForCausalLM'], 'model_type': 'granitemoehybrid', "
         "'attention_bias': false, 'attention_multiplier': 0.015625, 'embedding_multiplier': 12, "
         "'eos_token_id': 100257, 'hidden_size': 768, 'intermediate_size': 2048, 'logits_scaling': 3, "
         "'layer_types': ['mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', "
         "'mamba', 'attention', 'mamba', 'mamba', 'attention', 'mamba', 'mamba', 'mamba', 'attention', "
         "'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'attention', "
         "'mamba', 'mamba', 'mamba', 'mamba'], 'mamba_conv_bias': true, 'mamba_d_conv': 4, 'mamba_d_head': "
         "32, 'mamba_d_state': 128, 'mamba_n_groups': 1, 'mamba_n_heads': 48, 'mamba_proj_bias': false, "
         "'max_position_embeddings': 32768, 'num_attention_heads': 12, 'num_experts_per_tok': 0, "
         "'num_hidden_layers': 32, 'num_key_value_heads': 4, 'num_local_experts': 0, "
         "'position_embedding_type': 'nope', 'residual_multiplier': 0.246, 'rms_norm_eps': 1e-05, "
         "'rope_theta': 10000, 'shared_intermediate_size': 2048, 'tie_word_embeddings': true, 'vocab_size': "
         "100352}",
         "32 layers of 768, heads 12/4 x 64, mlp 2048, vocabulary 100352, context 32768, rope 64 at 10000, 28 "
         "recurrent, 4 without rotation; tied embeddings x12 scores x0.125 residual x0.246 logits x0.3333"},
        {"ibm-granite/granite-4.0-h-tiny",
         "{'architectures': ['GraniteMoeHybridForCausalLM'], 'attention_bias': false, 'attention_dropout': "
         "0.0, 'attention_multiplier': 0.0078125, 'bos_token_id': 100257, 'embedding_multiplier': 12, "
         "'eos_token_id': 100257, 'hidden_act': 'silu', 'hidden_size': 1536, 'init_method': 'mup', "
         "'initializer_range': 0.1, 'intermediate_size': 512, 'layer_types': ['mamba', 'mamba', 'mamba', "
         "'mamba', 'mamba', 'attention', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', "
         "'mamba', 'mamba', 'attention', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', "
         "'mamba', 'mamba', 'attention', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', 'mamba', "
         "'mamba', 'mamba', 'attention', 'mamba', 'mamba', 'mamba', 'mamba'], 'logits_scaling': 6, "
         "'mamba_chunk_size': 256, 'mamba_conv_bias': true, 'mamba_d_conv': 4, 'mamba_d_head': 64, "
         "'mamba_d_state': 128, 'mamba_expand': 2, 'mamba_n_groups': 1, 'mamba_n_heads': 48, "
         "'mamba_proj_bias': false, 'max_position_embeddings': 131072, 'model_type': 'granitemoehybrid', "
         "'normalization_function': 'rmsnorm', 'num_attention_heads': 12, 'num_experts_per_tok': 6, "
         "'num_hidden_layers': 40, 'num_key_value_heads': 4, 'num_local_experts': 64, 'output_router_logits': "
         "false, 'pad_token_id': 100256, 'position_embedding_type': 'nope', 'residual_multiplier': 0.22, "
         "'rms_norm_eps': 1e-05, 'rope_scaling': null, 'rope_theta': 10000, 'router_aux_loss_coef': 0.0, "
         "'shared_intermediate_size': 1024, 'tie_word_embeddings': true, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.56.0', 'use_cache': true, 'vocab_size': 100352}",
         "40 layers of 1536, heads 12/4 x 128, mlp 512, vocabulary 100352, context 131072, rope 128 at 10000, "
         "36 recurrent, 4 without rotation; experts in 40: 6 of 64 x 512, shared 1024; tied embeddings x12 "
         "scores x0.08839 residual x0.22 logits x0.1667"},
        {"ibm-ai-platform/Bamba-9B-v1",
         "{'architectures': ['BambaForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'attn_layer_indices': [9, 18, 27], 'attn_rotary_emb': 64, 'bos_token_id': 128000, 'eos_token_id': "
         "128001, 'hidden_act': 'silu', 'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': "
         "14336, 'mamba_chunk_size': 256, 'mamba_conv_bias': true, 'mamba_d_conv': 4, 'mamba_d_head': 64, "
         "'mamba_d_state': 128, 'mamba_expand': 2, 'mamba_n_groups': 1, 'mamba_n_heads': 128, "
         "'mamba_proj_bias': false, 'max_position_embeddings': 262144, 'mlp_bias': false, 'model_type': "
         "'bamba', 'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': 8, "
         "'num_logits_to_keep': 1, 'output_router_logits': false, 'pad_token_id': 0, 'rms_norm_eps': 1e-05, "
         "'rope_scaling': null, 'rope_theta': 10000.0, 'router_aux_loss_coef': 0.001, 'tie_word_embeddings': "
         "false, 'torch_dtype': 'bfloat16', 'use_cache': true, 'use_mamba_kernels': true, 'vocab_size': "
         "128256}",
         "32 layers of 4096, heads 32/8 x 128, mlp 14336, vocabulary 128256, context 262144, rope 64 at "
         "10000, 29 recurrent;"},
        {"nvidia/NVIDIA-Nemotron-Nano-9B-v2",
         "{'architectures': ['NemotronHForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'auto_map': {'AutoConfig': 'configuration_nemotron_h.NemotronHConfig', 'AutoModelForCausalLM': "
         "'modeling_nemotron_h.NemotronHForCausalLM'}, 'bos_token_id': 1, 'chunk_size': 128, 'conv_kernel': "
         "4, 'eos_token_id': 12, 'head_dim': 128, 'hidden_dropout': 0.0, 'hidden_size': 4480, "
         "'hybrid_override_pattern': 'M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-', "
         "'initializer_range': 0.02, 'intermediate_size': 15680, 'layer_norm_epsilon': 1e-05, "
         "'mamba_head_dim': 80, 'mamba_hidden_act': 'silu', 'mamba_num_heads': 128, 'mamba_proj_bias': false, "
         "'max_position_embeddings': 131072, 'mlp_bias': false, 'mlp_hidden_act': 'relu2', 'model_type': "
         "'nemotron_h', 'n_groups': 8, 'num_attention_heads': 40, 'num_hidden_layers': 56, "
         "'num_key_value_heads': 8, 'num_logits_to_keep': 1, 'pad_token_id': 0, 'rescale_prenorm_residual': "
         "true, 'residual_in_fp32': false, 'rms_norm_eps': 1e-05, 'sliding_window': null, 'ssm_state_size': "
         "128, 'tie_word_embeddings': false, 'time_step_floor': 0.0001, 'time_step_limit': [0.0, Infinity], "
         "'time_step_max': 0.1, 'time_step_min': 0.001, 'time_step_rank': 256, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.51.3', 'use_bias': false, 'use_cache': true, 'use_conv_bias': true, "
         "'use_mamba_kernels': true, 'vocab_size': 131072}",
         "56 layers of 4480, heads 40/8 x 128, mlp 15680, vocabulary 131072, context 131072, rope 128 at "
         "10000, 27 recurrent, 4 without rotation;"},
        {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
         "{'architectures': ['NemotronHForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'auto_map': {'AutoConfig': 'configuration_nemotron_h.NemotronHConfig', 'AutoModel': "
         "'modeling_nemotron_h.NemotronHForCausalLM', 'AutoModelForCausalLM': "
         "'modeling_nemotron_h.NemotronHForCausalLM'}, 'bos_token_id': 1, 'chunk_size': 128, 'conv_kernel': 4, "
         "'eos_token_id': 2, 'expand': 2, 'head_dim': 128, 'hidden_dropout': 0.0, 'hidden_size': 2688, "
         "'hybrid_override_pattern': 'MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME', "
         "'initializer_range': 0.02, 'intermediate_size': 1856, 'layer_norm_epsilon': 1e-05, "
         "'mamba_head_dim': 64, 'mamba_hidden_act': 'silu', 'mamba_num_heads': 64, 'mamba_proj_bias': false, "
         "'mamba_ssm_cache_dtype': 'float32', 'max_position_embeddings': 262144, 'mlp_bias': false, "
         "'mlp_hidden_act': 'relu2', 'model_type': 'nemotron_h', 'moe_intermediate_size': 1856, "
         "'moe_shared_expert_intermediate_size': 3712, 'n_group': 1, 'n_groups': 8, 'n_routed_experts': 128, "
         "'n_shared_experts': 1, 'norm_eps': 1e-05, 'norm_topk_prob': true, 'num_attention_heads': 32, "
         "'num_experts_per_tok': 6, 'num_hidden_layers': 52, 'num_key_value_heads': 2, 'num_logits_to_keep': "
         "1, 'pad_token_id': 0, 'partial_rotary_factor': 1.0, 'rescale_prenorm_residual': true, "
         "'residual_in_fp32': false, 'rope_theta': 10000, 'routed_scaling_factor': 2.5, 'sliding_window': "
         "null, 'ssm_state_size': 128, 'tie_word_embeddings': false, 'time_step_floor': 0.0001, "
         "'time_step_max': 0.1, 'time_step_min': 0.001, 'topk_group': 1, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.55.4', 'use_bias': false, 'use_cache': true, 'use_conv_bias': true, "
         "'use_mamba_kernels': true, 'vocab_size': 131072}",
         "52 layers of 2688, heads 32/2 x 128, mlp 1856, vocabulary 131072, context 262144, rope 128 at 10000, "
         "23 recurrent, 6 without rotation; experts in 23: 6 of 128 x 1856, shared 3712;"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

#define MIXED  "\"layer_types\": [\"linear_attention\", \"full_attention\", \"linear_attention\", \"linear_attention\"]"
#define FALCON "\"mamba_n_heads\": 16, \"num_key_value_heads\": 4"
#define MAMBA  MIXED ", \"mamba_n_heads\": 8, \"mamba_d_state\": 32"

TEST(granitemoehybrid)
{
    struct model_config config =
        test_config_accepted("granitemoehybrid",
                             MAMBA ", \"mamba_n_groups\": 2, \"mamba_d_head\": \"auto\", \"mamba_proj_bias\": true, "
                                   "\"time_step_limit\": [0.25, {\"__float__\": \"Infinity\"}]");
    assert_int_equal(config.layer[0].mixer, MIXER_STATE_SPACE);
    assert_int_equal(config.layer[1].mixer, MIXER_ATTENTION);
    assert_int_equal(config.layer[1].rope, LAYER_ROPE_NONE);
    assert_int_equal(config.recurrent.value_dim, 16);
    assert_int_equal(config.recurrent.channels, 128 + 2 * 2 * 32);
    assert_int_equal(config.recurrent.norm_groups, 1);
    assert_true(config.recurrent.conv_bias && config.recurrent.projection_bias);
    assert_true(config.recurrent.dt_min == 0.25 && config.recurrent.dt_max == (double)FLT_MAX);
    assert_int_equal(config.experts.count, 8);
    assert_int_equal(config.experts.intermediate_size, 96);
    assert_int_equal(config.experts.shared_size, 1024);
    assert_int_equal(config.experts.score, ROUTER_SOFTMAX_CHOSEN);
    config = test_config_accepted("granitemoehybrid", MAMBA ", \"num_local_experts\": 0, \"num_experts_per_tok\": 0, "
                                                            "\"shared_intermediate_size\": 80");
    assert_false(config.layer[0].experts);
    assert_int_equal(config.intermediate_size, 80);
    config = test_config_accepted("granitemoehybrid",
                                  "\"layer_types\": [\"attention\", \"attention\", \"attention\", \"attention\"], "
                                  "\"mamba_n_heads\": 8, \"position_embedding_type\": \"rope\"");
    assert_int_equal(config.recurrent.kernel, 0);
    assert_int_equal(config.layer[0].rope, LAYER_ROPE_MAIN);
}

TEST(bamba_and_nemotron_h)
{
    struct model_config config = test_config_accepted("bamba", "\"attn_layer_indices\": [2], \"mamba_n_heads\": 8");
    assert_int_equal(config.layer[2].mixer, MIXER_ATTENTION);
    assert_int_equal(config.layer[3].mixer, MIXER_STATE_SPACE);
    assert_int_equal(config.rope.rotary_dim, 4);
    config = test_config_accepted("nemotron_h", "\"hybrid_override_pattern\": \"M-*M\", \"use_bias\": true, "
                                                "\"use_conv_bias\": false, \"time_step_limit\": [0.5, 2], "
                                                "\"attention_head_dim\": 128, \"norm_eps\": 1e-5");
    assert_int_equal(config.layer[0].mixer, MIXER_STATE_SPACE);
    assert_int_equal(config.layer[1].mixer, MIXER_NONE);
    assert_int_equal(config.layer[2].mixer, MIXER_ATTENTION);
    assert_true(config.layer[0].no_mlp && !config.layer[1].no_mlp && config.layer[2].no_mlp);
    assert_int_equal(config.recurrent.norm_groups, 8);
    assert_int_equal(config.recurrent.channels, 128 * 64 + 2 * 8 * 128);
    assert_true(config.recurrent.projection_bias && !config.recurrent.conv_bias && config.recurrent.dt_min == 0.5);
    config = test_config_accepted("nemotron_h", "\"layers_block_type\": [\"mamba\", \"mlp\", \"attention\", \"mlp\"]");
    assert_int_equal(config.layer[2].mixer, MIXER_ATTENTION);
    assert_int_equal(config.experts.count, 0);
}

TEST(nemotron_h_with_experts)
{
    struct model_config config =
        test_config_accepted("nemotron_h",
                             "\"layers_block_type\": [\"moe\", \"mlp\", \"attention\", \"moe\"], "
                             "\"num_nextn_predict_layers\": 1, \"mtp_layers_block_type\": [\"attention\", "
                             "\"moe\"], \"moe_latent_size\": null, \"moe_shared_expert_overlap\": false");
    const struct model_experts *experts = &config.experts;
    assert_true(config.layer[0].experts && !config.layer[1].experts && !config.layer[2].experts &&
                config.layer[3].experts);
    assert_int_equal(config.layer[0].mixer, MIXER_NONE);
    assert_false(config.layer[0].no_mlp);
    assert_int_equal(experts->count, 8);
    assert_int_equal(experts->top_k, 2);
    assert_int_equal(experts->intermediate_size, 7688);
    assert_int_equal(experts->shared_size, 7688);
    assert_int_equal(experts->score, ROUTER_SIGMOID);
    assert_int_equal(experts->renormalise, ROUTER_SUM_PLUS_EPS);
    assert_int_equal(experts->group_score, ROUTER_GROUP_BEST_TWO);
    assert_true(experts->scale == 1 && experts->groups == 1);
    assert_int_equal(config.ignored_layers, 1);
    assert_string_equal(config.ignored_prefix, "mtp.");
    config = test_config_accepted("nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"n_routed_experts\": 16, "
                                                "\"num_experts_per_tok\": 3, \"moe_intermediate_size\": 48, "
                                                "\"moe_shared_expert_intermediate_size\": 80, \"n_group\": 4, "
                                                "\"topk_group\": 2, \"routed_scaling_factor\": 2.5, "
                                                "\"norm_topk_prob\": false");
    assert_true(!config.layer[0].experts && config.layer[1].experts);
    assert_int_equal(experts->count, 16);
    assert_int_equal(experts->top_k, 3);
    assert_int_equal(experts->intermediate_size, 48);
    assert_int_equal(experts->shared_size, 80);
    assert_int_equal(experts->groups, 4);
    assert_int_equal(experts->renormalise, ROUTER_AS_THEY_ARE);
    assert_true(experts->scale == 2.5);
}

TEST(falcon_h1)
{
    struct model_config config = test_config_accepted(
        "falcon_h1",
        "\"mamba_d_ssm\": 96, \"mamba_n_heads\": 8, \"mamba_n_groups\": 2, \"num_key_value_heads\": 4, "
        "\"attention_in_multiplier\": 0.5, \"attention_out_multiplier\": 4, \"key_multiplier\": 2, "
        "\"mlp_multipliers\": [0.25, 3], \"ssm_multipliers\": [1, 2, 3, 4, 5], \"ssm_in_multiplier\": 0.5, "
        "\"ssm_out_multiplier\": 0.125, \"lm_head_multiplier\": 0.75, \"embedding_multiplier\": 6");
    const struct model_recurrent *sizes = &config.recurrent;
    assert_int_equal(config.layer[3].mixer, MIXER_BOTH);
    assert_int_equal(model_attention_layers(&config), config.layers);
    assert_int_equal(sizes->value_dim, 12);
    assert_int_equal(sizes->norm_groups, 0);
    assert_true(config.attention_out_scale == 2 && config.gate_scale == 0.25 && config.mlp_out_scale == 3);
    assert_true(config.logits_scale == 0.75 && config.embedding_scale == 6);
    assert_true(sizes->z_scale == 0.5 && sizes->dt_scale == 2.5 && sizes->out_scale == 0.125);
    assert_true(sizes->xbc_scale[0] == 1 && sizes->xbc_scale[1] == 1.5 && sizes->xbc_scale[2] == 2);
    config = test_config_accepted("falcon_h1", "\"mamba_d_ssm\": null, \"mamba_n_heads\": 8, \"mamba_rms_norm\": true, "
                                               "\"num_key_value_heads\": 4, \"mamba_norm_before_gate\": false");
    assert_int_equal(config.recurrent.value_dim, 16);
    assert_int_equal(config.recurrent.norm_groups, 1);
}

TEST(refused_configs)
{
    static const struct {
        const char *model_type, *fields, *words;
    } cases[] = {
        {"granitemoehybrid", "\"mamba_n_heads\": 8", "at least one layer of attention"},
        {"granitemoehybrid", "\"layer_types\": [\"mamba\"]", "'layer_types'|num_hidden_layers"},
        {"granitemoehybrid", "\"layer_types\": [\"mamba\", \"conv\", \"mamba\", \"mamba\"]",
         "'layer_types'|mamba|conv"},
        {"granitemoehybrid", MAMBA ", \"mamba_n_groups\": 3", "'mamba_n_heads'|multiple of mamba_n_groups"},
        {"granitemoehybrid", MAMBA ", \"mamba_d_head\": 32", "'mamba_d_head'|all elements of the heads (128)"},
        {"granitemoehybrid", MAMBA ", \"mamba_d_head\": \"small\"", "'mamba_d_head'|small"},
        {"granitemoehybrid", MAMBA ", \"mamba_d_conv\": 1", "'mamba_d_conv'|found 1"},
        {"granitemoehybrid", MIXED ", \"mamba_n_heads\": 128", "'mamba_d_head'|even|found 1"},
        {"granitemoehybrid", MIXED ", \"mamba_n_heads\": 256", "'mamba_d_head'|found 0"},
        {"granitemoehybrid", MAMBA ", \"position_embedding_type\": \"alibi\"", "'position_embedding_type'|alibi"},
        {"granitemoehybrid", MAMBA ", \"position_embedding_type\": \"a \\\" Infinity\"",
         "'position_embedding_type'| Infinity"},
        {"granitemoehybrid", MAMBA ", \"normalization_function\": \"layernorm\"", "'normalization_function'|layernorm"},
        {"granitemoehybrid", MAMBA ", \"time_step_limit\": [1, 0.5]", "'time_step_limit'|rising"},
        {"granitemoehybrid", MAMBA ", \"time_step_limit\": [0]", "'time_step_limit'|rising"},
        {"granitemoehybrid", MAMBA ", \"time_step_limit\": [0, \"x\"]", "'time_step_limit'|rising"},
        {"granitemoehybrid", MAMBA ", \"mlp_bias\": true", "'mlp_bias'|false"},
        {"granitemoehybrid",
         MIXED ", \"mamba_expand\": 64, \"mamba_n_heads\": 8, \"mamba_d_state\": 512, "
               "\"mamba_n_groups\": 1024",
         "'mamba_n_heads'|multiple"},
        {"bamba", "\"mamba_n_heads\": 8", "at least one layer of attention"},
        {"bamba", "\"mamba_n_heads\": 8, \"hidden_act\": \"gelu\"", "'hidden_act'|\"silu\"|gelu"},
        {"qwen3_next", "\"hidden_act\": \"gelu\"", "'hidden_act'|\"silu\"|gelu"},
        {"qwen3_5_text", "\"hidden_act\": \"gelu\"", "'hidden_act'|\"silu\"|gelu"},
        {"bamba", "\"mamba_n_heads\": 8, \"attn_layer_indices\": [4]", "'attn_layer_indices'|numbers of layers"},
        {"bamba", "\"mamba_n_heads\": 8, \"attn_layer_indices\": [1], \"attn_rotary_emb\": 8",
         "'attn_rotary_emb'|half"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-*\"", "'hybrid_override_pattern'|4 layers"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-*O\"", "'hybrid_override_pattern'|layer 3|experts (E"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"moe_latent_size\": 32", "'moe_latent_size'|found 32"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"n_shared_experts\": 2", "'n_shared_experts'|found 2"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"mlp_bias\": true", "'mlp_bias'|false"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"first_k_dense_replace\": 1",
         "'first_k_dense_replace'|found 1"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"num_experts_per_tok\": 9",
         "'num_experts_per_tok'|found 9"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"n_group\": 3", "'n_group'|found 3"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"ME*E\", \"moe_shared_expert_intermediate_size\": 0",
         "'moe_shared_expert_intermediate_size'|found 0"},
        {"nemotron_h", "\"layers_block_type\": [\"mlp\", \"full_attention\", 3, \"mlp\"]",
         "'layers_block_type'|layer 2"},
        {"nemotron_h", "\"a\": 1", "'hybrid_override_pattern'|4 layers"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-M-\"", "at least one layer of attention"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-*-\", \"mamba_hidden_act\": \"gelu\"",
         "'mamba_hidden_act'|silu"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-*-\", \"attention_bias\": true", "'attention_bias'|false"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-*-\", \"num_nextn_predict_layers\": 65",
         "'num_nextn_predict_layers'|found 65"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-*-\", \"time_step_limit\": [-1, 1]",
         "'time_step_limit'|rising"},
        {"nemotron_h", "\"hybrid_override_pattern\": \"M-*-\", \"attention_head_dim\": 64",
         "'attention_head_dim'|elements of a head (128)|found 64"},
        {"bamba", "\"attn_layer_indices\": [2], \"partial_rotary_factor\": 1.0", "'partial_rotary_factor'|0.5"},
        {"falcon_h1", FALCON ", \"mamba_d_head\": 32", "'mamba_d_head'|all elements of the heads (1024)"},
        {"falcon_h1", FALCON ", \"mamba_rms_norm\": true", "'mamba_norm_before_gate'|false with mamba_rms_norm"},
        {"falcon_h1", FALCON ", \"ssm_multipliers\": [1, 2]", "'ssm_multipliers'|5 numbers"},
        {"falcon_h1", FALCON ", \"mlp_multipliers\": [1, 0]", "'mlp_multipliers'|2 numbers"},
        {"falcon_h1", FALCON ", \"mamba_proj_bias\": true", "'mamba_proj_bias'|false"},
        {"falcon_h1", FALCON ", \"attn_layer_indices\": [1]", "'attn_layer_indices'"},
        {"falcon_h1", FALCON ", \"attention_in_multiplier\": 2000",
         "multipliers of attention|products from 1e-6 to 1e6|found"},
        {"falcon_h1", FALCON ", \"ssm_in_multiplier\": 1e-6, \"ssm_multipliers\": [1, 1, 0.5, 1, 1]",
         "products|found 5e-07"},
        {"falcon_h1", FALCON ", \"key_multiplier\": 0", "'key_multiplier'|found 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_config_refused(cases[i].model_type, cases[i].fields, cases[i].words);
}

int main(void) { return test_run(); }
