/* SPDX-License-Identifier: Apache-2.0 */
/* Kimi K2: a DeepSeek-V3 under a name of its own. */
#include "builder/arch/family.h"

const struct architecture arch_kimi_k2 = {
    "kimi_k2",
    "DeepseekV3ForCausalLM",
    config_deepseek_v3,
    {.norms = DECODER_PRE_NORM, .experts = &expert_biased_names},
    .predicts = true,
    .untried_on_gpu = true,
    .about = "small*: Kimi K2: as `deepseek_v3`, under whose name it was compared",
};
