/* SPDX-License-Identifier: Apache-2.0 */
/* Command R7B and its like: attention and MLP read the same normalised rows, norms take the mean off and have no bias, three
 * layers of four attend through a sliding window and rotate q and k, the others do neither. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .max_position = 8192,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_eps",
    .bos_token = 5,
    .eos_token = 255001,
    .pad_token = 0,
};

/* Published checkpoints have them; the class reads none of them and computes what these values say. */
static const struct field_rule unused[] = {
    {"layer_switch", FIELD_NO_EFFECT}, /* beside sliding_window_pattern or layer_types */
    {"order_of_interleaved_layers", FIELD_NO_EFFECT},
    {"position_embedding_type", FIELD_NO_EFFECT},
    {"rotary_pct", FIELD_ONE},
    {"use_embedding_sharing", FIELD_NO_EFFECT},
    {"use_gated_activation", FIELD_TRUE},
    {"use_parallel_block", FIELD_TRUE},
    {"use_parallel_embedding", FIELD_NO_EFFECT}, /* how the table is divided where it is trained */
    {"use_qk_norm", FIELD_FALSE},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->tie_word_embeddings = true;
    config->parallel_residual = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_attention_bias(config, reader, status) ||
        !config_window_pattern(config, reader, 4, 4096, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    config->rotary_pairs = true;
    config->logits_scale = 0.0625;
    for (size_t i = 0; i < config->layers; i++)
        if (!config->layer[i].window) config->layer[i].rope = LAYER_ROPE_NONE;
    return config_factor(reader, "logit_scale", &config->logits_scale, status);
}

const struct architecture arch_cohere2 = {
    "cohere2",
    "Cohere2ForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm"}, .norm = NORM_LAYER, .shares_norm = true},
    .about = "small*: attention and MLP side by side, windows and rotation in some layers",
};
