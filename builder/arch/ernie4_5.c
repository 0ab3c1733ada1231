/* SPDX-License-Identifier: Apache-2.0 */
/* ERNIE 4.5 without experts: a Llama whose rows of rotary pairs are interleaved in the checkpoint. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 2,
    .head_dim = 128,
    .max_position = 131072,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 0,
};

static const char *const own_code[] = {"configuration_ernie4_5.Ernie4_5_Config", "modeling_ernie4_5.Ernie4_5_Model",
                                       "modeling_ernie4_5.Ernie4_5_ForCausalLM"};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool biases = false;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) ||
        !json_reader_bool(reader, "use_bias", false, &biases, status) ||
        !config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status))
        return false;
    config->qkv_bias = config->output_bias = config->mlp_bias = biases;
    config->rotary_pairs = true;
    config->rope.theta = 5e5;
    return true;
}

const struct architecture arch_ernie4_5 = {
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .own_class = "Ernie4_5_ForCausalLM",
    .about = "small*: ERNIE 4.5 without experts",
};
