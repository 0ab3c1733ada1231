/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 1: norms multiply by 1 + weight, embeddings are scaled by the root of the width, the MLP has GELU. */
#include <math.h>

#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 16,
    .head_dim = 256,
    .max_position = 8192,
    .rms_norm_eps = 1e-6,
    .bos_token = 2,
    .eos_token = 1,
    .pad_token = 0,
};

/* hidden_activation, where it is, is what the model was trained with; beside it older checkpoints have a hidden_act of "gelu". */
static bool read_activation(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!json_reader_get(reader, "hidden_activation"))
        return config_activation(config, reader, "hidden_act", ACTIVATION_GELU_TANH, status);
    json_reader_get(reader, "hidden_act");
    return config_activation(config, reader, "hidden_activation", ACTIVATION_GELU_TANH, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_causal(reader, status) || !read_activation(config, reader, status))
        return false;
    config->embedding_scale = sqrt((double)config->hidden_size);
    return true;
}

const struct architecture arch_gemma = {"gemma",
                                        "GemmaForCausalLM",
                                        read_config,
                                        {.norms = DECODER_PRE_NORM, .norm = NORM_RMS_PLUS_ONE}};
