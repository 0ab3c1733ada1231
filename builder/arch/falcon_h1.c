/* SPDX-License-Identifier: Apache-2.0 */
/* Falcon-H1: attention and a state space side by side in each layer, and many multipliers. */
#include <inttypes.h>
#include <math.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_defaults defaults = {
    .kv_heads = 8,
    .max_position = 8192,
    .rms_norm_eps = 1e-5,
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 0,
};
enum { DEFAULT_WIDTH = 1024, FACTORS = 5 };

static const struct field_rule unused[] = {
    {"attn_layer_indices", FIELD_ABSENT},                                               /* all layers attend */
    {"mamba_use_mlp", FIELD_TRUE},           {"mlp_expansion_factor", FIELD_NO_EFFECT}, /* intermediate_size counts */
    {"num_logits_to_keep", FIELD_NO_EFFECT}, {"time_step_floor", FIELD_NO_EFFECT}, /* of training, as the next three */
    {"time_step_max", FIELD_NO_EFFECT},      {"time_step_min", FIELD_NO_EFFECT},
    {"time_step_rank", FIELD_NO_EFFECT},
};

/* An array of `count` factors. values[count] are unchanged if config.json has no such key. */
static bool read_factors(struct json_reader *reader, const char *key, size_t count, double *values,
                         struct status *status)
{
    const double least = 1e-6, most = 1e6;
    const json_t *factors = json_reader_get(reader, key);
    char expected[64];
    bool ok = !factors || (json_is_array(factors) && json_array_size(factors) == count);
    for (size_t i = 0; ok && factors && i < count; i++) {
        const json_t *factor = json_array_get(factors, i);
        values[i] = json_number_value(factor);
        ok = json_is_number(factor) && values[i] >= least && values[i] <= most;
    }
    snprintf(expected, sizeof expected, "%zu numbers from 1e-6 to 1e6", count);
    return ok || json_reader_fail(reader, key, expected, factors, status);
}

/* The factors on what attention reads, on keys and on what attention gives: scores have the square of the first, values the first. */
static bool read_attention_factors(struct model_config *config, struct json_reader *reader, struct status *status)
{
    double in = 1, out = 1, key = 1, logits = 1;
    if (!config_factor(reader, "attention_in_multiplier", &in, status) ||
        !config_factor(reader, "attention_out_multiplier", &out, status) ||
        !config_factor(reader, "key_multiplier", &key, status) ||
        !config_factor(reader, "embedding_multiplier", &config->embedding_scale, status) ||
        !config_factor(reader, "lm_head_multiplier", &logits, status))
        return false;
    config->attention_scale *= in * in * key;
    config->attention_out_scale = in * out;
    config->logits_scale = logits;
    return true;
}

static bool read_other_factors(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_recurrent *sizes = &config->recurrent;
    double mlp[2] = {1, 1}, of_rows[FACTORS] = {1, 1, 1, 1, 1}, in = 1, out = 1; /* of_rows: z, x, B, C, dt */
    if (!read_factors(reader, "mlp_multipliers", 2, mlp, status) ||
        !read_factors(reader, "ssm_multipliers", FACTORS, of_rows, status) ||
        !config_factor(reader, "ssm_in_multiplier", &in, status) ||
        !config_factor(reader, "ssm_out_multiplier", &out, status))
        return false;
    config->gate_scale = mlp[0];
    config->mlp_out_scale = mlp[1];
    sizes->z_scale = in * of_rows[0];
    for (int i = 0; i < 3; i++) sizes->xbc_scale[i] = in * of_rows[1 + i];
    sizes->dt_scale = in * of_rows[4];
    sizes->out_scale = out;
    return true;
}

/* What float32 holds with room for the values that they multiply, as single factors. */
static bool check_products(const struct model_config *config, const struct json_reader *reader, struct status *status)
{
    const struct model_recurrent *sizes = &config->recurrent;
    const double least = 1e-6, most = 1e6;
    const double products[] = {config->attention_scale, config->attention_out_scale, sizes->z_scale,
                               sizes->dt_scale,         sizes->xbc_scale[0],         sizes->xbc_scale[1],
                               sizes->xbc_scale[2]};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (!(products[i] >= least && products[i] <= most))
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: multipliers of attention and of the state space: expected products from 1e-6 to "
                               "1e6, found %g",
                               reader->path, products[i]);
    return true;
}

/* mamba_d_ssm, the elements of all heads; null: mamba_expand times hidden_size. */
static bool read_state_space(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct state_space_defaults own = {.heads = 128, .groups = 1, .state_dim = 256, .width = DEFAULT_WIDTH};
    bool has_norm = false, norm_first = true;
    if (json_reader_is_null(reader, "mamba_d_ssm")) own.width = 0;
    if (!json_reader_u64(reader, "mamba_d_ssm", false, 1, MODEL_MAX_ATTENTION_WIDTH, &own.width, status) ||
        !config_state_space(config, reader, &config_mamba_keys, &own, status) ||
        !config_time_step_limit(config, reader, status) ||
        !json_reader_bool(reader, "mamba_rms_norm", false, &has_norm, status) ||
        !json_reader_bool(reader, "mamba_norm_before_gate", false, &norm_first, status))
        return false;
    if (has_norm && norm_first)
        return json_reader_fail(reader, "mamba_norm_before_gate", "false with mamba_rms_norm",
                                json_object_get(reader->object, "mamba_norm_before_gate"), status);
    config->recurrent.norm_groups = has_norm ? config->recurrent.key_heads : 0;
    return true;
}

/* Biases, which the factors would change: those of all published models are absent. */
static bool check_biases(struct json_reader *reader, struct status *status)
{
    static const char *const keys[] = {"attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!config_fixed(reader, keys[i], false, status)) return false;
    return true;
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!config_sizes(config, reader, &defaults, status) || !check_biases(reader, status) ||
        !read_attention_factors(config, reader, status) || !read_state_space(config, reader, status) ||
        !read_other_factors(config, reader, status) || !check_products(config, reader, status) ||
        !field_rules_check(reader, unused, sizeof unused / sizeof *unused, status))
        return false;
    for (uint64_t i = 0; i < config->layers; i++) config->layer[i].mixer = MIXER_BOTH;
    return true;
}

const struct architecture arch_falcon_h1 = {
    "falcon_h1",
    "FalconH1ForCausalLM",
    read_config,
    {.norms = {.attention_in = "input_layernorm", .mlp_in = "pre_ff_layernorm"},
     .modules = {.final_norm = "model.final_layernorm",
                 .gate = "feed_forward.gate_proj",
                 .up = "feed_forward.up_proj",
                 .down = "feed_forward.down_proj"}},
    .about = "small*: attention and state spaces (Mamba-2) side by side",
};
