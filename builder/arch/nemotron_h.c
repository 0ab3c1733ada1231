/* SPDX-License-Identifier: Apache-2.0 */
/* Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano: each layer is a state space, attention without rotation, an MLP without a gate,
 * or experts, which have no gate, either. */
#include <inttypes.h>
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 128,
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_epsilon",
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 0,
};
static const struct state_space_defaults state_spaces = {.heads = 128, .groups = 8, .state_dim = 128, .head_dim = 64};
static const struct state_space_keys state_space_keys = {
    .heads = "mamba_num_heads",
    .groups = "n_groups",
    .state_dim = "ssm_state_size",
    .head_dim = "mamba_head_dim",
    .kernel = "conv_kernel",
    .expand = "expand",
    .conv_bias = "use_conv_bias",
    .projection_bias = "use_bias",
    .chunk = "chunk_size",
    .activation = "mamba_hidden_act",
};

static const struct field_rule unused[] = {
    {"hidden_dropout", FIELD_NO_EFFECT},
    {"mamba_proj_bias", FIELD_NO_EFFECT},       /* the class reads use_bias */
    {"mamba_ssm_cache_dtype", FIELD_NO_EFFECT}, /* of the state, which is float32 */
    {"norm_eps", FIELD_NO_EFFECT},              /* the class reads layer_norm_epsilon */
    {"moe_shared_expert_overlap", FIELD_NO_EFFECT},
    {"mtp_hybrid_override_pattern", FIELD_NO_EFFECT}, /* of layers that predict further tokens */
    {"mtp_layers_block_type", FIELD_NO_EFFECT},
    {"num_logits_to_keep", FIELD_NO_EFFECT},
    {"rescale_prenorm_residual", FIELD_NO_EFFECT}, /* of training, as time_step_max, _floor and _rank */
    {"residual_in_fp32", FIELD_NO_EFFECT},
    {"rms_norm_eps", FIELD_NO_EFFECT},
    {"time_step_floor", FIELD_NO_EFFECT},
    {"time_step_max", FIELD_NO_EFFECT},
    {"time_step_min",
     FIELD_NO_EFFECT}, /* of training; transformers' prompts without CUDA have it as the least time step, its steps do not */
    {"time_step_rank", FIELD_NO_EFFECT},
    {"use_mamba_kernels", FIELD_NO_EFFECT},
};

/* They describe layers of experts, where there are none. */
static const struct field_rule unused_experts[] = {
    {"moe_intermediate_size", FIELD_NO_EFFECT},
    {"moe_latent_size", FIELD_NO_EFFECT},
    {"moe_shared_expert_intermediate_size", FIELD_NO_EFFECT},
    {"n_group", FIELD_NO_EFFECT},
    {"n_routed_experts", FIELD_NO_EFFECT},
    {"n_shared_experts", FIELD_NO_EFFECT},
    {"norm_topk_prob", FIELD_NO_EFFECT},
    {"num_experts_per_tok", FIELD_NO_EFFECT},
    {"routed_scaling_factor", FIELD_NO_EFFECT},
    {"topk_group", FIELD_NO_EFFECT},
};

static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.count = 8, .top_k = 2, .intermediate_size = 7688},
    .shared = {.count = 1},
    .groups = 1,
    .top_groups = 1,
    .scale = 1,
    .renormalise = true,
};
enum { DEFAULT_SHARED_SIZE = 7688, MOST_PREDICTED = 64 };

/* The class has one shared expert, whose size has a key of its own, in every layer of experts; biases are of the shared one alone. */
static const struct field_rule expert_rules[] = {
    {"first_k_dense_replace", FIELD_ZERO},
    {"mlp_bias", FIELD_FALSE},
    {"moe_latent_size", FIELD_ABSENT},
    {"n_shared_experts", FIELD_ONE},
};

/* A layer's kind: its letter in hybrid_override_pattern, its names in layers_block_type. */
static const struct kind {
    char letter;
    const char *name, *old_name;
    enum layer_mixer mixer;
    bool no_mlp, experts;
} kinds[] = {
    {'M', "linear_attention", "mamba", MIXER_STATE_SPACE, true, false},
    {'*', "full_attention", "attention", MIXER_ATTENTION, true, false},
    {'-', "mlp", "mlp", MIXER_NONE, false, false},
    {'E', "moe", "moe", MIXER_NONE, false, true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static bool set_kind(struct model_config *config, struct json_reader *reader, const char *key, uint64_t layer,
                     const struct kind *kind, struct status *status)
{
    if (kind >= kinds + KINDS)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field '%s': expected layers of state spaces (M, \"linear_attention\"), attention (*, "
                           "\"full_attention\"), an MLP (-, \"mlp\") or experts (E, \"moe\"), found another one as "
                           "layer %" PRIu64,
                           reader->path, key, layer);
    config->layer[layer].mixer = kind->mixer;
    config->layer[layer].no_mlp = kind->no_mlp;
    config->layer[layer].experts = kind->experts;
    config->layer[layer].rope = LAYER_ROPE_NONE;
    return true;
}

/* Layers by a text of a letter for each, or an array of names, the latter if both are there. */
static bool read_layers(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char pattern_key[] = "hybrid_override_pattern", types_key[] = "layers_block_type";
    const json_t *types = json_reader_get(reader, types_key), *pattern = json_reader_get(reader, pattern_key);
    const char *key = types ? types_key : pattern_key, *letters = json_string_value(pattern);
    const size_t count = types ? json_array_size(types) : letters ? strlen(letters) : 0;
    if (!(types ? json_is_array(types) : letters != NULL) || count != config->layers) {
        char expected[64];
        snprintf(expected, sizeof expected, "a layer's kind for each of %" PRIu64 " layers", config->layers);
        return json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
    }
    for (size_t i = 0; i < count; i++) {
        const char *name = types ? json_string_value(json_array_get(types, i)) : NULL;
        const struct kind *kind = kinds;
        while (kind < kinds + KINDS &&
               (types ? !name || (strcmp(name, kind->name) != 0 && strcmp(name, kind->old_name) != 0)
                      : letters[i] != kind->letter))
            kind++;
        if (!set_kind(config, reader, key, i, kind, status)) return false;
    }
    return config_some_attention(config, reader, status);
}

/* Requires: read_layers has found which layers have them. */
static bool read_experts(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool layers[MODEL_MAX_LAYERS], any = false;
    uint64_t shared_size = DEFAULT_SHARED_SIZE;
    for (uint64_t i = 0; i < config->layers; i++) any |= layers[i] = config->layer[i].experts;
    if (!any) return field_rules_check(reader, unused_experts, sizeof unused_experts / sizeof *unused_experts, status);
    if (!config_biased_experts(config, reader, &experts, status) ||
        !field_rules_check(reader, expert_rules, sizeof expert_rules / sizeof *expert_rules, status) ||
        !json_reader_u64(reader, "moe_shared_expert_intermediate_size", false, 1, MODEL_MAX_INTERMEDIATE, &shared_size,
                         status))
        return false;
    config->experts.shared_size = shared_size;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].experts = layers[i];
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const classes[] = {"configuration_nemotron_h.NemotronHConfig",
                                          "modeling_nemotron_h.NemotronHModel",
                                          "modeling_nemotron_h.NemotronHForCausalLM"};
    struct config_defaults own = defaults;
    const json_t *types = json_object_get(reader->object, "layers_block_type");
    own.layers = json_array_size(types); /* files of transformers 5 have no num_hidden_layers */
    if (!config_sizes(config, reader, &own, status) || !read_layers(config, reader, status) ||
        !config_state_space(config, reader, &state_space_keys, &state_spaces, status) ||
        !config_mlp_bias(config, reader, status) || !read_experts(config, reader, status) ||
        !json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                         status) ||
        !config_fixed(reader, "attention_bias", false, status) ||
        !config_activation(config, reader, "mlp_hidden_act", ACTIVATION_RELU2, status) ||
        !config_own_code(config, reader, classes, sizeof classes / sizeof *classes, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    config->recurrent.norm_groups = config->recurrent.key_heads;
    config->ignored_prefix = "mtp."; /* layers that predict further tokens */
    return config_time_step_limit(config, reader, status) && config_attention_head_dim(config, reader, status);
}

static const struct expert_names names = {
    .router = "mixer.gate",
    .selection_bias = "mixer.gate.e_score_correction_bias",
    .bias_dimensions = 1,
    .experts = "mixer.experts",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mixer.shared_experts",
};

const struct architecture arch_nemotron_h = {
    "nemotron_h",
    "NemotronHForCausalLM",
    read_config,
    {.norms = {.attention_in = "norm", .mlp_in = "norm"},
     .modules = {.layers = "backbone.layers",
                 .embedding = "backbone.embeddings",
                 .final_norm = "backbone.norm_f",
                 .q = "mixer.q_proj",
                 .k = "mixer.k_proj",
                 .v = "mixer.v_proj",
                 .output = "mixer.o_proj",
                 .up = "mixer.up_proj",
                 .down = "mixer.down_proj",
                 .state_space = "mixer"},
     .plain_mlp = true,
     .experts = &names},
    .about =
        "small*: Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano: state spaces (Mamba-2), attention without rotation, "
        "MLPs and experts without a gate",
};
