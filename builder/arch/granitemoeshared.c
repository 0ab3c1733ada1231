/* SPDX-License-Identifier: Apache-2.0 */
/* Granite with experts and an MLP beside them that every row goes through. */
#include "builder/arch/family.h"

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_granitemoe(config, reader, status) &&
           json_reader_u64(reader, "shared_intermediate_size", false, 0, MODEL_MAX_INTERMEDIATE,
                           &config->experts.shared_size, status);
}

const struct architecture arch_granitemoeshared = {
    "granitemoeshared",
    "GraniteMoeSharedForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, GRANITE_SHARED_MLP, .experts = &expert_granite_names},
    .about = "small*: Granite 3 with experts and a shared one",
};
