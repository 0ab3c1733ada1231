/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral: a Mistral whose MLPs are experts. */
#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};
static const struct experts_defaults experts = {.count = 8, .top_k = 2};
static const char *const count_keys[] = {"num_local_experts", "num_experts"};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) ||
        !config_window(config, reader, CONFIG_WINDOW_ALWAYS, 0, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", NULL, &experts, status))
        return false;
    config->experts.renormalise = ROUTER_SUM_PLUS_EPS;
    config->rope.theta = 1e6;
    return true;
}

static const struct expert_names names = {
    .router = "block_sparse_moe.gate",
    .experts = "block_sparse_moe.experts",
    .gate = "w1",
    .up = "w3",
    .down = "w2",
};

const struct architecture arch_mixtral = {
    "mixtral",
    "MixtralForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .experts = &names},
    .about = "Mixtral: experts",
};
