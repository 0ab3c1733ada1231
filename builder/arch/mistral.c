/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral: a Llama without biases whose layers may attend through a sliding window. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .max_position = 131072,
    .rms_norm_eps = 1e-6,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) &&
           config_window(config, reader, CONFIG_WINDOW_ALWAYS, 4096, status);
}

const struct architecture arch_mistral = {
    "mistral", "MistralForCausalLM", read_config, {.norms = DECODER_PRE_NORM}, .about = "sliding window",
};
