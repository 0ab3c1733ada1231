/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of the configuration keys that several families have in common. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "builder/arch/family.h"
#include "formats/base/field_rules.h"
#include "kernels/op/activation.h"

const struct config_keys config_usual_keys = {"hidden_size", "intermediate_size", "num_hidden_layers",
                                              "num_attention_heads", "max_position_embeddings"};

static bool read_heads(struct model_config *config, struct json_reader *reader, const struct config_defaults *defaults,
                       struct status *status)
{
    const struct config_keys *keys = defaults->keys ? defaults->keys : &config_usual_keys;
    if (!json_reader_u64(reader, keys->heads, true, 1, MODEL_MAX_HEADS, &config->heads, status)) return false;
    config->kv_heads = config->heads;
    if (defaults->kv_heads && !json_reader_is_null(reader, "num_key_value_heads"))
        config->kv_heads = defaults->kv_heads;
    if (!json_reader_u64(reader, "num_key_value_heads", false, 1, MODEL_MAX_HEADS, &config->kv_heads, status))
        return false;
    if (config->heads % config->kv_heads)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'num_key_value_heads': expected a divisor of num_attention_heads (%" PRIu64
                           "), found %" PRIu64 "%s",
                           reader->path, config->heads, config->kv_heads,
                           json_object_get(reader->object, "num_key_value_heads") ? "" : " (the default)");

    config->head_dim = defaults->head_dim;
    if (!json_reader_u64(reader, "head_dim", false, 2, MODEL_MAX_HEAD_DIM, &config->head_dim, status)) return false;
    if (defaults->head_dim && json_reader_is_null(reader, "head_dim"))
        return json_reader_fail(reader, "head_dim", "an integer", json_object_get(reader->object, "head_dim"), status);
    if (!config->head_dim) {
        config->head_dim = config->hidden_size / config->heads;
        if (config->hidden_size % config->heads || !config->head_dim || config->head_dim > MODEL_MAX_HEAD_DIM)
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: field 'hidden_size': expected a multiple of num_attention_heads (%" PRIu64
                               ") up to %d times, as head_dim is absent; found %" PRIu64,
                               reader->path, config->heads, MODEL_MAX_HEAD_DIM, config->hidden_size);
    }
    if (config->head_dim % 2)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'head_dim': expected an even number (rotary embedding), found %" PRIu64,
                           reader->path, config->head_dim);
    if (config->heads * config->head_dim > MODEL_MAX_ATTENTION_WIDTH)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: num_attention_heads times head_dim: expected at most %d, found %" PRIu64, reader->path,
                           MODEL_MAX_ATTENTION_WIDTH, config->heads * config->head_dim);
    return true;
}

/* A class default outside a small vocabulary cannot be intended. */
static int64_t default_token(const struct model_config *config, const struct json_reader *reader, const char *key,
                             int32_t token)
{
    return (uint64_t)token < config->vocab_size && !json_reader_is_null(reader, key) ? token : CONFIG_NO_TOKEN;
}

bool config_sizes(struct model_config *config, struct json_reader *reader, const struct config_defaults *defaults,
                  struct status *status)
{
    const char *norm_eps = defaults->norm_eps_key ? defaults->norm_eps_key : "rms_norm_eps";
    config->max_position = defaults->max_position;
    config->rms_norm_eps = defaults->rms_norm_eps;
    const struct config_keys *keys = defaults->keys ? defaults->keys : &config_usual_keys;
    if (!json_reader_u64(reader, keys->hidden, true, 1, MODEL_MAX_HIDDEN, &config->hidden_size, status)) return false;
    config->intermediate_size = defaults->inner_times * config->hidden_size;
    config->layers = defaults->layers;
    if (!json_reader_u64(reader, keys->inner, !defaults->inner_times, 1, MODEL_MAX_INTERMEDIATE,
                         &config->intermediate_size, status) ||
        !json_reader_u64(reader, keys->layers, !defaults->layers, 1, MODEL_MAX_LAYERS, &config->layers, status) ||
        !json_reader_u64(reader, "vocab_size", true, 1, MODEL_MAX_VOCAB, &config->vocab_size, status) ||
        !json_reader_u64(reader, keys->max_position, false, 1, MODEL_MAX_POSITION, &config->max_position, status) ||
        !json_reader_double(reader, norm_eps, false, &config->rms_norm_eps, status) ||
        !json_reader_bool(reader, "tie_word_embeddings", false, &config->tie_word_embeddings, status))
        return false;
    if (config->layers > MODEL_MAX_LAYERS)
        return status_fail(status, STATUS_BAD_INPUT, "%s: expected at most %d layers, found %" PRIu64, reader->path,
                           MODEL_MAX_LAYERS, config->layers);
    if (!(config->rms_norm_eps > 0 && config->rms_norm_eps < 1))
        return json_reader_fail(reader, norm_eps, "a number above 0 and below 1",
                                json_object_get(reader->object, norm_eps), status);
    const bool several = defaults->more_eos_tokens[0] != 0;
    if (several && json_reader_is_null(reader, "eos_token_id")) json_object_del(reader->object, "eos_token_id");
    const int32_t eos[3] = {defaults->eos_token, defaults->more_eos_tokens[0], defaults->more_eos_tokens[1]};
    for (int i = 0; i < (several ? 3 : 1); i++) {
        const int64_t token = i && !eos[i] ? CONFIG_NO_TOKEN : default_token(config, reader, "eos_token_id", eos[i]);
        if (token != CONFIG_NO_TOKEN) config->eos_tokens[config->eos_count++] = (int32_t)token;
    }
    config->bos_token = default_token(config, reader, "bos_token_id", defaults->bos_token);
    config->pad_token = default_token(config, reader, "pad_token_id", defaults->pad_token);
    if (!read_heads(config, reader, defaults, status)) return false;
    config->embedding_scale = config->residual_scale = config->logits_scale = 1.0;
    config->attention_scale = 1.0 / sqrt((double)config->head_dim);
    config->activation = ACTIVATION_SILU;
    return true;
}

bool config_attention_bias(struct model_config *config, struct json_reader *reader, struct status *status)
{
    if (!json_reader_bool(reader, "attention_bias", false, &config->qkv_bias, status)) return false;
    config->output_bias = config->qkv_bias;
    return true;
}

bool config_mlp_bias(struct model_config *config, struct json_reader *reader, struct status *status)
{
    return json_reader_bool(reader, "mlp_bias", false, &config->mlp_bias, status);
}

bool config_fixed(struct json_reader *reader, const char *key, bool value, struct status *status)
{
    bool found = value;
    if (!json_reader_bool(reader, key, false, &found, status)) return false;
    return found == value ||
           json_reader_fail(reader, key, value ? "true for this model_type" : "false for this model_type",
                            json_object_get(reader->object, key), status);
}

bool config_fixed_text(struct json_reader *reader, const char *key, const char *value, struct status *status)
{
    const char *found = value;
    char expected[64];
    if (!json_reader_string(reader, key, false, &found, status)) return false;
    snprintf(expected, sizeof expected, "\"%s\"", value);
    return strcmp(found, value) == 0 ||
           json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
}

bool config_factor(struct json_reader *reader, const char *key, double *value, struct status *status)
{
    const double most = 1e6, least = 1e-6; /* far from what float32 cannot hold */
    if (!json_reader_get(reader, key)) return true;
    if (!json_reader_double(reader, key, false, value, status)) return false;
    return (*value >= least && *value <= most) ||
           json_reader_fail(reader, key, "a number from 1e-6 to 1e6", json_object_get(reader->object, key), status);
}

bool config_theta(struct json_reader *reader, const char *key, double *theta, struct status *status)
{
    const double most = 1e15; /* as of rope_theta */
    if (!json_reader_double(reader, key, false, theta, status)) return false;
    return (*theta > 1 && *theta <= most) || json_reader_fail(reader, key, "a number above 1, at most 1e15",
                                                              json_object_get(reader->object, key), status);
}

bool config_rope_defaults(struct model_config *config, struct json_reader *reader, double theta,
                          double partial_rotary_factor, struct status *status)
{
    config->rope.theta = theta;
    config->rope.rotary_dim = (uint64_t)((double)config->head_dim * partial_rotary_factor);
    return config->rope.rotary_dim > 0 || /* config.json may say otherwise: rope_config_parse checks more */
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: model_type '%s' rotates %g of a head: expected two elements or more, found %" PRIu64
                       " of %" PRIu64,
                       reader->path, config->model_type, partial_rotary_factor, config->rope.rotary_dim,
                       config->head_dim);
}

void config_local_rope(struct model_config *config, double theta)
{
    config->has_local_rope = true;
    config->local_rope.theta = theta;
    for (size_t i = 0; i < config->layers; i++)
        if (config->layer[i].window) config->layer[i].rope = LAYER_ROPE_LOCAL;
}

/* A cap, or null for none. */
static bool read_cap(struct json_reader *reader, const char *key, double absent, double *cap, struct status *status)
{
    *cap = absent;
    if (!json_reader_is_null(reader, key)) return config_factor(reader, key, cap, status);
    *cap = 0;
    json_reader_get(reader, key);
    return true;
}

bool config_scalar_and_caps(struct model_config *config, struct json_reader *reader, double scores, double logits,
                            struct status *status)
{
    double scalar = 256;
    if (!config_factor(reader, "query_pre_attn_scalar", &scalar, status) ||
        !read_cap(reader, "attn_logit_softcapping", scores, &config->scores_cap, status) ||
        !read_cap(reader, "final_logit_softcapping", logits, &config->logits_cap, status))
        return false;
    config->attention_scale = 1.0 / sqrt(scalar);
    return true;
}

bool config_cap(struct model_config *config, struct json_reader *reader, double absent, struct status *status)
{
    return read_cap(reader, "final_logit_softcapping", absent, &config->logits_cap, status);
}

bool config_attention_head_dim(const struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char key[] = "attention_head_dim";
    uint64_t same = config->head_dim;
    char expected[64];
    if (!json_reader_u64(reader, key, false, 1, MODEL_MAX_HEAD_DIM, &same, status)) return false;
    snprintf(expected, sizeof expected, "the elements of a head (%" PRIu64 ")", config->head_dim);
    return same == config->head_dim ||
           json_reader_fail(reader, key, expected, json_object_get(reader->object, key), status);
}

bool config_causal(struct json_reader *reader, struct status *status)
{
    return config_fixed(reader, "use_bidirectional_attention", false, status);
}

/* layer_types, if present: one name per layer. */
static bool read_layer_types(const struct model_config *config, struct json_reader *reader, bool *given, bool *slides,
                             struct status *status)
{
    const json_t *types = json_reader_get(reader, "layer_types");
    *given = types != NULL;
    if (!types) return true;
    if (!json_is_array(types) || json_array_size(types) != config->layers) {
        char expected[64];
        snprintf(expected, sizeof expected, "an array of num_hidden_layers (%" PRIu64 ")", config->layers);
        return json_reader_fail(reader, "layer_types", expected, types, status);
    }
    for (size_t i = 0; i < config->layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *text = json_is_string(type) ? json_string_value(type) : "";
        if (strcmp(text, "full_attention") != 0 && strcmp(text, "sliding_attention") != 0)
            return json_reader_fail(reader, "layer_types", "only \"full_attention\" and \"sliding_attention\"", type,
                                    status);
        slides[i] = text[0] == 's';
    }
    return true;
}

bool config_window(struct model_config *config, struct json_reader *reader, enum config_window kind, uint64_t absent,
                   struct status *status)
{
    enum { DEFAULT_MAX_WINDOW_LAYERS = 28, DEFAULT_FIRST_WINDOW = 62 };
    bool slides[MODEL_MAX_LAYERS], use_window = false, types_given;
    uint64_t window = json_reader_is_null(reader, "sliding_window") ? 0 : absent;
    uint64_t max_window_layers = kind == CONFIG_WINDOW_FROM_LAYER ? DEFAULT_FIRST_WINDOW : DEFAULT_MAX_WINDOW_LAYERS;
    const bool window_given = json_reader_get(reader, "sliding_window") != NULL;
    const bool use_given = json_reader_get(reader, "use_sliding_window") != NULL;
    const bool must_use = kind == CONFIG_WINDOW_IF_USED || kind == CONFIG_WINDOW_BY_LAYER ||
                          kind == CONFIG_WINDOW_BY_TURNS || kind == CONFIG_WINDOW_UNROTATED;
    const bool all = kind == CONFIG_WINDOW_ALWAYS || kind == CONFIG_WINDOW_IF_USED;
    /* Writers have 0 for a window that is switched off. */
    if (!json_reader_bool(reader, "use_sliding_window", false, &use_window, status) ||
        !json_reader_u64(reader, "sliding_window", false, (use_given || must_use) && !use_window ? 0 : 1,
                         MODEL_MAX_POSITION, &window, status) ||
        !json_reader_u64(reader, "max_window_layers", false, 0, UINT32_MAX, &max_window_layers, status) ||
        !read_layer_types(config, reader, &types_given, slides, status))
        return false;

    const json_t *use = json_object_get(reader->object, "use_sliding_window");
    switch (kind) {
    case CONFIG_WINDOW_NEVER:
        if (use_window) return json_reader_fail(reader, "use_sliding_window", "false for this model_type", use, status);
        if (window_given && !use_given)
            return json_reader_fail(reader, "sliding_window", "null for this model_type",
                                    json_object_get(reader->object, "sliding_window"), status);
        window = 0;
        break;
    case CONFIG_WINDOW_ALWAYS: /* the class only reads sliding_window: the other keys must not contradict it */
        if (use_given && use_window != (window != 0))
            return json_reader_fail(reader, "use_sliding_window", window ? "true, as sliding_window is set" : "false",
                                    use, status);
        break;
    case CONFIG_WINDOW_IF_USED:
    case CONFIG_WINDOW_BY_LAYER:
    case CONFIG_WINDOW_BY_TURNS:
    case CONFIG_WINDOW_UNROTATED:
        if (!use_window) window = 0;
        break;
    case CONFIG_WINDOW_FROM_LAYER: /* the class does not read use_sliding_window */
        if (use_given && use_window != (window != 0 && max_window_layers < config->layers))
            return json_reader_fail(reader, "use_sliding_window", "what sliding_window and max_window_layers say", use,
                                    status);
        break;
    }
    bool contradiction = false;
    for (size_t i = 0; i < config->layers; i++) {
        const bool by_rule = kind == CONFIG_WINDOW_BY_TURNS    ? i < max_window_layers && i % 2 == 0
                             : kind == CONFIG_WINDOW_UNROTATED ? config->layer[i].rope == LAYER_ROPE_NONE
                                                               : all || i >= max_window_layers;
        if (!types_given) slides[i] = window && by_rule;
        contradiction |= slides[i] ? !window : all && window;
        config->layer[i].window = slides[i] ? window : 0;
    }
    return !contradiction ||
           status_fail(status, STATUS_BAD_INPUT,
                       "%s: field 'layer_types': expected %s on every layer of a '%s' model %s a sliding window, found "
                       "otherwise",
                       reader->path, window ? "\"sliding_attention\"" : "\"full_attention\"", config->model_type,
                       window ? "with" : "without");
}

/* A number, a text of L and G (local and global attention), or null; without a window transformers writes 0. */
static bool read_period(struct json_reader *reader, bool has_window, uint64_t *period, struct status *status)
{
    const json_t *pattern = json_reader_get(reader, "sliding_window_pattern");
    const char *text = json_string_value(pattern);
    if (!text)
        return json_reader_u64(reader, "sliding_window_pattern", false, has_window, MODEL_MAX_LAYERS, period, status);
    const size_t length = strlen(text);
    *period = length;
    return (length && strspn(text, "L") == length - 1 && text[length - 1] == 'G') ||
           json_reader_fail(reader, "sliding_window_pattern", "a number, or any count of L and then one G", pattern,
                            status);
}

bool config_window_pattern(struct model_config *config, struct json_reader *reader, uint64_t period, uint64_t absent,
                           struct status *status)
{
    bool slides[MODEL_MAX_LAYERS], types_given;
    uint64_t window = json_reader_is_null(reader, "sliding_window") ? 0 : absent, written = 1;
    if (!json_reader_u64(reader, "sliding_window", false, 1, MODEL_MAX_POSITION, &window, status) ||
        !json_reader_u64(reader, "_sliding_window_pattern", false, 1, MODEL_MAX_LAYERS, &written, status) ||
        !read_period(reader, window != 0, &period, status) ||
        !read_layer_types(config, reader, &types_given, slides, status))
        return false;
    for (size_t i = 0; i < config->layers; i++) {
        if (!types_given) slides[i] = window && (i + 1) % period != 0;
        config->layer[i].window = slides[i] ? window : 0;
        if (slides[i] && !window)
            return json_reader_fail(reader, "layer_types", "no \"sliding_attention\" without a sliding_window",
                                    json_object_get(reader->object, "layer_types"), status);
    }
    return true;
}

bool config_no_window_pattern(struct json_reader *reader, struct status *status)
{
    static const struct field_rule rules[] = {{"sliding_window_pattern", FIELD_ABSENT}};
    return field_rules_check(reader, rules, sizeof rules / sizeof *rules, status);
}

bool config_theta_within(struct json_reader *reader, double theta, bool scaling, struct status *status)
{
    char expected[96];
    const json_t *found = json_object_get(reader->object, "rope_theta");
    const bool is_within = json_is_object(json_object_get(reader->object, "rope_parameters")) ||
                           (scaling && json_is_object(json_object_get(reader->object, "rope_scaling")));
    if (is_within || !found || (json_is_number(found) && json_number_value(found) == theta)) return true;
    snprintf(expected, sizeof expected, "%.0f, or one in 'rope_parameters', since the class reads no other", theta);
    return json_reader_fail(reader, "rope_theta", expected, found, status);
}

bool config_window_rotates(struct model_config *config, struct json_reader *reader, uint64_t period, uint64_t absent,
                           struct status *status)
{
    const bool has_window = !json_reader_is_null(reader, "sliding_window");
    if (!config_window_pattern(config, reader, period, absent, status)) return false;
    for (size_t i = 0; i < config->layers && has_window; i++)
        if (!config->layer[i].window) config->layer[i].rope = LAYER_ROPE_NONE;
    return true;
}

bool config_own_code(const struct model_config *config, struct json_reader *reader, const char *const *classes,
                     size_t count, struct status *status)
{
    const char *key;
    json_t *value, *map = json_reader_get(reader, "auto_map");
    bool known = !map || json_is_object(map);
    char found[80];
    json_value_text(map, found, sizeof found);
    json_object_foreach (map, key, value) {
        bool listed = false;
        for (size_t i = 0; i < count; i++)
            listed |= json_is_string(value) && strcmp(json_string_value(value), classes[i]) == 0;
        if (!listed && known) json_value_text(value, found, sizeof found);
        known &= listed;
    }
    return known || status_fail(status, STATUS_BAD_INPUT,
                                "%s: field 'auto_map': the checkpoint brings modelling code of its own (%s), which is "
                                "not run; remove the field if the weights are those of a plain '%s' model",
                                reader->path, found, config->model_type);
}

/* Names that transformers gives to activations that gated products have here. */
bool config_activation(struct model_config *config, struct json_reader *reader, const char *key, enum activation absent,
                       struct status *status)
{
    static const struct {
        const char *name;
        enum activation activation;
    } known[] = {
        {"silu", ACTIVATION_SILU},           {"swish", ACTIVATION_SILU},
        {"gelu_new", ACTIVATION_GELU_TANH},  {"gelu_pytorch_tanh", ACTIVATION_GELU_TANH},
        {"gelu_fast", ACTIVATION_GELU_TANH}, {"gelu", ACTIVATION_GELU},
        {"relu2", ACTIVATION_RELU2},         {"relu", ACTIVATION_RELU},
    };
    const char *name = NULL;
    if (!json_reader_string(reader, key, false, &name, status)) return false;
    config->activation = absent;
    if (!name) return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        config->activation = known[i].activation;
        return true;
    }
    return json_reader_fail(
        reader, key,
        "\"silu\", \"swish\", \"gelu\", \"gelu_new\", \"gelu_fast\", \"gelu_pytorch_tanh\", \"relu\" or \"relu2\"",
        json_object_get(reader->object, key), status);
}

bool config_own_activation(struct model_config *config, struct json_reader *reader, const char *key,
                           enum activation absent, struct status *status)
{
    if (!config_activation(config, reader, key, absent, status)) return false;
    const int own = config->activation;
    if (!config_activation(config, reader, "hidden_act", (enum activation)own, status)) return false;
    return config->activation == own ||
           json_reader_fail(reader, "hidden_act", "the activation of the field that the class reads",
                            json_object_get(reader->object, "hidden_act"), status);
}

bool config_read_unclaimed(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    static const char *const windows[] = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"};
    bool has_window = false;
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        if (json_reader_is_unread(reader, biases[i]) && !config_fixed(reader, biases[i], false, status)) return false;
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        has_window |= json_reader_is_unread(reader, windows[i]);
    if (has_window && !config_window(config, reader, CONFIG_WINDOW_NEVER, 0, status)) return false;
    if (json_reader_is_unread(reader, "auto_map") && !config_own_code(config, reader, NULL, 0, status)) return false;
    return !json_reader_is_unread(reader, "hidden_act") ||
           config_activation(config, reader, "hidden_act", (enum activation)config->activation, status);
}
