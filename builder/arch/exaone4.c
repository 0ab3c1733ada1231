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
    const bool has_window = !json_reader_is_null(reader, "sliding_window");
    if (!config_sizes(config, reader, &defaults, status) || !config_window_pattern(config, reader, 4, 4096, status))
        return false;
    for (size_t i = 0; i < config->layers && has_window; i++)
        if (!config->layer[i].window) config->layer[i].rope = LAYER_ROPE_NONE;
    return true;
}

const struct architecture arch_exaone4 = {
    "exaone4",
    "Exaone4ForCausalLM",
    read_config,
    {.norms = {.attention_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"},
     .qk_norm = QK_NORM_HEAD},
    .about = "small*: norms after attention and MLP, windows in some layers, which alone rotate",
};
