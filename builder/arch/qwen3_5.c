/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3.5 and 3.6, text part: a Qwen 3 Next whose projections of linear attention are tensors of their own, dense or with experts. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/router/router.h"

static const struct config_defaults dense_defaults = {
    .kv_heads = 4,
    .head_dim = 256,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct config_defaults expert_defaults = {
    .kv_heads = 2,
    .head_dim = 256,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .inner_times = 1, /* unused: all layers have experts */
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 256, .top_k = 8, .intermediate_size = 512};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};
enum { DEFAULT_SHARED_SIZE = 512, MOST_PREDICTED = 64 };

/* Fields of Qwen's own configurations, which the classes of transformers ignore: what they say is always so. */
static const struct field_rule fixed[] = {
    {"attn_output_gate", FIELD_TRUE}, {"mamba_ssm_dtype", FIELD_NO_EFFECT}, /* of the state, which is float32 */
    {"mlp_only_layers", FIELD_EMPTY}, {"mtp_use_dedicated_embeddings", FIELD_NO_EFFECT},
    {"norm_topk_prob", FIELD_TRUE},
};

static bool read_common(struct model_config *config, struct json_reader *reader, const struct config_defaults *defaults,
                        struct status *status)
{
    if (!config_sizes(config, reader, defaults, status) || !config_rope_defaults(config, reader, 10000, 0.25, status) ||
        !config_attention_bias(config, reader, status) || !config_delta_rule_layers(config, reader, status) ||
        !config_delta_rule(config, reader, status) ||
        !json_reader_u64(reader, "mtp_num_hidden_layers", false, 0, MOST_PREDICTED, &config->ignored_layers, status) ||
        !field_rules_check(reader, fixed, sizeof fixed / sizeof *fixed, status))
        return false;
    config->recurrent.apart = true;
    config->output_gate = true;
    config->ignored_prefix = "mtp."; /* layers that predict further tokens */
    return true;
}

static bool read_dense(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return read_common(config, reader, &dense_defaults, status);
}

static bool read_experts(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!read_common(config, reader, &expert_defaults, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status))
        return false;
    config->experts.shared_size = DEFAULT_SHARED_SIZE;
    config->experts.renormalise = ROUTER_SUM_PLUS_EPS;
    return json_reader_u64(reader, "shared_expert_intermediate_size", false, 1, MODEL_MAX_INTERMEDIATE,
                           &config->experts.shared_size, status);
}

const struct architecture arch_qwen3_5 = {
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    read_dense,
    {.norms = DECODER_PRE_NORM,
     .qk_norm = QK_NORM_HEAD,
     .norm = NORM_RMS_PLUS_ONE,
     .partial_rotary = true,
     .predictor = &predictor_qwen_names},
    .sections = true,
    .predicts = true,
    .about = "small*: as `qwen3_next` without experts; the layer that predicts further tokens (`mtp.`) with `--mtp`",
};

/* As Qwen stores the experts; transformers stores each on its own. */
static const struct expert_names fused_names = {
    .router = "mlp.gate",
    .gate = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .parameters = true,
    .shared = "mlp.shared_expert",
    .shared_gate = "mlp.shared_expert_gate",
};

const struct architecture arch_qwen3_5_moe = {
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    read_experts,
    {.norms = DECODER_PRE_NORM,
     .qk_norm = QK_NORM_HEAD,
     .norm = NORM_RMS_PLUS_ONE,
     .partial_rotary = true,
     .experts = &expert_shared_names,
     .fused_experts = &fused_names},
    .sections = true,
    .about = "small*: as `qwen3_5_text`, with experts and a shared one in all layers",
};
