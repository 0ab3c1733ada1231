/* SPDX-License-Identifier: Apache-2.0 */
/* Youtu-LLM: the latent attention of DeepSeek-V3 in a model without experts. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .head_dim = 64,
    .max_position = 131072,
    .rms_norm_eps = 1e-6,
    .bos_token = 128000,
    .eos_token = 128001,
    .pad_token = CONFIG_NO_TOKEN,
};

/* Training alone reads it. */
static const struct field_rule unused[] = {{"embedding_initializer_range", FIELD_NO_EFFECT}};
static const char *const own_code[] = {"configuration_youtu.YoutuConfig", "modeling_youtu.YoutuModel",
                                       "modeling_youtu.YoutuForCausalLM"};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->rotary_pairs = config->tie_word_embeddings = true;
    return config_sizes(config, reader, &defaults, status) && config_latent(config, reader, NULL, status) &&
           json_reader_bool(reader, "rope_interleave", false, &config->rotary_pairs, status) &&
           field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) &&
           config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status);
}

const struct architecture arch_youtu = {
    "youtu",
    "YoutuForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .about = "small*: Youtu-LLM: latent attention as in `deepseek_v3`, no experts",
};
