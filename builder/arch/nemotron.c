/* SPDX-License-Identifier: Apache-2.0 */
/* Nemotron 4 and Minitron: layer normalisation with 1 + weight, an MLP of squared ReLU without a gate; half of each head
 * rotates. */
#include <inttypes.h>

#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .max_position = 4096,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "norm_eps",
    .bos_token = 2,
    .eos_token = 3,
    .pad_token = CONFIG_NO_TOKEN,
};

/* kv_channels, NeMo's name of head_dim, which the class does not read. */
static bool check_channels(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "kv_channels";
    uint64_t same = config->head_dim;
    char expected[64];
    if (!json_reader_u64(reader, key, false, 1, MODEL_MAX_HEAD_DIM, &same, status)) return false;
    snprintf(expected, sizeof expected, "the elements of a head (%" PRIu64 ")", config->head_dim);
    return same == config->head_dim ||
           json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_sizes(config, reader, &defaults, status) && check_channels(config, reader, status) &&
           config_rope_defaults(config, reader, 10000, 0.5, status) && config_attention_bias(config, reader, status) &&
           config_mlp_bias(config, reader, status) &&
           config_activation(config, reader, "hidden_act", ACTIVATION_RELU2, status);
}

const struct architecture arch_nemotron = {
    "nemotron",
    "NemotronForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM, .norm = NORM_LAYER_BIAS_PLUS_ONE, .plain_mlp = true, .partial_rotary = true},
    .about = "small*: layer norms, MLPs without a gate",
};
