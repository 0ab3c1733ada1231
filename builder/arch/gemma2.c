/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2: a Gemma with norms before and after attention and MLP, caps on scores and logits, and a sliding window in every
 * other layer. */
#include <math.h>

#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 4,
    .head_dim = 256,
    .max_position = 8192,
    .rms_norm_eps = 1e-6,
    .bos_token = 2,
    .eos_token = 1,
    .pad_token = 0,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_causal(reader, status) || !config_scalar_and_caps(config, reader, 50, 30, status) ||
        !config_window_pattern(config, reader, 2, 4096, status))
        return false;
    config->embedding_scale = sqrt((double)config->hidden_size);
    json_reader_get(reader, "hidden_act"); /* of older checkpoints; the class reads the next */
    return config_activation(config, reader, "hidden_activation", ACTIVATION_GELU_TANH, status);
}

const struct architecture arch_gemma2 = {
    "gemma2",
    "Gemma2ForCausalLM",
    read_config,
    {.norms = DECODER_BOTH_NORMS, .norm = NORM_RMS_PLUS_ONE},
};
