/* SPDX-License-Identifier: Apache-2.0 */
/* LFM2 with experts: as LFM2, but for the MLPs of the layers after the first ones, which are experts with sigmoid scores and a
 * selection bias. */
#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct experts_defaults experts = {.count = 32, .top_k = 4, .intermediate_size = 1792};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};

static bool read_experts(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t dense = 2;
    if (!config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status) ||
        !config_fixed(reader, "use_expert_bias", true, status) || !config_renormalise(config, reader, true, status) ||
        !config_factor(reader, "routed_scaling_factor", &config->experts.scale, status) ||
        !json_reader_u64(reader, "num_dense_layers", false, 0, MODEL_MAX_LAYERS, &dense, status))
        return false;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].experts = i >= dense;
    config->experts.score = ROUTER_SIGMOID;
    config->experts.eps = 1e-6;
    return true;
}

/* The class has no default. */
static bool read_mixers(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool given;
    if (!config_mixers(config, reader, "conv", MIXER_SHORT_CONV, &given, status)) return false;
    if (!given) return json_reader_fail(reader, "layer_types", "an array of layers", NULL, status);
    return config_some_attention(config, reader, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->tie_word_embeddings = true;
    return json_reader_bool(reader, "tie_embedding", false, &config->tie_word_embeddings, status) &&
           config_sizes(config, reader, &config_lfm2_defaults, status) &&
           config_rope_defaults(config, reader, 1e6, 1, status) && read_experts(config, reader, status) &&
           read_mixers(config, reader, status) && config_short_conv(config, reader, status) &&
           config_fixed_text(reader, "hidden_act", "silu", status);
}

static const struct expert_names names = {
    .router = "feed_forward.gate",
    .selection_bias = "feed_forward.expert_bias",
    .bias_dimensions = 1,
    .experts = "feed_forward.experts",
    .gate = "w1",
    .up = "w3",
    .down = "w2",
};

const struct architecture arch_lfm2_moe = {
    "lfm2_moe",
    "Lfm2MoeForCausalLM",
    read_config,
    {LFM2_TRAITS, .experts = &names},
    .about = "small*: as `lfm2`, with experts, sigmoid scores and a selection bias (LFM2-8B-A1B)",
};
