/* SPDX-License-Identifier: Apache-2.0 */
/* StableLM 2 and 3B: a Llama with layer normalisation, in which a quarter of each head rotates. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 32,
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_eps",
    .bos_token = 0,
    .eos_token = 0,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) &&
           config_rope_defaults(config, reader, 10000, 0.25, status) &&
           json_reader_bool(reader, "use_qkv_bias", false, &config->qkv_bias, status) &&
           json_reader_bool(reader, "use_parallel_residual", false, &config->parallel_residual, status) &&
           json_reader_bool(reader, "qk_layernorm", false, &config->head_norms, status);
}

const struct architecture arch_stablelm = {
    "stablelm",
    "StableLmForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .norm = NORM_LAYER_BIAS,
     .shares_norm = true,
     .partial_rotary = true,
     .norms_apart = true,
     .modules = {.q_norm = "self_attn.q_layernorm", .k_norm = "self_attn.k_layernorm"}}, /* with qk_layernorm */
    .about = "small*: layer norms, rotation of a part of each head; norms of each head with `qk_layernorm`",
};
