/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of the configuration keys of layers with recurrent state. */
#include <inttypes.h>
#include <string.h>

#include "builder/arch/family.h"
#include "kernels/delta_rule/delta_rule.h"
#include "kernels/short_conv/short_conv.h"

bool config_mixers(struct model_config *config, struct json_reader *reader, const char *name, enum layer_mixer mixer,
                   bool *given, struct status *status)
{
    const json_t *types = json_reader_get(reader, "layer_types");
    char expected[96];
    *given = types != NULL;
    if (!types) return true;
    snprintf(expected, sizeof expected, "an array of num_hidden_layers (%" PRIu64 ")", config->layers);
    if (!json_is_array(types) || json_array_size(types) != config->layers)
        return json_reader_fail(reader, "layer_types", expected, types, status);
    snprintf(expected, sizeof expected, "only \"full_attention\" and \"%s\"", name);
    for (size_t i = 0; i < config->layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *text = json_is_string(type) ? json_string_value(type) : "";
        if (strcmp(text, name) != 0 && strcmp(text, "full_attention") != 0)
            return json_reader_fail(reader, "layer_types", expected, type, status);
        config->layer[i].mixer = strcmp(text, name) == 0 ? mixer : MIXER_ATTENTION;
    }
    return true;
}

bool config_short_conv(struct model_config *config, struct json_reader *reader, struct status *status)
{
    struct model_recurrent *sizes = &config->recurrent;
    const uint64_t attending = model_attention_layers(config);
    *sizes = (struct model_recurrent){.kernel = 3, .channels = config->hidden_size};
    if (!json_reader_u64(reader, "conv_L_cache", false, 2, SHORT_CONV_MAX_KERNEL, &sizes->kernel, status) ||
        !json_reader_bool(reader, "conv_bias", false, &sizes->conv_bias, status))
        return false;
    if (attending == config->layers) *sizes = (struct model_recurrent){0};
    return attending > 0 || status_fail(status, STATUS_BAD_INPUT,
                                        "%s: expected at least one layer of attention, found none", reader->path);
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
        !json_reader_u64(reader, "linear_value_head_dim", false, 1, DELTA_RULE_MAX_DIM, &sizes->value_dim, status))
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
