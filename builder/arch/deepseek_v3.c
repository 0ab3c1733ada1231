/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V3 and R1: as DeepSeek-V2, but for sigmoid scores with a bias and groups by their best two experts. The first
 * layer that predicts further tokens is used with --mtp, others are left out. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .head_dim = 64,
    .max_position = 4096,
    .rms_norm_eps = 1e-6,
    .bos_token = 0,
    .eos_token = 1,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct biased_experts_defaults experts = {
    .count_keys = {"n_routed_experts", "num_local_experts"},
    .experts = {.count = 256, .top_k = 8, .intermediate_size = 2048},
    .shared = {.count = 1, .dense = 3},
    .groups = 8,
    .top_groups = 4,
    .scale = 2.5,
    .renormalise = true,
};
static const char *const own_code[] = {"configuration_deepseek.DeepseekV3Config", "modeling_deepseek.DeepseekV3Model",
                                       "modeling_deepseek.DeepseekV3ForCausalLM"};
enum { MOST_PREDICTED = 64 };

bool config_deepseek_v3(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rotary_pairs = true;
    config->ignored_layers = 1;
    return config_sizes(config, reader, &defaults, status) && config_latent(config, reader, NULL, status) &&
           json_reader_bool(reader, "rope_interleave", false, &config->rotary_pairs, status) &&
           config_biased_experts(config, reader, &experts, status) &&
           config_fixed_text(reader, "topk_method", "noaux_tc", status) &&
           json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                           status) &&
           config_deepseek_keys(reader, "sigmoid", status) &&
           config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status);
}

const struct architecture arch_deepseek_v3 = {
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    config_deepseek_v3,
    {.norms = DECODER_PRE_NORM, .experts = &expert_biased_names},
    .predicts = true,
    .about = "small*: as `deepseek_v2`, with sigmoid scores and a selection bias; the layer that predicts further "
             "tokens with `--mtp`",
};
