/* SPDX-License-Identifier: Apache-2.0 */
/* OPT: learned positions, the first two rows of whose table stand for no position, layer normalisation, biases, an MLP without a gate. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_keys keys = {"hidden_size", "ffn_dim", "num_hidden_layers", "num_attention_heads",
                                        "max_position_embeddings"};
static const double EPS = 1e-5; /* of the class, which has no key for it */
static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = EPS,
    .keys = &keys,
    .layers = 12,
    .bos_token = 2,
    .eos_token = 2,
    .pad_token = 1,
};

static const struct field_rule fixed[] = {
    {"_remove_final_layer_norm", FIELD_FALSE},
    {"do_layer_norm_before", FIELD_TRUE},
    {"enable_bias", FIELD_TRUE},
    {"layer_norm_elementwise_affine", FIELD_TRUE},
    {"activation_dropout", FIELD_NO_EFFECT}, /* of training, as the next three */
    {"dropout", FIELD_NO_EFFECT},
    {"init_std", FIELD_NO_EFFECT},
    {"layerdrop", FIELD_NO_EFFECT},
    {"prefix", FIELD_NO_EFFECT}, /* of a pipeline in transformers */
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char projected[] = "word_embed_proj_dim";
    char expected[64];
    uint64_t width;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status)) return false;
    if (config->rms_norm_eps != EPS)
        return json_reader_fail(reader, "rms_norm_eps", "1e-5", json_object_get(reader->object, "rms_norm_eps"),
                                status);
    width = config->hidden_size;
    if (!json_reader_u64(reader, projected, false, 1, MODEL_MAX_HIDDEN, &width, status) ||
        !field_rules_check(reader, fixed, sizeof fixed / sizeof *fixed, status))
        return false;
    snprintf(expected, sizeof expected, "hidden_size (%" PRIu64 ")", config->hidden_size);
    if (width != config->hidden_size)
        return json_reader_fail(reader, projected, expected, json_object_get(reader->object, projected), status);
    config->qkv_bias = config->output_bias = config->mlp_bias = true;
    for (size_t i = 0; i < config->layers; i++) config->layer[i].rope = LAYER_ROPE_NONE;
    return config_own_activation(config, reader, "activation_function", ACTIVATION_RELU, status);
}

const struct architecture arch_opt = {
    "opt",
    "OPTForCausalLM",
    read_config,
    {.norms = {.attention_in = "self_attn_layer_norm", .mlp_in = "final_layer_norm"},
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .modules = {.layers = "model.decoder.layers",
                 .embedding = "model.decoder.embed_tokens",
                 .positions = "model.decoder.embed_positions",
                 .first_position = 2,
                 .final_norm = "model.decoder.final_layer_norm",
                 .output = "self_attn.out_proj",
                 .up = "fc1",
                 .down = "fc2"}},
    .about =
        "small*: OPT, but not those with norms after attention and MLP (350M): learned positions, layer norms, MLPs "
        "without a gate",
};
