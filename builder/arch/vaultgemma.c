/* SPDX-License-Identifier: Apache-2.0 */
/* VaultGemma: a Gemma 2 without the norms after attention and MLP. */
#include "builder/arch/family.h"

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_no_window_pattern(reader, status) && config_gemma2(config, reader, status);
}

const struct architecture arch_vaultgemma = {
    "vaultgemma",
    "VaultGemmaForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm", .mlp_in = "pre_feedforward_layernorm"}, .norm = NORM_RMS_PLUS_ONE},
    .about = "small*: windows in some layers, caps on scores and logits",
};
