/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3 (dense): each head of q and k is normalised before the rotation. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 32,
    .head_dim = 128,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_window(config, reader, CONFIG_WINDOW_BY_LAYER, 4096, status);
}

const struct architecture arch_qwen3 = {
    "qwen3",
    "Qwen3ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_HEAD},
    .about = "dense, with normalised heads",
};
