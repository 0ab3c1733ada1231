/* SPDX-License-Identifier: Apache-2.0 */
/* Command R and Aya: attention and MLP read the same normalised rows, norms take the mean off and have no bias, rows of rotary
 * pairs are interleaved in the checkpoint; Command R+ normalises each head of q and k. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 8192,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_eps",
    .bos_token = 5,
    .eos_token = 255001,
    .pad_token = 0,
};

bool config_cohere(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->tie_word_embeddings = true;
    config->parallel_residual = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status))
        return false;
    config->rotary_pairs = true;
    config->logits_scale = 0.0625;
    return config_factor(reader, "logit_scale", &config->logits_scale, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_cohere(config, reader, status) && config_rope_defaults(config, reader, 5e5, 1, status) &&
           json_reader_bool(reader, "use_qk_norm", false, &config->head_norms, status);
}

const struct architecture arch_cohere = {
    "cohere",
    "CohereForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm"}, .norm = NORM_LAYER, .shares_norm = true},
    .about = "small*: Command R, Aya: attention and MLP side by side; norms of each head with `use_qk_norm`",
};
