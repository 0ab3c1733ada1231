/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 2 and 2.5: biases on q, k and v always, on nothing else; upper layers may slide. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 32,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->qkv_bias = true;
    return config_sizes(config, reader, &defaults, status) && config_fixed(reader, "attention_bias", true, status) &&
           config_window(config, reader, CONFIG_WINDOW_BY_LAYER, 4096, status);
}

const struct architecture arch_qwen2 = {
    "qwen2", "Qwen2ForCausalLM", read_config, {.norms = DECODER_PRE_NORM}, .about = "QKV bias",
};
