/* SPDX-License-Identifier: Apache-2.0 */
/* MiniCPM 3: the latent attention of DeepSeek-V2 in a model without experts, with factors on embeddings, residual branches and
 * logits. */
#include <math.h>

#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .head_dim = 32,
    .max_position = 32768,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};
static const char *const own_code[] = {"configuration_minicpm.MiniCPM3Config", "modeling_minicpm.MiniCPM3Model",
                                       "modeling_minicpm.MiniCPM3ForCausalLM",
                                       "modeling_minicpm.MiniCPM3ForSequenceClassification"};

/* A factor of which null means that nothing is multiplied. */
static bool read_factor(struct json_reader *reader, const char *key, double without, double *value,
                        struct status *status)
{
    if (json_reader_is_null(reader, key)) *value = without;
    return config_factor(reader, key, value, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    double depth = 1.4, base = 256;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status)) return false;
    const struct model_latent latent = {.q_rank = 768,
                                        .kv_rank = 256,
                                        .nope_dim = 64,
                                        .rope_dim = 32,
                                        .value_dim = config->hidden_size / config->heads};
    config->embedding_scale = 12;
    if (!config_latent(config, reader, &latent, status) ||
        !config_factor(reader, "scale_emb", &config->embedding_scale, status) ||
        !read_factor(reader, "scale_depth", sqrt((double)config->layers), &depth, status) ||
        !read_factor(reader, "dim_model_base", (double)config->hidden_size, &base, status) ||
        !config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status))
        return false;
    config->residual_scale = depth / sqrt((double)config->layers);
    config->logits_scale = base / (double)config->hidden_size;
    return true;
}

const struct architecture arch_minicpm3 = {
    "minicpm3",
    "MiniCPM3ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .about = "small*: MiniCPM 3: latent attention as in `deepseek_v2`, no experts, multipliers as in `granite`",
};
