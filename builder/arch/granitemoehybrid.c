/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 4: a Granite with state spaces in most layers, attention in the others, and an MLP that may stand beside experts. */
#include <string.h>

#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct state_space_defaults state_spaces = {.heads = 128, .groups = 1, .state_dim = 256};
static const struct experts_defaults experts = {.count = 8, .top_k = 2};
static const char *const count_keys[] = {"num_local_experts", "num_experts"};
enum { DEFAULT_SHARED_SIZE = 1024 };

/* Rotation, or none: null and "nope". */
static bool read_positions(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const char *type = NULL;
    if (!json_reader_string(reader, "position_embedding_type", false, &type, status)) return false;
    if (type && strcmp(type, "rope") != 0 && strcmp(type, "nope") != 0)
        return json_reader_fail(reader, "position_embedding_type", "\"rope\", \"nope\" or null",
                                json_object_get(reader->object, "position_embedding_type"), status);
    const bool rotates = type && strcmp(type, "rope") == 0;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].rope = rotates ? LAYER_ROPE_MAIN : LAYER_ROPE_NONE;
    return true;
}

/* Keys of the authors' own configuration class. */
static bool check_own_keys(struct json_reader *reader, struct status *status)
{
    const char *norm = NULL, *init = NULL; /* `init_method`: of training */
    if (!json_reader_string(reader, "normalization_function", false, &norm, status) ||
        !json_reader_string(reader, "init_method", false, &init, status))
        return false;
    return !norm || strcmp(norm, "rmsnorm") == 0 ||
           json_reader_fail(reader, "normalization_function", "\"rmsnorm\"",
                            json_object_get(reader->object, "normalization_function"), status);
}

/* shared_intermediate_size is the MLP's, intermediate_size that of each expert. */
static bool read_mlp(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const json_t *count = json_object_get(reader->object, count_keys[0]);
    const bool has_experts = !json_is_integer(count) || json_integer_value(count) != 0;
    uint64_t shared = DEFAULT_SHARED_SIZE;
    if (!json_reader_u64(reader, "shared_intermediate_size", false, 1, MODEL_MAX_INTERMEDIATE, &shared, status))
        return false;
    if (!has_experts) {
        uint64_t none = 0, top_k = 0; /* num_experts_per_tok: of no experts */
        config->intermediate_size = shared;
        return json_reader_u64(reader, count_keys[0], false, 0, 0, &none, status) &&
               json_reader_u64(reader, "num_experts_per_tok", false, 0, MODEL_MAX_TOP_K, &top_k, status) &&
               config_unused_experts(reader, status);
    }
    if (!config_experts(config, reader, count_keys, "num_experts_per_tok", NULL, &experts, status)) return false;
    config->experts.score = ROUTER_SOFTMAX_CHOSEN;
    config->experts.shared_size = shared;
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool given;
    if (!config_fixed(reader, "mlp_bias", false, status) || !config_granite(config, reader, status) ||
        !read_mlp(config, reader, status) || !read_positions(config, reader, status) ||
        !check_own_keys(reader, status) ||
        !config_mixers(config, reader, "linear_attention", MIXER_STATE_SPACE, &given, status))
        return false;
    for (uint64_t i = 0; !given && i < config->layers; i++) config->layer[i].mixer = MIXER_STATE_SPACE;
    if (model_attention_layers(config) == config->layers) { /* Granite 4.0 Micro */
        config_no_state_space(reader, &config_mamba_keys);
        return true;
    }
    return config_state_space(config, reader, &config_mamba_keys, &state_spaces, status) &&
           config_time_step_limit(config, reader, status) && config_some_attention(config, reader, status);
}

const struct architecture arch_granitemoehybrid = {
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, GRANITE_SHARED_MLP, .experts = &expert_granite_names},
    .about = "small*: Granite 4: state spaces (Mamba-2), attention in some layers or all, with experts or without",
};
