/* SPDX-License-Identifier: Apache-2.0 */
/* Nemotron 4 and Minitron: layer normalisation with 1 + weight, an MLP of squared ReLU without a gate; half of each head
 * rotates. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "norm_eps",
    .bos_token = 2,
    .eos_token = 3,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) &&
           config_rope_defaults(config, reader, 10000, 0.5, status) && config_attention_bias(config, reader, status) &&
           config_mlp_bias(config, reader, status) &&
           config_activation(config, reader, "hidden_act", ACTIVATION_RELU2, status);
}

const struct architecture arch_nemotron = {
    "nemotron",
    "NemotronForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .norm = NORM_LAYER_BIAS_PLUS_ONE, .plain_mlp = true, .partial_rotary = true},
    .about = "small*: layer norms, MLPs without a gate",
};
