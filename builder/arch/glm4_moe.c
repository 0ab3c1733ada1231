/* SPDX-License-Identifier: Apache-2.0 */
/* GLM 4.5 and 4.6: a part of each head rotates; layers from first_k_dense_replace on have experts, chosen with a bias from the
 * best groups, and shared experts, which are one MLP. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 128, .top_k = 8, .intermediate_size = 1408};
static const char *const count_keys[] = {"n_routed_experts", "num_local_experts"};
enum { MOST_SHARED = 64, MOST_PREDICTED = 64 };

static bool read_groups(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_experts *routed = &config->experts;
    if (!json_reader_u64(reader, "n_group", false, 1, routed->count, &routed->groups, status) ||
        !json_reader_u64(reader, "topk_group", false, 1, routed->groups, &routed->top_groups, status))
        return false;
    const uint64_t size = routed->count / routed->groups;
    if (routed->count % routed->groups == 0 && routed->top_k <= size * routed->top_groups &&
        (routed->groups == 1 || size > 1))
        return true;
    return status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'n_group': expected groups of two or more of the %" PRIu64
                       " experts, of which topk_group (%" PRIu64 ") have num_experts_per_tok (%" PRIu64
                       "); found %" PRIu64,
                       reader->path, routed->count, routed->top_groups, routed->top_k, routed->groups);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t shared = 1, dense = 1;
    bool qk_norm = false;
    if (!config_sizes(config, reader, &defaults, status) || !config_rope_defaults(config, reader, 10000, 0.5, status) ||
        !json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status) ||
        !json_reader_bool(reader, "use_qk_norm", false, &qk_norm, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status) ||
        !read_groups(config, reader, status) || !config_renormalise(config, reader, true, status) ||
        !config_factor(reader, "routed_scaling_factor", &config->experts.scale, status) ||
        !json_reader_u64(reader, "n_shared_experts", false, 0, MOST_SHARED, &shared, status) ||
        !json_reader_u64(reader, "first_k_dense_replace", false, 0, MODEL_MAX_LAYERS, &dense, status) ||
        !json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers, status))
        return false;
    config->no_qk_norm = !qk_norm;
    config->experts.score = ROUTER_SIGMOID;
    config->experts.group_score = ROUTER_GROUP_BEST_TWO;
    config->experts.eps = 1e-20;
    config->experts.shared_size = shared * config->experts.intermediate_size;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].experts = i >= dense;
    return config->experts.shared_size <= MODEL_MAX_INTERMEDIATE ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: n_shared_experts times moe_intermediate_size: expected at most %d, found %" PRIu64,
                       reader->path, MODEL_MAX_INTERMEDIATE, config->experts.shared_size);
}

static const struct expert_names names = {
    .router = "mlp.gate",
    .selection_bias = "mlp.gate.e_score_correction_bias",
    .bias_dimensions = 1,
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_experts",
};

const struct architecture arch_glm4_moe = {
    "glm4_moe",
    "Glm4MoeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_HEAD, .partial_rotary = true, .experts = &names},
};
