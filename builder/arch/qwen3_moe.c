/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3 with experts: a Qwen 3 whose MLPs are experts in all layers or some. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 4,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 128, .top_k = 8, .intermediate_size = 768};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};

/* Qwen 3 Coder has them beside attention_bias; the class reads none of them and computes what these values say. */
static const struct field_rule fixed[] = {
    {"qkv_bias", FIELD_FALSE},
    {"shared_expert_intermediate_size", FIELD_ZERO},
    {"use_qk_norm", FIELD_TRUE},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && config_attention_bias(config, reader, status) &&
           config_window(config, reader, CONFIG_WINDOW_IF_USED, 4096, status) &&
           config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts,
                          status) &&
           config_sparse_layers(config, reader, status) && config_renormalise(config, reader, false, status) &&
           field_rules_check(reader, fixed, sizeof fixed / sizeof *fixed, status);
}

/* As Qwen 3 VL has them: Qwen's checkpoints transposed, those of transformers not. */
static const struct expert_names fused_names = {
    .router = "mlp.gate",
    .gate = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .parameters = true,
};

const struct architecture arch_qwen3_moe = {
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .qk_norm = QK_NORM_HEAD, .experts = &expert_usual_names, .fused_experts = &fused_names},
    .about = "Qwen 3 with experts, in all layers or some",
};
