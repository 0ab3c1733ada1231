/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 4 whose layers all attend and have no experts (Granite 4.0 Micro): a Granite 3 in which the shared MLP is the only one, gate
 * and up in one tensor, and q and k rotate only where position_embedding_type says so. */
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

/* Keys of experts and of Mamba layers, which such a model does not have. */
static const struct field_rule unused[] = {
    {"init_method", FIELD_NO_EFFECT},          {"mamba_chunk_size", FIELD_NO_EFFECT},
    {"mamba_conv_bias", FIELD_NO_EFFECT},      {"mamba_d_conv", FIELD_NO_EFFECT},
    {"mamba_d_head", FIELD_NO_EFFECT},         {"mamba_d_state", FIELD_NO_EFFECT},
    {"mamba_expand", FIELD_NO_EFFECT},         {"mamba_n_groups", FIELD_NO_EFFECT},
    {"mamba_n_heads", FIELD_NO_EFFECT},        {"mamba_proj_bias", FIELD_NO_EFFECT},
    {"num_experts_per_tok", FIELD_NO_EFFECT},  {"output_router_logits", FIELD_NO_EFFECT},
    {"router_aux_loss_coef", FIELD_NO_EFFECT}, {"time_step_limit", FIELD_NO_EFFECT},
};

static bool check_layers(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "layer_types";
    const json_t *types = json_reader_get(reader, key);
    bool known = json_is_array(types) && json_array_size(types) == config->layers;
    for (size_t i = 0; known && i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        known = type && (strcmp(type, "attention") == 0 || strcmp(type, "full_attention") == 0);
        if (!known) types = json_array_get(types, i);
    }
    return known || json_reader_fail(reader, key,
                                     "\"attention\" for each of num_hidden_layers, as no block of engbuild computes "
                                     "state-space layers (Mamba)",
                                     types, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char experts_key[] = "num_local_experts", norm_key[] = "normalization_function";
    uint64_t experts = 8;
    const char *positions = NULL, *norm = NULL;
    if (!config_granite(config, reader, status) ||
        !json_reader_u64(reader, experts_key, false, 0, MODEL_MAX_EXPERTS, &experts, status) ||
        !json_reader_string(reader, "position_embedding_type", false, &positions, status) ||
        !json_reader_string(reader, norm_key, false, &norm, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) ||
        !check_layers(config, reader, status))
        return false;
    if (experts)
        return json_reader_fail(reader, experts_key, "0, as experts are supported without a shared MLP alone",
                                json_object_get(reader->object, experts_key), status);
    if (norm && strcmp(norm, "rmsnorm") != 0)
        return json_reader_fail(reader, norm_key, "\"rmsnorm\"", json_object_get(reader->object, norm_key), status);
    for (size_t i = 0; i < config->layers; i++)
        if (!positions || strcmp(positions, "rope") != 0) config->layer[i].rope = LAYER_ROPE_NONE;
    config->intermediate_size = 1024;
    return json_reader_u64(reader, "shared_intermediate_size", false, 1, MODEL_MAX_INTERMEDIATE,
                           &config->intermediate_size, status);
}

const struct architecture arch_granitemoehybrid = {
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .fused_gate_up = "shared_mlp.input_linear",
     .modules = {.down = "shared_mlp.output_linear"}},
    .about = "small*: Granite 4 without Mamba layers and experts (Granite 4.0 Micro)",
};
