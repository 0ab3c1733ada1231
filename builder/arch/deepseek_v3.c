/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V3 and R1: as DeepSeek-V2, but for sigmoid scores with a bias and groups by their best two experts. The first
 * layer that predicts further tokens is used with --mtp, others are left out. */
#include <string.h>

#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .head_dim = 64,
    .max_position = 4096,
    .rms_norm_eps = 1e-6,
    .bos_token = 0,
    .eos_token = 1,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 256, .top_k = 8, .intermediate_size = 2048};
static const char *const count_keys[] = {"n_routed_experts", "num_local_experts"};
static const char *const own_code[] = {"configuration_deepseek.DeepseekV3Config", "modeling_deepseek.DeepseekV3Model",
                                       "modeling_deepseek.DeepseekV3ForCausalLM"};
enum { MOST_PREDICTED = 64 };

static bool read_experts(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const char *method = "noaux_tc";
    if (!config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts, status))
        return false;
    config->experts.groups = 8;
    config->experts.top_groups = 4;
    config->experts.scale = 2.5;
    config->experts.score = ROUTER_SIGMOID;
    config->experts.group_score = ROUTER_GROUP_BEST_TWO;
    config->experts.eps = 1e-20;
    if (!config_expert_groups(config, reader, status) || !config_renormalise(config, reader, true, status) ||
        !config_factor(reader, "routed_scaling_factor", &config->experts.scale, status) ||
        !json_reader_string(reader, "topk_method", false, &method, status))
        return false;
    return strcmp(method, "noaux_tc") == 0 || json_reader_fail(reader, "topk_method", "\"noaux_tc\"",
                                                               json_object_get(reader->object, "topk_method"), status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rotary_pairs = true;
    config->ignored_layers = 1;
    return config_sizes(config, reader, &defaults, status) && config_latent(config, reader, status) &&
           json_reader_bool(reader, "rope_interleave", false, &config->rotary_pairs, status) &&
           read_experts(config, reader, status) && config_shared_experts(config, reader, 1, 3, status) &&
           json_reader_u64(reader, "num_nextn_predict_layers", false, 0, MOST_PREDICTED, &config->ignored_layers,
                           status) &&
           config_deepseek_keys(reader, "sigmoid", status) &&
           config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status);
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

const struct architecture arch_deepseek_v3 = {
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .experts = &names},
    .predicts = true,
    .about = "small*: as `deepseek_v2`, with sigmoid scores and a selection bias; the layer that predicts further "
             "tokens with `--mtp`",
};
