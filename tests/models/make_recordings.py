#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of random weights with what transformers computes from them, for tests/e2e/architectures_test.py:

    pip install torch transformers==5.17.0
    tests/models/make_recordings.py FOLDER [NAME...]
    ENG_RECORDINGS=FOLDER python3 tests/e2e/architectures_test.py

Each folder holds the checkpoint, as transformers saves it in bfloat16, reference.json (prompts and greedy tokens) and
reference_logits.npz (logits at the last four positions of each prompt), both computed in float32 from the saved weights."""

import copy
import json
import os
import sys

import numpy
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

SEED = 1
VOCABULARY = 320
PROMPT_LENGTHS = (1, 7, 40, 100)
NEW_TOKENS = 24
LOGIT_ROWS = 4

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "vocab_size": VOCABULARY, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2}
VISION_PATCHES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "patch_size": 4}
TOKENS = {"image_token_id": 310, "video_token_id": 311, "vision_start_token_id": 312, "vision_end_token_id": 313}
TOKENS_OF_GLM = {"image_token_id": 310, "video_token_id": 311, "image_start_token_id": 312, "image_end_token_id": 313,
                 "video_start_token_id": 314, "video_end_token_id": 315}
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
LINEAR = {**SIZES, "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16,
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
                              "mrope_interleaved": True}}
GEMMA4 = {**SIZES, "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "sliding_window": 16, "final_logit_softcapping": 30.0,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                          "full_attention"]}
# Contexts of the recordings are shorter than original_max_position_embeddings: there llama_4_scaling_beta has no effect.
MINISTRAL = {**SIZES, "head_dim": 32, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 32.0,
                                                          "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                          "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.1}}
# Neither heads of q, k and v in a tensor nor rows of an MLP have keys of the usual names.
FALCON = {"hidden_size": 64, "ffn_hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY,
          "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
ROUTED_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "routed_scaling_factor": 1.5}
LATENT = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 8, "v_head_dim": 24}

MAMBA = {**SIZES, "num_hidden_layers": 4, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 1, "mamba_chunk_size": 16}
GRANITE = {**MAMBA, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 0.5,
           "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"], "shared_intermediate_size": 96}
FALCON_H1 = {"lm_head_multiplier": 0.75, "embedding_multiplier": 3.0, "mlp_multipliers": [0.8, 0.6], "key_multiplier": 0.5,
             "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.2, "ssm_multipliers": [0.7, 1.3, 0.8, 0.9, 1.1],
             "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.7, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

# Each: model_type, the configuration. A configuration with text_config is of a model with other parts.
MODELS = {
    "qwen3_5": ("qwen3_5_text", LINEAR),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 64}),
    # All experts of a layer in two tensors, as Qwen stores them.
    "qwen3_5_moe-fused": ("qwen3_5_moe_text", {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 64}),
    "lfm2_moe": ("lfm2_moe", {**SIZES, **EXPERTS, "num_hidden_layers": 4, "num_dense_layers": 1, "routed_scaling_factor": 1.5,
                              "layer_types": ["conv", "full_attention", "conv", "full_attention"]}),
    "glm4_moe_lite": ("glm4_moe_lite", {**SIZES, **LATENT, **ROUTED_EXPERTS, "num_hidden_layers": 3}),
    "minimax_m2": ("minimax_m2", {**SIZES, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 3,
                                  "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "dots1": ("dots1", {**SIZES, **ROUTED_EXPERTS, "num_hidden_layers": 4, "n_shared_experts": 2, "first_k_dense_replace": 1,
                        "norm_topk_prob": True, "sliding_window": 16, "max_window_layers": 2}),
    "exaone_moe": ("exaone_moe", {**SIZES, **EXPERTS, "num_hidden_layers": 4, "sliding_window": 16, "head_dim": 32}),
    "solar_open": ("solar_open", {**{key: SIZES[key] for key in SIZES if key != "intermediate_size"}, **ROUTED_EXPERTS, "head_dim": 32}),
    "flex_olmo": ("flex_olmo", {**SIZES, "num_experts": 8, "num_experts_per_tok": 3, "pad_token_id": 0}),
    "youtu": ("youtu", {**SIZES, **LATENT}),
    "afmoe": ("afmoe", {**SIZES, **EXPERTS, "num_hidden_layers": 4, "num_dense_layers": 1, "head_dim": 32, "sliding_window": 16,
                        "route_scale": 2.5, "mup_enabled": True}),
    "qwen3_5-vision": ("qwen3_5", {**TOKENS, "text_config": LINEAR, "vision_config": {**VISION_PATCHES, "out_hidden_size": 64}}),
    "granitemoehybrid": ("granitemoehybrid", {**GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_groups": 2,
                                              "mamba_proj_bias": True, "tie_word_embeddings": True, "time_step_limit": [0.5, 0.8]}),
    "granitemoehybrid-experts": ("granitemoehybrid", {**GRANITE, "intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 3}),
    "granitemoehybrid-attention": ("granitemoehybrid", {**GRANITE, "num_local_experts": 0, "position_embedding_type": "rope",
                                                        "layer_types": ["full_attention"] * 4, "rope_parameters": {
                                                            "rope_type": "default", "rope_theta": 10000.0}}),
    "falcon_h1": ("falcon_h1", {**MAMBA, **FALCON_H1, "mamba_n_groups": 4, "mamba_d_head": 20, "mamba_d_ssm": 160}),
    "falcon_h1-norm": ("falcon_h1", {**MAMBA, **FALCON_H1, "mamba_d_ssm": None, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "bamba": ("bamba", {**MAMBA, "attn_layer_indices": [2], "mamba_n_groups": 2, "rope_parameters": {"rope_type": "default",
                                                                                                      "rope_theta": 10000.0}}),
    "nemotron_h": ("nemotron_h", {**SIZES, "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
                                  "head_dim": 32, "mamba_num_heads": 8, "mamba_head_dim": 20, "ssm_state_size": 32, "n_groups": 2,
                                  "chunk_size": 16, "time_step_min": 1e-6, "use_bias": True, "mlp_bias": True}),
    "nemotron_h-experts": ("nemotron_h", {**SIZES, **ROUTED_EXPERTS, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "mlp"],
                                          "head_dim": 32, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2,
                                          "chunk_size": 16, "time_step_min": 1e-6, "moe_shared_expert_intermediate_size": 96, "n_group": 2}),
    "gemma4": ("gemma4_text", {**GEMMA4, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16,
                               "vocab_size_per_layer_input": VOCABULARY}),
    # Heads as large as those of the published models.
    "gemma4-wide": ("gemma4_text", {**GEMMA4, "head_dim": 256, "global_head_dim": 512, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
                                    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY}),
    "gemma4-keys-are-values": ("gemma4_text", {**GEMMA4, "attention_k_eq_v": True, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
                                               "hidden_size_per_layer_input": 0}),
    "gemma4-experts": ("gemma4_text", {**GEMMA4, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3,
                                       "moe_intermediate_size": 48, "hidden_size_per_layer_input": 0,
                                       "attention_k_eq_v": True}),
    "gemma4-vision": ("gemma4", {"text_config": {**GEMMA4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16,
                                                 "vocab_size_per_layer_input": VOCABULARY},
                                 "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                                                   "num_attention_heads": 2, "head_dim": 16}, "audio_config": None,
                                 # Beyond the vocabulary: the model reads others than these tokens, even without an image.
                                 "image_token_id": 1000, "video_token_id": 1001, "audio_token_id": 1002}),
    "stablelm-qk_layernorm": ("stablelm", {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "qk_layernorm": True,
                                           "partial_rotary_factor": 0.25, "use_parallel_residual": True, "use_qkv_bias": True}),
    "qwen2_vl": ("qwen2_vl", {**TOKENS, "text_config": {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                                   "mrope_section": [4, 6, 6]}},
                              "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4}}),
    "qwen2_5_vl": ("qwen2_5_vl", {**TOKENS, "text_config": {**SIZES, "rope_parameters": {"rope_type": "default",
                                                                                       "rope_theta": 10000.0,
                                                                                       "mrope_section": [4, 6, 6]}},
                                  "vision_config": {**VISION_PATCHES, "out_hidden_size": 64, "intermediate_size": 48}}),
    "qwen3_vl": ("qwen3_vl", {**TOKENS, "text_config": {**SIZES, "head_dim": 16, "rope_parameters": SECTIONS},
                              "vision_config": {**VISION_PATCHES, "out_hidden_size": 64, "deepstack_visual_indexes": [0]}}),
    "qwen3_vl_moe": ("qwen3_vl_moe", {**TOKENS, "text_config": {**SIZES, **EXPERTS, "head_dim": 16, "rope_parameters": SECTIONS},
                                      "vision_config": {**VISION_PATCHES, "out_hidden_size": 64, "deepstack_visual_indexes": [0]}}),
    "glm4v": ("glm4v", {**TOKENS_OF_GLM, "text_config": {**SIZES, "head_dim": 32,
                                                         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                             "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}},
                        "vision_config": {**VISION_PATCHES, "out_hidden_size": 64, "intermediate_size": 48}}),
    "glm4v_moe": ("glm4v_moe", {**TOKENS_OF_GLM,
                                "text_config": {**SIZES, "num_hidden_layers": 3, "head_dim": 32, "n_routed_experts": 8,
                                                "num_experts_per_tok": 3, "moe_intermediate_size": 48,
                                                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                    "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}},
                                "vision_config": {**VISION_PATCHES, "out_hidden_size": 64, "intermediate_size": 48}}),
    # GLM 4.6V: the text part is that of either of the two above.
    "glm46v": ("glm46v", {**TOKENS_OF_GLM, "text_config": {**SIZES, "model_type": "glm4v_moe_text", "num_hidden_layers": 3, "head_dim": 32,
                                                           "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48,
                                                           "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                               "partial_rotary_factor": 0.5,
                                                                               "mrope_section": [2, 3, 3]}},
                          "vision_config": {**VISION_PATCHES, "out_hidden_size": 64, "intermediate_size": 48}}),
    "gemma3-vision": ("gemma3", {"text_config": {**SIZES, "num_hidden_layers": 6, "head_dim": 32, "sliding_window": 16,
                                                 "query_pre_attn_scalar": 32},
                                 "vision_config": SIGLIP, "mm_tokens_per_image": 4, "image_token_index": 310}),
    "mistral3": ("mistral3", {"text_config": {**SIZES, "model_type": "mistral", "head_dim": 32, "sliding_window": None},
                              "vision_config": {**SIGLIP, "model_type": "pixtral"}, "image_token_index": 310,
                              "tie_word_embeddings": False}),
    "ministral3": ("ministral3", MINISTRAL),
    "mistral3-ministral3": ("mistral3", {"text_config": {**MINISTRAL, "model_type": "ministral3"},
                                         "vision_config": {**SIGLIP, "model_type": "pixtral"}, "image_token_index": 310,
                                         "tie_word_embeddings": False}),
    "mllama": ("mllama", {"text_config": {**SIZES, "num_hidden_layers": 6, "cross_attention_layers": [1, 4], "pad_token_id": 0,
                                          "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
                          "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2,
                                            "intermediate_size": 48, "vision_output_dim": 64, "image_size": 16, "patch_size": 4,
                                            "intermediate_layers_indices": [0]},
                          "image_token_index": VOCABULARY}),
    "got_ocr2": ("got_ocr2", {"text_config": {**SIZES, "model_type": "qwen2"}, "image_token_index": 310,
                              "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 48,
                                                "output_channels": 16, "image_size": 64, "patch_size": 16,
                                                "global_attn_indexes": [0]}}),
    "ovis2": ("ovis2", {"text_config": {**SIZES, "model_type": "qwen2", "tie_word_embeddings": False}, "image_token_id": 310,
                        "visual_indicator_token_ids": [311, 312, 313, 314, 315], "hidden_size": 64, "vocab_size": VOCABULARY,
                        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
                                          "image_size": 16, "patch_size": 4, "vocab_size": 40},
                        "tie_word_embeddings": False}),
    # Needs the package timm.
    "perception_lm": ("perception_lm", {"text_config": {**SIZES, "model_type": "llama", "head_dim": 32, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}},
                                        "vision_config": {"architecture": "vit_pe_core_tiny_patch16_384", "do_pooling": False,
                                                          "model_args": {"embed_dim": 32, "depth": 1, "num_heads": 2, "img_size": [32, 32],
                                                                         "global_pool": ""}},
                                        "image_token_id": 310, "video_token_id": 311}),
    # logits_scaling is 1: the class of the whole model does not apply it.
    "granite_speech": ("granite_speech", {"text_config": {**SIZES, "model_type": "granite", "attention_multiplier": 0.2,
                                                          "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
                                          "encoder_config": {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "dim_head": 16,
                                                             "input_dim": 16, "context_size": 20},
                                          "projector_config": {"model_type": "blip_2_qformer", "hidden_size": 32, "intermediate_size": 48,
                                                               "num_hidden_layers": 1, "num_attention_heads": 2,
                                                               "encoder_hidden_size": 32},
                                          "audio_token_index": 310, "has_lora_adapter": False}),
    "llava": ("llava", {"text_config": {**SIZES, "model_type": "llama"}, "vision_config": SIGLIP, "image_token_index": 310}),
    "llava_next": ("llava_next", {"text_config": {**SIZES, "model_type": "mistral", "head_dim": 32, "sliding_window": None},
                                  "vision_config": SIGLIP, "image_token_index": 310}),
    # Granite Vision. logits_scaling is 1, as for granite_speech.
    "llava_next-granite": ("llava_next", {"text_config": {**SIZES, "model_type": "granite", "attention_multiplier": 0.2,
                                                          "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
                                          "vision_config": SIGLIP, "image_token_index": 310}),
    "llava_onevision": ("llava_onevision", {"text_config": {**SIZES, "model_type": "qwen2"}, "vision_config": SIGLIP,
                                            "image_token_index": 310, "video_token_index": 311}),
    "llava_next_video": ("llava_next_video", {"text_config": {**SIZES, "model_type": "llama"}, "vision_config": SIGLIP,
                                              "image_token_index": 310, "video_token_index": 311}),
    "video_llava": ("video_llava", {"text_config": {**SIZES, "model_type": "llama"}, "vision_config": SIGLIP, "image_token_index": 310,
                                    "video_token_index": 311}),
    "vipllava": ("vipllava", {"text_config": {**SIZES, "model_type": "llama"}, "vision_config": SIGLIP, "image_token_index": 310,
                              "vision_feature_layers": [-1]}),
    "deepseek_vl": ("deepseek_vl", {"text_config": {**SIZES, "model_type": "llama"}, "vision_config": SIGLIP, "image_token_id": 310}),
    "voxtral": ("voxtral", {"text_config": {**SIZES, "model_type": "llama", "head_dim": 32},
                            "audio_config": {"model_type": "voxtral_encoder", "hidden_size": 32, "intermediate_size": 128,
                                             "num_hidden_layers": 1, "num_attention_heads": 2, "num_mel_bins": 16,
                                             "max_source_positions": 20},
                            "audio_token_id": 310}),
    "internvl": ("internvl", {"text_config": {**SIZES, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": False},
                              "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                                                "num_attention_heads": 2, "image_size": [16, 16], "patch_size": [4, 4]},
                              "image_token_id": 310, "tie_word_embeddings": False}),
    "internvl-gpt_oss": ("internvl", {"text_config": {**SIZES, "model_type": "gpt_oss", "head_dim": 32, "intermediate_size": 64,
                                                      "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 16,
                                                      "tie_word_embeddings": False},
                                      "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                                                        "num_attention_heads": 2, "image_size": [16, 16], "patch_size": [4, 4]},
                                      "image_token_id": 310, "tie_word_embeddings": False}),
    "lfm2_vl": ("lfm2_vl", {"text_config": {**SIZES, "model_type": "lfm2", "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
                                            "layer_types": ["conv", "full_attention"]},
                            "vision_config": {**SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 16},
                            "image_token_id": 310}),
    "idefics3": ("idefics3", {"text_config": {**SIZES, "model_type": "llama"},
                              "vision_config": {**SIGLIP, "model_type": "idefics3_vision"}, "image_token_id": 310, "pad_token_id": 0}),
    "qwen2_audio": ("qwen2_audio", {"text_config": {**SIZES, "model_type": "qwen2"},
                                    "audio_config": {"model_type": "qwen2_audio_encoder", "num_mel_bins": 16, "encoder_layers": 1,
                                                     "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
                                                     "max_source_positions": 20},
                                    "audio_token_index": 310}),
    "arcee": ("arcee", {**SIZES, "mlp_bias": True}),
    "cohere": ("cohere", {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "use_qk_norm": True}),
    "cwm": ("cwm", {**SIZES, "num_hidden_layers": 5, "head_dim": 32, "sliding_window": 16}),
    "ernie4_5": ("ernie4_5", {**SIZES, "head_dim": 32, "use_bias": True}),
    "falcon": ("falcon", FALCON),
    "falcon-grouped": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False}),
    "falcon-serial": ("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True}),
    "glm": ("glm", {**SIZES, "head_dim": 32, "pad_token_id": 0}),
    "gpt_bigcode": ("gpt_bigcode", {"n_embd": 64, "n_inner": 96, "n_layer": 2, "n_head": 2, "n_positions": 512, "vocab_size": VOCABULARY,
                                    "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_neo": ("gpt_neo", {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4, "window_size": 16,
                            "attention_types": [[["global", "local"], 1]], "vocab_size": VOCABULARY, "max_position_embeddings": 512,
                            "bos_token_id": 1, "eos_token_id": 2}),
    "gptj": ("gptj", {"n_embd": 64, "n_inner": 96, "n_layer": 2, "n_head": 2, "n_positions": 512, "rotary_dim": 16,
                      "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}),
    "helium": ("helium", {**SIZES, "head_dim": 32}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {**SIZES, "head_dim": 32, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0,
                                                                                          "alpha": 50.0, "factor": 1.0}}),
    "jais2": ("jais2", SIZES),
    "ministral": ("ministral", {**SIZES, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 16,
                                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]}),
    "nanochat": ("nanochat", SIZES),
    "olmo": ("olmo", {**SIZES, "num_key_value_heads": 2}),
    "phi": ("phi", SIZES),
    "vaultgemma": ("vaultgemma", {**SIZES, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32}),
    "granitemoeshared": ("granitemoeshared", {**SIZES, "num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 48,
                                              "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5,
                                              "logits_scaling": 0.5}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {**SIZES, "head_dim": 32, "num_experts": 8, "moe_topk": [3, 3],
                                          "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}}),
    "hyperclovax": ("hyperclovax", {**SIZES, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "logits_scaling": 0.5}),
    "apertus": ("apertus", {**SIZES, "head_dim": 32, "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                                                                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                                         "original_max_position_embeddings": 64}}),
    "opt": ("opt", {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": VOCABULARY,
                    "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2}),
    "hy_v3": ("hy_v3", {**SIZES, **EXPERTS, "head_dim": 32, "router_scaling_factor": 1.5}),
    "mellum": ("mellum", {**SIZES, **EXPERTS, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 16,
                          "layer_types": ["sliding_attention", "full_attention"] * 2, "mlp_layer_types": ["dense"] + ["sparse"] * 3}),
    "mistral3-mistral4": ("mistral3", {"text_config": {**SIZES, **LATENT, **ROUTED_EXPERTS, "model_type": "mistral4", "n_group": 4,
                                                      "topk_group": 2, "first_k_dense_replace": 1, "rope_parameters": {
                                                          "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
                                                          "mscale_all_dim": 1.0, "original_max_position_embeddings": 128,
                                                          "llama_4_scaling_beta": 0.1}},
                                       "vision_config": {**SIGLIP, "model_type": "pixtral"}, "image_token_index": 310,
                                       "tie_word_embeddings": False}),
    "minicpm3": ("minicpm3", {**SIZES, **LATENT, "dim_model_base": 32, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0], "factor": 1.0,
        "original_max_position_embeddings": 512}}),
    "axk1": ("axk1", {**SIZES, **LATENT, **ROUTED_EXPERTS, "n_group": 4, "topk_group": 2}),
    # hidden_size is no multiple of 16, to which the rows of each expert are padded.
    "gpt_oss-narrow": ("gpt_oss", {**SIZES, "hidden_size": 72, "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 16}),
    "qwen2_moe-windows": ("qwen2_moe", {**SIZES, **EXPERTS, "num_hidden_layers": 4, "hidden_size": 72, "shared_expert_intermediate_size": 40,
                                        "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}),
    "qwen3_moe-windows": ("qwen3_moe", {**SIZES, **EXPERTS, "head_dim": 32, "use_sliding_window": True, "sliding_window": 16}),
    "smollm3-windows": ("smollm3", {**SIZES, "num_hidden_layers": 4, "no_rope_layer_interval": 2, "pad_token_id": 0, "use_sliding_window": True,
                                    "sliding_window": 16}),
    # The class's partial_rotary_factor, another one, stands beside rope_parameters.
    "glm4-dynamic": ("glm4", {**SIZES, "head_dim": 32, "pad_token_id": 0, "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.25}}),
    "gpt2-scales": ("gpt2", {"n_embd": 64, "n_inner": 96, "n_layer": 3, "n_head": 2, "n_positions": 512, "vocab_size": VOCABULARY,
                             "bos_token_id": 1, "eos_token_id": 2, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}),
    "smolvlm": ("smolvlm", {"text_config": {**SIZES, "model_type": "llama"}, "vision_config": {**SIGLIP, "model_type": "smolvlm_vision"},
                            "image_token_id": 310, "pad_token_id": 0}),
}


def fill(model):
    """Random parameters that bfloat16 holds: matrices that keep the size of activations, norms around what they begin with."""
    # Gemma 4 does not divide scores by the root of a head's size: around 1 this norm would make attention so sharp that rounding grows.
    is_unscaled = "gemma4" in model.config.model_type
    scalars = [item for item in model.named_buffers() if item[0].endswith("layer_scalar")]
    for name, parameter in [*model.named_parameters(), *scalars]:
        noise = torch.randn_like(parameter)
        if parameter.dim() > 1:
            values = noise / parameter.shape[-1] ** 0.5
        elif any(part in name for part in ("bias", "A_log", "dt_")):
            values = 0.1 * noise
        else:
            values = parameter + 0.05 * noise
            if is_unscaled and name.endswith("q_norm.weight"):
                values = values / parameter.shape[-1] ** 0.5
        parameter.copy_(values.to(torch.bfloat16))


def save(model, folder, fused):
    stored = copy.deepcopy(model)
    for parameter in stored.parameters():  # buffers stay in float32
        parameter.data = parameter.data.to(torch.bfloat16)
    stored.config.dtype = torch.bfloat16
    stored.save_pretrained(folder)
    if fused:  # save_pretrained stores each expert on its own
        tensors = {name: tensor.contiguous() for name, tensor in stored.state_dict().items()}
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def record(model):
    generator = torch.Generator().manual_seed(SEED + 5)
    cases, arrays = [], {}
    for i, length in enumerate(PROMPT_LENGTHS):
        prompt = torch.randint(3, VOCABULARY - 20, (length,), generator=generator)  # no token that stands for an image
        arrays["logits_%d" % i] = model(input_ids=prompt[None]).logits[0, -LOGIT_ROWS:].float().numpy()
        tokens, gaps = prompt.clone(), []
        for _ in range(NEW_TOKENS):
            best = torch.topk(model(input_ids=tokens[None]).logits[0, -1].float(), 2)
            gaps.append(round(float(best.values[0] - best.values[1]), 5))
            tokens = torch.cat([tokens, best.indices[:1]])
        cases.append({"prompt": prompt.tolist(), "greedy": tokens[length:].tolist(), "top1_top2_gap": gaps})
    return cases, arrays


def make(name, folder):
    model_type, fields = MODELS[name]
    torch.manual_seed(SEED)
    config = AutoConfig.for_model(model_type, **copy.deepcopy(fields))
    auto = AutoModelForMultimodalLM if "text_config" in fields else AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    fill(model)
    os.makedirs(folder, exist_ok=True)
    save(model, folder, name.endswith("-fused"))
    read = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    cases, arrays = record(read)
    numpy.savez(os.path.join(folder, "reference_logits.npz"), **arrays)
    with open(os.path.join(folder, "reference.json"), "w", encoding="utf-8") as file:
        json.dump({"transformers": transformers.__version__, "cases": cases}, file)
    print("%s: largest logit %.3f, least distance %g" %
          (name, max(abs(rows).max() for rows in arrays.values()), min(min(case["top1_top2_gap"]) for case in cases)), flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for chosen in sys.argv[2:] or MODELS:
        make(chosen, os.path.join(sys.argv[1], chosen))
