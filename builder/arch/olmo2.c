/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 2: what attention and MLP give is normalised, not what goes into them; q and k are normalised over all heads. */
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
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status);
}

const struct architecture arch_olmo2 = {
    "olmo2",
    "Olmo2ForCausalLM",
    read_config,
    {.norms = {.attention_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"},
     .qk_norm = QK_NORM_WIDTH},
    .about = "norms after attention and MLP, q and k normalised over all heads",
};
