/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2: learned positions, layer normalisation, biases everywhere, an MLP without a gate; q, k and v are one tensor, and matrices
 * are stored transposed. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_keys keys = {"n_embd", "n_inner", "n_layer", "n_head", "n_positions"};
static const struct config_defaults defaults = {
    .max_position = 1024,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_epsilon",
    .keys = &keys,
    .inner_times = 4,
    .bos_token = 50256,
    .eos_token = 50256,
    .pad_token = CONFIG_NO_TOKEN,
};

static const struct field_rule fixed[] = {
    {"n_ctx", FIELD_NO_EFFECT},                  /* the size of a mask */
    {"n_special", FIELD_ZERO},                   /* tokens beyond vocab_size, in the first GPT */
    {"predict_special_tokens", FIELD_NO_EFFECT}, /* whether the LM head has them */
    {"reorder_and_upcast_attn", FIELD_NO_EFFECT},
    {"summary_activation", FIELD_NO_EFFECT},
    {"summary_first_dropout", FIELD_NO_EFFECT},
    {"summary_proj_to_labels", FIELD_NO_EFFECT},
    {"summary_type", FIELD_NO_EFFECT},
    {"summary_use_proj", FIELD_NO_EFFECT},
};

bool config_gpt2(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool scales = true;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) ||
        !json_reader_bool(reader, "scale_attn_weights", false, &scales, status) ||
        !field_rules_check(reader, fixed, sizeof fixed / sizeof *fixed, status))
        return false;
    if (!scales) config->attention_scale = 1;
    config->qkv_bias = config->output_bias = config->mlp_bias = true;
    for (size_t i = 0; i < config->layers; i++) config->layer[i].rope = LAYER_ROPE_NONE;
    return config_own_activation(config, reader, "activation_function", ACTIVATION_GELU_TANH, status);
}

/* Mistral, the GPT-2 of Stanford's CRFM, divides scores by the layer's number, too. */
static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return config_gpt2(config, reader, status) &&
           json_reader_bool(reader, "scale_attn_by_inverse_layer_idx", false, &config->scores_by_layer, status);
}

const struct architecture arch_gpt2 = {
    "gpt2",
    "GPT2LMHeadModel",
    read_config,
    {.norms = {.attention_in = "ln_1", .mlp_in = "ln_2"},
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .transposed = true,
     .fused_qkv = "attn.c_attn",
     .modules = {.layers = "transformer.h",
                 .embedding = "transformer.wte",
                 .positions = "transformer.wpe",
                 .final_norm = "transformer.ln_f",
                 .output = "attn.c_proj",
                 .up = "mlp.c_fc",
                 .down = "mlp.c_proj"}},
    .about = "small*: learned positions; tensors named as transformers writes them or, as in `openai-community/gpt2`, "
             "without `transformer.`",
};
