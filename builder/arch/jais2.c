/* SPDX-License-Identifier: Apache-2.0 */
/* Jais 2: a Llama with layer normalisation, biases and an MLP of squared ReLU without a gate. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 8192,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_eps",
    .bos_token = 0,
    .eos_token = 150024,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->qkv_bias = config->mlp_bias = true;
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_mlp_bias(config, reader, status) &&
           config_activation(config, reader, "hidden_act", ACTIVATION_RELU2, status);
}

const struct architecture arch_jais2 = {
    "jais2",
    "Jais2ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .norm = NORM_LAYER_BIAS, .plain_mlp = true},
    .about = "small*: layer norms, MLPs without a gate",
};
