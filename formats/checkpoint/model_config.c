/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/model_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/field_rules.h"
#include "formats/base/json.h"

/* Fields that need no code. Those without effect only control training, tasks other than text generation, or the
 * execution in transformers. Unknown fields are refused, so the list grows when a harmless one appears. */
static const struct field_rule plain_fields[] = {
    {"_attn_implementation", FIELD_NO_EFFECT},
    {"_attn_implementation_autoset", FIELD_NO_EFFECT},
    {"_commit_hash", FIELD_NO_EFFECT},
    {"_flash_attn_2_enabled", FIELD_NO_EFFECT},
    {"_from_model_config", FIELD_NO_EFFECT},
    {"_name_or_path", FIELD_NO_EFFECT},
    {"_num_labels", FIELD_NO_EFFECT},
    {"_pre_quantization_dtype", FIELD_NO_EFFECT},
    {"add_cross_attention", FIELD_FALSE},
    {"attention_dropout", FIELD_NO_EFFECT},
    {"attention_probs_dropout_prob", FIELD_NO_EFFECT},
    {"attn_implementation", FIELD_NO_EFFECT},
    {"attn_pdrop", FIELD_NO_EFFECT},
    {"chunk_size_feed_forward", FIELD_NO_EFFECT},
    {"classifier_dropout", FIELD_NO_EFFECT},
    {"cross_attention_hidden_size", FIELD_ABSENT},
    {"custom_pipeline", FIELD_NO_EFFECT}, /* code around the model, as the next */
    {"custom_pipelines", FIELD_NO_EFFECT},
    {"embd_pdrop", FIELD_NO_EFFECT},
    {"dropout", FIELD_NO_EFFECT},
    {"embedding_dropout", FIELD_NO_EFFECT},
    {"finetuning_task", FIELD_NO_EFFECT},
    {"gradient_checkpointing", FIELD_NO_EFFECT},
    {"hidden_dropout", FIELD_NO_EFFECT},
    {"hidden_dropout_prob", FIELD_NO_EFFECT},
    {"id2label", FIELD_NO_EFFECT},
    {"initializer_range", FIELD_NO_EFFECT},
    {"internal_version", FIELD_NO_EFFECT},
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
    {"output_past", FIELD_NO_EFFECT}, /* an earlier name of use_cache */
    {"per_layer_config", FIELD_EMPTY},
    {"prefix", FIELD_NO_EFFECT},
    {"pretraining_tp", FIELD_NO_EFFECT}, /* how a sum was divided; transformers ignores it */
    {"problem_type", FIELD_NO_EFFECT},
    {"pruned_heads", FIELD_EMPTY},
    {"resid_pdrop", FIELD_NO_EFFECT},
    {"residual_dropout", FIELD_NO_EFFECT},
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
    {"transformers.js_config", FIELD_NO_EFFECT},
    {"unsloth_fixed", FIELD_NO_EFFECT},
    {"unsloth_version", FIELD_NO_EFFECT},
    {"use_bfloat16", FIELD_NO_EFFECT},
    {"use_mrope", FIELD_FALSE},
};

/* compression_config: the name that older compressed-tensors used. */
static bool parse_quantisation(struct model_config *config, struct json_reader *reader, struct status *status)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    char path[512];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *found = json_reader_get(reader, keys[i]);
        if (!found) continue;
        if (config->quantisation.method != QUANT_NONE)
            return json_reader_fail(reader, keys[i], "one of quantization_config and compression_config", found,
                                    status);
        snprintf(path, sizeof path, "%.400s: %s", reader->path, keys[i]);
        if (!quant_config_parse(&config->quantisation, found, path, status)) return false;
    }
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

/* What later code relies on, whichever family filled the fields. */
static bool check_limits(const struct model_config *config, const char *name, struct status *status)
{
    const struct {
        const char *what;
        uint64_t value, limit;
    } sizes[] = {
        {"hidden_size", config->hidden_size, MODEL_MAX_HIDDEN},
        {"intermediate_size", config->intermediate_size, MODEL_MAX_INTERMEDIATE},
        {"layers", config->layers, MODEL_MAX_LAYERS},
        {"heads", config->heads, MODEL_MAX_HEADS},
        {"kv_heads", config->kv_heads, config->heads},
        {"head_dim", config->head_dim, MODEL_MAX_HEAD_DIM},
        {"heads * head_dim", config->heads * config->head_dim, MODEL_MAX_ATTENTION_WIDTH},
        {"vocab_size", config->vocab_size, MODEL_MAX_VOCAB},
        {"max_position", config->max_position, MODEL_MAX_POSITION},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].limit)
            return status_fail(status, STATUS_INTERNAL,
                               "%s: model_type '%s': %s is %" PRIu64 ", expected 1 to %" PRIu64
                               " (the reader of this model_type did not check it)",
                               name, config->model_type, sizes[i].what, sizes[i].value, sizes[i].limit);
    if (config->heads % config->kv_heads || rope_whole_dim(config) % 2)
        return status_fail(status, STATUS_INTERNAL,
                           "%s: model_type '%s': heads are no multiple of kv_heads or head_dim is odd (the reader of "
                           "this model_type did not check it)",
                           name, config->model_type);
    return true;
}

bool model_config_check_plain_fields(struct json_reader *reader, struct status *status)
{
    return field_rules_check(reader, plain_fields, sizeof plain_fields / sizeof *plain_fields, status);
}

/* Python writes infinity as a bare word, which is not JSON: a copy of the text with a number beyond float32 of the same length in its
 * place. NULL: out of memory. */
static char *without_infinity(const char *text, size_t size)
{
    static const char word[] = "Infinity", number[] = "1.7e+308";
    _Static_assert(sizeof word == sizeof number, "places in messages stay right");
    char *copy = malloc(size + 1);
    bool in_string = false;
    if (!copy) return NULL;
    memcpy(copy, text, size);
    copy[size] = '\0';
    for (size_t i = 0; i < size; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && size - i >= sizeof word - 1 && memcmp(text + i, word, sizeof word - 1) == 0)
            memcpy(copy + i, number, sizeof number - 1);
    }
    return copy;
}

bool model_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                        model_config_reader *read_family, struct status *status)
{
    struct json_reader reader = {0};
    bool done = false;
    const char *model_type = NULL;
    *config = (struct model_config){.temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0};
    json_t *document = NULL;
    char *copy = without_infinity(text, size);
    if (copy)
        document = json_parse(copy, size, name, status);
    else
        status_fail(status, STATUS_MACHINE, "%s: out of memory", name);
    free(copy);
    if (!document || !json_reader_open(&reader, document, name, status)) goto done;
    if (!json_reader_string(&reader, "model_type", true, &model_type, status)) goto done;
    snprintf(config->model_type, sizeof config->model_type, "%s", model_type);
    done = read_family(config, &reader, status) && check_limits(config, name, status) &&
           parse_quantisation(config, &reader, status) && parse_dtype(config, &reader, status) &&
           generation_fields_parse(config, &reader, status) && model_config_check_plain_fields(&reader, status) &&
           json_reader_all_consumed(&reader, status);
done:
    json_reader_close(&reader);
    json_decref(document);
    return done;
}
