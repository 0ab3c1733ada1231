/* SPDX-License-Identifier: Apache-2.0 */
/* Falcon and Falcon 2: layer normalisation, an MLP without a gate; attention and MLP side by side, which read the same rows or have
 * a norm each, or one after the other. q, k and v are one tensor, for each KV head its heads of q and then k and v. */
#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_keys keys = {"hidden_size", "ffn_hidden_size", "num_hidden_layers", "num_attention_heads",
                                        "max_position_embeddings"};
static const struct config_defaults defaults = {
    .max_position = 2048,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "layer_norm_epsilon",
    .keys = &keys,
    .inner_times = 4,
    .bos_token = 11,
    .eos_token = 11,
    .pad_token = CONFIG_NO_TOKEN,
};

static const char *const own_code[] = {"configuration_falcon.FalconConfig",
                                       "modeling_falcon.FalconModel",
                                       "modeling_falcon.FalconForCausalLM",
                                       "modeling_falcon.FalconForQuestionAnswering",
                                       "modeling_falcon.FalconForSequenceClassification",
                                       "modeling_falcon.FalconForTokenClassification"};

/* The class reads none of them. */
static const struct field_rule unused[] = {
    {"apply_residual_connection_post_layernorm", FIELD_FALSE},
    {"ff_factor", FIELD_NO_EFFECT}, /* beside ffn_hidden_size */
};

/* How many KV heads there are: num_kv_heads counts with new_decoder_architecture alone, else there is one or one for each head. */
static bool read_kv_heads(struct model_config *config, struct json_reader *reader, bool grouped, struct status *status)
{
    static const char key[] = "num_kv_heads";
    bool one = true;
    uint64_t kv_heads = config->heads;
    if (!json_reader_bool(reader, "multi_query", false, &one, status) ||
        !json_reader_u64(reader, key, false, 1, MODEL_MAX_HEADS, &kv_heads, status))
        return false;
    config->kv_heads = grouped ? kv_heads : one ? 1 : config->heads;
    return (config->heads % config->kv_heads == 0 && (grouped || one || kv_heads == config->heads)) ||
           json_reader_fail(reader, key,
                            grouped ? "a divisor of num_attention_heads"
                                    : "num_attention_heads, without new_decoder_architecture and multi_query",
                            json_object_get(reader->object, key), status);
}

/* Whether attention and MLP are side by side, and whether each has a norm of its own there. */
static bool read_norms(struct model_config *config, struct json_reader *reader, bool grouped, struct status *status)
{
    static const char key[] = "num_ln_in_parallel_attn";
    uint64_t norms = grouped ? 2 : 1;
    config->parallel_residual = true;
    if (!json_reader_bool(reader, "parallel_attn", false, &config->parallel_residual, status) ||
        !json_reader_u64(reader, key, false, 1, 2, &norms, status))
        return false;
    if (grouped && !config->parallel_residual)
        return json_reader_fail(reader, "parallel_attn", "true with new_decoder_architecture",
                                json_object_get(reader->object, "parallel_attn"), status);
    if (!grouped && norms > 1)
        return json_reader_fail(reader, key, "1 or null without new_decoder_architecture",
                                json_object_get(reader->object, key), status);
    config->other_norms = norms == 2;
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool grouped = false, biases = false;
    config->tie_word_embeddings = true;
    if (!config_sizes(config, reader, &defaults, status) || !config_fixed(reader, "alibi", false, status) ||
        !json_reader_bool(reader, "new_decoder_architecture", false, &grouped, status) ||
        !json_reader_bool(reader, "bias", false, &biases, status) ||
        !config_own_code(config, reader, own_code, sizeof own_code / sizeof *own_code, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status) ||
        !read_kv_heads(config, reader, grouped, status) || !read_norms(config, reader, grouped, status))
        return false;
    config->qkv_bias = config->output_bias = config->mlp_bias = biases;
    return config_own_activation(config, reader, "activation", ACTIVATION_GELU, status);
}

static const struct decoder_norms two_norms = {.attention_in = "ln_attn", .mlp_in = "ln_mlp"};

const struct architecture arch_falcon = {
    "falcon",
    "FalconForCausalLM",
    read_config,
    {.norms = DECODER_PRE_NORM,
     .norm = NORM_LAYER_BIAS,
     .plain_mlp = true,
     .shares_norm = true,
     .other_norms = &two_norms,
     .fused_qkv = "self_attention.query_key_value",
     .fused = FUSED_BY_KV_HEAD,
     .modules = {.layers = "transformer.h",
                 .embedding = "transformer.word_embeddings",
                 .final_norm = "transformer.ln_f",
                 .output = "self_attention.dense",
                 .up = "mlp.dense_h_to_4h",
                 .down = "mlp.dense_4h_to_h"}},
    .about = "small*: Falcon, Falcon 2, but not those with ALiBi: layer norms, MLPs without a gate",
};
