/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3 (dense): a Llama with factors on embeddings, attention scores, residual branches and logits. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-6,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};

bool config_granite(struct model_config *config, struct json_reader *reader, struct status *status)
{
    double logits_scaling = 1.0; /* a divisor */
    if (!config_sizes(config, reader, &defaults, status)) return false;
    config->attention_scale = 1.0; /* unless attention_multiplier says otherwise: not that of other families */
    if (!config_attention_bias(config, reader, status) || !config_mlp_bias(config, reader, status) ||
        !config_factor(reader, "embedding_multiplier", &config->embedding_scale, status) ||
        !config_factor(reader, "attention_multiplier", &config->attention_scale, status) ||
        !config_factor(reader, "residual_multiplier", &config->residual_scale, status) ||
        !config_factor(reader, "logits_scaling", &logits_scaling, status))
        return false;
    config->logits_scale = 1.0 / logits_scaling;
    return true;
}

const struct architecture arch_granite = {
    "granite",
    "GraniteForCausalLM",
    config_granite,
    {.norms = DECODER_PRE_NORM},
    .about = "dense Granite 3: multipliers of embeddings, attention, residuals and logits",
};
