/* SPDX-License-Identifier: Apache-2.0 */
/* Arcee's AFM: a Llama with an MLP of squared ReLU without a gate. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .bos_token = 128000,
    .eos_token = 128001,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_mlp_bias(config, reader, status) &&
           config_activation(config, reader, "hidden_act", ACTIVATION_RELU2, status);
}

const struct architecture arch_arcee = {
    "arcee",
    "ArceeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .plain_mlp = true},
    .about = "small*: AFM: MLPs without a gate",
};
