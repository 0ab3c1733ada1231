/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of the configuration keys of experts that several families have in common. */
#include <inttypes.h>
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

/* Only training reads them. */
static const struct field_rule unused[] = {
    {"output_router_logits", FIELD_NO_EFFECT},
    {"router_aux_loss_coef", FIELD_NO_EFFECT},
    {"router_jitter_noise", FIELD_NO_EFFECT},
};

bool config_unused_experts(struct json_reader *reader, struct status *status)
{
    return field_rules_check(reader, unused, sizeof unused / sizeof *unused, status);
}

/* One of two names of a key, which must not both be there. */
static bool read_count(struct json_reader *reader, const char *const *keys, uint64_t *count, struct status *status)
{
    const json_t *second = json_reader_get(reader, keys[1]);
    if (json_reader_get(reader, keys[0]) && second) {
        char expected[96];
        snprintf(expected, sizeof expected, "no such field beside %s", keys[0]);
        return json_reader_fail(reader, keys[1], expected, second, status);
    }
    return json_reader_u64(reader, keys[second ? 1 : 0], *count == 0, 1, MODEL_MAX_EXPERTS, count, status);
}

bool config_experts(struct model_config *config, struct json_reader *reader, const char *const *count_keys,
                    const char *top_k_key, const char *size_key, const struct experts_defaults *defaults,
                    struct status *status)
{
    struct model_experts *experts = &config->experts;
    *experts = (struct model_experts){.count = defaults->count,
                                      .top_k = defaults->top_k,
                                      .intermediate_size = config->intermediate_size,
                                      .scale = 1,
                                      .groups = 1,
                                      .top_groups = 1};
    if (size_key) experts->intermediate_size = defaults->intermediate_size;
    if (!read_count(reader, count_keys, &experts->count, status) ||
        !json_reader_u64(reader, top_k_key, defaults->top_k == 0, 1, MODEL_MAX_TOP_K, &experts->top_k, status) ||
        (size_key &&
         !json_reader_u64(reader, size_key, false, 1, MODEL_MAX_INTERMEDIATE, &experts->intermediate_size, status)) ||
        !config_unused_experts(reader, status))
        return false;
    if (experts->top_k > experts->count)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field '%s': expected at most the number of experts (%" PRIu64 "), found %" PRIu64,
                           reader->path, top_k_key, experts->count, experts->top_k);
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].experts = true;
    return true;
}

bool config_sparse_layers(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t step = 1;
    const json_t *dense = json_reader_get(reader, "mlp_only_layers");
    if (!json_reader_u64(reader, "decoder_sparse_step", false, 1, UINT32_MAX, &step, status)) return false;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].experts = (i + 1) % step == 0;
    if (dense && !json_is_array(dense))
        return json_reader_fail(reader, "mlp_only_layers", "an array of layers", dense, status);
    for (size_t i = 0; dense && i < json_array_size(dense); i++) {
        const json_t *layer = json_array_get(dense, i);
        const json_int_t index = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (index < 0 || (uint64_t)index >= config->layers)
            return json_reader_fail(reader, "mlp_only_layers", "integers from 0 to below num_hidden_layers", layer,
                                    status);
        config->layer[index].experts = false;
    }
    return true;
}

bool config_renormalise(struct model_config *config, struct json_reader *reader, bool absent, struct status *status)
{
    bool renormalise = absent;
    if (!json_reader_bool(reader, "norm_topk_prob", false, &renormalise, status)) return false;
    config->experts.renormalise = renormalise ? ROUTER_SUM_PLUS_EPS : ROUTER_AS_THEY_ARE;
    return true;
}

bool config_expert_groups(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_experts *routed = &config->experts;
    if (!json_reader_u64(reader, "n_group", false, 1, routed->count, &routed->groups, status) ||
        !json_reader_u64(reader, "topk_group", false, 1, routed->groups, &routed->top_groups, status))
        return false;
    const uint64_t size = routed->count / routed->groups;
    if (routed->count % routed->groups == 0 && routed->top_groups <= routed->groups &&
        routed->top_k <= size * routed->top_groups && (routed->groups == 1 || size > 1))
        return true;
    return status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'n_group': expected groups of two or more of the %" PRIu64
                       " experts, of which topk_group (%" PRIu64 ") have num_experts_per_tok (%" PRIu64
                       "); found %" PRIu64,
                       reader->path, routed->count, routed->top_groups, routed->top_k, routed->groups);
}

static const char dense_layers[] = "first_k_dense_replace";

bool config_shared_experts(struct model_config *config, struct json_reader *reader,
                           const struct shared_experts_defaults *defaults, struct status *status)
{
    enum { MOST_SHARED = 64 };
    const char *count_key = defaults->count_key ? defaults->count_key : "n_shared_experts";
    const char *dense_key = defaults->dense_key ? defaults->dense_key : dense_layers;
    uint64_t shared = defaults->count, dense = defaults->dense;
    if (!json_reader_u64(reader, count_key, false, 0, MOST_SHARED, &shared, status) ||
        !json_reader_u64(reader, dense_key, false, 0, MODEL_MAX_LAYERS, &dense, status))
        return false;
    config->experts.shared_size = shared * config->experts.intermediate_size;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].experts = i >= dense;
    return config->experts.shared_size <= MODEL_MAX_INTERMEDIATE ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: %s times moe_intermediate_size: expected at most %d, found %" PRIu64, reader->path,
                       count_key, MODEL_MAX_INTERMEDIATE, config->experts.shared_size);
}

bool config_mlp_layers(struct model_config *config, struct json_reader *reader, bool wins, struct status *status)
{
    static const char key[] = "mlp_layer_types";
    char expected[96];
    const json_t *types = json_reader_get(reader, key);
    const bool counted = !wins && json_is_integer(json_object_get(reader->object, dense_layers));
    if (!types) return true;
    snprintf(expected, sizeof expected, "an array of num_hidden_layers (%" PRIu64 ")", config->layers);
    if (!json_is_array(types) || json_array_size(types) != config->layers)
        return json_reader_fail(reader, key, expected, types, status);
    for (size_t i = 0; i < config->layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *text = json_is_string(type) ? json_string_value(type) : "";
        const bool sparse = strcmp(text, "sparse") == 0;
        if (!sparse && strcmp(text, "dense") != 0)
            return json_reader_fail(reader, key, "only \"dense\" and \"sparse\"", type, status);
        if (counted && sparse != config->layer[i].experts)
            return json_reader_fail(reader, key, "the dense layers that first_k_dense_replace says", types, status);
        config->layer[i].experts = sparse;
    }
    return true;
}

bool config_biased_experts(struct model_config *config, struct json_reader *reader,
                           const struct biased_experts_defaults *defaults, struct status *status)
{
    struct model_experts *experts = &config->experts;
    if (!config_experts(config, reader, defaults->count_keys, "num_experts_per_tok", "moe_intermediate_size",
                        &defaults->experts, status))
        return false;
    experts->score = ROUTER_SIGMOID;
    experts->group_score = ROUTER_GROUP_BEST_TWO;
    experts->eps = 1e-20;
    experts->groups = defaults->groups;
    experts->top_groups = defaults->top_groups;
    experts->scale = defaults->scale;
    return config_expert_groups(config, reader, status) &&
           config_renormalise(config, reader, defaults->renormalise, status) &&
           config_factor(reader, "routed_scaling_factor", &experts->scale, status) &&
           config_shared_experts(config, reader, &defaults->shared, status);
}
