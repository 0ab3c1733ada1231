/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3 with experts: a Granite whose MLPs are experts, each kind of matrix of all experts in one tensor. */
#include "builder/arch/family.h"
#include "kernels/router/router.h"

static const struct experts_defaults experts = {.count = 8, .top_k = 2};
static const char *const count_keys[] = {"num_local_experts", "num_experts"};

bool config_granitemoe(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_fixed(reader, "mlp_bias", false, status) || !config_granite(config, reader, status) ||
        !config_experts(config, reader, count_keys, "num_experts_per_tok", NULL, &experts, status))
        return false;
    config->experts.score = ROUTER_SOFTMAX_CHOSEN;
    return true;
}

const struct expert_names expert_granite_names = {
    .router = "block_sparse_moe.router.layer",
    .gate = "block_sparse_moe.input_linear",
    .down = "block_sparse_moe.output_linear",
    .shared = "shared_mlp",
    .shared_is_mlp = true,
};

const struct architecture arch_granitemoe = {
    "granitemoe",
    "GraniteMoeForCausalLM",
    config_granitemoe,
    {.norms = DECODER_PRE_NORM, .experts = &expert_granite_names},
    .about = "Granite 3 with experts",
};
