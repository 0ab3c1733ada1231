/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM 3: a Llama in which every fourth layer does not rotate q and k. */
#include "builder/arch/family.h"

static const struct config_defaults defaults = {
    .kv_heads = 4,
    .max_position = 32768,
    .rms_norm_eps = 1e-6,
    .bos_token = 128000,
    .eos_token = 128001,
    .pad_token = 128004,
};

/* no_rope_layers: for each layer whether it rotates; else every no_rope_layer_interval-th layer does not. */
static bool read_rope_layers(struct model_config *config, struct json_reader *reader, struct status *status)
{
    uint64_t interval = 4;
    const json_t *layers = json_reader_get(reader, "no_rope_layers");
    if (!json_reader_u64(reader, "no_rope_layer_interval", false, 1, MODEL_MAX_LAYERS, &interval, status)) return false;
    if (layers && (!json_is_array(layers) || json_array_size(layers) < config->layers))
        return json_reader_fail(reader, "no_rope_layers", "an array of at least num_hidden_layers numbers", layers,
                                status);
    for (size_t i = 0; i < config->layers; i++) {
        const json_t *rotates = layers ? json_array_get(layers, i) : NULL;
        if (rotates &&
            (!json_is_integer(rotates) || json_integer_value(rotates) < 0 || json_integer_value(rotates) > 1))
            return json_reader_fail(reader, "no_rope_layers", "only 0 and 1", rotates, status);
        const bool turns = rotates ? json_integer_value(rotates) != 0 : (i + 1) % interval != 0;
        config->layer[i].rope = turns ? LAYER_ROPE_MAIN : LAYER_ROPE_NONE;
    }
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    config->tie_word_embeddings = true;
    return config_sizes(config, reader, &defaults, status) && config_rope_defaults(config, reader, 2e6, 1, status) &&
           config_attention_bias(config, reader, status) && config_mlp_bias(config, reader, status) &&
           read_rope_layers(config, reader, status) &&
           config_window(config, reader, CONFIG_WINDOW_UNROTATED, 0, status);
}

const struct architecture arch_smollm3 = {
    "smollm3",
    "SmolLM3ForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM},
    .about = "small*: some layers do not rotate",
};
