/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-J: attention and MLP read the same normalised rows, layer normalisation, an MLP without a gate, biases in the MLP and the LM
 * head; the first rotary_dim elements of each head rotate, their pairs in turn in the checkpoint. */
#include <inttypes.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_keys keys = {"n_embd", "n_inner", "n_layer", "n_head", "n_positions"};
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

/* The class has 10000 and rotary_dim alone. */
static const struct field_rule unused[] = {
    {"n_ctx", FIELD_NO_EFFECT},
    {"partial_rotary_factor", FIELD_ABSENT},
    {"rope_parameters", FIELD_ABSENT},
    {"rope_scaling", FIELD_ABSENT},
    {"rope_theta", FIELD_ABSENT},
    {"rotary", FIELD_TRUE},
    {"scale_attn_weights", FIELD_TRUE},
    {"summary_activation", FIELD_NO_EFFECT},
    {"summary_first_dropout", FIELD_NO_EFFECT},
    {"summary_proj_to_labels", FIELD_NO_EFFECT},
    {"summary_type", FIELD_NO_EFFECT},
    {"summary_use_proj", FIELD_NO_EFFECT},
};

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "rotary_dim";
    uint64_t rotary_dim = 64;
    char expected[64];
    config->parallel_residual = config->rotary_pairs = true;
    config->mlp_bias = config->head_bias = true;
    if (!config_sizes(config, reader, &defaults, status) ||
        !json_reader_u64(reader, key, false, 2, MODEL_MAX_HEAD_DIM, &rotary_dim, status) ||
        !config_fixed(reader, "tie_word_embeddings", false, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    snprintf(expected, sizeof expected, "an even number up to n_embd / n_head (%" PRIu64 ")", config->head_dim);
    if (rotary_dim > config->head_dim || rotary_dim % 2 || json_reader_is_null(reader, key))
        return json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
    config->rope.theta = 10000;
    config->rope.rotary_dim = rotary_dim;
    return config_own_activation(config, reader, "activation_function", ACTIVATION_GELU_TANH, status);
}

const struct architecture arch_gptj = {
    "gptj",
    "GPTJForCausalLM",
    read_config,
    {.norms = {.attention_in = "ln_1"},
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .shares_norm = true,
     .partial_rotary = true,
     .modules = {.layers = "transformer.h",
                 .embedding = "transformer.wte",
                 .final_norm = "transformer.ln_f",
                 .q = "attn.q_proj",
                 .k = "attn.k_proj",
                 .v = "attn.v_proj",
                 .output = "attn.out_proj",
                 .up = "mlp.fc_in",
                 .down = "mlp.fc_out"}},
    .about = "small*: GPT-J: attention and MLP side by side, layer norms, MLPs without a gate",
};
