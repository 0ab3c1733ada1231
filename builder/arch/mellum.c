/* SPDX-License-Identifier: Apache-2.0 */
/* Mellum 2: a Qwen 3 with experts, some of whose layers attend through a sliding window and have a rotary embedding of their own. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 4,
    .head_dim = 128,
    .max_position = 131072,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 64, .top_k = 8, .intermediate_size = 896};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};

static const struct field_rule unread[] = {{"rope_scaling", FIELD_ABSENT}};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_no_window_pattern(reader, status) || !config_window_pattern(config, reader, 1, 1024, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status) ||
        !config_mlp_layers(config, reader, true, status) || !config_renormalise(config, reader, true, status) ||
        !field_rules_check(reader, unread, sizeof unread / sizeof *unread, status) ||
        !config_theta_within(reader, 5e5, false, status) || !config_rope_defaults(config, reader, 5e5, 1, status))
        return false;
    config_local_rope(config, 1e4);
    return true;
}

const struct architecture arch_mellum = {
    "mellum",
    "MellumForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_HEAD, .experts = &expert_usual_names},
    .about = "small*: Mellum 2: as `qwen3_moe`, with windows in some layers",
};
