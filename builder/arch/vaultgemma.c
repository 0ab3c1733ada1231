/* SPDX-License-Identifier: Apache-2.0 */
/* VaultGemma: a Gemma 2 without the norms after attention and MLP. */
#include "builder/arch/family.h"

const struct architecture arch_vaultgemma = {
    "vaultgemma",
    "VaultGemmaForCausalLM",
    config_gemma2,
    {.norms = {.attention_in = "input_layernorm", .mlp_in = "pre_feedforward_layernorm"}, .norm = NORM_RMS_PLUS_ONE},
    .about = "small*: windows in some layers, caps on scores and logits",
};
