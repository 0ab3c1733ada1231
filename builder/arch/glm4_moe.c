/* SPDX-License-Identifier: Apache-2.0 */
/* GLM 4.5 and 4.6: a part of each head rotates; layers from first_k_dense_replace on have experts, chosen with a bias from the
 * best groups, and shared experts, which are one MLP. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.count = 128, .top_k = 8, .intermediate_size = 1408},
    .shared = {.count = 1, .dense = 1},
    .groups = 1,
    .top_groups = 1,
    .scale = 1,
    .renormalise = true,
};
enum { MOST_PREDICTED = 64 };

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool qk_norm = false;
    if (!config_sizes(config, reader, &defaults, status) || !config_rope_defaults(config, reader, 10000, 0.5, status) ||
        !json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status) ||
        !json_reader_bool(reader, "use_qk_norm", false, &qk_norm, status) ||
        !config_biased_experts(config, reader, &experts, status) ||
        !json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers, status))
        return false;
    config->no_qk_norm = !qk_norm;
    return true;
}

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
     .experts = &expert_biased_names,
     .fused_experts = &fused_names},
    .predicts = true,
    .about = "GLM 4.5 and 4.6: sigmoid scores, selection bias, groups of experts, shared experts; the layer that "
             "predicts further tokens with `--mtp`",
};
