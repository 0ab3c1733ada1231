/* SPDX-License-Identifier: Apache-2.0 */
/* Published config.json files of models with experts or recurrent layers, as far as they were seen, and what they describe. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

#define TWO(text)   text ", " text
#define THREE(text) text ", " text ", " text
#define FOUR(text)  TWO(text) ", " TWO(text)
#define FIVE(text)  TWO(text) ", " THREE(text)
#define SLIDING_3   "'sliding_attention', 'sliding_attention', 'sliding_attention', 'full_attention'"
#define LINEAR_3    "'linear_attention', 'linear_attention', 'linear_attention', 'full_attention'"

TEST(experts)
{
    static const struct test_published models[] = {
        {"mistralai/Mixtral-8x22B-v0.1",
         "{'architectures': ['MixtralForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 1, "
         "'eos_token_id': 2, 'hidden_act': 'silu', 'hidden_size': 6144, 'initializer_range': 0.02, "
         "'intermediate_size': 16384, 'max_position_embeddings': 65536, 'model_type': 'mixtral', "
         "'num_attention_heads': 48, 'num_experts_per_tok': 2, 'num_hidden_layers': 56, 'num_key_value_heads': "
         "8, 'num_local_experts': 8, 'output_router_logits': false, 'rms_norm_eps': 1e-05, 'rope_theta': "
         "1000000, 'router_aux_loss_coef': 0.001, 'sliding_window': null, 'tie_word_embeddings': false, "
         "'torch_dtype': 'bfloat16', 'transformers_version': '4.38.0', 'use_cache': true, 'vocab_size': 32000}",
         "56 layers of 6144, heads 48/8 x 128, mlp 16384, vocabulary 32000, context 65536, rope 128 at "
         "1000000; experts in 56: 2 of 8 x 16384, shared 0;"},
        {"tencent/Hunyuan-A13B-Instruct",
         "{'add_classification_head': false, 'architectures': ['HunYuanMoEV1ForCausalLM'], "
         "'attention_bias': false, 'attention_dropout': 0.1, 'attention_head_dim': 128, 'auto_map': "
         "{'AutoConfig': 'configuration_hunyuan.HunYuanConfig', 'AutoModel': 'hunyuan.HunYuanModel', "
         "'AutoModelForCausalLM': 'hunyuan.HunYuanMoEV1ForCausalLM'}, 'bos_token_id': 1, "
         "'cla_share_factor': 2, 'class_num': 0, 'dense_list': [4096, 0], 'eod_token_id': 127967, "
         "'eos_token_id': 127960, 'group_limited_greedy': false, 'hidden_act': 'silu', 'hidden_size': "
         "4096, 'im_end_id': 6, 'im_newline_id': 12, 'im_start_id': 5, 'initializer_range': 0.02, "
         "'intermediate_size': 3072, 'kv_lora_rank': null, 'mask_init_id': 13, "
         "'max_position_embeddings': 32768, 'mlp_bias': false, 'model_type': 'hunyuan_v1_moe', "
         "'moe_drop_tokens': false, 'moe_intermediate_size': [" FOUR(FOUR(
             TWO("3072"))) "], 'moe_layer_num_skipped': 0, "
                           "'moe_random_routing_dropped_token': false, 'moe_topk': [" FOUR(FOUR(TWO(
                               "8"))) "], 'n_group': false, "
                                      "'norm_topk_prob': true, 'norm_type': 'rms', 'num_attention_heads': 32, "
                                      "'num_experts': 64, "
                                      "'num_hidden_layers': 32, 'num_key_value_heads': 8, 'num_shared_expert': [" FOUR(
                                          FOUR(TWO("1"))) "], "
                                                          "'org_vocab_size': 128167, 'pad_id': 127961, 'pad_token_id': "
                                                          "127961, 'pool_type': 'last', "
                                                          "'position_embedding_xdrope': false, 'pretraining_tp': 1, "
                                                          "'q_lora_rank': null, "
                                                          "'qk_nope_head_dim': null, 'qk_rope_head_dim': null, "
                                                          "'rms_norm_eps': 1e-05, 'rope_scaling': "
                                                          "{'alpha': 1000.0, 'beta_fast': 32, 'beta_slow': 1, "
                                                          "'factor': 1.0, 'mscale': 1.0, "
                                                          "'mscale_all_dim': 0.0, 'type': 'dynamic'}, 'rope_theta': "
                                                          "10000.0, 'routed_scaling_factor': "
                                                          "false, 'sep_token_id': 127962, 'text_end_id': 7, "
                                                          "'text_start_id': 6, 'tie_word_embeddings': "
                                                          "true, 'topk_group': false, 'torch_dtype': 'bfloat16', "
                                                          "'transformers_version': '4.41.2', "
                                                          "'use_cache': true, 'use_cla': false, 'use_mixed_mlp_moe': "
                                                          "true, 'use_qk_norm': true, "
                                                          "'use_rotary_pos_emb': true, 'v_head_dim': null, "
                                                          "'vocab_size': 128167}",
         "32 layers of 4096, heads 32/8 x 128, mlp 3072, vocabulary 128167, context 32768, rope 128 at "
         "11158839.9; experts in 32: 8 of 64 x 3072, shared 3072; tied"},
        {"moonshotai/Kimi-K2-Instruct",
         "{'architectures': ['DeepseekV3ForCausalLM'], 'attention_bias': false, 'attention_dropout': "
         "0.0, 'auto_map': {'AutoConfig': 'configuration_deepseek.DeepseekV3Config', 'AutoModel': "
         "'modeling_deepseek.DeepseekV3Model', 'AutoModelForCausalLM': "
         "'modeling_deepseek.DeepseekV3ForCausalLM'}, 'aux_loss_alpha': 0.001, 'bos_token_id': 163584,"
         " 'eos_token_id': 163585, 'first_k_dense_replace': 1, 'hidden_act': 'silu', 'hidden_size': "
         "7168, 'initializer_range': 0.02, 'intermediate_size': 18432, 'kv_lora_rank': 512, "
         "'max_position_embeddings': 131072, 'model_type': 'kimi_k2', 'moe_intermediate_size': 2048, "
         "'moe_layer_freq': 1, 'n_group': 1, 'n_routed_experts': 384, 'n_shared_experts': 1, "
         "'norm_topk_prob': true, 'num_attention_heads': 64, 'num_experts_per_tok': 8, "
         "'num_hidden_layers': 61, 'num_key_value_heads': 64, 'num_nextn_predict_layers': 0, "
         "'pretraining_tp': 1, 'q_lora_rank': 1536, 'qk_nope_head_dim': 128, 'qk_rope_head_dim': 64, "
         "'quantization_config': {'activation_scheme': 'dynamic', 'fmt': 'e4m3', 'quant_method': "
         "'fp8', 'weight_block_size': [128, 128]}, 'rms_norm_eps': 1e-06, 'rope_scaling': "
         "{'beta_fast': 1.0, 'beta_slow': 1.0, 'factor': 32.0, 'mscale': 1.0, 'mscale_all_dim': 1.0, "
         "'original_max_position_embeddings': 4096, 'type': 'yarn'}, 'rope_theta': 50000.0, "
         "'routed_scaling_factor': 2.827, 'scoring_func': 'sigmoid', 'seq_aux': true, "
         "'tie_word_embeddings': false, 'topk_group': 1, 'topk_method': 'noaux_tc', 'torch_dtype': "
         "'bfloat16', 'transformers_version': '4.48.3', 'use_cache': true, 'v_head_dim': 128, "
         "'vocab_size': 163840}",
         "61 layers of 7168, heads 64/1 x 576, mlp 18432, vocabulary 163840, context 131072, rope 64 at 50000 yarn "
         "x32; "
         "experts in 60: 8 of 384 x 2048, shared 2048; scores x1.732"},
        {"Qwen/Qwen1.5-MoE-A2.7B-Chat-GPTQ-Int4",
         "{'architectures': ['Qwen2MoeForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 151643, "
         "'eos_token_id': 151645, 'decoder_sparse_step': 1, 'hidden_act': 'silu', 'hidden_size': 2048, "
         "'initializer_range': 0.02, 'intermediate_size': 5632, 'max_position_embeddings': 32768, "
         "'max_window_layers': 21, 'model_type': 'qwen2_moe', 'moe_intermediate_size': 1408, 'norm_topk_prob': "
         "false, 'num_attention_heads': 16, 'num_experts': 60, 'num_experts_per_tok': 4, 'num_hidden_layers': "
         "24, 'num_key_value_heads': 16, 'output_router_logits': false, 'quantization_config': {'batch_size': "
         "1, 'bits': 4, 'block_name_to_quantize': null, 'cache_block_outputs': true, 'damp_percent': 0.01, "
         "'dataset': null, 'desc_act': false, 'exllama_config': {'version': 2}, 'group_size': 128, "
         "'max_input_length': null, 'model_seqlen': null, 'module_name_preceding_first_block': null, "
         "'modules_in_block_to_quantize': [['self_attn.k_proj', 'self_attn.v_proj', 'self_attn.q_proj'], "
         "['self_attn.o_proj'], ['mlp.shared_expert.up_proj', 'mlp.shared_expert.gate_proj'], "
         "['mlp.shared_expert.down_proj']], 'pad_token_id': null, 'quant_method': 'gptq', 'sym': true, "
         "'tokenizer': null, 'true_sequential': true, 'use_cuda_fp16': false, 'use_exllama': true}, "
         "'rms_norm_eps': 1e-06, 'rope_theta': 1000000.0, 'router_aux_loss_coef': 0.001, "
         "'shared_expert_intermediate_size': 5632, 'sliding_window': 32768, 'tie_word_embeddings': false, "
         "'torch_dtype': 'float16', 'transformers_version': '4.39.0.dev0', 'use_cache': true, "
         "'use_sliding_window': false, 'vocab_size': 151936}",
         "24 layers of 2048, heads 16/16 x 128, mlp 5632, vocabulary 151936, context 32768, rope 128 at "
         "1000000; experts in 24: 4 of 60 x 1408, shared 5632; qkv bias"},
        {"Qwen/Qwen2-57B-A14B-Instruct",
         "{'architectures': ['Qwen2MoeForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 151643, "
         "'decoder_sparse_step': 1, 'eos_token_id': 151643, 'hidden_act': 'silu', 'hidden_size': 3584, "
         "'initializer_range': 0.02, 'intermediate_size': 18944, 'max_position_embeddings': 131072, "
         "'max_window_layers': 28, 'model_type': 'qwen2_moe', 'moe_intermediate_size': 2560, 'norm_topk_prob': "
         "false, 'num_attention_heads': 28, 'num_experts': 64, 'num_experts_per_tok': 8, 'num_hidden_layers': "
         "28, 'num_key_value_heads': 4, 'output_router_logits': false, 'rms_norm_eps': 1e-06, 'rope_theta': "
         "1000000.0, 'router_aux_loss_coef': 0.001, 'shared_expert_intermediate_size': 20480, "
         "'sliding_window': 131072, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.40.1', 'use_cache': true, 'use_sliding_window': false, 'vocab_size': "
         "151936}",
         "28 layers of 3584, heads 28/4 x 128, mlp 18944, vocabulary 151936, context 131072, rope 128 at "
         "1000000; experts in 28: 8 of 64 x 2560, shared 20480; qkv bias"},
        {"Qwen/Qwen3-Coder-480B-A35B-Instruct",
         "{'architectures': ['Qwen3MoeForCausalLM'], 'attention_dropout': 0.0, 'decoder_sparse_step': 1, "
         "'eos_token_id': 151645, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 6144, "
         "'initializer_range': 0.02, 'intermediate_size': 8192, 'max_position_embeddings': 262144, "
         "'max_window_layers': 62, 'mlp_only_layers': [], 'model_type': 'qwen3_moe', 'moe_intermediate_size': "
         "2560, 'norm_topk_prob': true, 'num_attention_heads': 96, 'num_experts': 160, 'num_experts_per_tok': "
         "8, 'num_hidden_layers': 62, 'num_key_value_heads': 8, 'output_router_logits': false, 'qkv_bias': "
         "false, 'rms_norm_eps': 1e-06, 'rope_scaling': null, 'rope_theta': 10000000, 'router_aux_loss_coef': "
         "0.0, 'shared_expert_intermediate_size': 0, 'sliding_window': null, 'tie_word_embeddings': false, "
         "'torch_dtype': 'bfloat16', 'transformers_version': '4.51.0', 'use_cache': true, 'use_qk_norm': true, "
         "'use_sliding_window': false, 'vocab_size': 151936}",
         "62 layers of 6144, heads 96/8 x 128, mlp 8192, vocabulary 151936, context 262144, rope 128 at "
         "10000000; experts in 62: 8 of 160 x 2560, shared 0;"},
        {"Qwen/Qwen3-Coder-30B-A3B-Instruct",
         "{'architectures': ['Qwen3MoeForCausalLM'], 'attention_dropout': 0.0, 'decoder_sparse_step': 1, "
         "'eos_token_id': 151645, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 2048, "
         "'initializer_range': 0.02, 'intermediate_size': 5472, 'max_position_embeddings': 262144, "
         "'max_window_layers': 28, 'mlp_only_layers': [], 'model_type': 'qwen3_moe', 'moe_intermediate_size': "
         "768, 'norm_topk_prob': true, 'num_attention_heads': 32, 'num_experts': 128, 'num_experts_per_tok': "
         "8, 'num_hidden_layers': 48, 'num_key_value_heads': 4, 'output_router_logits': false, 'qkv_bias': "
         "false, 'rms_norm_eps': 1e-06, 'rope_scaling': null, 'rope_theta': 10000000, 'router_aux_loss_coef': "
         "0.0, 'shared_expert_intermediate_size': 0, 'sliding_window': null, 'tie_word_embeddings': false, "
         "'torch_dtype': 'bfloat16', 'transformers_version': '4.52.3', 'use_cache': true, 'use_qk_norm': true, "
         "'use_sliding_window': false, 'vocab_size': 151936}",
         "48 layers of 2048, heads 32/4 x 128, mlp 5472, vocabulary 151936, context 262144, rope 128 at "
         "10000000; experts in 48: 8 of 128 x 768, shared 0;"},
        {"allenai/OLMoE-1B-7B-0924",
         "{'architectures': ['OlmoeForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'clip_qkv': null, 'eos_token_id': 50279, 'hidden_act': 'silu', 'hidden_size': 2048, "
         "'initializer_range': 0.02, 'intermediate_size': 1024, 'max_position_embeddings': 4096, 'model_type': "
         "'olmoe', 'norm_topk_prob': false, 'num_attention_heads': 16, 'num_experts': 64, "
         "'num_experts_per_tok': 8, 'num_hidden_layers': 16, 'num_key_value_heads': 16, "
         "'output_router_logits': false, 'pad_token_id': 1, 'rms_norm_eps': 1e-05, 'rope_scaling': null, "
         "'rope_theta': 10000.0, 'router_aux_loss_coef': 0.01, 'tie_word_embeddings': false, 'torch_dtype': "
         "'float32', 'transformers_version': '4.48.1', 'use_cache': true, 'vocab_size': 50304}",
         "16 layers of 2048, heads 16/16 x 128, mlp 1024, vocabulary 50304, context 4096, rope 128 at 10000; "
         "experts in 16: 8 of 64 x 1024, shared 0;"},
        {"zai-org/GLM-4.5-Air",
         "{'architectures': ['Glm4MoeForCausalLM'], 'attention_bias': true, 'attention_dropout': 0.0, "
         "'eos_token_id': [151329, 151336, 151338], 'first_k_dense_replace': 1, 'head_dim': 128, 'hidden_act': "
         "'silu', 'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': 10944, "
         "'max_position_embeddings': 131072, 'model_type': 'glm4_moe', 'moe_intermediate_size': 1408, "
         "'n_group': 1, 'n_routed_experts': 128, 'n_shared_experts': 1, 'norm_topk_prob': true, "
         "'num_attention_heads': 96, 'num_experts_per_tok': 8, 'num_hidden_layers': 46, 'num_key_value_heads': "
         "8, 'num_nextn_predict_layers': 1, 'pad_token_id': 151329, 'partial_rotary_factor': 0.5, "
         "'rms_norm_eps': 1e-05, 'rope_scaling': null, 'rope_theta': 1000000, 'routed_scaling_factor': 1.0, "
         "'tie_word_embeddings': false, 'topk_group': 1, 'torch_dtype': 'bfloat16', 'transformers_version': "
         "'4.54.1', 'use_cache': true, 'use_qk_norm': false, 'vocab_size': 151552}",
         "46 layers of 4096, heads 96/8 x 128, mlp 10944, vocabulary 151552, context 131072, rope 64 at "
         "1000000; experts in 45: 8 of 128 x 1408, shared 1408; qkv bias"},
        {"zai-org/GLM-4.6",
         "{'architectures': ['Glm4MoeForCausalLM'], 'attention_bias': true, 'eos_token_id': [151329, 151336, "
         "151338], 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 5120, 'partial_rotary_factor': 0.5, "
         "'intermediate_size': 12288, 'max_position_embeddings': 202752, 'model_type': 'glm4_moe', "
         "'moe_intermediate_size': 1536, 'norm_topk_prob': true, 'num_attention_heads': 96, 'n_group': 1, "
         "'topk_group': 1, 'n_routed_experts': 160, 'n_shared_experts': 1, 'routed_scaling_factor': 2.5, "
         "'num_experts_per_tok': 8, 'first_k_dense_replace': 3, 'num_hidden_layers': 92, "
         "'num_key_value_heads': 8, 'rms_norm_eps': 1e-05, 'rope_scaling': null, 'rope_theta': 1000000, "
         "'num_nextn_predict_layers': 1, 'tie_word_embeddings': false, 'use_qk_norm': true, 'vocab_size': "
         "151552}",
         "92 layers of 5120, heads 96/8 x 128, mlp 12288, vocabulary 151552, context 202752, rope 64 at "
         "1000000; experts in 89: 8 of 160 x 1536, shared 1536; qkv bias"},
        {"openai/gpt-oss-120b",
         "{'architectures': ['GptOssForCausalLM'], 'attention_bias': true, 'attention_dropout': 0.0, "
         "'eos_token_id': 200002, 'experts_per_token': 4, 'head_dim': 64, 'hidden_act': 'silu', 'hidden_size': "
         "2880, 'initial_context_length': 4096, 'initializer_range': 0.02, 'intermediate_size': 2880, "
         "'layer_types': [" THREE(THREE(
             TWO("'sliding_attention', 'full_attention'"))) "], 'max_position_embeddings': 131072, 'model_type': "
                                                            "'gpt_oss', 'num_attention_heads': 64, "
                                                            "'num_experts_per_tok': 4, 'num_hidden_layers': 36, "
                                                            "'num_key_value_heads': 8, 'num_local_experts': "
                                                            "128, 'output_router_logits': false, 'pad_token_id': "
                                                            "199999, 'quantization_config': "
                                                            "{'modules_to_not_convert': ['model.layers.*.self_attn', "
                                                            "'model.layers.*.mlp.router', "
                                                            "'model.embed_tokens', 'lm_head'], 'quant_method': "
                                                            "'mxfp4'}, 'rms_norm_eps': 1e-05, 'rope_scaling': "
                                                            "{'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': 32.0, "
                                                            "'original_max_position_embeddings': 4096, "
                                                            "'rope_type': 'yarn', 'truncate': false}, 'rope_theta': "
                                                            "150000, 'router_aux_loss_coef': 0.9, "
                                                            "'sliding_window': 128, 'swiglu_limit': 7.0, "
                                                            "'tie_word_embeddings': false, 'transformers_version': "
                                                            "'4.55.0.dev0', 'use_cache': true, 'vocab_size': 201088}",
         "36 layers of 2880, heads 64/8 x 64, mlp 2880, vocabulary 201088, context 131072, rope 64 at 150000 "
         "yarn x32, window 128 in 18; experts in 36: 4 of 128 x 2880, shared 0; qkv bias output bias"},
        {"deepseek-ai/DeepSeek-V2-Lite-Chat",
         "{'architectures': ['DeepseekV2ForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'auto_map': {'AutoConfig': 'configuration_deepseek.DeepseekV2Config', 'AutoModel': "
         "'modeling_deepseek.DeepseekV2Model', 'AutoModelForCausalLM': "
         "'modeling_deepseek.DeepseekV2ForCausalLM'}, 'aux_loss_alpha': 0.001, 'bos_token_id': 100000, "
         "'eos_token_id': 100001, 'ep_size': 1, 'first_k_dense_replace': 1, 'hidden_act': 'silu', "
         "'hidden_size': 2048, 'initializer_range': 0.02, 'intermediate_size': 10944, 'kv_lora_rank': 512, "
         "'max_position_embeddings': 163840, 'model_type': 'deepseek_v2', 'moe_intermediate_size': 1408, "
         "'moe_layer_freq': 1, 'n_group': 1, 'n_routed_experts': 64, 'n_shared_experts': 2, 'norm_topk_prob': "
         "false, 'num_attention_heads': 16, 'num_experts_per_tok': 6, 'num_hidden_layers': 27, "
         "'num_key_value_heads': 16, 'pretraining_tp': 1, 'q_lora_rank': null, 'qk_nope_head_dim': 128, "
         "'qk_rope_head_dim': 64, 'rms_norm_eps': 1e-06, 'rope_scaling': {'beta_fast': 32, 'beta_slow': 1, "
         "'factor': 40, 'mscale': 0.707, 'mscale_all_dim': 0.707, 'original_max_position_embeddings': 4096, "
         "'type': 'yarn'}, 'rope_theta': 10000, 'routed_scaling_factor': 1.0, 'scoring_func': 'softmax', "
         "'seq_aux': true, 'tie_word_embeddings': false, 'topk_group': 1, 'topk_method': 'greedy', "
         "'torch_dtype': 'bfloat16', 'transformers_version': '4.49.0', 'use_cache': true, 'v_head_dim': 128, "
         "'vocab_size': 102400}",
         "27 layers of 2048, heads 16/1 x 576, mlp 10944, vocabulary 102400, context 163840, rope 64 at 10000 "
         "yarn x40; experts in 26: 6 of 64 x 1408, shared 2816; scores x1.732"},
        {"deepseek-ai/DeepSeek-V2.5",
         "{'architectures': ['DeepseekV2ForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'auto_map': {'AutoConfig': 'configuration_deepseek.DeepseekV2Config', 'AutoModel': "
         "'modeling_deepseek.DeepseekV2Model', 'AutoModelForCausalLM': "
         "'modeling_deepseek.DeepseekV2ForCausalLM'}, 'aux_loss_alpha': 0.001, 'bos_token_id': 100000, "
         "'eos_token_id': 100001, 'ep_size': 1, 'first_k_dense_replace': 1, 'hidden_act': 'silu', "
         "'hidden_size': 5120, 'initializer_range': 0.02, 'intermediate_size': 12288, 'kv_lora_rank': 512, "
         "'max_position_embeddings': 163840, 'model_type': 'deepseek_v2', 'moe_intermediate_size': 1536, "
         "'moe_layer_freq': 1, 'n_group': 8, 'n_routed_experts': 160, 'n_shared_experts': 2, 'norm_topk_prob': "
         "false, 'num_attention_heads': 128, 'num_experts_per_tok': 6, 'num_hidden_layers': 60, "
         "'num_key_value_heads': 128, 'pretraining_tp': 1, 'q_lora_rank': 1536, 'qk_nope_head_dim': 128, "
         "'qk_rope_head_dim': 64, 'rms_norm_eps': 1e-06, 'rope_scaling': {'beta_fast': 32, 'beta_slow': 1, "
         "'factor': 40, 'mscale': 1.0, 'mscale_all_dim': 1.0, 'original_max_position_embeddings': 4096, "
         "'type': 'yarn'}, 'rope_theta': 10000, 'routed_scaling_factor': 16.0, 'scoring_func': 'softmax', "
         "'seq_aux': true, 'tie_word_embeddings': false, 'topk_group': 3, 'topk_method': "
         "'group_limited_greedy', 'torch_dtype': 'bfloat16', 'transformers_version': '4.39.3', 'use_cache': "
         "true, 'v_head_dim': 128, 'vocab_size': 102400}",
         "60 layers of 5120, heads 128/1 x 576, mlp 12288, vocabulary 102400, context 163840, rope 64 at 10000 "
         "yarn x40; experts in 59: 6 of 160 x 1536, shared 3072, 3 of 8 groups; scores x1.732"},
        {"deepseek-ai/DeepSeek-R1",
         "{'architectures': ['DeepseekV3ForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'auto_map': {'AutoConfig': 'configuration_deepseek.DeepseekV3Config', 'AutoModel': "
         "'modeling_deepseek.DeepseekV3Model', 'AutoModelForCausalLM': "
         "'modeling_deepseek.DeepseekV3ForCausalLM'}, 'bos_token_id': 0, 'eos_token_id': 1, 'ep_size': 1, "
         "'first_k_dense_replace': 3, 'hidden_act': 'silu', 'hidden_size': 7168, 'initializer_range': 0.02, "
         "'intermediate_size': 18432, 'kv_lora_rank': 512, 'max_position_embeddings': 163840, 'model_type': "
         "'deepseek_v3', 'moe_intermediate_size': 2048, 'moe_layer_freq': 1, 'n_group': 8, 'n_routed_experts': "
         "256, 'n_shared_experts': 1, 'norm_topk_prob': true, 'num_attention_heads': 128, "
         "'num_experts_per_tok': 8, 'num_hidden_layers': 61, 'num_key_value_heads': 128, "
         "'num_nextn_predict_layers': 1, 'q_lora_rank': 1536, 'qk_nope_head_dim': 128, 'qk_rope_head_dim': 64, "
         "'quantization_config': {'activation_scheme': 'dynamic', 'fmt': 'e4m3', 'quant_method': 'fp8', "
         "'weight_block_size': [128, 128]}, 'rms_norm_eps': 1e-06, 'rope_scaling': {'beta_fast': 32, "
         "'beta_slow': 1, 'factor': 40, 'mscale': 1.0, 'mscale_all_dim': 1.0, "
         "'original_max_position_embeddings': 4096, 'type': 'yarn'}, 'rope_theta': 10000, "
         "'routed_scaling_factor': 2.5, 'scoring_func': 'sigmoid', 'tie_word_embeddings': false, 'topk_group': "
         "4, 'topk_method': 'noaux_tc', 'torch_dtype': 'bfloat16', 'transformers_version': '4.46.3', "
         "'use_cache': true, 'v_head_dim': 128, 'vocab_size': 129280}",
         "61 layers of 7168, heads 128/1 x 576, mlp 18432, vocabulary 129280, context 163840, rope 64 at 10000 "
         "yarn x40; experts in 58: 8 of 256 x 2048, shared 2048, 4 of 8 groups; scores x1.732"},
        {"google/gemma-4-26B-A4B",
         "{'architectures': ['Gemma4ForConditionalGeneration'], 'audio_config': null, 'audio_token_id': "
         "258881, 'boa_token_id': 256000, 'boi_token_id': 255999, 'dtype': 'bfloat16', 'eoa_token_id': 258883, "
         "'eoa_token_index': 258883, 'eoi_token_id': 258882, 'image_token_id': 258880, 'initializer_range': "
         "0.02, 'model_type': 'gemma4', 'text_config': {'attention_bias': false, 'attention_dropout': 0.0, "
         "'attention_k_eq_v': true, 'bos_token_id': 2, 'dtype': 'bfloat16', 'enable_moe_block': true, "
         "'eos_token_id': 1, 'final_logit_softcapping': 30.0, 'global_head_dim': 512, 'head_dim': 256, "
         "'hidden_activation': 'gelu_pytorch_tanh', 'hidden_size': 2816, 'hidden_size_per_layer_input': 0, "
         "'initializer_range': 0.02, 'intermediate_size': 2112, 'layer_types': [" FIVE(
             "'sliding_attention', 'sliding_attention', " SLIDING_3) "], 'max_position_embeddings': 262144, "
                                                                     "'model_type': 'gemma4_text', "
                                                                     "'moe_intermediate_size': 704, "
                                                                     "'num_attention_heads': 16, 'num_experts': 128, "
                                                                     "'num_global_key_value_heads': 2, "
                                                                     "'num_hidden_layers': "
                                                                     "30, 'num_key_value_heads': 8, "
                                                                     "'num_kv_shared_layers': 0, 'pad_token_id': 0, "
                                                                     "'rms_norm_eps': 1e-06, "
                                                                     "'rope_parameters': {'full_attention': "
                                                                     "{'partial_rotary_factor': 0.25, 'rope_theta': "
                                                                     "1000000.0, "
                                                                     "'rope_type': 'proportional'}, "
                                                                     "'sliding_attention': {'rope_theta': 10000.0, "
                                                                     "'rope_type': 'default'}}, "
                                                                     "'sliding_window': 1024, 'tie_word_embeddings': "
                                                                     "true, 'top_k_experts': 8, "
                                                                     "'use_bidirectional_attention': 'vision', "
                                                                     "'use_cache': true, 'use_double_wide_mlp': false, "
                                                                     "'vocab_size': 262144, "
                                                                     "'vocab_size_per_layer_input': 262144}, "
                                                                     "'tie_word_embeddings': true, "
                                                                     "'transformers_version': '5.5.0.dev0', "
                                                                     "'video_token_id': 258884, 'vision_config': "
                                                                     "{'hidden_size': "
                                                                     "1152}, 'vision_soft_tokens_per_image': 280}",
         "30 layers of 2816, heads 16/8 x 256, mlp 2112, vocabulary 262144, context 262144, rope 512 at "
         "1000000 proportional x1, window 1024 in 25, 25 rotate at 10000; experts in 30: 8 of 128 x 704, "
         "shared 0; tied embeddings x53.07 scores x16 logits to 30"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

TEST(experts_with_a_bias)
{
    static const struct test_published models[] = {
        {"LiquidAI/LFM2-8B-A1B",
         "{'architectures': ['Lfm2MoeForCausalLM'], 'bos_token_id': 1, 'conv_L_cache': 3, "
         "'conv_bias': false, 'dtype': 'bfloat16', 'eos_token_id': 7, 'hidden_size': 2048, "
         "'initializer_range': 0.02, 'intermediate_size': 7168, 'layer_types': ['conv', 'conv', "
         "'full_attention', 'conv', 'conv', 'conv', 'full_attention', 'conv', 'conv', 'conv', "
         "'full_attention', 'conv', 'conv', 'conv', 'full_attention', 'conv', 'conv', 'conv', "
         "'full_attention', 'conv', 'conv', 'full_attention', 'conv', 'conv'], "
         "'max_position_embeddings': 128000, 'model_type': 'lfm2_moe', 'moe_intermediate_size': "
         "1792, 'norm_eps': 1e-05, 'norm_topk_prob': true, 'num_attention_heads': 32, "
         "'num_dense_layers': 2, 'num_experts': 32, 'num_experts_per_tok': 4, 'num_hidden_layers': "
         "24, 'num_key_value_heads': 8, 'pad_token_id': 0, 'rope_theta': 1000000.0, "
         "'routed_scaling_factor': 1.0, 'use_cache': true, 'use_expert_bias': true, 'vocab_size': "
         "65536}",
         "24 layers of 2048, heads 32/8 x 64, mlp 7168, vocabulary 65536, context 128000, rope 64 "
         "at 1000000, 18 recurrent; experts in 22: 4 of 32 x 1792, shared 0; tied"},
        {"zai-org/GLM-4.7-Flash",
         "{'architectures': ['Glm4MoeLiteForCausalLM'], 'attention_bias': false, "
         "'attention_dropout': 0.0, 'dtype': 'bfloat16', 'eos_token_id': [154820, 154827, 154829], "
         "'first_k_dense_replace': 1, 'hidden_act': 'silu', 'hidden_size': 2048, "
         "'intermediate_size': 10240, 'kv_lora_rank': 512, 'max_position_embeddings': 202752, "
         "'model_type': 'glm4_moe_lite', 'moe_intermediate_size': 1536, 'n_group': 1, "
         "'n_routed_experts': 64, 'n_shared_experts': 1, 'norm_topk_prob': true, "
         "'num_attention_heads': 20, 'num_experts_per_tok': 4, 'num_hidden_layers': 47, "
         "'num_key_value_heads': 20, 'num_nextn_predict_layers': 1, 'pad_token_id': 154820, "
         "'partial_rotary_factor': 1.0, 'q_lora_rank': 768, 'qk_nope_head_dim': 192, "
         "'qk_rope_head_dim': 64, 'rms_norm_eps': 1e-05, 'rope_scaling': null, 'rope_theta': "
         "1000000, 'routed_scaling_factor': 1.8, 'tie_word_embeddings': false, 'topk_group': 1, "
         "'topk_method': 'noaux_tc', 'v_head_dim': 256, 'vocab_size': 154880}",
         "47 layers of 2048, heads 20/1 x 576, mlp 10240, vocabulary 154880, context 202752, rope "
         "64 at 1000000; experts in 46: 4 of 64 x 1536, shared 1536; scores x1.5"},
        {"MiniMaxAI/MiniMax-M2",
         "{'architectures': ['MiniMaxM2ForCausalLM'], 'attention_dropout': 0.0, 'attn_type_list': [" TWO(FIVE(
             TWO(THREE("1")))) ", 1, 1], 'auto_map': {'AutoConfig': 'configuration_minimax_m2.MiniMaxM2Config', "
                               "'AutoModelForCausalLM': 'modeling_minimax_m2.MiniMaxM2ForCausalLM'}, 'head_dim': 128, "
                               "'hidden_act': 'silu', 'hidden_size': 3072, 'intermediate_size': 1536, "
                               "'max_position_embeddings': 196608, 'mlp_intermediate_size': 8192, 'model_type': "
                               "'minimax_m2', 'mtp_transformer_layers': 1, 'num_attention_heads': 48, "
                               "'num_experts_per_tok': 8, 'num_hidden_layers': 62, 'num_key_value_heads': 8, "
                               "'num_local_experts': 256, 'num_mtp_modules': 3, 'output_router_logits': false, "
                               "'qk_norm_type': 'per_layer', 'quantization_config': {'activation_scheme': 'dynamic', "
                               "'fmt': 'float8_e4m3fn', 'quant_method': 'fp8', 'weight_block_size': [128, 128], "
                               "'modules_to_not_convert': ['gate', 'e_score_correction_bias', 'lm_head']}, "
                               "'rms_norm_eps': 1e-06, 'rope_theta': 5000000, 'rotary_dim': 64, 'router_jitter_noise': "
                               "0.0, 'scoring_func': 'sigmoid', 'shared_intermediate_size': 0, 'tie_word_embeddings': "
                               "false, 'use_mtp': true, 'use_qk_norm': true, 'use_routing_bias': true, 'vocab_size': "
                               "200064}",
         "62 layers of 3072, heads 48/8 x 128, mlp 1536, vocabulary 200064, context 196608, rope 64 "
         "at 5000000; experts in 62: 8 of 256 x 1536, shared 0;"},
        {"rednote-hilab/dots.llm1.inst",
         "{'attention_bias': false, 'eos_token_id': 151649, 'first_k_dense_replace': 1, "
         "'hidden_size': 4096, 'intermediate_size': 10944, 'max_position_embeddings': 32768, "
         "'model_type': 'dots1', 'moe_intermediate_size': 1408, 'n_group': null, "
         "'n_routed_experts': 128, 'n_shared_experts': 2, 'norm_topk_prob': true, "
         "'num_attention_heads': 32, 'num_experts_per_tok': 6, 'num_hidden_layers': 62, "
         "'num_key_value_heads': 32, 'rms_norm_eps': 1e-05, 'rope_theta': 10000000, "
         "'routed_scaling_factor': 2.5, 'scoring_func': 'noaux_tc', 'tie_word_embeddings': false, "
         "'topk_group': null, 'vocab_size': 152064}",
         "62 layers of 4096, heads 32/32 x 128, mlp 10944, vocabulary 152064, context 32768, rope "
         "128 at 10000000; experts in 61: 6 of 128 x 1408, shared 2816;"},
        {"LGAI-EXAONE/K-EXAONE-236B-A23B",
         "{'architectures': ['ExaoneMoEForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 1, "
         "'dtype': 'bfloat16', 'eos_token_id': 53, 'first_last_k_dense_replace': 1, 'head_dim': "
         "128, 'hidden_act': 'silu', 'hidden_size': 6144, 'initializer_range': 0.02, "
         "'intermediate_size': 18432, 'is_moe_layer': [false, " TWO("true") ", " FIVE(THREE(THREE(
             "true"))) "], 'layer_types': [" FOUR(THREE(SLIDING_3)) "], 'max_position_embeddings': 262144, "
                                                                    "'model_type': 'exaone_moe', "
                                                                    "'moe_intermediate_size': "
                                                                    "2048, 'n_group': 1, 'norm_topk_prob': true, "
                                                                    "'num_attention_heads': 64, "
                                                                    "'num_experts': "
                                                                    "128, 'num_experts_per_tok': 8, "
                                                                    "'num_hidden_layers': 48, 'num_key_value_heads': "
                                                                    "8, "
                                                                    "'num_shared_experts': 1, 'pad_token_id': 0, "
                                                                    "'rms_norm_eps': 1e-05, "
                                                                    "'rope_scaling': null, "
                                                                    "'rope_theta': 1000000, 'routed_scaling_factor': "
                                                                    "2.5, 'scoring_func': "
                                                                    "'sigmoid', "
                                                                    "'sliding_window': 128, 'sliding_window_pattern': "
                                                                    "'LLLG', "
                                                                    "'tie_word_embeddings': false, "
                                                                    "'tokenizer_class': 'GPT2Tokenizer', 'topk_group': "
                                                                    "1, 'topk_method': "
                                                                    "'noaux_tc', "
                                                                    "'transformers_version': '5.0.0.dev0', "
                                                                    "'use_cache': true, 'vocab_size': 153600}",
         "48 layers of 6144, heads 64/8 x 128, mlp 18432, vocabulary 153600, context 262144, rope "
         "128 at 1000000, window 128 in 36, 12 without rotation; experts in 47: 8 of 128 x 2048, "
         "shared 2048;"},
        {"arcee-ai/Trinity-Nano-Preview",
         "{'architectures': ['AfmoeForCausalLM'], 'attention_dropout': 0.0, 'auto_map': {'AutoConfig': "
         "'configuration_afmoe.AfmoeConfig', 'AutoModel': 'modeling_afmoe.AfmoeModel', 'AutoModelForCausalLM': "
         "'modeling_afmoe.AfmoeForCausalLM'}, 'dtype': 'bfloat16', 'global_attn_every_n_layers': 4, 'head_dim': 128, "
         "'hidden_act': 'silu', 'hidden_size': 1024, 'initializer_range': 0.02, 'intermediate_size': 3072, "
         "'max_position_embeddings': 131072, 'model_type': 'afmoe', 'moe_intermediate_size': 256, 'mup_enabled': "
         "true, 'n_group': 1, 'num_attention_heads': 8, 'num_dense_layers': 2, 'num_expert_groups': 1, 'num_experts': "
         "128, 'num_experts_per_tok': 8, 'num_hidden_layers': 56, 'num_key_value_heads': 2, 'num_limited_groups': 1, "
         "'num_shared_experts': 1, 'rms_norm_eps': 1e-05, 'rope_scaling': null, 'rope_theta': 10000, 'route_norm': "
         "true, 'route_scale': 2.826, 'score_func': 'sigmoid', 'sliding_window': 2048, 'tie_word_embeddings': false, "
         "'topk_group': 1, 'transformers_version': '4.57.3', 'use_cache': true, 'use_grouped_mm': true, 'vocab_size': "
         "200192}",
         "56 layers of 1024, heads 8/2 x 128, mlp 3072, vocabulary 200192, context 131072, rope 128 at 10000, window "
         "2048 in 42, 14 without rotation; experts in 54: 8 of 128 x 256, shared 256; embeddings x32"},
        {"upstage/Solar-Open-100B",
         "{'model_type': 'solar_open', 'architectures': ['SolarOpenForCausalLM'], "
         "'partial_rotary_factor': 1.0, 'hidden_size': 4096, 'num_hidden_layers': 48, "
         "'num_attention_heads': 64, 'head_dim': 128, 'num_key_value_heads': 8, 'vocab_size': "
         "196608, 'intermediate_size': 10240, 'moe_intermediate_size': 1280, 'rms_norm_eps': 1e-05, "
         "'rope_theta': 1000000, 'max_position_embeddings': 131072, 'n_routed_experts': 128, "
         "'n_shared_experts': 1, 'norm_topk_prob': true, 'routed_scaling_factor': 1.0, "
         "'num_experts_per_tok': 8, 'tie_word_embeddings': false, 'first_k_dense_replace': 0, "
         "'rope_scaling': {'type': 'yarn', 'factor': 2.0, 'original_max_position_embeddings': "
         "65536}, 'bos_token_id': 1, 'eos_token_id': 2}",
         "48 layers of 4096, heads 64/8 x 128, mlp 1280, vocabulary 196608, context 131072, rope "
         "128 at 1000000 yarn x2; experts in 48: 8 of 128 x 1280, shared 1280;"},
        {"tencent/Youtu-LLM-2B",
         "{'architectures': ['YoutuForCausalLM'], 'model_type': 'youtu', 'vocab_size': 128256, "
         "'hidden_size': 2048, 'intermediate_size': 6144, 'num_hidden_layers': 32, "
         "'num_attention_heads': 16, 'num_key_value_heads': 16, 'kv_lora_rank': 512, 'q_lora_rank': "
         "1536, 'qk_head_dim': 192, 'qk_rope_head_dim': 64, 'qk_nope_head_dim': 128, 'v_head_dim': "
         "128, 'rope_theta': 1600000, 'rope_interleave': true, 'tie_word_embeddings': true}",
         "32 layers of 2048, heads 16/1 x 576, mlp 6144, vocabulary 128256, context 131072, rope 64 "
         "at 1600000; tied scores x1.732"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

TEST(recurrent_layers)
{
    static const struct test_published models[] = {
        {"Qwen/Qwen3-Next-80B-A3B-Instruct",
         "{'architectures': ['Qwen3NextForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 151643, "
         "'decoder_sparse_step': 1, 'eos_token_id': 151645, 'full_attention_interval': 4, 'head_dim': 256, "
         "'hidden_act': 'silu', 'hidden_size': 2048, 'initializer_range': 0.02, 'intermediate_size': 5120, "
         "'linear_conv_kernel_dim': 4, 'linear_key_head_dim': 128, 'linear_num_key_heads': 16, "
         "'linear_num_value_heads': 32, 'linear_value_head_dim': 128, 'max_position_embeddings': 262144, "
         "'mlp_only_layers': [], 'model_type': 'qwen3_next', 'moe_intermediate_size': 512, 'norm_topk_prob': "
         "true, 'num_attention_heads': 16, 'num_experts': 512, 'num_experts_per_tok': 10, 'num_hidden_layers': "
         "48, 'num_key_value_heads': 2, 'output_router_logits': false, 'partial_rotary_factor': 0.25, "
         "'rms_norm_eps': 1e-06, 'rope_scaling': null, 'rope_theta': 10000000, 'router_aux_loss_coef': 0.001, "
         "'shared_expert_intermediate_size': 512, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.57.0.dev0', 'use_cache': true, 'use_sliding_window': false, 'vocab_size': "
         "151936}",
         "48 layers of 2048, heads 16/2 x 256, mlp 5120, vocabulary 151936, context 262144, rope 64 at "
         "10000000, 36 recurrent; experts in 48: 10 of 512 x 512, shared 512;"},
        {"Qwen/Qwen3.5-27B",
         "{'architectures': ['Qwen3_5ForConditionalGeneration'], 'image_token_id': 248056, 'model_type': "
         "'qwen3_5', 'text_config': {'attention_bias': false, 'attention_dropout': 0.0, 'attn_output_gate': "
         "true, 'dtype': 'bfloat16', 'eos_token_id': 248044, 'full_attention_interval': 4, 'head_dim': 256, "
         "'hidden_act': 'silu', 'hidden_size': 5120, 'initializer_range': 0.02, 'intermediate_size': 17408, "
         "'layer_types': [" FOUR(FOUR(
             LINEAR_3)) "], 'linear_conv_kernel_dim': 4, 'linear_key_head_dim': 128, 'linear_num_key_heads': 16, "
                        "'linear_num_value_heads': 48, 'linear_value_head_dim': 128, 'max_position_embeddings': "
                        "262144, "
                        "'mlp_only_layers': [], 'model_type': 'qwen3_5_text', 'mtp_num_hidden_layers': 1, "
                        "'mtp_use_dedicated_embeddings': false, 'num_attention_heads': 24, 'num_hidden_layers': 64, "
                        "'num_key_value_heads': 4, 'rms_norm_eps': 1e-06, 'use_cache': true, 'vocab_size': 248320, "
                        "'mamba_ssm_dtype': 'float32', 'rope_parameters': {'mrope_interleaved': true, 'mrope_section': "
                        "[11, "
                        "11, 10], 'rope_type': 'default', 'rope_theta': 10000000, 'partial_rotary_factor': 0.25}}, "
                        "'tie_word_embeddings': false, 'transformers_version': '4.57.0.dev0', 'video_token_id': "
                        "248057, "
                        "'vision_config': {'hidden_size': 1152}, 'vision_end_token_id': 248054, "
                        "'vision_start_token_id': "
                        "248053}",
         "64 layers of 5120, heads 24/4 x 256, mlp 17408, vocabulary 248320, context 262144, rope 64 at "
         "10000000, 48 recurrent;"},
        {"Qwen/Qwen3.5-35B-A3B",
         "{'architectures': ['Qwen3_5MoeForConditionalGeneration'], 'image_token_id': 248056, 'model_type': "
         "'qwen3_5_moe', 'text_config': {'attention_bias': false, 'attention_dropout': 0.0, "
         "'attn_output_gate': true, 'dtype': 'bfloat16', 'eos_token_id': 248044, 'full_attention_interval': 4, "
         "'head_dim': 256, 'hidden_act': 'silu', 'hidden_size': 2048, 'initializer_range': 0.02, "
         "'layer_types': [" TWO(FIVE(
             LINEAR_3)) "], 'linear_conv_kernel_dim': 4, 'linear_key_head_dim': 128, 'linear_num_key_heads': 16, "
                        "'linear_num_value_heads': 32, 'linear_value_head_dim': 128, 'max_position_embeddings': "
                        "262144, "
                        "'mlp_only_layers': [], 'model_type': 'qwen3_5_moe_text', 'moe_intermediate_size': 512, "
                        "'mtp_num_hidden_layers': 1, 'mtp_use_dedicated_embeddings': false, 'num_attention_heads': 16, "
                        "'num_experts': 256, 'num_experts_per_tok': 8, 'num_hidden_layers': 40, 'num_key_value_heads': "
                        "2, "
                        "'rms_norm_eps': 1e-06, 'router_aux_loss_coef': 0.001, 'shared_expert_intermediate_size': 512, "
                        "'use_cache': true, 'vocab_size': 248320, 'mamba_ssm_dtype': 'float32', 'rope_parameters': "
                        "{'mrope_interleaved': true, 'mrope_section': [11, 11, 10], 'rope_type': 'default', "
                        "'rope_theta': "
                        "10000000, 'partial_rotary_factor': 0.25}}, 'tie_word_embeddings': false, "
                        "'transformers_version': "
                        "'4.57.0.dev0', 'video_token_id': 248057, 'vision_config': {'hidden_size': 1152}, "
                        "'vision_end_token_id': 248054, 'vision_start_token_id': 248053}",
         "40 layers of 2048, heads 16/2 x 256, mlp 2048, vocabulary 248320, context 262144, rope 64 at "
         "10000000, 30 recurrent; experts in 40: 8 of 256 x 512, shared 512;"},
        {"LiquidAI/LFM2.5-VL-1.6B",
         "{'architectures': ['Lfm2VlForConditionalGeneration'], 'do_image_splitting': true, "
         "'downsample_factor': 2, 'dtype': 'bfloat16', 'encoder_patch_size': 16, 'image_token_id': 396, "
         "'max_image_tokens': 256, 'max_pixels_tolerance': 2.0, 'max_tiles': 10, 'min_image_tokens': 64, "
         "'min_tiles': 2, 'model_type': 'lfm2_vl', 'projector_bias': true, 'projector_hidden_act': 'gelu', "
         "'projector_hidden_size': 2048, 'projector_use_layernorm': false, 'text_config': {'_name_or_path': "
         "'LiquidAI/LFM2-1.2B', 'architectures': ['Lfm2ForCausalLM'], 'block_auto_adjust_ff_dim': true, "
         "'block_dim': 2048, 'block_ff_dim': 12288, 'block_ffn_dim_multiplier': 1.0, 'block_mlp_init_scale': "
         "1.0, 'block_multiple_of': 256, 'block_norm_eps': 1e-05, 'block_out_init_scale': 1.0, "
         "'block_use_swiglu': true, 'block_use_xavier_init': true, 'conv_L_cache': 3, 'conv_bias': false, "
         "'conv_dim': 2048, 'conv_dim_out': 2048, 'conv_use_xavier_init': true, 'dtype': 'bfloat16', "
         "'eos_token_id': 7, 'hidden_size': 2048, 'initializer_range': 0.02, 'intermediate_size': 12288, "
         "'layer_types': ['conv', 'conv', 'full_attention', 'conv', 'conv', 'full_attention', 'conv', 'conv', "
         "'full_attention', 'conv', 'full_attention', 'conv', 'full_attention', 'conv', 'full_attention', "
         "'conv'], 'max_position_embeddings': 128000, 'model_type': 'lfm2', 'norm_eps': 1e-05, "
         "'num_attention_heads': 32, 'num_heads': 32, 'num_hidden_layers': 16, 'num_key_value_heads': 8, "
         "'rope_parameters': {'rope_theta': 1000000.0, 'rope_type': 'default'}, 'use_cache': true, "
         "'use_pos_enc': true, 'vocab_size': 65536}, 'tile_size': 512, 'transformers_version': '5.0.0.dev0', "
         "'use_image_special_tokens': true, 'use_thumbnail': true, 'vision_config': {'hidden_size': 1152}}",
         "16 layers of 2048, heads 32/8 x 64, mlp 8192, vocabulary 65536, context 128000, rope 64 at 1000000, "
         "10 recurrent; tied"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

int main(void) { return test_run(); }
