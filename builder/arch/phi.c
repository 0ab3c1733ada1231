/* SPDX-License-Identifier: Apache-2.0 */
/* Phi 1, 1.5 and 2: attention and MLP read the same normalised rows, layer normalisation, biases everywhere, an MLP without a
 * gate; a part of each head rotates. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_eps",
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};

static const char *const own_code[] = {"configuration_phi.PhiConfig", "modeling_phi.PhiForCausalLM"};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->parallel_residual = true;
    config->qkv_bias = config->output_bias = config->mlp_bias = config->head_bias = true;
    return config_sizes(config, reader, &defaults, status) &&
           config_rope_defaults(config, reader, 10000, 0.5, status) &&
           config_fixed(reader, "qk_layernorm", false, status) &&
           config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status) &&
           config_fixed(reader, "tie_word_embeddings", false, status) &&
           config_activation(config, reader, "hidden_act", ACTIVATION_GELU_TANH, status);
}

const struct architecture arch_phi = {
    "phi",
    "PhiForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm"},
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .shares_norm = true,
     .partial_rotary = true,
     .modules =
         {.final_norm = "model.final_layernorm", .output = "self_attn.dense", .up = "mlp.fc1", .down = "mlp.fc2"}},
    .about = "small*: Phi 1, 1.5, 2: attention and MLP side by side, layer norms, MLPs without a gate",
};
