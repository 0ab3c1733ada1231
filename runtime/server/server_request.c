/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_request.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_chat.h"

enum {
    GENERATE = SERVER_CHAT | SERVER_COMPLETION,
    ALL = GENERATE | SERVER_TOKENIZE | SERVER_DETOKENIZE | SERVER_EMBEDDING
};

/* Bounds the memory of the JSON tree, in which the shortest value takes a hundred times its text. */
enum { MOST_JSON_VALUES = 500000 };

static bool wrong(struct server_error *error, const char *name, const char *expected, const json_t *found)
{
    char text[160];
    json_value_text(found, text, sizeof text);
    return server_fail(error, 400, "invalid_value", name, "%s: expected %s, found %s", name, expected, text);
}

/* ---- readers of fields ---- */

struct field {
    const char *name;
    unsigned endpoints; /* enum server_endpoint */
    bool (*read)(const struct field *field, const json_t *value, struct server_request *request,
                 struct server_error *error);
    size_t offset;      /* in struct server_request */
    double least, most; /* of a number */
    bool above_least;   /* the least itself is refused, too */
};

static void *target(const struct field *field, struct server_request *request)
{
    return (char *)request + field->offset;
}

static bool read_bool(const struct field *field, const json_t *value, struct server_request *request,
                      struct server_error *error)
{
    if (!json_is_boolean(value)) return wrong(error, field->name, "true or false", value);
    *(bool *)target(field, request) = json_is_true(value);
    return true;
}

static bool read_real(const struct field *field, const json_t *value, struct server_request *request,
                      struct server_error *error)
{
    const double number = json_number_value(value);
    char expected[96];
    if (json_is_number(value) && number >= field->least && number <= field->most &&
        !(field->above_least && number <= field->least)) {
        *(double *)target(field, request) = number;
        return true;
    }
    snprintf(expected, sizeof expected, "a number %s %g and at most %g", field->above_least ? "above" : "of at least",
             field->least, field->most);
    return wrong(error, field->name, expected, value);
}

static bool read_count(const struct field *field, const json_t *value, struct server_request *request,
                       struct server_error *error)
{
    const json_int_t number = json_integer_value(value);
    char expected[96];
    if (json_is_integer(value) && (double)number >= field->least && (double)number <= field->most) {
        *(uint64_t *)target(field, request) = (uint64_t)number;
        return true;
    }
    snprintf(expected, sizeof expected, "an integer from %.0f to %.0f", field->least, field->most);
    return wrong(error, field->name, expected, value);
}

static bool read_top_k(const struct field *field, const json_t *value, struct server_request *request,
                       struct server_error *error)
{
    const json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < -1 || number > INT32_MAX)
        return wrong(error, field->name, "an integer from -1 (all tokens) to 2147483647", value);
    request->top_k = number < 0 ? 0 : number;
    return true;
}

static bool read_seed(const struct field *field, const json_t *value, struct server_request *request,
                      struct server_error *error)
{
    if (!json_is_integer(value)) return wrong(error, field->name, "an integer", value);
    request->seed = (uint64_t)json_integer_value(value);
    request->seed_given = true;
    return true;
}

static bool read_model(const struct field *field, const json_t *value, struct server_request *request,
                       struct server_error *error)
{
    if (!json_is_string(value)) return wrong(error, field->name, "the name of a model", value);
    request->model = json_string_value(value);
    return true;
}

/* Any string, which changes nothing. */
static bool read_label(const struct field *field, const json_t *value, struct server_request *request,
                       struct server_error *error)
{
    (void)request;
    return json_is_string(value) || wrong(error, field->name, "a string", value);
}

/* An object that changes nothing: a hint for what this server does by itself. */
static bool read_hint(const struct field *field, const json_t *value, struct server_request *request,
                      struct server_error *error)
{
    (void)request;
    return json_is_object(value) || wrong(error, field->name, "an object", value);
}

/* Labels for a list of stored answers, which this server does not keep. */
static bool read_labels(const struct field *field, const json_t *value, struct server_request *request,
                        struct server_error *error)
{
    const char *key;
    const json_t *text;
    (void)request;
    if (!json_is_object(value)) return wrong(error, field->name, "an object", value);
    json_object_foreach ((json_t *)(uintptr_t)value, key, text)
        if (!json_is_string(text)) return wrong(error, field->name, "an object of strings", text);
    return true;
}

static bool read_stream_options(const struct field *field, const json_t *value, struct server_request *request,
                                struct server_error *error)
{
    const char *key;
    const json_t *option;
    if (!json_is_object(value)) return wrong(error, field->name, "an object", value);
    json_object_foreach ((json_t *)(uintptr_t)value, key, option) {
        /* What would hide the lengths of tokens is not sent. */
        const bool is_usage = strcmp(key, "include_usage") == 0;
        if (!is_usage && strcmp(key, "include_obfuscation") != 0)
            return server_fail(error, 400, "unknown_parameter", field->name,
                               "stream_options: field '%.64s' is not supported; expected include_usage or "
                               "include_obfuscation",
                               key);
        if (!json_is_boolean(option))
            return wrong(error, is_usage ? "stream_options.include_usage" : "stream_options.include_obfuscation",
                         "true or false", option);
        if (is_usage) request->include_usage = json_is_true(option);
    }
    return true;
}

static bool add_stop(const json_t *value, struct server_request *request, struct server_error *error)
{
    const size_t length = json_string_length(value);
    if (!json_is_string(value) || length < 1 || length > SERVER_MOST_STOP_BYTES)
        return server_fail(error, 400, "invalid_value", "stop", "stop: expected strings of 1 to %d bytes, found %s",
                           SERVER_MOST_STOP_BYTES,
                           json_is_string(value) ? "one of another length" : json_type_name(value));
    request->stops[request->stop_count++] = json_string_value(value);
    return true;
}

static bool read_stop(const struct field *field, const json_t *value, struct server_request *request,
                      struct server_error *error)
{
    if (json_is_string(value)) return add_stop(value, request, error);
    if (!json_is_array(value) || json_array_size(value) > SERVER_MOST_STOPS)
        return wrong(error, field->name, "a string or an array of up to 16 strings", value);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!add_stop(json_array_get(value, i), request, error)) return false;
    return true;
}

static bool is_token(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= INT32_MAX;
}

static bool read_stop_tokens(const struct field *field, const json_t *value, struct server_request *request,
                             struct server_error *error)
{
    /* One is left for the token that ends an answer in the chat template. */
    enum { MOST = ENG_MAX_STOP_TOKENS - 1 };
    if (!json_is_array(value) || json_array_size(value) > MOST)
        return wrong(error, field->name, "an array of up to 15 token ids", value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *token = json_array_get(value, i);
        if (!is_token(token)) return wrong(error, field->name, "token ids", token);
        request->stop_tokens[request->stop_token_count++] = (int32_t)json_integer_value(token);
    }
    return true;
}

/* 0: no answer, as completions have it. */
static bool read_completion_tokens(const struct field *field, const json_t *value, struct server_request *request,
                                   struct server_error *error)
{
    request->no_answer = json_is_integer(value) && json_integer_value(value) == 0;
    return read_count(field, value, request, error);
}

/* The number of likeliest tokens, as completions have it. */
static bool read_logprobs(const struct field *field, const json_t *value, struct server_request *request,
                          struct server_error *error)
{
    request->wants_logprobs = true;
    return read_count(field, value, request, error);
}

static bool read_format(const struct field *field, const json_t *value, struct server_request *request,
                        struct server_error *error)
{
    return server_format_read(field->name, value, &request->format, error);
}

/* A token id as the key of an object: digits alone. */
static bool read_id(const char *key, int32_t *token)
{
    enum { MOST_DIGITS = 10 };
    const size_t digits = strspn(key, "0123456789");
    if (!digits || digits > MOST_DIGITS || key[digits]) return false;
    const unsigned long long number = strtoull(key, NULL, 10);
    if (number > INT32_MAX) return false;
    *token = (int32_t)number;
    return true;
}

static bool read_biases(const struct field *field, const json_t *value, struct server_request *request,
                        struct server_error *error)
{
    enum { MOST_BIAS = 100 };
    const char *key;
    const json_t *bias;
    const size_t count = json_object_size(value);
    if (!json_is_object(value) || count > ENG_MAX_LOGIT_BIASES)
        return wrong(error, field->name, "an object of up to 1024 token ids, each with its bias", value);
    request->biases = malloc((count + 1) * sizeof *request->biases);
    if (!request->biases) return server_fail_memory(error);
    json_object_foreach ((json_t *)(uintptr_t)value, key, bias) {
        const double number = json_number_value(bias);
        int32_t token;
        if (!read_id(key, &token))
            return server_fail(error, 400, "invalid_value", field->name,
                               "%s: expected token ids, such as \"42\", as keys, found '%.64s'", field->name, key);
        if (!json_is_number(bias) || number < -MOST_BIAS || number > MOST_BIAS)
            return wrong(error, field->name, "biases from -100 to 100", bias);
        request->biases[request->bias_count++] = (struct eng_logit_bias){token, (float)number};
    }
    return true;
}

/* ---- prompts ---- */

static bool read_ids(const json_t *array, const char *name, struct server_prompt *prompt, struct server_error *error)
{
    const size_t count = json_array_size(array);
    prompt->tokens = malloc((count + 1) * sizeof *prompt->tokens);
    if (!prompt->tokens) return server_fail_memory(error);
    prompt->count = count;
    for (size_t i = 0; i < count; i++) {
        const json_t *token = json_array_get(array, i);
        if (!is_token(token)) return wrong(error, name, "token ids from 0", token);
        prompt->tokens[i] = (int32_t)json_integer_value(token);
    }
    return true;
}

static bool read_one_prompt(const json_t *value, const char *name, struct server_prompt *prompt,
                            struct server_error *error)
{
    if (json_is_string(value)) {
        prompt->text = json_string_value(value);
        prompt->size = json_string_length(value);
        return true;
    }
    if (json_is_array(value)) return read_ids(value, name, prompt, error);
    return wrong(error, name, "a string, an array of token ids, or an array of either", value);
}

static bool make_prompts(struct server_request *request, size_t count, struct server_error *error)
{
    request->prompts = calloc(count, sizeof *request->prompts);
    request->prompt_count = request->prompts ? count : 0;
    return request->prompts || server_fail_memory(error);
}

static bool read_prompt(const struct field *field, const json_t *value, struct server_request *request,
                        struct server_error *error)
{
    const json_t *first = json_array_get(value, 0);
    if (request->endpoint == SERVER_TOKENIZE && !json_is_string(value))
        return wrong(error, field->name, "a string", value);
    if (!json_is_array(value) || json_is_integer(first))
        return make_prompts(request, 1, error) && read_one_prompt(value, field->name, request->prompts, error);
    const size_t count = json_array_size(value);
    const bool embeds = request->endpoint == SERVER_EMBEDDING;
    if (count < 1 || count > (embeds ? SERVER_MOST_INPUTS : SERVER_MOST_CHOICES))
        return wrong(error, field->name, embeds ? "1 to 2048 inputs" : "1 to 128 prompts", value);
    if (!make_prompts(request, count, error)) return false;
    for (size_t i = 0; i < count; i++)
        if (!read_one_prompt(json_array_get(value, i), field->name, &request->prompts[i], error)) return false;
    return true;
}

static bool read_tokens(const struct field *field, const json_t *value, struct server_request *request,
                        struct server_error *error)
{
    if (!json_is_array(value)) return wrong(error, field->name, "an array of token ids", value);
    return make_prompts(request, 1, error) && read_ids(value, field->name, request->prompts, error);
}

static bool read_encoding(const struct field *field, const json_t *value, struct server_request *request,
                          struct server_error *error)
{
    const char *format = json_string_value(value);
    request->is_base64 = format && strcmp(format, "base64") == 0;
    return request->is_base64 || (format && strcmp(format, "float") == 0) ||
           wrong(error, field->name, "\"float\" or \"base64\"", value);
}

static bool read_pooling(const struct field *field, const json_t *value, struct server_request *request,
                         struct server_error *error)
{
    const char *pooling = json_string_value(value);
    request->is_mean = pooling && strcmp(pooling, "mean") == 0;
    return request->is_mean || (pooling && strcmp(pooling, "last") == 0) ||
           wrong(error, field->name, "\"last\" or \"mean\"", value);
}

static bool read_tools(const struct field *field, const json_t *value, struct server_request *request,
                       struct server_error *error)
{
    (void)field;
    return server_tools_read((json_t *)(uintptr_t)value, &request->tools, error);
}

static bool read_effort(const struct field *field, const json_t *value, struct server_request *request,
                        struct server_error *error)
{
    if (!json_is_string(value)) return wrong(error, field->name, "a string", value);
    request->effort = json_string_value(value);
    return true;
}

/* Messages, variables of the template and tool_choice are read together, after all fields. */
static bool read_chat(const struct field *field, const json_t *value, struct server_request *request,
                      struct server_error *error)
{
    (void)field, (void)value, (void)request, (void)error;
    return true;
}

/* ---- the tables ---- */

#define AT(member) .offset = offsetof(struct server_request, member)

static const struct field fields[] = {
    {"model", ALL, .read = read_model},
    {"messages", SERVER_CHAT | SERVER_TOKENIZE, .read = read_chat},
    {"chat_template_kwargs", SERVER_CHAT | SERVER_TOKENIZE, .read = read_chat},
    {"add_generation_prompt", SERVER_CHAT | SERVER_TOKENIZE, read_bool, AT(add_generation)},
    {"prompt", SERVER_COMPLETION | SERVER_TOKENIZE, .read = read_prompt},
    {"input", SERVER_EMBEDDING, .read = read_prompt},
    {"encoding_format", SERVER_EMBEDDING, .read = read_encoding},
    {"dimensions", SERVER_EMBEDDING, read_count, AT(dimensions), 1, INT32_MAX},
    {"pooling", SERVER_EMBEDDING, .read = read_pooling},
    {"tokens", SERVER_DETOKENIZE, .read = read_tokens},
    {"add_special_tokens", SERVER_COMPLETION | SERVER_TOKENIZE, read_bool, AT(add_special)},
    {"skip_special_tokens", GENERATE, read_bool, AT(skip_special)},
    {"stream", GENERATE, read_bool, AT(stream)},
    {"stream_options", GENERATE, .read = read_stream_options},
    {"n", GENERATE, read_count, AT(n), 1, SERVER_MOST_CHOICES},
    {"echo", SERVER_COMPLETION, read_bool, AT(echo)},
    {"max_tokens", SERVER_CHAT, read_count, AT(max_tokens), 1, INT32_MAX},
    {"max_tokens", SERVER_COMPLETION, read_completion_tokens, AT(max_tokens), 0, INT32_MAX},
    {"max_completion_tokens", SERVER_CHAT, read_count, AT(max_completion_tokens), 1, INT32_MAX},
    {"temperature", GENERATE, read_real, AT(temperature), 0, 1000000},
    {"top_p", GENERATE, read_real, AT(top_p), 0, 1, true},
    {"top_k", GENERATE, .read = read_top_k},
    {"repetition_penalty", GENERATE, read_real, AT(repetition_penalty), 0.01, 1000000},
    {"min_p", GENERATE, read_real, AT(min_p), 0, 1},
    {"presence_penalty", GENERATE, read_real, AT(presence_penalty), -2, 2},
    {"frequency_penalty", GENERATE, read_real, AT(frequency_penalty), -2, 2},
    {"logit_bias", GENERATE, .read = read_biases},
    {"seed", GENERATE, .read = read_seed},
    {"tools", SERVER_CHAT | SERVER_TOKENIZE, .read = read_tools},
    {"tool_choice", SERVER_CHAT, .read = read_chat},
    {"parallel_tool_calls", SERVER_CHAT, read_bool, AT(parallel_calls)},
    {"reasoning_effort", SERVER_CHAT | SERVER_TOKENIZE, .read = read_effort},
    {"logprobs", SERVER_CHAT, read_bool, AT(wants_logprobs)},
    {"top_logprobs", SERVER_CHAT, read_count, AT(top_logprobs), 0, ENG_MAX_LOGPROBS},
    {"logprobs", SERVER_COMPLETION, read_logprobs, AT(top_logprobs), 0, ENG_MAX_LOGPROBS},
    {"response_format", GENERATE, .read = read_format},
    {"guided_json", GENERATE, .read = read_format},
    {"guided_regex", GENERATE, .read = read_format},
    {"guided_choice", GENERATE, .read = read_format},
    {"structured_outputs", GENERATE, .read = read_format},
    {"stop", GENERATE, .read = read_stop},
    {"stop_token_ids", GENERATE, .read = read_stop_tokens},
    {"ignore_eos", GENERATE, read_bool, AT(ignore_eos)},
    {"user", GENERATE | SERVER_EMBEDDING, .read = read_label},
    {"safety_identifier", SERVER_CHAT, .read = read_label},
    {"prompt_cache_key", SERVER_CHAT, .read = read_label},
    {"prompt_cache_retention", SERVER_CHAT, .read = read_label},
    {"prompt_cache_options", SERVER_CHAT, .read = read_hint},
    {"prediction", SERVER_CHAT, .read = read_hint},
    {"metadata", SERVER_CHAT, .read = read_labels},
};

/* Fields that clients send with the value that changes nothing; any other value is refused. */
enum { MOST_NEUTRAL = 3 };
static const struct {
    const char *name;
    unsigned endpoints;
    const char *values[MOST_NEUTRAL]; /* JSON; NULL: none but null */
} neutral[] = {
    {"prompt_logprobs", GENERATE, {NULL}},
    {"min_tokens", GENERATE, {"0"}},
    {"best_of", GENERATE, {"1"}},
    {"length_penalty", GENERATE, {"1"}},
    {"use_beam_search", GENERATE, {"false"}},
    {"include_stop_str_in_output", GENERATE, {"false"}},
    {"spaces_between_special_tokens", GENERATE, {"true"}},
    {"priority", GENERATE, {"0"}},
    {"include_reasoning", SERVER_CHAT, {"true"}},
    {"suffix", SERVER_COMPLETION, {"\"\""}},
    {"functions", SERVER_CHAT, {"[]"}},
    {"function_call", SERVER_CHAT, {"\"none\"", "\"auto\""}},
    {"continue_final_message", SERVER_CHAT | SERVER_TOKENIZE, {"false"}},
    {"return_token_strs", SERVER_TOKENIZE, {"false"}},
    {"verbosity", SERVER_CHAT, {"\"medium\""}},
    {"modalities", SERVER_CHAT, {"[\"text\"]"}},
    {"store", SERVER_CHAT, {"false"}},
    {"service_tier", SERVER_CHAT, {"\"auto\"", "\"default\""}},
};

static bool equals(const json_t *value, const char *text)
{
    json_t *other = json_loads(text, JSON_DECODE_ANY, NULL);
    bool equal = json_is_number(value) && json_is_number(other) ? json_number_value(value) == json_number_value(other)
                                                                : json_equal(value, other);
    json_decref(other);
    return equal;
}

static bool refuse(enum server_endpoint endpoint, const char *name, const json_t *value, struct server_error *error)
{
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) {
        if (strcmp(neutral[i].name, name) != 0 || !(neutral[i].endpoints & endpoint)) continue;
        for (int v = 0; v < MOST_NEUTRAL && neutral[i].values[v]; v++)
            if (equals(value, neutral[i].values[v])) return true;
        return server_fail(error, 400, "unsupported_parameter", name,
                           "%s is not supported by this server; leave it out%s%s", name,
                           neutral[i].values[0] ? " or set it to " : "",
                           neutral[i].values[0] ? neutral[i].values[0] : "");
    }
    return server_fail(error, 400, "unknown_parameter", name, "field '%.64s' is not known to this server; leave it out",
                       name);
}

static bool read_field(const char *name, const json_t *value, struct server_request *request,
                       struct server_error *error)
{
    if (json_is_null(value)) return true;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(fields[i].name, name) == 0 && (fields[i].endpoints & request->endpoint))
            return fields[i].read(&fields[i], value, request, error);
    return refuse(request->endpoint, name, value, error);
}

/* ---- whole requests ---- */

static bool has(const struct server_request *request, const char *name)
{
    const json_t *value = json_object_get(request->body, name);
    return value && !json_is_null(value);
}

static bool require_input(struct server_request *request, struct server_error *error)
{
    const bool chat = has(request, "messages");
    const char *needed = request->endpoint == SERVER_CHAT         ? "messages"
                         : request->endpoint == SERVER_DETOKENIZE ? "tokens"
                         : request->endpoint == SERVER_EMBEDDING  ? "input"
                                                                  : "prompt";
    if (request->endpoint == SERVER_TOKENIZE && chat && request->prompts)
        return server_fail(error, 400, "invalid_value", "messages", "expected one of prompt and messages, found both");
    if (!chat && (has(request, "chat_template_kwargs") || has(request, "add_generation_prompt") ||
                  has(request, "tools") || has(request, "reasoning_effort")))
        return server_fail(
            error, 400, "invalid_value", "messages",
            "chat_template_kwargs, add_generation_prompt, tools and reasoning_effort: only with messages");
    if (!chat && !request->prompts)
        return server_fail(error, 400, "missing_required_parameter", needed, "%s: expected%s, found nothing", needed,
                           request->endpoint == SERVER_TOKENIZE ? " this field or messages" : " this field");
    if (!chat) return true;
    if (request->special_given && request->add_special)
        return server_fail(error, 400, "unsupported_parameter", "add_special_tokens",
                           "add_special_tokens: not with messages, whose template adds them");
    request->is_chat = true;
    request->tools.one_call = !request->parallel_calls;
    return make_prompts(request, 1, error) &&
           server_tools_choose(json_object_get(request->body, "tool_choice"), &request->tools, error) &&
           server_chat_variables(request->body, request->add_generation, &request->tools, &request->variables, error);
}

static bool check_together(const struct server_request *request, struct server_error *error)
{
    if (request->include_usage && !request->stream)
        return server_fail(error, 400, "invalid_value", "stream_options", "stream_options: only with stream");
    if (request->max_tokens && request->max_completion_tokens && request->max_tokens != request->max_completion_tokens)
        return server_fail(error, 400, "invalid_value", "max_tokens",
                           "expected one of max_tokens and max_completion_tokens, found both with different values");
    if (request->top_logprobs && !request->wants_logprobs)
        return server_fail(error, 400, "invalid_value", "top_logprobs", "top_logprobs: only with logprobs");
    if (request->no_answer && !request->echo)
        return server_fail(error, 400, "invalid_value", "max_tokens",
                           "max_tokens: expected at least 1, or echo, found 0, which leaves nothing to return");
    if (request->no_answer && request->n > 1)
        return server_fail(error, 400, "invalid_value", "n",
                           "n: expected 1 with max_tokens 0, since all answers would be the same, found %" PRIu64,
                           request->n);
    if (server_tools_are_forced(&request->tools) && request->ignore_eos)
        return server_fail(error, 400, "invalid_value", "ignore_eos",
                           "ignore_eos: not with a call that is required, which ends where it is complete");
    if (request->format.field && request->ignore_eos)
        return server_fail(error, 400, "invalid_value", "ignore_eos",
                           "ignore_eos: not with %s, whose answers end where they are complete", request->format.field);
    if (request->endpoint != SERVER_EMBEDDING && request->prompt_count * request->n > SERVER_MOST_CHOICES)
        return server_fail(error, 400, "invalid_value", "n",
                           "expected at most %d answers, found %zu prompts times n %" PRIu64, SERVER_MOST_CHOICES,
                           request->prompt_count, request->n);
    return true;
}

/* Values of a JSON text, counted by the characters before them; characters in strings do not count. */
static size_t count_values(const char *text, size_t size)
{
    size_t count = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '"') in_string = !in_string;
        if (in_string && text[i] == '\\') i++;
        if (!in_string) count += text[i] == ',' || text[i] == '[' || text[i] == '{' || text[i] == ':';
    }
    return count;
}

bool server_request_parse(const char *body, size_t size, json_t **value, struct server_error *error)
{
    struct status status = {0};
    *value = NULL;
    if (count_values(body, size) > MOST_JSON_VALUES)
        return server_fail(error, 413, "too_many_values", NULL, "the body has more than %d JSON values",
                           MOST_JSON_VALUES);
    *value = json_parse(body, size, "body", &status);
    return *value || server_fail_status(error, NULL, &status);
}

bool server_request_read_value(enum server_endpoint endpoint, json_t *body, struct server_request *request,
                               struct server_error *error)
{
    const char *name;
    const json_t *value;
    *request = (struct server_request){.endpoint = endpoint,
                                       .body = body,
                                       .n = 1,
                                       .temperature = -1,
                                       .top_p = -1,
                                       .repetition_penalty = -1,
                                       .top_k = -1,
                                       .add_special = true,
                                       .skip_special = true,
                                       .add_generation = true,
                                       .parallel_calls = true};
    if (!json_is_object(request->body)) return wrong(error, "body", "an object", request->body);
    request->special_given = has(request, "add_special_tokens");
    json_object_foreach (request->body, name, value)
        if (!read_field(name, value, request, error)) return false;
    return require_input(request, error) && check_together(request, error);
}

bool server_request_read(enum server_endpoint endpoint, const char *body, size_t size, struct server_request *request,
                         struct server_error *error)
{
    json_t *value;
    *request = (struct server_request){.endpoint = endpoint};
    return server_request_parse(body, size, &value, error) &&
           server_request_read_value(endpoint, value, request, error);
}

void server_request_free(struct server_request *request)
{
    for (size_t i = 0; i < request->prompt_count; i++) free(request->prompts[i].tokens);
    free(request->prompts);
    free(request->variables);
    free(request->own_texts);
    free(request->biases);
    server_format_free(&request->format);
    server_tools_free(&request->tools);
    json_decref(request->echo_body);
    json_decref(request->body);
    *request = (struct server_request){0};
}

bool server_request_shrink(struct server_request *request)
{
    /* Where tokens of an echo lie in it is found later. */
    const bool keeps_texts = request->echo && request->wants_logprobs;
    size_t size = 1;
    for (size_t i = 0; i < request->stop_count; i++) size += strlen(request->stops[i]) + 1;
    for (size_t i = 0; keeps_texts && i < request->prompt_count; i++) size += request->prompts[i].size;
    request->own_texts = malloc(size);
    if (!request->own_texts) return false;
    char *at = request->own_texts;
    for (size_t i = 0; i < request->stop_count; i++) {
        const size_t length = strlen(request->stops[i]) + 1;
        request->stops[i] = memcpy(at, request->stops[i], length);
        at += length;
    }
    for (size_t i = 0; i < request->prompt_count; i++) {
        struct server_prompt *prompt = &request->prompts[i];
        int32_t *fitting = realloc(prompt->tokens, (prompt->count + 1) * sizeof *fitting);
        if (fitting) prompt->tokens = fitting;
        prompt->text = keeps_texts && prompt->text ? memcpy(at, prompt->text, prompt->size) : NULL;
        if (prompt->text) at += prompt->size;
    }
    free(request->variables);
    server_format_free(&request->format);
    json_decref(request->body);
    request->variables = NULL;
    request->body = NULL;
    request->model = NULL;
    request->effort = NULL;
    return true;
}

uint64_t server_request_max_tokens(const struct server_request *request)
{
    return request->max_completion_tokens ? request->max_completion_tokens : request->max_tokens;
}
