/* SPDX-License-Identifier: Apache-2.0 */
/* OLMoE: experts in all layers; q and k are normalised over all heads together. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = 50279,
    .pad_token = 1,
};
static const struct experts_defaults experts = {.count = 64, .top_k = 8};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};

static const struct field_rule refused[] = {{"clip_qkv", FIELD_ABSENT}};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_experts(config, reader, count_keys, "num_experts_per_tok", NULL, &experts, status) &&
           config_renormalise(config, reader, false, status) &&
           field_rules_check(reader, refused, sizeof refused / sizeof *refused, status);
}

const struct architecture arch_olmoe = {
    "olmoe",
    "OlmoeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_WIDTH, .experts = &expert_usual_names},
    .about = "OLMoE: experts",
};
