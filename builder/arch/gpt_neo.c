/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-Neo: learned positions, layer normalisation, an MLP without a gate; scores are not scaled, and some layers attend through a
 * sliding window. */
#include <inttypes.h>
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_keys keys = {"hidden_size", "intermediate_size", "num_layers", "num_heads",
                                        "max_position_embeddings"};
static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_epsilon",
    .keys = &keys,
    .inner_times = 4,
    .bos_token = 50256,
    .eos_token = 50256,
    .pad_token = CONFIG_NO_TOKEN,
};

static const struct field_rule unused[] = {
    {"embed_dropout", FIELD_NO_EFFECT},          {"resid_dropout", FIELD_NO_EFFECT},
    {"summary_activation", FIELD_NO_EFFECT},     {"summary_first_dropout", FIELD_NO_EFFECT},
    {"summary_proj_to_labels", FIELD_NO_EFFECT}, {"summary_type", FIELD_NO_EFFECT},
    {"summary_use_proj", FIELD_NO_EFFECT},
};

/* attention_types: [[["global", "local"], 12]] stands for twelve times these two kinds of layers. False where the layers are not
 * num_layers of the two kinds. */
static bool set_windows(struct model_config *config, const json_t *types, uint64_t window)
{
    uint64_t layer = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *kinds = json_array_get(json_array_get(types, i), 0);
        const json_int_t times = json_integer_value(json_array_get(json_array_get(types, i), 1));
        const size_t count = json_array_size(kinds);
        if (!count || times < 1 || (uint64_t)times > (config->layers - layer) / count) return false;
        for (uint64_t end = layer + (uint64_t)times * count, k = 0; layer < end; layer++, k++) {
            const char *kind = json_string_value(json_array_get(kinds, (size_t)(k % count)));
            if (!kind || (strcmp(kind, "global") != 0 && strcmp(kind, "local") != 0)) return false;
            config->layer[layer].window = kind[0] == 'l' ? window : 0;
        }
    }
    return layer == config->layers;
}

/* attention_layers, the kind of each layer, which the class prefers to attention_types. */
static bool check_layers(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "attention_layers";
    const json_t *kinds = json_reader_get(reader, key);
    bool same = !kinds || json_array_size(kinds) == config->layers;
    for (size_t i = 0; kinds && same && i < config->layers; i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        same = kind && strcmp(kind, config->layer[i].window ? "local" : "global") == 0;
    }
    return same || json_reader_fail(reader, key, "the kinds of layers that attention_types says", kinds, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "attention_types";
    uint64_t window = 256;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) ||
        !json_reader_u64(reader, "window_size", false, 1, MODEL_MAX_POSITION, &window, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    const json_t *types = json_reader_get(reader, key);
    json_t *usual = json_pack("[[[ss]i]]", "global", "local", 12);
    const bool known = usual && set_windows(config, types ? types : usual, window);
    json_decref(usual);
    if (!known) {
        char expected[80];
        snprintf(expected, sizeof expected, "kinds \"global\" and \"local\" for num_layers (%" PRIu64 ") layers",
                 config->layers);
        return json_reader_fail(reader, key, expected, types, status);
    }
    config->output_bias = config->mlp_bias = true;
    config->attention_scale = 1.0;
    for (size_t i = 0; i < config->layers; i++) config->layer[i].rope = LAYER_ROPE_NONE;
    return check_layers(config, reader, status) &&
           config_own_activation(config, reader, "activation_function", ACTIVATION_GELU_TANH, status);
}

const struct architecture arch_gpt_neo = {
    "gpt_neo",
    "GPTNeoForCausalLM",
    read_config,
    {.norms = {.attention_in = "ln_1", .mlp_in = "ln_2"},
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .modules = {.layers = "transformer.h",
                 .embedding = "transformer.wte",
                 .positions = "transformer.wpe",
                 .final_norm = "transformer.ln_f",
                 .q = "attn.attention.q_proj",
                 .k = "attn.attention.k_proj",
                 .v = "attn.attention.v_proj",
                 .output = "attn.attention.out_proj",
                 .up = "mlp.c_fc",
                 .down = "mlp.c_proj"}},
    .about = "small*: GPT-Neo: learned positions, windows in some layers",
};
