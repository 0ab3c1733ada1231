/* SPDX-License-Identifier: Apache-2.0 */
/* Apertus: normalised heads, and MLPs without a gate whose activation (xielu) has numbers of each layer. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .max_position = 65536,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 3,
};

/* The class has it for a config.json without such an object. */
static const struct rope_config default_rope = {
    .type = ROPE_LLAMA3,
    .factor = 8,
    .low_freq_factor = 1,
    .high_freq_factor = 4,
    .original_max_position = 8192,
};

/* Keys of the authors' own class that the one in transformers does not read. */
static const struct field_rule fixed[] = {
    {"post_norm", FIELD_FALSE},
    {"qk_norm", FIELD_TRUE},
    {"hidden_dropout", FIELD_NO_EFFECT},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rope = default_rope;
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_fixed_text(reader, "hidden_act", "xielu", status) &&
           field_rules_check(reader, fixed, sizeof fixed / sizeof *fixed, status) &&
           config_theta_within(reader, 12e6, true, status) && config_rope_defaults(config, reader, 12e6, 1, status);
}

const struct architecture arch_apertus = {
    "apertus",
    "ApertusForCausalLM",
    read_config,
    {.norms = {.attention_in = "attention_layernorm", .mlp_in = "feedforward_layernorm"},
     .qk_norm = QK_NORM_HEAD,
     .plain_mlp = true,
     .modules = {.xielu = "mlp.act_fn"}},
    .about = "small*: Apertus: normalised heads, MLPs without a gate, an activation with numbers of each layer",
};
