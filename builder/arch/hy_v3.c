/* SPDX-License-Identifier: Apache-2.0 */
/* Hunyuan 3: a Qwen 3 with the experts of a DeepSeek-V3 in all layers but the first ones. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 128,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct biased_experts_defaults experts = {
    .count_keys = {"num_experts", "num_local_experts"},
    .experts = {.count = 192, .top_k = 8, .intermediate_size = 1536},
    .shared = {.count_key = "num_shared_experts", .count = 1, .dense = 1},
    .groups = 1,
    .top_groups = 1,
    .scale = 2.826,
    .renormalise = true,
};
enum { MOST_PREDICTED = 64 };

/* Keys that the class in transformers does not read. */
static const struct field_rule unused[] = {
    {"enable_moe_fp32_combine", FIELD_NO_EFFECT}, /* where sums are rounded: here nowhere */
    {"qk_norm", FIELD_TRUE},
    {"route_norm", FIELD_TRUE},
    {"moe_router_enable_expert_bias", FIELD_TRUE},
    {"moe_router_use_sigmoid", FIELD_TRUE},
    {"n_group", FIELD_ONE},
    {"topk_group", FIELD_ONE},
    {"norm_topk_prob", FIELD_TRUE},
    {"routed_scaling_factor", FIELD_ABSENT},
    {"first_k_dense_replace", FIELD_ONE},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_biased_experts(config, reader, &experts, status) && config_mlp_layers(config, reader, true, status) &&
           config_factor(reader, "router_scaling_factor", &config->experts.scale, status) &&
           field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) &&
           config_rope_defaults(config, reader, 11158840, 1, status) &&
           json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                           status);
}

static const struct expert_names names = {
    .router = "mlp.router.gate",
    .selection_bias = "mlp.expert_bias",
    .bias_dimensions = 1,
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_mlp",
};

const struct architecture arch_hy_v3 = {
    "hy_v3",
    "HYV3ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_HEAD, .experts = &names},
    .about = "small*: Hunyuan 3: normalised heads; experts as in `deepseek_v3`",
};
