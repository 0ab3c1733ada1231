/* SPDX-License-Identifier: Apache-2.0 */
/* LFM2: short convolutions in most layers, attention in the others. */
#include <math.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"

static const struct config_keys own_keys = {"hidden_size", "block_ff_dim", "num_hidden_layers", "num_attention_heads",
                                            "max_position_embeddings"};
const struct config_defaults config_lfm2_defaults = {
    .kv_heads = 8,
    .max_position = 128000,
    .rms_norm_eps = 1e-5,
    .norm_eps_key = "norm_eps",
    .bos_token = 1,
    .eos_token = 2,
    .pad_token = 0,
};

/* Keys of the authors' own configuration class. */
static bool check_own_keys(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const struct field_rule rules[] = {
        {"block_mlp_init_scale", FIELD_NO_EFFECT}, /* of training, as the next three */
        {"block_out_init_scale", FIELD_NO_EFFECT},
        {"block_use_xavier_init", FIELD_NO_EFFECT},
        {"conv_use_xavier_init", FIELD_NO_EFFECT},
    };
    static const char *const widths[] = {"block_dim", "conv_dim", "conv_dim_out"};
    uint64_t heads = config->heads;
    double eps = config->rms_norm_eps;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        uint64_t found = config->hidden_size;
        if (!json_reader_u64(reader, widths[i], false, 1, MODEL_MAX_HIDDEN, &found, status)) return false;
        if (found != config->hidden_size)
            return json_reader_fail(reader, widths[i], "the same as hidden_size",
                                    json_object_get(reader->object, widths[i]), status);
    }
    if (!json_reader_u64(reader, "num_heads", false, 1, MODEL_MAX_HEADS, &heads, status) ||
        !json_reader_double(reader, "block_norm_eps", false, &eps, status))
        return false;
    if (heads != config->heads)
        return json_reader_fail(reader, "num_heads", "the same as num_attention_heads",
                                json_object_get(reader->object, "num_heads"), status);
    if (eps != config->rms_norm_eps)
        return json_reader_fail(reader, "block_norm_eps", "the same as norm_eps",
                                json_object_get(reader->object, "block_norm_eps"), status);
    return config_fixed(reader, "block_use_swiglu", true, status) &&
           config_fixed(reader, "use_pos_enc", true, status) &&
           field_rules_check(reader, rules, sizeof rules / sizeof *rules, status);
}

/* Two thirds of the size that config.json states, times a factor, rounded up. */
static bool adjust_inner(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool adjusts = true;
    double factor = 1;
    uint64_t multiple = 256;
    const bool has_factor = !json_reader_is_null(reader, "block_ffn_dim_multiplier");
    if (!has_factor) json_reader_get(reader, "block_ffn_dim_multiplier"); /* null: known */
    if (!json_reader_bool(reader, "block_auto_adjust_ff_dim", false, &adjusts, status) ||
        !json_reader_u64(reader, "block_multiple_of", false, 1, MODEL_MAX_INTERMEDIATE, &multiple, status) ||
        (has_factor && !config_factor(reader, "block_ffn_dim_multiplier", &factor, status)))
        return false;
    if (!adjusts) return true;
    uint64_t size = 2 * config->intermediate_size / 3;
    if (has_factor) {
        const double scaled = factor * (double)size;
        if (!(scaled >= 1 && scaled <= MODEL_MAX_INTERMEDIATE - (double)multiple))
            return json_reader_fail(reader, "block_ffn_dim_multiplier", "a factor that leaves a possible size",
                                    json_object_get(reader->object, "block_ffn_dim_multiplier"), status);
        size = ((uint64_t)scaled + multiple - 1) / multiple * multiple;
    }
    if (size == 0)
        return status_fail(status, STATUS_BAD_INPUT, "%s: the MLP would have no rows after block_auto_adjust_ff_dim",
                           reader->path);
    config->intermediate_size = size;
    return true;
}

/* layer_types, else full_attn_idxs, else attention in all layers. */
static bool read_mixers(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool given;
    if (!config_mixers(config, reader, "conv", MIXER_SHORT_CONV, &given, status)) return false;
    return config_attention_indices(config, reader, "full_attn_idxs", MIXER_SHORT_CONV, !given, status) &&
           config_some_attention(config, reader, status);
}

static bool read_config(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct config_defaults own = config_lfm2_defaults;
    if (json_reader_get(reader, "block_ff_dim")) { /* transformers prefers it */
        own.keys = &own_keys;
        json_reader_get(reader, "intermediate_size");
    }
    config->tie_word_embeddings = true;
    return json_reader_bool(reader, "tie_embedding", false, &config->tie_word_embeddings, status) &&
           config_sizes(config, reader, &own, status) && config_rope_defaults(config, reader, 1000000, 1, status) &&
           adjust_inner(config, reader, status) && check_own_keys(config, reader, status) &&
           read_mixers(config, reader, status) && config_short_conv(config, reader, status) &&
           config_fixed_text(reader, "hidden_act", "silu", status);
}

const struct architecture arch_lfm2 = {
    "lfm2",
    "Lfm2ForCausalLM",
    read_config,
    {LFM2_TRAITS},
    .about = "small*: short convolutions, attention in some layers",
};
