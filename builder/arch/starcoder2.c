/* SPDX-License-Identifier: Apache-2.0 */
/* StarCoder 2: layer normalisation, biases everywhere, an MLP without a gate, a sliding window. */
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 2,
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "norm_epsilon",
    .bos_token = 50256,
    .eos_token = 50256,
    .pad_token = CONFIG_NO_TOKEN,
};

/* StarCoder 2 15B has them beside hidden_act and norm_epsilon, which alone count. */
static const struct field_rule unused[] = {
    {"activation_function", FIELD_NO_EFFECT}, {"attention_softmax_in_fp32", FIELD_NO_EFFECT},
    {"layer_norm_epsilon", FIELD_NO_EFFECT},  {"scale_attention_softmax_in_fp32", FIELD_NO_EFFECT},
    {"scale_attn_weights", FIELD_TRUE},
};

/* Keys of the class that published checkpoints began with. */
static bool is_usual(struct json_reader *reader, const char *key, const char *usual, struct status *status)
{
    const char *found = NULL;
    if (!json_reader_string(reader, key, false, &found, status)) return false;
    return !found || strcmp(found, usual) == 0 ||
           json_reader_fail(reader, key, usual, json_object_get(reader->object, key), status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool biases = true;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) ||
        !json_reader_bool(reader, "use_bias", false, &biases, status) ||
        !is_usual(reader, "mlp_type", "default", status) || !is_usual(reader, "norm_type", "layer_norm", status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) ||
        !config_window(config, reader, CONFIG_WINDOW_ALWAYS, 0, status))
        return false;
    config->qkv_bias = config->output_bias = config->mlp_bias = biases;
    return config_activation(config, reader, "hidden_act", ACTIVATION_GELU_TANH, status);
}

const struct architecture arch_starcoder2 = {
    "starcoder2",
    "Starcoder2ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .modules = {.up = "mlp.c_fc", .down = "mlp.c_proj"}},
    .about = "small*: layer norms, MLPs without a gate",
};
