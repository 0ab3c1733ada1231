/* SPDX-License-Identifier: Apache-2.0 */
/* Helium 1: a Llama whose rows of rotary pairs are interleaved in the checkpoint. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 20,
    .head_dim = 128,
    .max_position = 4096,
    .rms_norm_eps = 1e-8,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 3,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rotary_pairs = true;
    return config_sizes(config, reader, &defaults, status) && config_rope_defaults(config, reader, 1e5, 1, status) &&
           json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status) &&
           config_mlp_bias(config, reader, status);
}

const struct architecture arch_helium = {
    "helium", "HeliumForCausalLM", read_config, {.norms = DECODER_PRE_NORM}, .about = "small*: Helium 1",
};
