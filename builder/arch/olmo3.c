/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 3: an OLMo 2 in which three layers of four attend through a sliding window. The scaling of the rotary embedding is for
 * the other layers alone. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = 50279,
    .pad_token = 1,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_window_pattern(config, reader, 4, 4096, status) ||
        !config_rope_defaults(config, reader, 500000, 1, status))
        return false;
    config_local_rope(config, 0);
    return true;
}

const struct architecture arch_olmo3 = {
    "olmo3",
    "Olmo3ForCausalLM",
    read_config,
    {.norms = {.attention_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"},
     .qk_norm = QK_NORM_WIDTH},
    .about = "small*: norms after attention and MLP, windows in some layers",
};
