/* SPDX-License-Identifier: Apache-2.0 */
/* Phi 3, 3.5 and 4 mini: q, k and v are one tensor, gate and up are another; a sliding window; a part of each head
 * rotates in Phi 4 mini. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 32000,
    .pad_token = 32000,
};

/* The checkpoints' own code, older than the class in transformers, which computes the same. */
static const char *const own_code[] = {"configuration_phi3.Phi3Config", "modeling_phi3.Phi3ForCausalLM",
                                       "Xenova/gpt-4o" /* a tokenizer; tokenizer.json is read instead */};

/* Phi 4 mini has them; the class reads none of them. */
static const struct field_rule unused[] = {
    {"full_attn_mod", FIELD_ONE},
    {"interpolate_factor", FIELD_ONE},
    {"lm_head_bias", FIELD_FALSE},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) &&
           config_window(config, reader, CONFIG_WINDOW_ALWAYS, 0, status) &&
           config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status) &&
           field_rules_check(reader, unused, sizeof unused / sizeof *unused, status);
}

const struct architecture arch_phi3 = {
    "phi3",
    "Phi3ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .partial_rotary = true,
     .fused_qkv = "self_attn.qkv_proj",
     .fused_gate_up = "mlp.gate_up_proj"},
    .about = "Phi 3 and 4 mini: sliding window, rotation of a part of each head, rope scaling longrope",
};
