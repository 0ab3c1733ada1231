/* SPDX-License-Identifier: Apache-2.0 */
/* Llama 1 to 3, TinyLlama, SmolLM: biases only where config.json says so. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-6,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_mlp_bias(config, reader, status);
}

const struct architecture arch_llama = {
    "llama",
    "LlamaForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .about = "Llama 1 to 3, TinyLlama, SmolLM: rope scaling default, linear, llama3, yarn; biases; tied embeddings",
};
