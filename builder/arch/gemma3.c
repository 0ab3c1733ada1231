/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 3 (text): a Gemma with norms before and after attention and MLP and on each head of q and k; five layers of six attend
 * through a sliding window and have a rotary embedding of their own. */
#include <math.h>

#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 4,
    .head_dim = 256,
    .max_position = 131072,
    .rms_norm_eps = 1e-6,
    .bos_token = 2,
    .eos_token = 1,
    .pad_token = 0,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    double local_theta = 10000;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_causal(reader, status) || !config_scalar_and_caps(config, reader, 0, 0, status) ||
        !config_window_pattern(config, reader, 6, 4096, status) ||
        !config_factor(reader, "rope_local_base_freq", &local_theta, status))
        return false;
    if (local_theta <= 1)
        return json_reader_fail(reader, "rope_local_base_freq", "a number above 1",
                                json_object_get(reader->object, "rope_local_base_freq"), status);
    if (!config_rope_defaults(config, reader, 1e6, 1, status)) return false;
    config_local_rope(config, local_theta);
    config->embedding_scale = sqrt((double)config->hidden_size);
    json_reader_get(reader, "hidden_act"); /* of older checkpoints; the class reads the next */
    return config_activation(config, reader, "hidden_activation", ACTIVATION_GELU_TANH, status);
}

const struct architecture arch_gemma3 = {
    "gemma3_text",
    "Gemma3ForCausalLM",
    read_config,
    {.norms = DECODER_BOTH_NORMS, .norm = NORM_RMS_PLUS_ONE, .qk_norm = QK_NORM_HEAD},
};
