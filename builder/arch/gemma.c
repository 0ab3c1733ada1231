/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 1: norms multiply by 1 + weight, embeddings are scaled by the root of the width, the MLP has GELU. */
#include <math.h>

#include "builder/arch/family.h"

bool config_gemma(struct model_config *config, struct json_reader *reader, uint64_t kv_heads, uint64_t max_position,
                  struct status *status)
{
    const struct config_defaults defaults = {
        .kv_heads = kv_heads,
        .head_dim = 256,
        .max_position = max_position,
        .rms_norm_eps = 1e-6,
        .bos_token = 2,
        .eos_token = 1,
        .pad_token = 0,
    };
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_causal(reader, status))
        return false;
    config->embedding_scale = sqrt((double)config->hidden_size);
    /* Older checkpoints have a hidden_act of "gelu", which the models were not trained with. */
    json_reader_get(reader, "hidden_act");
    return config_activation(config, reader, "hidden_activation", ACTIVATION_GELU_TANH, status);
}

/* Here hidden_act counts where there is no hidden_activation. */
static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_gemma(config, reader, 16, 8192, status) &&
           (json_reader_get(reader, "hidden_activation") ||
            config_activation(config, reader, "hidden_act", ACTIVATION_GELU_TANH, status));
}

const struct architecture arch_gemma = {
    "gemma",
    "GemmaForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .norm = NORM_RMS_PLUS_ONE},
    .about = "small*: text only",
};
