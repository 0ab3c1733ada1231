/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-NeoX and Pythia: attention and MLP read the same rows through norms of their own, layer normalisation, biases everywhere,
 * an MLP without a gate; a quarter of each head rotates, and q, k and v of a head lie one after the other. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_eps",
    .bos_token = 0,
    .eos_token = 2,
    .pad_token = CONFIG_NO_TOKEN,
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    double theta = 10000, part = 0.25; /* under names of their own, unless rope_parameters has them */
    config->parallel_residual = config->qkv_bias = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_theta(reader, "rotary_emb_base", &theta, status) ||
        !config_factor(reader, "rotary_pct", &part, status) ||
        !json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status) ||
        !json_reader_bool(reader, "use_parallel_residual", false, &config->parallel_residual, status))
        return false;
    if (part > 1)
        return json_reader_fail(reader, "rotary_pct", "a number up to 1", json_object_get(reader->object, "rotary_pct"),
                                status);
    config->output_bias = config->qkv_bias;
    config->mlp_bias = true;
    return config_rope_defaults(config, reader, theta, part, status) &&
           config_activation(config, reader, "hidden_act", ACTIVATION_GELU, status);
}

const struct architecture arch_gpt_neox = {
    "gpt_neox",
    "GPTNeoXForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .partial_rotary = true,
     .fused_qkv = "attention.query_key_value",
     .fused = FUSED_BY_KV_HEAD,
     .modules = {.layers = "gpt_neox.layers",
                 .embedding = "gpt_neox.embed_in",
                 .final_norm = "gpt_neox.final_layer_norm",
                 .head = "embed_out",
                 .output = "attention.dense",
                 .up = "mlp.dense_h_to_4h",
                 .down = "mlp.dense_4h_to_h"}},
    .about = "small*: layer norms, MLPs without a gate",
};
