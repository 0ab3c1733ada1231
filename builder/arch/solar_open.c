/* SPDX-License-Identifier: Apache-2.0 */
/* Solar Open: a GLM 4.5 that rotates whole heads and has experts in all layers. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

/* No MLP has the size that intermediate_size states, which the class does not read. */
static const struct config_keys keys = {"hidden_size", "moe_intermediate_size", "num_hidden_layers",
                                        "num_attention_heads", "max_position_embeddings"};
static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 128,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .keys = &keys,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.count = 128, .top_k = 8, .intermediate_size = 1280},
    .shared = {.count = 1},
    .groups = 1,
    .top_groups = 1,
    .scale = 1,
    .renormalise = true,
};
static const struct field_rule rules[] = {
    {"intermediate_size", FIELD_NO_EFFECT},
    {"first_k_dense_replace", FIELD_ZERO},
    {"use_qk_norm", FIELD_FALSE},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_rope_defaults(config, reader, 1e6, 1, status) &&
           json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status) &&
           field_rules_check(reader, rules, sizeof rules / sizeof *rules, status) &&
           config_biased_experts(config, reader, &experts, status);
}

const struct architecture arch_solar_open = {
    "solar_open",
    "SolarOpenForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .partial_rotary = true, .experts = &expert_biased_names},
    .about = "small*: Solar Open: experts as in `glm4_moe`, in all layers",
};
