/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of the configuration keys of layers with recurrent state. */
#include <float.h>
#include <inttypes.h>
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/state_space/state_space.h"

bool config_mixers(struct model_config *config, struct json_reader *reader, const char *name, enum layer_mixer mixer,
                   bool *given, struct status *status)
{
    const json_t *types = json_reader_get(reader, "layer_types");
    char expected[128];
    *given = types != NULL;
    if (!types) return true;
    snprintf(expected, sizeof expected, "an array of num_hidden_layers (%" PRIu64 ")", config->layers);
    if (!json_is_array(types) || json_array_size(types) != config->layers)
        return json_reader_fail(reader, "layer_types", expected, types, status);
    const bool is_state_space = mixer == MIXER_STATE_SPACE; /* whose layers older files name otherwise */
    snprintf(expected, sizeof expected, "only \"full_attention\" and \"%s\"%s", name,
             is_state_space ? ", or \"attention\" and \"mamba\"" : "");
    for (size_t i = 0; i < config->layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *text = json_is_string(type) ? json_string_value(type) : "";
        const bool mixes = strcmp(text, name) == 0 || (is_state_space && strcmp(text, "mamba") == 0);
        if (!mixes && strcmp(text, "full_attention") != 0 && !(is_state_space && strcmp(text, "attention") == 0))
            return json_reader_fail(reader, "layer_types", expected, type, status);
        config->layer[i].mixer = mixes ? mixer : MIXER_ATTENTION;
    }
    return true;
}

bool config_attention_indices(struct model_config *config, struct json_reader *reader, const char *key,
                              enum layer_mixer mixer, bool applies, struct status *status)
{
    const json_t *indices = json_reader_get(reader, key);
    bool attends[MODEL_MAX_LAYERS] = {false};
    if (!indices) return true;
    if (!json_is_array(indices)) return json_reader_fail(reader, key, "an array", indices, status);
    for (size_t i = 0; i < json_array_size(indices); i++) {
        const json_t *index = json_array_get(indices, i);
        const json_int_t layer = json_is_integer(index) ? json_integer_value(index) : -1;
        if (layer < 0 || (uint64_t)layer >= config->layers)
            return json_reader_fail(reader, key, "numbers of layers", index, status);
        attends[layer] = true;
    }
    for (uint64_t i = 0; applies && i < config->layers; i++)
        config->layer[i].mixer = attends[i] ? MIXER_ATTENTION : mixer;
    return true;
}

bool config_some_attention(const struct model_config *config, const struct json_reader *reader, struct status *status)
{
    return model_attention_layers(config) > 0 ||
           status_fail(status, STATUS_BAD_INPUT, "%s: expected at least one layer of attention, found none",
                       reader->path);
}

bool config_short_conv(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_recurrent *sizes = &config->recurrent;
    *sizes = (struct model_recurrent){.kernel = 3, .channels = config->hidden_size};
    if (!json_reader_u64(reader, "conv_L_cache", false, 2, SHORT_CONV_MAX_KERNEL, &sizes->kernel, status) ||
        !json_reader_bool(reader, "conv_bias", false, &sizes->conv_bias, status))
        return false;
    sizes->projection_bias = sizes->conv_bias;
    if (model_attention_layers(config) == config->layers) *sizes = (struct model_recurrent){0};
    return true;
}

bool config_delta_rule_layers(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool given;
    uint64_t interval = 4;
    if (!config_mixers(config, reader, "linear_attention", MIXER_DELTA_RULE, &given, status) ||
        !json_reader_u64(reader, "full_attention_interval", false, 1, MODEL_MAX_LAYERS, &interval, status))
        return false;
    for (uint64_t i = 0; !given && i < config->layers; i++)
        config->layer[i].mixer = (i + 1) % interval ? MIXER_DELTA_RULE : MIXER_ATTENTION;
    return model_attention_layers(config) > 0 ||
           json_reader_fail(reader, "layer_types", "at least one layer of \"full_attention\"",
                            json_object_get(reader->object, "layer_types"), status);
}

bool config_delta_rule(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_recurrent *sizes = &config->recurrent;
    *sizes =
        (struct model_recurrent){.kernel = 4, .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
    if (!json_reader_u64(reader, "linear_conv_kernel_dim", false, 2, SHORT_CONV_MAX_KERNEL, &sizes->kernel, status) ||
        !json_reader_u64(reader, "linear_num_key_heads", false, 1, MODEL_MAX_HEADS, &sizes->key_heads, status) ||
        !json_reader_u64(reader, "linear_num_value_heads", false, 1, MODEL_MAX_HEADS, &sizes->value_heads, status) ||
        !json_reader_u64(reader, "linear_key_head_dim", false, 1, DELTA_RULE_MAX_DIM, &sizes->key_dim, status) ||
        !json_reader_u64(reader, "linear_value_head_dim", false, 1, DELTA_RULE_MAX_DIM, &sizes->value_dim, status) ||
        !config_fixed_text(reader, "hidden_act", "silu", status)) /* of the convolution, too */
        return false;
    if (sizes->value_heads % sizes->key_heads)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'linear_num_value_heads': expected a multiple of linear_num_key_heads (%" PRIu64
                           "), found %" PRIu64,
                           reader->path, sizes->key_heads, sizes->value_heads);
    sizes->channels = 2 * sizes->key_heads * sizes->key_dim + sizes->value_heads * sizes->value_dim;
    return sizes->channels <= MODEL_MAX_ATTENTION_WIDTH ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: the widths of q, k and v of linear attention: expected at most %d in all, found %" PRIu64,
                       reader->path, MODEL_MAX_ATTENTION_WIDTH, sizes->channels);
}

const struct state_space_keys config_mamba_keys = {
    .heads = "mamba_n_heads",
    .groups = "mamba_n_groups",
    .state_dim = "mamba_d_state",
    .head_dim = "mamba_d_head",
    .kernel = "mamba_d_conv",
    .expand = "mamba_expand",
    .conv_bias = "mamba_conv_bias",
    .projection_bias = "mamba_proj_bias",
    .chunk = "mamba_chunk_size",
    .activation = "hidden_act",
};

/* An integer, or "auto" for the value that it had. */
static bool read_automatic(struct json_reader *reader, const char *key, uint64_t most, uint64_t *value,
                           struct status *status)
{
    const json_t *found = json_reader_get(reader, key);
    if (json_is_string(found) && strcmp(json_string_value(found), "auto") == 0) return true;
    return json_reader_u64(reader, key, false, 1, most, value, status);
}

/* Widths of the projections and of the convolution must be possible, and those of the heads be what the class makes of hidden_size. */
static bool check_widths(const struct model_config *config, const struct json_reader *reader,
                         const struct state_space_keys *keys, uint64_t inner, struct status *status)
{
    const struct model_recurrent *sizes = &config->recurrent;
    if (sizes->value_heads % sizes->key_heads)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field '%s': expected a multiple of %s (%" PRIu64 "), found %" PRIu64, reader->path,
                           keys->heads, keys->groups, sizes->key_heads, sizes->value_heads);
    if (inner && sizes->value_heads * sizes->value_dim != inner)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field '%s': expected %s times %s to be all elements of the heads (%" PRIu64
                           "), found %" PRIu64 " times %" PRIu64,
                           reader->path, keys->head_dim, keys->heads, keys->head_dim, inner, sizes->value_heads,
                           sizes->value_dim);
    if (sizes->value_dim % 2)
        return status_fail(status, STATUS_BAD_INPUT, "%s: field '%s': expected an even number, found %" PRIu64,
                           reader->path, keys->head_dim, sizes->value_dim);
    return sizes->channels <= MODEL_MAX_ATTENTION_WIDTH ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: the widths of x, B and C of the state spaces: expected at most %d in all, found %" PRIu64,
                       reader->path, MODEL_MAX_ATTENTION_WIDTH, sizes->channels);
}

bool config_state_space(struct model_config *config, struct json_reader *reader, const struct state_space_keys *keys,
                        const struct state_space_defaults *defaults, struct status *status)
{
    enum { MOST_EXPAND = 64 };
    const struct field_rule chunk = {keys->chunk, FIELD_NO_EFFECT}; /* of the class's algorithm */
    struct model_recurrent *sizes = &config->recurrent;
    uint64_t expand = 2;
    *sizes = (struct model_recurrent){.kernel = 4,
                                      .key_heads = defaults->groups,
                                      .value_heads = defaults->heads,
                                      .key_dim = defaults->state_dim,
                                      .value_dim = defaults->head_dim,
                                      .conv_bias = true,
                                      .norm_groups = 1,
                                      .dt_max = FLT_MAX};
    if (!json_reader_u64(reader, keys->expand, false, 1, MOST_EXPAND, &expand, status) ||
        !json_reader_u64(reader, keys->heads, false, 1, MODEL_MAX_HEADS, &sizes->value_heads, status))
        return false;
    const uint64_t inner = defaults->width ? defaults->width : expand * config->hidden_size;
    if (!sizes->value_dim) sizes->value_dim = inner / sizes->value_heads;
    if (!json_reader_u64(reader, keys->groups, false, 1, MODEL_MAX_HEADS, &sizes->key_heads, status) ||
        !json_reader_u64(reader, keys->state_dim, false, 1, STATE_SPACE_MAX_DIM, &sizes->key_dim, status) ||
        !read_automatic(reader, keys->head_dim, STATE_SPACE_MAX_DIM, &sizes->value_dim, status) ||
        !json_reader_u64(reader, keys->kernel, false, 2, SHORT_CONV_MAX_KERNEL, &sizes->kernel, status) ||
        !json_reader_bool(reader, keys->conv_bias, false, &sizes->conv_bias, status) ||
        !json_reader_bool(reader, keys->projection_bias, false, &sizes->projection_bias, status) ||
        !field_rules_check(reader, &chunk, 1, status) || !config_fixed_text(reader, keys->activation, "silu", status))
        return false;
    if (sizes->value_dim < 1 || sizes->value_dim > STATE_SPACE_MAX_DIM)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field '%s': expected 1 to %d elements of a head, found %" PRIu64, reader->path,
                           keys->head_dim, STATE_SPACE_MAX_DIM, sizes->value_dim);
    sizes->channels = 2 * sizes->key_heads * sizes->key_dim + sizes->value_heads * sizes->value_dim;
    return check_widths(config, reader, keys, defaults->head_dim ? 0 : inner, status);
}

/* A number, or infinity as transformers writes it. */
static bool read_limit(const json_t *value, double *limit)
{
    const char *text = json_string_value(json_object_get(value, "__float__"));
    *limit = text && strcmp(text, "Infinity") == 0 ? (double)FLT_MAX : json_number_value(value);
    return (text || json_is_number(value)) && *limit >= 0;
}

void config_no_state_space(struct json_reader *reader, const struct state_space_keys *keys)
{
    const char *const all[] = {keys->heads,  keys->groups,    keys->state_dim,       keys->head_dim, keys->kernel,
                               keys->expand, keys->conv_bias, keys->projection_bias, keys->chunk,    "time_step_limit"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) json_reader_get(reader, all[i]);
}

bool config_time_step_limit(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_recurrent *sizes = &config->recurrent;
    const json_t *limits = json_reader_get(reader, "time_step_limit");
    if (!limits) return true;
    const bool ok = json_is_array(limits) && json_array_size(limits) == 2 &&
                    read_limit(json_array_get(limits, 0), &sizes->dt_min) &&
                    read_limit(json_array_get(limits, 1), &sizes->dt_max) && sizes->dt_min <= sizes->dt_max &&
                    sizes->dt_max > 0;
    sizes->dt_min += 0.0; /* -0 is 0 */
    if (sizes->dt_max > (double)FLT_MAX) sizes->dt_max = (double)FLT_MAX;
    return (ok && sizes->dt_min <= sizes->dt_max) ||
           json_reader_fail(reader, "time_step_limit", "two rising numbers from 0 on", limits, status);
}
