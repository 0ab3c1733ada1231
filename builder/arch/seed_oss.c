/* SPDX-License-Identifier: Apache-2.0 */
/* Seed-OSS: a Llama with biases on q, k and v. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .head_dim = 128,
    .max_position = 524288,
    .rms_norm_eps = 1e-6,
    .bos_token = 0,
    .eos_token = 2,
    .pad_token = 1,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->qkv_bias = true;
    return config_sizes(config, reader, &defaults, status) &&
           json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status) &&
           json_reader_bool(reader, "attention_out_bias", false, &config->output_bias, status) &&
           config_mlp_bias(config, reader, status);
}

const struct architecture arch_seed_oss = {
    "seed_oss", "SeedOssForCausalLM", read_config, {.norms = DECODER_PRE_NORM}, .about = "small*: QKV bias",
};
