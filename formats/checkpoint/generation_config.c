/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "formats/base/field_rules.h"
#include "formats/base/json.h"
#include "formats/checkpoint/model_config.h"

/* Default of transformers if it samples without a given top_k (GenerationConfig, 4.57 and 5.17). */
enum { DEFAULT_TOP_K = 50 };

/* Fields of GenerationConfig that change the next token, greedy or not. This project generates one sequence, one token
 * at a time, with temperature, top-k, top-p and repetition penalty: any other adjustment must be off. */
static const struct field_rule steering_fields[] = {
    {"bad_words_ids", FIELD_EMPTY},
    {"begin_suppress_tokens", FIELD_EMPTY},
    {"constraints", FIELD_EMPTY},
    {"dola_layers", FIELD_ABSENT},
    {"encoder_no_repeat_ngram_size", FIELD_ZERO},
    {"encoder_repetition_penalty", FIELD_ONE},
    {"exponential_decay_length_penalty", FIELD_ABSENT},
    {"force_words_ids", FIELD_EMPTY},
    {"forced_bos_token_id", FIELD_ABSENT},
    {"forced_decoder_ids", FIELD_EMPTY},
    {"forced_eos_token_id", FIELD_ABSENT},
    {"guidance_scale", FIELD_ONE},
    {"min_length", FIELD_ZERO},
    {"min_new_tokens", FIELD_ZERO},
    {"no_repeat_ngram_size", FIELD_ZERO},
    {"num_beam_groups", FIELD_ONE},
    {"num_beams", FIELD_ONE},
    {"penalty_alpha", FIELD_ZERO},
    {"sequence_bias", FIELD_EMPTY},
    {"stop_strings", FIELD_EMPTY},
    {"suppress_tokens", FIELD_EMPTY},
    {"token_healing", FIELD_FALSE},
    {"watermarking_config", FIELD_EMPTY},
};

/* Fields that only change sampling: without do_sample any value is allowed. */
static const struct field_rule sampling_fields[] = {
    {"epsilon_cutoff", FIELD_ZERO}, {"eta_cutoff", FIELD_ZERO}, {"min_p", FIELD_ZERO},
    {"top_h", FIELD_ABSENT},        {"typical_p", FIELD_ONE},
};

/* Fields that set lengths (which the caller chooses), outputs besides tokens, caches, speculation with the same output,
 * or options of beam search, which is refused above. In generation_config.json unlisted fields are allowed as well,
 * since transformers ignores them there. The list is for config.json, where unlisted fields are refused. */
static const struct field_rule harmless_fields[] = {
    {"cache_implementation", FIELD_NO_EFFECT}, {"decoder_start_token_id", FIELD_NO_EFFECT},
    {"diversity_penalty", FIELD_NO_EFFECT},    {"early_stopping", FIELD_NO_EFFECT},
    {"length_penalty", FIELD_NO_EFFECT},       {"max_length", FIELD_NO_EFFECT},
    {"max_new_tokens", FIELD_NO_EFFECT},       {"num_return_sequences", FIELD_NO_EFFECT},
    {"output_attentions", FIELD_NO_EFFECT},    {"output_hidden_states", FIELD_NO_EFFECT},
    {"output_scores", FIELD_NO_EFFECT},        {"remove_invalid_values", FIELD_NO_EFFECT},
    {"renormalize_logits", FIELD_NO_EFFECT},   {"return_dict_in_generate", FIELD_NO_EFFECT},
    {"transformers_version", FIELD_NO_EFFECT}, {"use_cache", FIELD_NO_EFFECT},
};

static bool fail_token(const struct json_reader *reader, const char *key, uint64_t vocab_size, const json_t *found,
                       struct status *status)
{
    char text[80];
    json_value_text(found, text, sizeof text);
    return status_fail(status, STATUS_BAD_INPUT,
                       "%s: field '%s': expected a token id below vocab_size (%" PRIu64 "), found %s", reader->path,
                       key, vocab_size, text);
}

static bool is_token(const json_t *value, uint64_t vocab_size)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && (uint64_t)json_integer_value(value) < vocab_size;
}

static bool parse_eos(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const json_t *value = json_reader_get(reader, "eos_token_id");
    if (!value) return true;
    bool list = json_is_array(value);
    size_t count = list ? json_array_size(value) : 1;
    config->eos_count = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *id = list ? json_array_get(value, i) : value;
        if (!is_token(id, config->vocab_size))
            return fail_token(reader, "eos_token_id", config->vocab_size, id, status);
        int32_t token = (int32_t)json_integer_value(id);
        bool seen = false;
        for (int j = 0; j < config->eos_count; j++) seen = seen || config->eos_tokens[j] == token;
        if (seen) continue;
        if (config->eos_count == MODEL_MAX_EOS)
            return status_fail(status, STATUS_BAD_INPUT, "%s: field 'eos_token_id': expected at most %d ids, found %zu",
                               reader->path, MODEL_MAX_EOS, count);
        config->eos_tokens[config->eos_count++] = token;
    }
    return true;
}

static bool parse_token_ids(struct model_config *config, struct json_reader *reader, struct status *status)
{
    const json_t *bos = json_reader_get(reader, "bos_token_id"), *pad = json_reader_get(reader, "pad_token_id");
    if (bos) {
        if (!is_token(bos, config->vocab_size))
            return fail_token(reader, "bos_token_id", config->vocab_size, bos, status);
        config->bos_token = json_integer_value(bos);
    }
    if (pad) {
        /* Nothing is padded, and real checkpoints have -1 or the first id after the vocabulary. */
        if (!json_is_integer(pad) || json_integer_value(pad) < -1 || json_integer_value(pad) > INT32_MAX)
            return fail_token(reader, "pad_token_id", config->vocab_size, pad, status);
        config->pad_token = json_integer_value(pad);
    }
    return parse_eos(config, reader, status);
}

/* A number within [minimum, maximum]; if absent, *out is unchanged. */
static bool parse_number(struct json_reader *reader, const char *key, double minimum, double maximum, double *out,
                         struct status *status)
{
    double value = *out;
    if (!json_reader_double(reader, key, false, &value, status)) return false;
    if (!(value >= minimum && value <= maximum))
        return status_fail(status, STATUS_BAD_INPUT, "%s: field '%s': expected a number from %g to %g, found %.17g",
                           reader->path, key, minimum, maximum, value);
    *out = value;
    return true;
}

bool generation_fields_parse(struct model_config *config, struct json_reader *reader, struct status *status)
{
    bool top_k_given = json_reader_get(reader, "top_k") != NULL;
    if (!parse_token_ids(config, reader, status) ||
        !json_reader_bool(reader, "do_sample", false, &config->do_sample, status) ||
        !parse_number(reader, "temperature", 0, 1e6, &config->temperature, status) ||
        !parse_number(reader, "top_p", 0, 1, &config->top_p, status) ||
        !parse_number(reader, "repetition_penalty", 0.01, 1e6, &config->repetition_penalty, status) ||
        !json_reader_u64(reader, "top_k", false, 0, INT32_MAX, &config->top_k, status) ||
        !field_rules_check(reader, steering_fields, sizeof steering_fields / sizeof *steering_fields, status) ||
        !field_rules_check(reader, harmless_fields, sizeof harmless_fields / sizeof *harmless_fields, status))
        return false;
    if (config->do_sample && !top_k_given && !config->top_k) config->top_k = DEFAULT_TOP_K;
    size_t sampling_count = sizeof sampling_fields / sizeof *sampling_fields;
    if (config->do_sample) return field_rules_check(reader, sampling_fields, sampling_count, status);
    for (size_t i = 0; i < sampling_count; i++) json_reader_get(reader, sampling_fields[i].key); /* read, no effect */
    return true;
}

bool generation_config_parse(struct model_config *config, const char *text, size_t size, const char *name,
                             struct status *status)
{
    struct json_reader reader = {0};
    json_t *document = json_parse(text, size, name, status);
    bool done = document && json_reader_open(&reader, document, name, status) &&
                generation_fields_parse(config, &reader, status);
    json_reader_close(&reader);
    json_decref(document);
    return done;
}
