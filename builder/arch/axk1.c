/* SPDX-License-Identifier: Apache-2.0 */
/* A.X K1: a DeepSeek-V3 with a norm of what experts add. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .head_dim = 64,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = 163691,
    .eos_token = 163691,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.count = 192, .top_k = 8, .intermediate_size = 2048},
    .shared = {.count = 1, .dense = 1},
    .groups = 8,
    .top_groups = 4,
    .scale = 2.5,
    .renormalise = true,
};
enum { MOST_PREDICTED = 64 };

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rotary_pairs = true;
    return config_sizes(config, reader, &defaults, status) && config_latent(config, reader, NULL, status) &&
           json_reader_bool(reader, "rope_interleave", false, &config->rotary_pairs, status) &&
           config_biased_experts(config, reader, &experts, status) &&
           config_fixed_text(reader, "topk_method", "noaux_tc", status) &&
           json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                           status) &&
           config_deepseek_keys(reader, "sigmoid", status);
}

const struct architecture arch_axk1 = {
    "axk1",
    "AXK1ForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm",
               .mlp_in = "post_attention_layernorm",
               .mlp_out = "post_mlp_layernorm"},
     .norm_of_experts = true,
     .experts = &expert_biased_names},
    .about = "small*: A.X K1: as `deepseek_v3`, with a norm of what experts add",
};
