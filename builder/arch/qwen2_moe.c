/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 1.5 and 2 with experts: a Qwen 2 whose MLPs are experts in all layers or some, and a shared expert with a gate. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 16,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = CONFIG_NO_TOKEN,
    .eos_token = CONFIG_NO_TOKEN,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 60, .top_k = 4, .intermediate_size = 1408};
static const char *const count_keys[] = {"num_experts", "num_local_experts"};
enum { DEFAULT_SHARED_SIZE = 5632, DEFAULT_WINDOW = 4096 };

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) ||
        !config_window(config, reader, CONFIG_WINDOW_BY_TURNS, DEFAULT_WINDOW, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status))
        return false;
    config->qkv_bias = true;
    config->experts.shared_size = DEFAULT_SHARED_SIZE;
    return json_reader_bool(reader, "qkv_bias", false, &config->qkv_bias, status) &&
           json_reader_u64(reader, "shared_expert_intermediate_size", false, 1, MODEL_MAX_INTERMEDIATE,
                           &config->experts.shared_size, status) &&
           config_sparse_layers(config, reader, status) && config_renormalise(config, reader, false, status);
}

const struct architecture arch_qwen2_moe = {
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .experts = &expert_shared_names},
    .about = "Qwen 1.5 and 2 with experts, in all layers or some; a shared expert with a gate",
};
