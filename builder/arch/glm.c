/* SPDX-License-Identifier: Apache-2.0 */
/* GLM 4 9B: half of each head rotates, its pairs in turn in the checkpoint; gate and up are one tensor. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 2,
    .head_dim = 128,
    .max_position = 131072,
    .rms_norm_eps = 1.5625e-7,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = 151329,
    .more_eos_tokens = {151336, 151338},
    .pad_token = 151329,
};

bool config_glm(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->qkv_bias = true;
    config->rotary_pairs = true;
    return config_sizes(config, reader, &defaults, status) &&
           config_rope_defaults(config, reader, 10000, 0.5, status) &&
           json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status);
}

const struct architecture arch_glm = {
    "glm",
    "GlmForCausalLM",
    config_glm,
    {.norms = DECODER_PRE_NORM, .partial_rotary = true, .fused_gate_up = "mlp.gate_up_proj"},
    .about = "small*: GLM 4 9B (`-hf`): rotation of a half of each head",
};
