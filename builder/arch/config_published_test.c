/* SPDX-License-Identifier: Apache-2.0 */
/* Published config.json files of dense models, as far as they were seen, and what they describe; and keys that change nothing. */
#include "builder/arch/test_config.h"
#include "formats/base/test_program.h"

#define FOUR(text) text ", " text ", " text ", " text
#define SLIDING_3  "'sliding_attention', 'sliding_attention', 'sliding_attention', 'full_attention'"

TEST(llamas_and_their_like)
{
    static const struct test_published models[] = {
        {"meta-llama/Llama-2-7b-chat-hf",
         "{'_name_or_path': 'meta-llama/Llama-2-7b-chat-hf', 'architectures': ['LlamaForCausalLM'], "
         "'bos_token_id': 1, 'eos_token_id': 2, 'hidden_act': 'silu', 'hidden_size': 4096, "
         "'initializer_range': 0.02, 'intermediate_size': 11008, 'max_position_embeddings': 4096, "
         "'model_type': 'llama', 'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': "
         "32, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05, 'rope_scaling': null, 'tie_word_embeddings': false, "
         "'torch_dtype': 'float16', 'transformers_version': '4.32.0.dev0', 'use_cache': true, 'vocab_size': "
         "32000}",
         "32 layers of 4096, heads 32/32 x 128, mlp 11008, vocabulary 32000, context 4096, rope 128 at 10000;"},
        {"HuggingFaceTB/SmolLM2-1.7B-Instruct",
         "{'architectures': ['LlamaForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'bos_token_id': 1, 'eos_token_id': 2, 'hidden_act': 'silu', 'hidden_size': 2048, "
         "'initializer_range': 0.02, 'intermediate_size': 8192, 'max_position_embeddings': 8192, 'mlp_bias': "
         "false, 'model_type': 'llama', 'num_attention_heads': 32, 'num_hidden_layers': 24, "
         "'num_key_value_heads': 32, 'pad_token_id': 2, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05, "
         "'rope_scaling': null, 'rope_theta': 130000, 'tie_word_embeddings': true, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.42.3', 'transformers.js_config': {'dtype': 'q4', 'kv_cache_dtype': "
         "{'q4f16': 'float16', 'fp16': 'float16'}, 'use_external_data_format': {'model.onnx': true, "
         "'model_fp16.onnx': true}}, 'use_cache': true, 'vocab_size': 49152}",
         "24 layers of 2048, heads 32/32 x 64, mlp 8192, vocabulary 49152, context 8192, rope 64 at 130000; "
         "tied"},
        {"tiiuae/Falcon3-7B-Instruct",
         "{'architectures': ['LlamaForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'bos_token_id': 11, 'eos_token_id': 11, 'head_dim': 256, 'hidden_act': 'silu', 'hidden_size': 3072, "
         "'intermediate_size': 23040, 'max_position_embeddings': 32768, 'mlp_bias': false, 'model_type': "
         "'llama', 'num_attention_heads': 12, 'num_hidden_layers': 28, 'num_key_value_heads': 4, "
         "'pretraining_tp': 1, 'rms_norm_eps': 1e-06, 'rope_scaling': null, 'rope_theta': 1000042, "
         "'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', 'transformers_version': '4.46.1', "
         "'use_cache': true, 'vocab_size': 131072}",
         "28 layers of 3072, heads 12/4 x 256, mlp 23040, vocabulary 131072, context 32768, rope 256 at "
         "1000042;"},
        {"ALLaM-7B-Instruct-preview",
         "{'architectures': ['LlamaForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'bos_token_id': 1, 'eos_token_id': 2, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 4096, "
         "'initializer_range': 0.006, 'intermediate_size': 11008, 'internal_version': '7b-alpha-v2.33.0.30', "
         "'max_position_embeddings': 4096, 'mlp_bias': false, 'model_type': 'llama', 'num_attention_heads': "
         "32, 'num_hidden_layers': 32, 'num_key_value_heads': 32, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05, "
         "'rope_scaling': null, 'rope_theta': 1000000.0, 'tie_word_embeddings': false, 'torch_dtype': "
         "'bfloat16', 'transformers_version': '4.53.0', 'use_cache': true, 'vocab_size': 64000}",
         "32 layers of 4096, heads 32/32 x 128, mlp 11008, vocabulary 64000, context 4096, rope 128 at "
         "1000000;"},
        {"meta-llama/Meta-Llama-3.1-405B",
         "{'architectures': ['LlamaForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'bos_token_id': 128000, 'eos_token_id': 128001, 'hidden_act': 'silu', 'hidden_size': 16384, "
         "'initializer_range': 0.02, 'intermediate_size': 53248, 'max_position_embeddings': 131072, "
         "'mlp_bias': false, 'model_type': 'llama', 'num_attention_heads': 128, 'num_hidden_layers': 126, "
         "'num_key_value_heads': 8, 'pretraining_tp': 1, 'rms_norm_eps': 1e-05, 'rope_scaling': {'factor': "
         "8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192, "
         "'rope_type': 'llama3'}, 'rope_theta': 500000.0, 'tie_word_embeddings': false, 'torch_dtype': "
         "'bfloat16', 'transformers_version': '4.42.3', 'use_cache': true, 'vocab_size': 128256}",
         "126 layers of 16384, heads 128/8 x 128, mlp 53248, vocabulary 128256, context 131072, rope 128 at "
         "500000 llama3 x8;"},
        {"mistralai/Devstral-2-123B-Instruct",
         "{'architectures': ['Ministral3ForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 1, 'dtype': "
         "'bfloat16', 'eos_token_id': 2, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 12288, "
         "'initializer_range': 0.02, 'intermediate_size': 28672, 'max_position_embeddings': 262144, "
         "'model_type': 'ministral3', 'num_attention_heads': 96, 'num_hidden_layers': 88, "
         "'num_key_value_heads': 8, 'pad_token_id': 11, 'quantization_config': {'activation_scheme': 'static', "
         "'dequantize': false, 'modules_to_not_convert': ['model.vision_tower', 'model.multi_modal_projector', "
         "'lm_head'], 'quant_method': 'fp8', 'weight_block_size': null}, 'rms_norm_eps': 1e-05, "
         "'rope_parameters': {'beta_fast': 4.0, 'beta_slow': 1.0, 'factor': 64.0, 'mscale': 1.0, "
         "'mscale_all_dim': 0.0, 'original_max_position_embeddings': 4096, 'llama_4_scaling_beta': 0.0, "
         "'rope_theta': 1000000.0, 'rope_type': 'yarn', 'type': 'yarn'}, 'sliding_window': null, "
         "'tie_word_embeddings': false, 'transformers_version': '5.0.0.dev0', 'use_cache': true, 'vocab_size': "
         "131072}",
         "88 layers of 12288, heads 96/8 x 128, mlp 28672, vocabulary 131072, context 262144, rope 128 at "
         "1000000 yarn x64;"},
        {"mistralai/Devstral-Small-2-24B-Instruct",
         "{'architectures': ['Mistral3ForConditionalGeneration'], 'dtype': 'bfloat16', 'image_token_index': "
         "10, 'model_type': 'mistral3', 'multimodal_projector_bias': false, 'projector_hidden_act': 'gelu', "
         "'tie_word_embeddings': false, 'quantization_config': {'activation_scheme': 'static', 'dequantize': "
         "false, 'modules_to_not_convert': ['model.vision_tower', 'model.multi_modal_projector', 'lm_head'], "
         "'quant_method': 'fp8', 'weight_block_size': null}, 'spatial_merge_size': 2, 'text_config': "
         "{'attention_dropout': 0.0, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 5120, "
         "'initializer_range': 0.02, 'intermediate_size': 32768, 'max_position_embeddings': 393216, "
         "'model_type': 'ministral3', 'num_attention_heads': 32, 'num_hidden_layers': 40, "
         "'num_key_value_heads': 8, 'rms_norm_eps': 1e-05, 'rope_parameters': {'beta_fast': 32.0, 'beta_slow': "
         "1.0, 'factor': 48.0, 'llama_4_scaling_beta': 0.1, 'mscale': 1.0, 'mscale_all_dim': 1.0, "
         "'original_max_position_embeddings': 8192, 'rope_theta': 100000000.0, 'rope_type': 'yarn', 'type': "
         "'yarn'}, 'sliding_window': null, 'use_cache': true, 'vocab_size': 131072}, 'transformers_version': "
         "'5.0.0.dev0', 'vision_config': {'hidden_size': 1024}, 'vision_feature_layer': -1}",
         "40 layers of 5120, heads 32/8 x 128, mlp 32768, vocabulary 131072, context 8192, rope 128 at "
         "100000000 yarn x48;"},
        {"Qwen/Qwen3-32B",
         "{'architectures': ['Qwen3ForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'bos_token_id': 151643, 'eos_token_id': 151645, 'head_dim': 128, 'hidden_act': 'silu', "
         "'hidden_size': 5120, 'initializer_range': 0.02, 'intermediate_size': 25600, "
         "'max_position_embeddings': 40960, 'max_window_layers': 64, 'model_type': 'qwen3', "
         "'num_attention_heads': 64, 'num_hidden_layers': 64, 'num_key_value_heads': 8, 'rms_norm_eps': 1e-06, "
         "'rope_scaling': null, 'rope_theta': 1000000, 'sliding_window': null, 'tie_word_embeddings': false, "
         "'torch_dtype': 'bfloat16', 'transformers_version': '4.51.0', 'use_cache': true, "
         "'use_sliding_window': false, 'vocab_size': 151936}",
         "64 layers of 5120, heads 64/8 x 128, mlp 25600, vocabulary 151936, context 40960, rope 128 at "
         "1000000;"},
        {"HuggingFaceTB/SmolLM3-3B",
         "{'model_type': 'smollm3', 'vocab_size': 128256, 'hidden_size': 2048, 'intermediate_size': 11008, "
         "'num_hidden_layers': 36, 'num_attention_heads': 16, 'num_key_value_heads': 4, 'rms_norm_eps': 1e-06, "
         "'rope_theta': 5000000.0, 'bos_token_id': 128000, 'eos_token_id': 128012, 'pad_token_id': 128004, "
         "'tie_word_embeddings': true, 'max_position_embeddings': 65536, 'hidden_act': 'silu', "
         "'no_rope_layer_interval': 4, 'no_rope_layers': [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, "
         "1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0], 'pretraining_tp': 2, 'use_sliding_window': "
         "false, 'sliding_window': null}",
         "36 layers of 2048, heads 16/4 x 128, mlp 11008, vocabulary 128256, context 65536, rope 128 at "
         "5000000, 9 without rotation; tied"},
        {"ibm-granite/granite-3.3-8b-instruct",
         "{'architectures': ['GraniteForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'attention_multiplier': 0.0078125, 'bos_token_id': 0, 'embedding_multiplier': 12.0, 'eos_token_id': "
         "0, 'hidden_act': 'silu', 'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': 12800, "
         "'logits_scaling': 16.0, 'max_position_embeddings': 131072, 'mlp_bias': false, 'model_type': "
         "'granite', 'num_attention_heads': 32, 'num_hidden_layers': 40, 'num_key_value_heads': 8, "
         "'pad_token_id': 0, 'residual_multiplier': 0.22, 'rms_norm_eps': 1e-05, 'rope_scaling': null, "
         "'rope_theta': 10000000.0, 'tie_word_embeddings': true, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.49.0', 'use_cache': true, 'vocab_size': 49159}",
         "40 layers of 4096, heads 32/8 x 128, mlp 12800, vocabulary 49159, context 131072, rope 128 at "
         "10000000; tied embeddings x12 scores x0.08839 residual x0.22 logits x0.0625"},
        {"allenai/OLMo-2-1124-7B-Instruct",
         "{'_name_or_path': 'allenai/open_instruct_dev', 'architectures': ['Olmo2ForCausalLM'], "
         "'attention_bias': false, 'attention_dropout': 0.0, 'eos_token_id': 100257, 'hidden_act': 'silu', "
         "'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': 11008, "
         "'max_position_embeddings': 4096, 'model_type': 'olmo2', 'num_attention_heads': 32, "
         "'num_hidden_layers': 32, 'num_key_value_heads': 32, 'pad_token_id': 100277, 'rms_norm_eps': 1e-06, "
         "'rope_scaling': null, 'rope_theta': 500000, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.47.0.dev0', 'use_cache': false, 'vocab_size': 100352}",
         "32 layers of 4096, heads 32/32 x 128, mlp 11008, vocabulary 100352, context 4096, rope 128 at "
         "500000;"},
        {"allenai/Olmo-3.1-32B-Instruct",
         "{'architectures': ['Olmo3ForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, 'dtype': "
         "'bfloat16', 'eos_token_id': 100257, 'hidden_act': 'silu', 'hidden_size': 5120, 'initializer_range': "
         "0.02, 'intermediate_size': 27648, 'layer_types': [" FOUR(FOUR(
             SLIDING_3)) "], 'max_position_embeddings': 65536, 'model_type': 'olmo3', 'num_attention_heads': 40, "
                         "'num_hidden_layers': 64, 'num_key_value_heads': 8, 'pad_token_id': 100277, 'rms_norm_eps': "
                         "1e-06, "
                         "'rope_scaling': {'attention_factor': 1.2079441541679836, 'beta_fast': 32, 'beta_slow': 1, "
                         "'factor': "
                         "8.0, 'original_max_position_embeddings': 8192, 'rope_type': 'yarn'}, 'rope_theta': 500000, "
                         "'sliding_window': 4096, 'tie_word_embeddings': false, 'transformers_version': '4.57.1', "
                         "'use_cache': "
                         "false, 'vocab_size': 100278}",
         "64 layers of 5120, heads 40/8 x 128, mlp 27648, vocabulary 100278, context 65536, rope 128 at 500000 "
         "yarn x8, window 4096 in 48, 48 rotate at 500000;"},
        {"LGAI-EXAONE/EXAONE-4.0-32B",
         "{'architectures': ['Exaone4ForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 1, "
         "'eos_token_id': 361, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 5120, "
         "'initializer_range': 0.02, 'intermediate_size': 27392, 'layer_types': [" FOUR(FOUR(
             SLIDING_3)) "], 'max_position_embeddings': 131072, 'model_type': 'exaone4', 'num_attention_heads': 40, "
                         "'num_hidden_layers': 64, 'num_key_value_heads': 8, 'pad_token_id': 0, 'rms_norm_eps': 1e-05, "
                         "'rope_scaling': {'factor': 16.0, 'high_freq_factor': 4.0, 'low_freq_factor': 1.0, "
                         "'original_max_position_embeddings': 8192, 'rope_type': 'llama3'}, 'rope_theta': 1000000, "
                         "'sliding_window': 4096, 'sliding_window_pattern': 'LLLG', 'tie_word_embeddings': false, "
                         "'torch_dtype': 'bfloat16', 'transformers_version': '4.54.0', 'use_cache': true, "
                         "'vocab_size': "
                         "102400}",
         "64 layers of 5120, heads 40/8 x 128, mlp 27392, vocabulary 102400, context 131072, rope 128 at "
         "1000000 llama3 x16, window 4096 in 48, 16 without rotation;"},
        {"ByteDance-Seed/Seed-OSS-36B-Instruct",
         "{'model_type': 'seed_oss', 'attention_bias': true, 'attention_out_bias': false, 'head_dim': 128, "
         "'hidden_size': 5120, 'intermediate_size': 27648, 'max_position_embeddings': 524288, 'mlp_bias': "
         "false, 'num_attention_heads': 80, 'num_hidden_layers': 64, 'num_key_value_heads': 8, 'rms_norm_eps': "
         "1e-06, 'rope_scaling': {'rope_type': 'default'}, 'rope_theta': 10000000.0, 'tie_word_embeddings': "
         "false, 'vocab_size': 155136}",
         "64 layers of 5120, heads 80/8 x 128, mlp 27648, vocabulary 155136, context 524288, rope 128 at "
         "10000000; qkv bias"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

TEST(gemmas_and_phis)
{
    static const struct test_published models[] = {
        {"microsoft/Phi-3-mini-4k-instruct",
         "{'_name_or_path': 'Phi-3-mini-4k-instruct', 'architectures': ['Phi3ForCausalLM'], "
         "'attention_dropout': 0.0, 'auto_map': {'AutoConfig': 'configuration_phi3.Phi3Config', "
         "'AutoModelForCausalLM': 'modeling_phi3.Phi3ForCausalLM'}, 'bos_token_id': 1, 'embd_pdrop': 0.0, "
         "'eos_token_id': 32000, 'hidden_act': 'silu', 'hidden_size': 3072, 'initializer_range': 0.02, "
         "'intermediate_size': 8192, 'max_position_embeddings': 4096, 'model_type': 'phi3', "
         "'num_attention_heads': 32, 'num_hidden_layers': 32, 'num_key_value_heads': 32, "
         "'original_max_position_embeddings': 4096, 'pad_token_id': 32000, 'resid_pdrop': 0.0, 'rms_norm_eps': "
         "1e-05, 'rope_scaling': null, 'rope_theta': 10000.0, 'sliding_window': 2047, 'tie_word_embeddings': "
         "false, 'torch_dtype': 'bfloat16', 'transformers_version': '4.40.2', 'use_cache': true, "
         "'attention_bias': false, 'vocab_size': 32064}",
         "32 layers of 3072, heads 32/32 x 96, mlp 8192, vocabulary 32064, context 4096, rope 96 at 10000, "
         "window 2047 in 32;"},
        {"microsoft/phi-4",
         "{'_name_or_path': 'microsoft/phi-4', 'architectures': ['Phi3ForCausalLM'], 'attention_bias': false, "
         "'attention_dropout': 0.0, 'auto_map': {}, 'bos_token_id': 100257, 'embd_pdrop': 0.0, 'eos_token_id': "
         "100257, 'hidden_act': 'silu', 'hidden_size': 5120, 'initializer_range': 0.02, 'intermediate_size': "
         "17920, 'max_position_embeddings': 16384, 'model_type': 'phi3', 'num_attention_heads': 40, "
         "'num_hidden_layers': 40, 'num_key_value_heads': 10, 'original_max_position_embeddings': 16384, "
         "'pad_token_id': 100257, 'resid_pdrop': 0.0, 'rms_norm_eps': 1e-05, 'rope_scaling': null, "
         "'rope_theta': 250000, 'sliding_window': 16384, 'tie_word_embeddings': false, 'torch_dtype': "
         "'bfloat16', 'transformers_version': '4.47.0', 'use_cache': true, 'vocab_size': 100352}",
         "40 layers of 5120, heads 40/10 x 128, mlp 17920, vocabulary 100352, context 16384, rope 128 at "
         "250000, window 16384 in 40;"},
        {"microsoft/Phi-4-mini-instruct",
         "{'_name_or_path': 'Phi-4-mini-instruct', 'architectures': ['Phi3ForCausalLM'], 'attention_bias': "
         "false, 'attention_dropout': 0.0, 'auto_map': {'AutoConfig': 'configuration_phi3.Phi3Config', "
         "'AutoModelForCausalLM': 'modeling_phi3.Phi3ForCausalLM', 'AutoTokenizer': 'Xenova/gpt-4o'}, "
         "'bos_token_id': 199999, 'embd_pdrop': 0.0, 'eos_token_id': 199999, 'full_attn_mod': 1, 'hidden_act': "
         "'silu', 'hidden_size': 3072, 'initializer_range': 0.02, 'intermediate_size': 8192, "
         "'interpolate_factor': 1, 'lm_head_bias': false, 'max_position_embeddings': 131072, 'mlp_bias': "
         "false, 'model_type': 'phi3', 'num_attention_heads': 24, 'num_hidden_layers': 32, "
         "'num_key_value_heads': 8, 'original_max_position_embeddings': 4096, 'pad_token_id': 199999, "
         "'partial_rotary_factor': 0.75, 'resid_pdrop': 0.0, 'rms_norm_eps': 1e-05, 'rope_scaling': "
         "{'long_factor': [1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, "
         "2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, "
         "4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, "
         "10.4687158, 11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807, "
         "22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, "
         "32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77], 'short_factor': [1.0, 1.0, 1.0, 1.0, 1.0, "
         "1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, "
         "1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, "
         "1.0, 1.0, 1.0], 'type': 'longrope'}, 'rope_theta': 10000.0, 'sliding_window': 262144, "
         "'tie_word_embeddings': true, 'torch_dtype': 'bfloat16', 'transformers_version': '4.45.0', "
         "'use_cache': true, 'vocab_size': 200064}",
         "32 layers of 3072, heads 24/8 x 128, mlp 8192, vocabulary 200064, context 131072, rope 96 at 10000 "
         "longrope x32, window 262144 in 32; tied"},
        {"google/gemma-7b-it",
         "{'_name_or_path': 'google/gemma-7b-it', 'architectures': ['GemmaForCausalLM'], 'attention_bias': "
         "false, 'attention_dropout': 0.0, 'bos_token_id': 2, 'eos_token_id': 1, 'head_dim': 256, "
         "'hidden_act': 'gelu', 'hidden_activation': null, 'hidden_size': 3072, 'initializer_range': 0.02, "
         "'intermediate_size': 24576, 'max_position_embeddings': 8192, 'model_type': 'gemma', "
         "'num_attention_heads': 16, 'num_hidden_layers': 28, 'num_key_value_heads': 16, 'pad_token_id': 0, "
         "'rms_norm_eps': 1e-06, 'rope_scaling': null, 'rope_theta': 10000.0, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.40.0.dev0', 'use_cache': true, 'vocab_size': 256000}",
         "28 layers of 3072, heads 16/16 x 256, mlp 24576, vocabulary 256000, context 8192, rope 256 at 10000; "
         "tied embeddings x55.43"},
        {"google/gemma-2-9b-it",
         "{'architectures': ['Gemma2ForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'attn_logit_softcapping': 50.0, 'bos_token_id': 2, 'cache_implementation': 'hybrid', 'eos_token_id': "
         "1, 'final_logit_softcapping': 30.0, 'head_dim': 256, 'hidden_act': 'gelu_pytorch_tanh', "
         "'hidden_activation': 'gelu_pytorch_tanh', 'hidden_size': 3584, 'initializer_range': 0.02, "
         "'intermediate_size': 14336, 'max_position_embeddings': 8192, 'model_type': 'gemma2', "
         "'num_attention_heads': 16, 'num_hidden_layers': 42, 'num_key_value_heads': 8, 'pad_token_id': 0, "
         "'query_pre_attn_scalar': 224, 'rms_norm_eps': 1e-06, 'rope_theta': 10000.0, 'sliding_window': 4096, "
         "'sliding_window_size': 4096, 'torch_dtype': 'bfloat16', 'transformers_version': '4.42.0.dev0', "
         "'use_cache': true, 'vocab_size': 256000}",
         "42 layers of 3584, heads 16/8 x 256, mlp 14336, vocabulary 256000, context 8192, rope 256 at 10000, "
         "window 4096 in 21; tied embeddings x59.87 scores x1.069 scores to 50 logits to 30"},
        {"google/gemma-2-2b",
         "{'architectures': ['Gemma2ForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
         "'attn_logit_softcapping': 50.0, 'bos_token_id': 2, 'cache_implementation': 'hybrid', 'eos_token_id': "
         "1, 'final_logit_softcapping': 30.0, 'head_dim': 256, 'hidden_act': 'gelu_pytorch_tanh', "
         "'hidden_activation': 'gelu_pytorch_tanh', 'hidden_size': 2304, 'initializer_range': 0.02, "
         "'intermediate_size': 9216, 'max_position_embeddings': 8192, 'model_type': 'gemma2', "
         "'num_attention_heads': 8, 'num_hidden_layers': 26, 'num_key_value_heads': 4, 'pad_token_id': 0, "
         "'query_pre_attn_scalar': 256, 'rms_norm_eps': 1e-06, 'rope_theta': 10000.0, 'sliding_window': 4096, "
         "'torch_dtype': 'float32', 'transformers_version': '4.42.4', 'use_cache': true, 'vocab_size': 256000}",
         "26 layers of 2304, heads 8/4 x 256, mlp 9216, vocabulary 256000, context 8192, rope 256 at 10000, "
         "window 4096 in 13; tied embeddings x48 scores to 50 logits to 30"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

TEST(layer_norms)
{
    static const struct test_published models[] = {
        {"nemotron-4-4b",
         "{'architectures': ['NemotronForCausalLM'], 'bos_token_id': 2, 'eos_token_id': 3, 'hidden_act': "
         "'relu2', 'hidden_size': 3072, 'initializer_range': 0.0134, 'intermediate_size': 9216, "
         "'max_position_embeddings': 4096, 'model_type': 'nemotron', 'num_attention_heads': 24, "
         "'num_hidden_layers': 32, 'num_key_value_heads': 8, 'norm_eps': 1e-05, 'rope_theta': 10000, "
         "'partial_rotary_factor': 0.5, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
         "'transformers_version': '4.48.0', 'use_cache': true, 'vocab_size': 256000, 'kv_channels': 128}",
         "32 layers of 3072, heads 24/8 x 128, mlp 9216, vocabulary 256000, context 4096, rope 64 at 10000;"},
        {"openai-community/gpt2-medium",
         "{'_name_or_path': 'gpt2-medium', 'activation_function': 'gelu_new', 'architectures': "
         "['GPT2LMHeadModel'], 'attn_pdrop': 0.1, 'bos_token_id': 50256, 'embd_pdrop': 0.1, 'eos_token_id': "
         "50256, 'initializer_range': 0.02, 'layer_norm_epsilon': 1e-05, 'model_type': 'gpt2', 'n_ctx': 1024, "
         "'n_embd': 1024, 'n_head': 16, 'n_inner': null, 'n_layer': 24, 'n_positions': 1024, 'n_special': 0, "
         "'predict_special_tokens': true, 'reorder_and_upcast_attn': false, 'resid_pdrop': 0.1, "
         "'scale_attn_by_inverse_layer_idx': false, 'scale_attn_weights': true, 'summary_activation': null, "
         "'summary_first_dropout': 0.1, 'summary_proj_to_labels': true, 'summary_type': 'cls_index', "
         "'summary_use_proj': true, 'task_specific_params': {'text-generation': {'do_sample': true, "
         "'max_length': 50}}, 'transformers_version': '4.12.5', 'use_cache': true, 'vocab_size': 50257}",
         "24 layers of 1024, heads 16/16 x 64, mlp 4096, vocabulary 50257, context 1024, rope 64 at 10000, 24 "
         "without rotation; tied qkv bias output bias"},
        {"distilbert/distilgpt2",
         "{'_name_or_path': 'distilgpt2', '_num_labels': 1, 'activation_function': 'gelu_new', "
         "'architectures': ['GPT2LMHeadModel'], 'attn_pdrop': 0.1, 'bos_token_id': 50256, 'embd_pdrop': 0.1, "
         "'eos_token_id': 50256, 'gradient_checkpointing': false, 'id2label': {'0': 'LABEL_0'}, "
         "'initializer_range': 0.02, 'is_decoder': true, 'label2id': {'LABEL_0': 0}, 'layer_norm_epsilon': "
         "1e-05, 'model_type': 'gpt2', 'n_ctx': 1024, 'n_embd': 768, 'n_head': 12, 'n_inner': null, 'n_layer': "
         "6, 'n_positions': 1024, 'resid_pdrop': 0.1, 'scale_attn_weights': true, 'summary_activation': null, "
         "'summary_first_dropout': 0.1, 'summary_proj_to_labels': true, 'summary_type': 'cls_index', "
         "'summary_use_proj': true, 'task_specific_params': {'text-generation': {'do_sample': true, "
         "'max_length': 50}}, 'torchscript': true, 'transformers_version': '4.10.0', 'use_cache': true, "
         "'vocab_size': 50257}",
         "6 layers of 768, heads 12/12 x 64, mlp 3072, vocabulary 50257, context 1024, rope 64 at 10000, 6 "
         "without rotation; tied qkv bias output bias"},
        {"EleutherAI/gpt-neox-20b",
         "{'architectures': ['GPTNeoXForCausalLM'], 'attention_probs_dropout_prob': 0.1, 'bos_token_id': 0, "
         "'eos_token_id': 2, 'hidden_act': 'gelu_fast', 'hidden_dropout_prob': 0.1, 'hidden_size': 6144, "
         "'initializer_range': 0.02, 'intermediate_size': 24576, 'layer_norm_eps': 1e-05, "
         "'max_position_embeddings': 2048, 'model_type': 'gpt_neox', 'num_attention_heads': 64, "
         "'num_hidden_layers': 44, 'rotary_emb_base': 10000, 'rotary_pct': 0.25, 'tie_word_embeddings': false, "
         "'torch_dtype': 'float32', 'transformers_version': '4.19.0.dev0', 'use_cache': true, 'vocab_size': "
         "50432}",
         "44 layers of 6144, heads 64/64 x 96, mlp 24576, vocabulary 50432, context 2048, rope 24 at 10000; "
         "qkv bias output bias parallel"},
        {"EleutherAI/pythia-1b",
         "{'architectures': ['GPTNeoXForCausalLM'], 'bos_token_id': 0, 'eos_token_id': 0, 'hidden_act': "
         "'gelu', 'hidden_size': 2048, 'initializer_range': 0.02, 'intermediate_size': 8192, 'layer_norm_eps': "
         "1e-05, 'max_position_embeddings': 2048, 'model_type': 'gpt_neox', 'num_attention_heads': 8, "
         "'num_hidden_layers': 16, 'rotary_emb_base': 10000, 'rotary_pct': 0.25, 'tie_word_embeddings': false, "
         "'torch_dtype': 'float16', 'transformers_version': '4.24.0', 'use_cache': true, "
         "'use_parallel_residual': true, 'vocab_size': 50304}",
         "16 layers of 2048, heads 8/8 x 256, mlp 8192, vocabulary 50304, context 2048, rope 64 at 10000; qkv "
         "bias output bias parallel"},
        {"EleutherAI/pythia-6.9b-deduped",
         "{'_name_or_path': 'EleutherAI/pythia-6.9b-deduped', 'architectures': ['GPTNeoXForCausalLM'], "
         "'attention_bias': true, 'attention_dropout': 0.0, 'bos_token_id': 0, 'classifier_dropout': 0.1, "
         "'eos_token_id': 0, 'hidden_act': 'gelu', 'hidden_dropout': 0.0, 'hidden_size': 4096, "
         "'initializer_range': 0.02, 'intermediate_size': 16384, 'layer_norm_eps': 1e-05, "
         "'max_position_embeddings': 2048, 'model_type': 'gpt_neox', 'num_attention_heads': 32, "
         "'num_hidden_layers': 32, 'partial_rotary_factor': 0.25, 'rope_scaling': null, 'rope_theta': 10000, "
         "'rotary_emb_base': 10000, 'rotary_pct': 0.25, 'tie_word_embeddings': false, 'torch_dtype': "
         "'float16', 'transformers_version': '4.45.2', 'use_cache': true, 'use_parallel_residual': true, "
         "'vocab_size': 50432}",
         "32 layers of 4096, heads 32/32 x 128, mlp 16384, vocabulary 50432, context 2048, rope 32 at 10000; "
         "qkv bias output bias parallel"},
        {"h2oai/h2ogpt-oasst1-512-12b",
         "{'_name_or_path': 'h2oai/h2ogpt-oasst1-512-12b', 'architectures': ['GPTNeoXForCausalLM'], "
         "'bos_token_id': 0, 'classifier_dropout': 0.1, 'custom_pipelines': {'text-generation': {'impl': "
         "'h2oai_pipeline.H2OTextGenerationPipeline', 'pt': 'AutoModelForCausalLM'}}, 'eos_token_id': 0, "
         "'hidden_act': 'gelu', 'hidden_size': 5120, 'initializer_range': 0.02, 'intermediate_size': 20480, "
         "'layer_norm_eps': 1e-05, 'max_position_embeddings': 2048, 'model_type': 'gpt_neox', "
         "'num_attention_heads': 40, 'num_hidden_layers': 36, 'rotary_emb_base': 10000, 'rotary_pct': 0.25, "
         "'tie_word_embeddings': false, 'torch_dtype': 'float16', 'transformers_version': '4.30.0.dev0', "
         "'use_cache': true, 'use_parallel_residual': true, 'vocab_size': 50688}",
         "36 layers of 5120, heads 40/40 x 128, mlp 20480, vocabulary 50688, context 2048, rope 32 at 10000; "
         "qkv bias output bias parallel"},
    };
    test_config_published(models, sizeof models / sizeof *models);
}

/* Other values of such keys would change the outputs. */
TEST(test_values_that_would_change_something)
{
    test_config_refused("qwen3_moe", "\"use_qk_norm\": false", "'use_qk_norm'|expected true");
    test_config_refused("qwen3_moe", "\"qkv_bias\": true", "'qkv_bias'|expected false");
    test_config_refused("qwen3_moe", "\"shared_expert_intermediate_size\": 512",
                        "'shared_expert_intermediate_size'|expected 0");
    test_config_accepted("gemma2", "\"sliding_window\": 64, \"sliding_window_size\": 64");
    test_config_refused("gemma2", "\"sliding_window\": 64, \"sliding_window_size\": 4096",
                        "'sliding_window_size'|sliding_window (64)|found 4096");
    test_config_refused("gemma2", "\"sliding_window\": null, \"sliding_window_size\": 4096",
                        "'sliding_window_size'|sliding_window (0)|found 4096");
    test_config_refused("gpt2", "\"n_embd\": 64, \"n_layer\": 4, \"n_head\": 8, \"n_special\": 3",
                        "'n_special'|expected 0");
    test_config_accepted("nemotron", "\"head_dim\": 16, \"kv_channels\": 16");
    test_config_refused("nemotron", "\"kv_channels\": 16", "'kv_channels'|elements of a head (8)|found 16");
}

TEST(test_keys_without_effect)
{
    test_config_accepted("exaone4",
                         "\"num_key_value_heads\": 8, \"sliding_window\": null, \"sliding_window_pattern\": 0");
    test_config_refused("exaone4", "\"num_key_value_heads\": 8, \"sliding_window\": 16, \"sliding_window_pattern\": 0",
                        "'sliding_window_pattern'|from 1|found 0");
    test_config_accepted("cohere2", "\"use_parallel_embedding\": true");
    test_config_accepted("starcoder2", "\"activation_function\": \"gelu\", \"attention_softmax_in_fp32\": true, "
                                       "\"layer_norm_epsilon\": 1e-05, \"scale_attention_softmax_in_fp32\": true, "
                                       "\"scale_attn_weights\": true");
    test_config_refused("starcoder2", "\"scale_attn_weights\": false", "'scale_attn_weights'|expected true");
    test_config_accepted("ernie4_5_moe",
                         "\"auto_map\": {\"AutoConfig\": \"configuration_ernie4_5_moe.Ernie4_5_MoeConfig\", "
                         "\"AutoModel\": \"modeling_ernie4_5_moe.Ernie4_5_Model\", \"AutoModelForCausalLM\": "
                         "\"modeling_ernie4_5_moe.Ernie4_5_MoeForCausalLM\"}, \"moe_capacity\": [64, 64, 64], "
                         "\"moe_gate\": \"topk\", \"moe_use_aux_free\": true, \"num_nextn_predict_layers\": 1");
    test_config_refused("ernie4_5_moe", "\"auto_map\": {\"AutoModel\": \"modeling_other.Model\"}",
                        "'auto_map'|remove the field");
}

TEST(test_rotary_keys_of_families)
{
    static const char yarn[] =
        "\"num_key_value_heads\": 8, \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", "
        "\"factor\": 4, \"truncate\": %s}, \"sliding_attention\": {\"rope_type\": \"default\"}}";
    char fields[200];
    snprintf(fields, sizeof fields, yarn, "true");
    struct model_config config = test_config_accepted("olmo3", fields);
    assert_true(config.rope.type == ROPE_YARN && config.rope.truncate && config.local_rope.type == ROPE_DEFAULT);
    snprintf(fields, sizeof fields, yarn, "false"); /* which transformers does not see there */
    test_config_refused("olmo3", fields, "full_attention: field 'truncate'|expected true|found false");
    config = test_config_accepted("gemma3_text", "\"num_key_value_heads\": 8, \"rope_local_base_freq\": 1e7");
    assert_true(config.local_rope.theta == 1e7);
    config = test_config_accepted("gpt_neox", "\"rotary_emb_base\": 1e7");
    assert_true(config.rope.theta == 1e7);
    test_config_refused("gpt_neox", "\"rotary_emb_base\": 1", "'rotary_emb_base'|a number above 1|found 1");
    test_config_refused("gemma3_text", "\"num_key_value_heads\": 8, \"rope_local_base_freq\": 2e15",
                        "'rope_local_base_freq'|at most 1e15");
}

int main(void) { return test_run(); }
