/* SPDX-License-Identifier: Apache-2.0 */
/* GLM 4.5 and 4.6: a part of each head rotates; layers from first_k_dense_replace on have experts, chosen with a bias from the
 * best groups, and shared experts, which are one MLP. */
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
enum { MOST_PREDICTED = 64 };

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool qk_norm = false;
    if (!config_sizes(config, reader, &defaults, status) || !config_rope_defaults(config, reader, 10000, 0.5, status) ||
        !json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status) ||
        !json_reader_bool(reader, "use_qk_norm", false, &qk_norm, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status) ||
        !config_expert_groups(config, reader, status) || !config_renormalise(config, reader, true, status) ||
        !config_factor(reader, "routed_scaling_factor", &config->experts.scale, status) ||
        !config_shared_experts(config, reader, 1, 1, status) ||
        !json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers, status))
        return false;
    config->no_qk_norm = !qk_norm;
    config->experts.score = ROUTER_SIGMOID;
    config->experts.group_score = ROUTER_GROUP_BEST_TWO;
    config->experts.eps = 1e-20;
    return true;
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

/* As transformers stores those of GLM 4.6V. */
static const struct expert_names fused_names = {
    .router = "mlp.gate",
    .selection_bias = "mlp.gate.e_score_correction_bias",
    .bias_dimensions = 1,
    .gate = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .parameters = true,
    .shared = "mlp.shared_experts",
};

const struct architecture arch_glm4_moe = {
    "glm4_moe",
    "Glm4MoeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .qk_norm = QK_NORM_HEAD,
     .partial_rotary = true,
     .experts = &names,
     .fused_experts = &fused_names},
    .predicts = true,
    .about = "GLM 4.5 and 4.6: sigmoid scores, selection bias, groups of experts, shared experts; the layer that "
             "predicts further tokens with `--mtp`",
};
