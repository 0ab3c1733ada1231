/* SPDX-License-Identifier: Apache-2.0 */
/* Command R7B and its like: a Command R in which three layers of four attend through a sliding window and rotate q and k, the others
 * do neither. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

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
    if (!config_cohere(config, reader, status) || !config_window_pattern(config, reader, 4, 4096, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    for (size_t i = 0; i < config->layers; i++)
        if (!config->layer[i].window) config->layer[i].rope = LAYER_ROPE_NONE;
    return true;
}

const struct architecture arch_cohere2 = {
    "cohere2",
    "Cohere2ForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm"}, .norm = NORM_LAYER, .shares_norm = true},
    .about = "small*: attention and MLP side by side, windows and rotation in some layers",
};
