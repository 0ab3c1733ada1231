/* SPDX-License-Identifier: Apache-2.0 */
/* Bamba: state spaces in most layers, attention that rotates a half of each head in the others. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .max_position = 262144,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 0,
};
static const struct state_space_defaults state_spaces = {.heads = 128, .groups = 1, .state_dim = 256};

static const struct field_rule unused[] = {
    {"num_logits_to_keep", FIELD_NO_EFFECT}, /* of the prompt */
    {"use_mamba_kernels", FIELD_NO_EFFECT},
    {"z_loss_coefficient", FIELD_NO_EFFECT}, /* of training */
};

/* attn_rotary_emb, the authors' name of the elements that rotate, which the class does not read. */
static bool check_rotation(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "attn_rotary_emb";
    uint64_t found = config->rope.rotary_dim;
    return json_reader_u64(reader, key, false, 1, MODEL_MAX_HEAD_DIM, &found, status) &&
           (found == config->rope.rotary_dim || json_reader_fail(reader, key, "a half of the elements of a head",
                                                                 json_object_get(reader->object, key), status));
}

/* The class takes a half, whatever the file says there; in rope_parameters the file's factor counts. */
static bool check_factor(struct json_reader *reader, struct status *status)
{
    static const char key[] = "partial_rotary_factor";
    const json_t *value = json_object_get(reader->object, key);
    return !json_is_number(value) || json_number_value(value) == 0.5 ||
           json_reader_fail(reader, key, "0.5", value, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!check_factor(reader, status) || !config_sizes(config, reader, &defaults, status) ||
        !config_rope_defaults(config, reader, 10000, 0.5, status) || !config_attention_bias(config, reader, status) ||
        !config_mlp_bias(config, reader, status) || !check_rotation(config, reader, status) ||
        !config_unused_experts(reader, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].mixer = MIXER_STATE_SPACE;
    return config_attention_indices(config, reader, "attn_layer_indices", MIXER_STATE_SPACE, true, status) &&
           config_state_space(config, reader, &config_mamba_keys, &state_spaces, status) &&
           config_time_step_limit(config, reader, status) && config_some_attention(config, reader, status);
}

const struct architecture arch_bamba = {
    "bamba",
    "BambaForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm", .mlp_in = "pre_ff_layernorm"},
     .modules = {.final_norm = "model.final_layernorm",
                 .gate = "feed_forward.gate_proj",
                 .up = "feed_forward.up_proj",
                 .down = "feed_forward.down_proj"},
     .partial_rotary = true},
    .about = "small*: state spaces (Mamba-2), attention in some layers",
};
