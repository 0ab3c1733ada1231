/* SPDX-License-Identifier: Apache-2.0 */
/* FlexOlmo: an OLMo 2 whose MLPs are the experts of an OLMoE. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 4096,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = 100257,
    .pad_token = 100277,
};
static const struct experts_defaults experts = {.count = 7, .top_k = 5};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_rope_defaults(config, reader, 5e5, 1, status) &&
           config_experts(config, reader, count_keys, "num_experts_per_tok", NULL, &experts, status) &&
           config_renormalise(config, reader, false, status);
}

const struct architecture arch_flex_olmo = {
    "flex_olmo",
    "FlexOlmoForCausalLM",
    read_config,
    {.norms = {.attention_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"},
     .qk_norm = QK_NORM_WIDTH,
     .experts = &expert_usual_names},
    .about = "small*: FlexOlmo: norms as in `olmo2`, experts",
};
