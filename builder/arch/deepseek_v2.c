/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V2: latent attention; layers from first_k_dense_replace on have experts, chosen by softmax scores from all or from the
 * best groups, and shared experts, which are one MLP. */
#include <string.h>

#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .head_dim = 64,
    .max_position = 2048,
    .rms_norm_eps = 1e-6,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct shared_experts_defaults shared = {.count = 2};
static const struct experts_defaults experts = {.count = 64, .intermediate_size = 1407};
static const char *const count_keys[] = {"n_routed_experts", "num_experts"};
/* The checkpoints' own code computes what the class in transformers does. */
static const char *const own_code[] = {"configuration_deepseek.DeepseekV2Config", "modeling_deepseek.DeepseekV2Model",
                                       "modeling_deepseek.DeepseekV2ForCausalLM"};

static bool read_choice(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const char *method = "greedy";
    if (!json_reader_string(reader, "topk_method", false, &method, status) ||
        !config_expert_groups(config, reader, status))
        return false;
    config->experts.group_score = ROUTER_GROUP_BEST;
    if (strcmp(method, "group_limited_greedy") == 0) return true;
    config->experts.groups = config->experts.top_groups = 1;
    return strcmp(method, "greedy") == 0 ||
           json_reader_fail(reader, "topk_method", "\"greedy\" or \"group_limited_greedy\"",
                            json_object_get(reader->object, "topk_method"), status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rotary_pairs = true;
    return config_sizes(config, reader, &defaults, status) && config_latent(config, reader, NULL, status) &&
           config_experts(config, reader, count_keys, "num_experts_per_tok", "moe_intermediate_size", &experts,
                          status) &&
           read_choice(config, reader, status) && config_fixed(reader, "norm_topk_prob", false, status) &&
           config_factor(reader, "routed_scaling_factor", &config->experts.scale, status) &&
           config_shared_experts(config, reader, &shared, status) && config_deepseek_keys(reader, "softmax", status) &&
           config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status);
}

const struct expert_names expert_latent_names = {
    .router = "mlp.gate",
    .experts = "mlp.experts",
    .gate = "gate_proj",
    .up = "up_proj",
    .down = "down_proj",
    .shared = "mlp.shared_experts",
};

const struct architecture arch_deepseek_v2 = {
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .experts = &expert_latent_names},
    .about = "small*: latent attention, whose KV cache has one row of `kv_lora_rank + qk_rope_head_dim` elements for "
             "each token; experts in groups, shared experts",
};
