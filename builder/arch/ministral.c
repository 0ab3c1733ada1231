/* SPDX-License-Identifier: Apache-2.0 */
/* Ministral 8B (2410): a Mistral in which layer_types says which layers attend through the sliding window. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .max_position = 131072,
    .rms_norm_eps = 1e-6,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    enum { ALL_SLIDE = MODEL_MAX_LAYERS + 1 };
    return config_sizes(config, reader, &defaults, status) && config_no_window_pattern(reader, status) &&
           config_window_pattern(config, reader, ALL_SLIDE, 4096, status);
}

const struct architecture arch_ministral = {
    "ministral",
    "MinistralForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .about = "small*: Ministral 8B: windows in some layers",
};
