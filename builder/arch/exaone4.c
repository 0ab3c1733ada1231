/* SPDX-License-Identifier: Apache-2.0 */
/* EXAONE 4: what attention and MLP give is normalised, as is each head of q and k. Where some layers attend through a
 * sliding window, only those rotate q and k. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 32,
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .bos_token = 0,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_window_rotates(config, reader, 4, 4096, status);
}

const struct architecture arch_exaone4 = {
    "exaone4",
    "Exaone4ForCausalLM",
    read_config,
    {.norms = {.attention_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"},
     .qk_norm = QK_NORM_HEAD},
    .about = "small*: norms after attention and MLP, windows in some layers, which alone rotate",
};
