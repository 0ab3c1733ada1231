/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3 Next: linear attention by the gated delta rule in most layers, attention with an output gate and a rotation of a quarter of
 * each head in the others; experts, and a shared expert with a gate. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 2,
    .head_dim = 256,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 512, .top_k = 10, .intermediate_size = 512};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};
enum { DEFAULT_SHARED_SIZE = 512, MOST_PREDICTED = 64 };

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) ||
        !config_rope_defaults(config, reader, 10000, 0.25, status) || !config_attention_bias(config, reader, status) ||
        !config_delta_rule_layers(config, reader, status) || !config_delta_rule(config, reader, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status))
        return false;
    config->output_gate = true;
    config->ignored_prefix = "mtp."; /* layers that predict further tokens */
    config->ignored_layers = 1;      /* Qwen's configurations have no such key */
    config->experts.shared_size = DEFAULT_SHARED_SIZE;
    return json_reader_u64(reader, "shared_expert_intermediate_size", false, 1, MODEL_MAX_INTERMEDIATE,
                           &config->experts.shared_size, status) &&
           json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                           status) &&
           config_sparse_layers(config, reader, status) && config_renormalise(config, reader, true, status);
}

const struct architecture arch_qwen3_next = {
    "qwen3_next",
    "Qwen3NextForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .qk_norm = QK_NORM_HEAD,
     .norm = NORM_RMS_PLUS_ONE,
     .partial_rotary = true,
     .experts = &expert_shared_names,
     .predictor = &predictor_qwen_names},
    .predicts = true,
    .about = "small*: linear attention by the gated delta rule, attention with an output gate, experts and a shared "
             "one; the layer that predicts further tokens (`mtp.`) with `--mtp`",
};
