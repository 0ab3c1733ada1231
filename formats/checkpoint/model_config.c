/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/model_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/base/field_rules.h"
#include "formats/base/json.h"
#include "formats/checkpoint/model_config_internal.h"

/* Size limits, far above any real model. They keep every product that later code forms below 2^63; the largest is the
 * bytes of a KV cache: layers * kv_heads * head_dim * 2 * 4 * max_position <= 2^(10 + 18 + 1 + 2 + 30). */
enum {
    HIDDEN_MAX = 1 << 18,
    INTERMEDIATE_MAX = 1 << 20,
    HEADS_MAX = 1 << 12,
    HEAD_DIM_MAX = 1 << 10,
    ATTENTION_WIDTH_MAX = 1 << 18, /* heads * head_dim */
    VOCAB_MAX = 1 << 24,
    POSITION_MAX = 1 << 30,
};

/* Differences between the supported model types: the defaults of the config classes of transformers 4.57 and 5.17, and
 * the fields that have a meaning. */
struct family {
    const char *model_type, *architecture;
    uint64_t default_kv_heads; /* when absent; 0: as many as heads. null always means as many as heads */
    uint64_t default_head_dim; /* when absent; 0: hidden_size / heads */
    uint64_t default_max_position;
    int32_t default_bos, default_eos; /* -1: none */
    bool reads_attention_bias, reads_mlp_bias;
    enum { WINDOW_NEVER, WINDOW_ALWAYS, WINDOW_BY_LAYER } window;
};

static const struct family families[] = {
    {"llama", "LlamaForCausalLM", 0, 0, 2048, 1, 2, true, true, WINDOW_NEVER},
    {"mistral", "MistralForCausalLM", 8, 0, 131072, 1, 2, false, false, WINDOW_ALWAYS},
    {"qwen2", "Qwen2ForCausalLM", 32, 0, 32768, -1, -1, false, false, WINDOW_BY_LAYER},
    {"qwen3", "Qwen3ForCausalLM", 32, 128, 32768, -1, -1, true, false, WINDOW_BY_LAYER},
};

enum { DEFAULT_SLIDING_WINDOW = 4096, DEFAULT_MAX_WINDOW_LAYERS = 28 };

/* Fields that need no code. Those without effect only control training, tasks other than text generation, or the
 * execution in transformers. Unknown fields are refused, so the list grows when a harmless one appears. */
static const struct field_rule plain_fields[] = {
    {"_attn_implementation", FIELD_NO_EFFECT},
    {"_attn_implementation_autoset", FIELD_NO_EFFECT},
    {"_commit_hash", FIELD_NO_EFFECT},
    {"_flash_attn_2_enabled", FIELD_NO_EFFECT},
    {"_from_model_config", FIELD_NO_EFFECT},
    {"_name_or_path", FIELD_NO_EFFECT},
    {"_pre_quantization_dtype", FIELD_NO_EFFECT},
    {"add_cross_attention", FIELD_FALSE},
    {"attention_dropout", FIELD_NO_EFFECT},
    {"attn_implementation", FIELD_NO_EFFECT},
    {"chunk_size_feed_forward", FIELD_NO_EFFECT},
    {"classifier_dropout", FIELD_NO_EFFECT},
    {"compression_config", FIELD_ABSENT},
    {"cross_attention_hidden_size", FIELD_ABSENT},
    {"embd_pdrop", FIELD_NO_EFFECT},
    {"finetuning_task", FIELD_NO_EFFECT},
    {"gradient_checkpointing", FIELD_NO_EFFECT},
    {"hidden_dropout", FIELD_NO_EFFECT},
    {"id2label", FIELD_NO_EFFECT},
    {"initializer_range", FIELD_NO_EFFECT},
    {"is_decoder", FIELD_NO_EFFECT}, /* without cross attention, which is refused */
    {"is_encoder_decoder", FIELD_FALSE},
    {"is_llama_config", FIELD_NO_EFFECT},
    {"keys_to_ignore_at_inference", FIELD_NO_EFFECT},
    {"label2id", FIELD_NO_EFFECT},
    {"max_sequence_length", FIELD_NO_EFFECT},
    {"model_max_length", FIELD_NO_EFFECT},
    {"name_or_path", FIELD_NO_EFFECT},
    {"neftune_noise_alpha", FIELD_NO_EFFECT},
    {"num_labels", FIELD_NO_EFFECT},
    {"partial_rotary_factor", FIELD_ONE},
    {"per_layer_config", FIELD_EMPTY},
    {"prefix", FIELD_NO_EFFECT},
    {"pretraining_tp", FIELD_NO_EFFECT}, /* how a sum was divided; transformers ignores it */
    {"problem_type", FIELD_NO_EFFECT},
    {"pruned_heads", FIELD_EMPTY},
    {"resid_pdrop", FIELD_NO_EFFECT},
    {"return_dict", FIELD_NO_EFFECT},
    {"rope_interleaved", FIELD_FALSE},
    {"sep_token_id", FIELD_NO_EFFECT},
    {"task_specific_params", FIELD_NO_EFFECT},
    {"tf_legacy_loss", FIELD_NO_EFFECT},
    {"tie_encoder_decoder", FIELD_NO_EFFECT},
    {"tokenizer_class", FIELD_NO_EFFECT},
    {"tokenizer_model_max_length", FIELD_NO_EFFECT},
    {"tokenizer_padding_side", FIELD_NO_EFFECT},
    {"torchscript", FIELD_NO_EFFECT},
    {"unsloth_fixed", FIELD_NO_EFFECT},
    {"unsloth_version", FIELD_NO_EFFECT},
    {"use_bfloat16", FIELD_NO_EFFECT},
    {"use_mrope", FIELD_FALSE},
};

static bool fail_value(const struct json_reader *reader, const char *key, const char *expected, const json_t *found,
                       struct status *status)
{
    char text[80];
    json_value_text(found, text, sizeof text);
    return status_fail(status, STATUS_BAD_INPUT, "%s: field '%s': expected %s, found %s", reader->path, key, expected,
                       text);
}

static bool explicit_null(const struct json_reader *reader, const char *key)
{
    return json_is_null(json_object_get(reader->object, key));
}

static const struct family *parse_family(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const char *model_type = NULL;
    if (!json_reader_string(reader, "model_type", true, &model_type, status)) return NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(model_type, families[i].model_type) != 0) continue;
        snprintf(config->model_type, sizeof config->model_type, "%s", model_type);
        return &families[i];
    }
    status_fail(status, STATUS_BAD_INPUT,
                "%s: model_type '%.80s' is not supported; supported: llama, mistral, qwen2, qwen3", reader->path,
                model_type);
    return NULL;
}

/* Fields that mark a checkpoint as something else than plain weights of its family. */
static bool parse_identity(struct model_config *config, struct json_reader *reader, const struct family *family,
                           struct status *status)
{
    const json_t *architectures = json_reader_get(reader, "architectures");
    if (architectures) {
        const char *first = json_string_value(json_array_get(architectures, 0));
        if (!first || strcmp(first, family->architecture) != 0)
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: field 'architectures': expected [\"%s\"], found \"%.80s\"", reader->path,
                               family->architecture, first ? first : json_type_name(architectures));
        snprintf(config->architecture, sizeof config->architecture, "%s", first);
    }
    const json_t *quantization = json_reader_get(reader, "quantization_config");
    if (quantization) {
        const char *method = json_string_value(json_object_get(quantization, "quant_method"));
        return status_fail(
            status, STATUS_BAD_INPUT,
            "%s: field 'quantization_config': expected an unquantized checkpoint, found quant_method '%.80s'",
            reader->path, method ? method : "?");
    }
    if (json_reader_get(reader, "auto_map"))
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'auto_map': the checkpoint brings modelling code of its own, which is not run; "
                           "remove the field if the weights are those of a plain '%s' model",
                           reader->path, family->model_type);
    const char *activation = "silu";
    if (!json_reader_string(reader, "hidden_act", false, &activation, status)) return false;
    if (strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
        return fail_value(reader, "hidden_act", "\"silu\"", json_object_get(reader->object, "hidden_act"), status);
    return true;
}

static bool parse_dtype(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    for (size_t i = 0; i < 2; i++) {
        const char *text = NULL;
        if (!json_reader_string(reader, keys[i], false, &text, status)) return false;
        if (!text) continue;
        enum dtype dtype = dtype_from_torch_name(text);
        if (dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16)
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: field '%s': expected float32, float16 or bfloat16, found '%.80s'", reader->path,
                               keys[i], text);
        if (config->dtype != DTYPE_NONE && config->dtype != dtype)
            return status_fail(status, STATUS_BAD_INPUT, "%s: fields 'dtype' and 'torch_dtype' disagree: %s and %s",
                               reader->path, dtype_name(config->dtype), dtype_name(dtype));
        config->dtype = dtype;
    }
    return true;
}

static bool parse_heads(struct model_config *config, struct json_reader *reader, const struct family *family,
                        struct status *status)
{
    if (!json_reader_u64(reader, "num_attention_heads", true, 1, HEADS_MAX, &config->heads, status)) return false;
    config->kv_heads = config->heads;
    if (family->default_kv_heads && !explicit_null(reader, "num_key_value_heads"))
        config->kv_heads = family->default_kv_heads;
    if (!json_reader_u64(reader, "num_key_value_heads", false, 1, HEADS_MAX, &config->kv_heads, status)) return false;
    if (config->heads % config->kv_heads)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'num_key_value_heads': expected a divisor of num_attention_heads (%" PRIu64
                           "), found %" PRIu64 "%s",
                           reader->path, config->heads, config->kv_heads,
                           json_object_get(reader->object, "num_key_value_heads") ? "" : " (the default)");

    config->head_dim = family->default_head_dim;
    if (!json_reader_u64(reader, "head_dim", false, 2, HEAD_DIM_MAX, &config->head_dim, status)) return false;
    if (family->default_head_dim && explicit_null(reader, "head_dim"))
        return fail_value(reader, "head_dim", "an integer", json_object_get(reader->object, "head_dim"), status);
    if (!config->head_dim) {
        config->head_dim = config->hidden_size / config->heads;
        if (config->hidden_size % config->heads || !config->head_dim || config->head_dim > HEAD_DIM_MAX)
            return status_fail(status, STATUS_BAD_INPUT,
                               "%s: field 'hidden_size': expected a multiple of num_attention_heads (%" PRIu64
                               ") up to %d times, as head_dim is absent; found %" PRIu64,
                               reader->path, config->heads, HEAD_DIM_MAX, config->hidden_size);
    }
    if (config->head_dim % 2)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'head_dim': expected an even number (rotary embedding), found %" PRIu64,
                           reader->path, config->head_dim);
    if (config->heads * config->head_dim > ATTENTION_WIDTH_MAX)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: num_attention_heads times head_dim: expected at most %d, found %" PRIu64, reader->path,
                           ATTENTION_WIDTH_MAX, config->heads * config->head_dim);
    return true;
}

static bool parse_sizes(struct model_config *config, struct json_reader *reader, const struct family *family,
                        struct status *status)
{
    config->max_position = family->default_max_position;
    config->rms_norm_eps = 1e-6;
    if (!json_reader_u64(reader, "hidden_size", true, 1, HIDDEN_MAX, &config->hidden_size, status) ||
        !json_reader_u64(reader, "intermediate_size", true, 1, INTERMEDIATE_MAX, &config->intermediate_size, status) ||
        !json_reader_u64(reader, "num_hidden_layers", true, 1, MODEL_MAX_LAYERS, &config->layers, status) ||
        !json_reader_u64(reader, "vocab_size", true, 1, VOCAB_MAX, &config->vocab_size, status) ||
        !json_reader_u64(reader, "max_position_embeddings", false, 1, POSITION_MAX, &config->max_position, status) ||
        !json_reader_double(reader, "rms_norm_eps", false, &config->rms_norm_eps, status) ||
        !json_reader_bool(reader, "tie_word_embeddings", false, &config->tie_word_embeddings, status))
        return false;
    if (!(config->rms_norm_eps > 0 && config->rms_norm_eps < 1))
        return fail_value(reader, "rms_norm_eps", "a number above 0 and below 1",
                          json_object_get(reader->object, "rms_norm_eps"), status);
    return parse_heads(config, reader, family, status);
}

/* If a family has no such bias, transformers ignores the field. The only harmless value is the one that agrees with the
 * family (qwen2 always has biases on q, k and v). */
static bool parse_biases(struct model_config *config, struct json_reader *reader, const struct family *family,
                         struct status *status)
{
    bool always = strcmp(family->model_type, "qwen2") == 0, attention = always, mlp = false;
    if (!json_reader_bool(reader, "attention_bias", false, &attention, status) ||
        !json_reader_bool(reader, "mlp_bias", false, &mlp, status))
        return false;
    if (!family->reads_attention_bias && attention != always)
        return fail_value(reader, "attention_bias", always ? "true for this model_type" : "false for this model_type",
                          json_object_get(reader->object, "attention_bias"), status);
    if (!family->reads_mlp_bias && mlp)
        return fail_value(reader, "mlp_bias", "false for this model_type", json_object_get(reader->object, "mlp_bias"),
                          status);
    config->attention_bias = family->reads_attention_bias && attention;
    config->mlp_bias = mlp;
    return true;
}

/* layer_types, if present: one name per layer. */
static bool parse_layer_types(struct model_config *config, struct json_reader *reader, bool *given,
                              struct status *status)
{
    const json_t *types = json_reader_get(reader, "layer_types");
    *given = types != NULL;
    if (!types) return true;
    if (!json_is_array(types) || json_array_size(types) != config->layers) {
        char expected[64];
        snprintf(expected, sizeof expected, "an array of num_hidden_layers (%" PRIu64 ")", config->layers);
        return fail_value(reader, "layer_types", expected, types, status);
    }
    for (size_t i = 0; i < config->layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *text = json_is_string(type) ? json_string_value(type) : "";
        if (strcmp(text, "full_attention") != 0 && strcmp(text, "sliding_attention") != 0)
            return fail_value(reader, "layer_types", "only \"full_attention\" and \"sliding_attention\"", type, status);
        config->layer_slides[i] = text[0] == 's';
    }
    return true;
}

/* sliding_window, use_sliding_window, max_window_layers and layer_types: the window of each layer. */
static bool parse_window(struct model_config *config, struct json_reader *reader, const struct family *family,
                         struct status *status)
{
    uint64_t window = explicit_null(reader, "sliding_window") ? 0 : DEFAULT_SLIDING_WINDOW;
    uint64_t max_window_layers = DEFAULT_MAX_WINDOW_LAYERS;
    bool use_window = false, given;
    bool window_given = json_reader_get(reader, "sliding_window") != NULL;
    bool use_given = json_reader_get(reader, "use_sliding_window") != NULL;
    if (!json_reader_u64(reader, "sliding_window", false, 1, POSITION_MAX, &window, status) ||
        !json_reader_bool(reader, "use_sliding_window", false, &use_window, status) ||
        !json_reader_u64(reader, "max_window_layers", false, 0, UINT32_MAX, &max_window_layers, status) ||
        !parse_layer_types(config, reader, &given, status))
        return false;

    switch (family->window) {
    case WINDOW_NEVER: /* transformers ignores these fields here: only values that mean no window are allowed */
        if (use_window)
            return fail_value(reader, "use_sliding_window", "false for this model_type",
                              json_object_get(reader->object, "use_sliding_window"), status);
        if (window_given && !use_given)
            return fail_value(reader, "sliding_window", "null for this model_type",
                              json_object_get(reader->object, "sliding_window"), status);
        window = 0;
        break;
    case WINDOW_ALWAYS: /* transformers only reads sliding_window: the others must not contradict it */
        if (use_given && use_window != (window != 0))
            return fail_value(reader, "use_sliding_window", window ? "true, as sliding_window is set" : "false",
                              json_object_get(reader->object, "use_sliding_window"), status);
        break;
    case WINDOW_BY_LAYER:
        if (!use_window) window = 0;
        break;
    }
    bool contradiction = false;
    for (size_t i = 0; i < config->layers; i++) {
        bool slides = window && (family->window == WINDOW_ALWAYS || i >= max_window_layers);
        if (!given)
            config->layer_slides[i] = slides;
        else if (config->layer_slides[i] ? !window : family->window == WINDOW_ALWAYS && window)
            contradiction = true;
    }
    if (contradiction)
        return status_fail(status, STATUS_BAD_INPUT,
                           "%s: field 'layer_types': expected %s on every layer of a '%s' model %s a sliding window, "
                           "found otherwise",
                           reader->path, window ? "\"sliding_attention\"" : "\"full_attention\"", family->model_type,
                           window ? "with" : "without");
    for (size_t i = 0; i < config->layers; i++)
        if (config->layer_slides[i]) config->sliding_window = window;
    return true;
}

bool model_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                        struct status *status)
{
    struct json_reader reader = {0};
    bool done = false;
    *config = (struct model_config){0};
    json_t *document = json_parse(text, size, name, status);
    if (!document || !json_reader_open(&reader, document, name, status)) goto done;
    const struct family *family = parse_family(config, &reader, status);
    if (!family) goto done;
    done = parse_identity(config, &reader, family, status) && parse_dtype(config, &reader, status) &&
           parse_sizes(config, &reader, family, status) && parse_biases(config, &reader, family, status) &&
           parse_window(config, &reader, family, status) && rope_config_parse(config, &reader, status);
    if (!done) goto done;
    /* A class default outside a small vocabulary cannot be intended. */
    config->bos_token = config->pad_token = -1;
    if ((uint64_t)family->default_bos < config->vocab_size && !explicit_null(&reader, "bos_token_id"))
        config->bos_token = family->default_bos;
    if ((uint64_t)family->default_eos < config->vocab_size && !explicit_null(&reader, "eos_token_id"))
        config->eos_tokens[config->eos_count++] = family->default_eos;
    config->temperature = config->top_p = config->repetition_penalty = 1.0;
    done = generation_fields_parse(config, &reader, status) &&
           field_rules_check(&reader, plain_fields, sizeof plain_fields / sizeof *plain_fields, status) &&
           json_reader_all_consumed(&reader, status);
done:
    json_reader_close(&reader);
    json_decref(document);
    return done;
}
