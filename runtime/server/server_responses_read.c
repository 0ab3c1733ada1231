/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_responses_read.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_convert.h"

enum { PLACE_BYTES = 64 };

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* ---- input ---- */

/* Messages so far, and the message of the assistant that its items are added to. */
struct input {
    json_t *messages; /* borrowed array */
    json_t *pending;  /* owned; NULL: none */
};

static bool flush(struct input *input, struct server_error *error)
{
    json_t *message = input->pending;
    input->pending = NULL;
    if (!message) return true;
    if (!json_object_get(message, "content") && !server_convert_put(message, "content", json_string(""), error)) {
        json_decref(message);
        return false;
    }
    return server_convert_add(input->messages, message, error);
}

/* The pending message; one that has the member already is complete. NULL: out of memory. */
static json_t *pending(struct input *input, const char *member, struct server_error *error)
{
    if (input->pending && member && json_object_get(input->pending, member) && !flush(input, error)) return NULL;
    if (!input->pending) input->pending = json_pack("{s:s}", "role", "assistant");
    if (!input->pending) server_fail_memory(error);
    return input->pending;
}

/* A string, or an array of parts of one of these types, as text parts. Owned; NULL: failed. */
static json_t *read_parts(const char *place, json_t *content, const char *const *types, size_t type_count,
                          struct server_error *error)
{
    /* parsed, as parsed_arguments of calls: the text once more, which OpenAI's package adds. */
    static const char *const members[] = {"type", "text", "annotations", "logprobs", "parsed"};
    if (json_is_string(content)) return json_incref(content);
    json_t *parts = json_array();
    bool ok = parts || server_fail_memory(error);
    if (ok && (!json_is_array(content) || !json_array_size(content)))
        ok = server_convert_wrong(error, place, "a string or an array of text parts", content);
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *type = json_object_get(part, "type"),
                     *text = json_object_get(part, "text");
        bool known = false;
        for (size_t t = 0; t < type_count; t++) known = known || is_text(type, types[t]);
        if (!known)
            ok = server_convert_wrong(error, place, "parts of text, since the engine reads nothing else", type);
        else if (!json_is_string(text))
            ok = server_convert_wrong(error, place, "a string in \"text\" of each part", text);
        else
            ok = server_convert_members(place, part, members, sizeof members / sizeof *members, error) &&
                 server_convert_add(parts, json_pack("{s:s, s:O}", "type", "text", "text", text), error);
    }
    if (ok) return parts;
    json_decref(parts);
    return NULL;
}

static bool add_message(const char *place, const json_t *item, struct input *input, struct server_error *error)
{
    static const char *const members[] = {"type", "role", "content", "id", "status", "phase"};
    static const char *const types[] = {"input_text", "output_text", "text"};
    const json_t *role = json_object_get(item, "role");
    if (!server_convert_members(place, item, members, sizeof members / sizeof *members, error)) return false;
    const bool is_assistant = is_text(role, "assistant");
    if (!is_assistant && !is_text(role, "user") && !is_text(role, "system") && !is_text(role, "developer"))
        return server_convert_wrong(error, place, "\"user\", \"assistant\", \"system\" or \"developer\" in \"role\"",
                                    role);
    json_t *content = read_parts(place, json_object_get(item, "content"), types, 3, error);
    if (!content) return false;
    if (is_assistant) {
        json_t *message = pending(input, "content", error);
        if (message) return server_convert_put(message, "content", content, error);
    } else if (flush(input, error)) {
        return server_convert_add(input->messages, json_pack("{s:O, s:o}", "role", role, "content", content), error);
    }
    json_decref(content);
    return false;
}

static bool add_call(const char *place, const json_t *item, struct input *input, struct server_error *error)
{
    static const char *const members[] = {"type", "call_id", "name", "arguments", "id", "status", "parsed_arguments"};
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
                 *arguments = json_object_get(item, "arguments");
    if (!server_convert_members(place, item, members, sizeof members / sizeof *members, error)) return false;
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return server_convert_wrong(error, place, "strings in \"call_id\", \"name\" and \"arguments\"",
                                    !json_is_string(id)     ? id
                                    : !json_is_string(name) ? name
                                                            : arguments);
    json_t *message = pending(input, NULL, error);
    if (!message) return false;
    if (!json_object_get(message, "tool_calls") && !server_convert_put(message, "tool_calls", json_array(), error))
        return false;
    return server_convert_add(json_object_get(message, "tool_calls"),
                              json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name",
                                        name, "arguments", arguments),
                              error);
}

static bool add_output(const char *place, const json_t *item, struct input *input, struct server_error *error)
{
    static const char *const members[] = {"type", "call_id", "output", "id", "status"};
    static const char *const types[] = {"input_text"};
    const json_t *id = json_object_get(item, "call_id");
    if (!server_convert_members(place, item, members, sizeof members / sizeof *members, error)) return false;
    if (!json_is_string(id)) return server_convert_wrong(error, place, "a string in \"call_id\"", id);
    json_t *output = read_parts(place, json_object_get(item, "output"), types, 1, error);
    if (!output) return false;
    if (flush(input, error))
        return server_convert_add(input->messages,
                                  json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", output),
                                  error);
    json_decref(output);
    return false;
}

static bool add_texts(const char *place, const json_t *parts, json_t *texts, struct server_error *error)
{
    if (parts && !json_is_array(parts)) return server_convert_wrong(error, place, "an array of parts", parts);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *text = json_object_get(json_array_get(parts, i), "text");
        if (!json_is_string(text)) return server_convert_wrong(error, place, "a string in \"text\" of each part", text);
        if (!server_convert_add(texts, json_incref(text), error)) return false;
    }
    return true;
}

/* The texts of reasoning, joined by line feeds; where there are none, as other servers keep them back, those of its summary.
 * Encrypted reasoning is passed over. */
static bool add_reasoning(const char *place, const json_t *item, struct input *input, struct server_error *error)
{
    static const char *const members[] = {"type", "id", "summary", "content", "status", "encrypted_content"};
    const json_t *content = server_convert_get(item, "content"), *summary = server_convert_get(item, "summary");
    if (!server_convert_members(place, item, members, sizeof members / sizeof *members, error)) return false;
    json_t *texts = json_array(), *all = NULL, *message = NULL;
    bool ok = (texts || server_fail_memory(error)) && add_texts(place, content, texts, error);
    if (ok && !json_array_size(texts)) ok = add_texts(place, summary, texts, error);
    if (ok) ok = (all = server_convert_join(texts, error)) != NULL;
    if (ok && json_string_length(all)) {
        message = pending(input, "reasoning_content", error);
        ok = message && server_convert_put(message, "reasoning_content", json_incref(all), error);
    }
    json_decref(texts);
    json_decref(all);
    return ok;
}

static bool add_item(size_t index, const json_t *item, struct input *input, struct server_error *error)
{
    char place[PLACE_BYTES];
    const json_t *type = server_convert_get(item, "type");
    snprintf(place, sizeof place, "input[%zu]", index);
    if (!json_is_object(item)) return server_convert_wrong(error, place, "an object", item);
    if (!type || is_text(type, "message")) return add_message(place, item, input, error);
    if (is_text(type, "function_call")) return add_call(place, item, input, error);
    if (is_text(type, "function_call_output")) return add_output(place, item, input, error);
    if (is_text(type, "reasoning")) return add_reasoning(place, item, input, error);
    return server_convert_wrong(error, place,
                                "\"message\", \"function_call\", \"function_call_output\" or \"reasoning\" in \"type\"",
                                type);
}

/* The list is in `chat` already, with the instructions if there are any. */
static json_t *messages_of(json_t *chat, struct server_error *error)
{
    json_t *messages = json_object_get(chat, "messages");
    if (messages) return messages;
    messages = json_array();
    return server_convert_put(chat, "messages", messages, error) ? messages : NULL;
}

static bool convert_input(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error)
{
    struct input input = {.messages = messages_of(chat, error)};
    if (!input.messages) return false;
    if (json_is_string(value))
        return server_convert_add(input.messages, json_pack("{s:s, s:O}", "role", "user", "content", value), error);
    if (!json_is_array(value) || !json_array_size(value))
        return server_convert_wrong(error, row->field, "a string or an array of at least one item", value);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(value); i++) ok = add_item(i, json_array_get(value, i), &input, error);
    ok = ok && flush(&input, error);
    json_decref(input.pending);
    return ok;
}

static bool convert_instructions(const struct server_conversion *row, const json_t *value, json_t *chat,
                                 struct server_error *error)
{
    json_t *messages = messages_of(chat, error);
    if (!messages) return false;
    if (!json_is_string(value)) return server_convert_wrong(error, row->field, "a string", value);
    json_t *message = json_pack("{s:s, s:O}", "role", "system", "content", value);
    return (message && !json_array_insert_new(messages, 0, message)) || server_fail_memory(error);
}

/* ---- tools ---- */

static bool add_tool(size_t index, const json_t *tool, json_t *tools, struct server_error *error)
{
    static const char *const members[] = {"type", "name", "description", "parameters", "strict"};
    char place[PLACE_BYTES];
    const json_t *type = json_object_get(tool, "type");
    snprintf(place, sizeof place, "tools[%zu]", index);
    if (!json_is_object(tool)) return server_convert_wrong(error, place, "an object", tool);
    if (!is_text(type, "function"))
        return server_convert_wrong(error, place, "\"function\" in \"type\", since this server has no tools of its own",
                                    type);
    if (!server_convert_members(place, tool, members, sizeof members / sizeof *members, error)) return false;
    json_t *function = json_copy((json_t *)(uintptr_t)tool);
    if (!function) return server_fail_memory(error);
    json_object_del(function, "type");
    return server_convert_add(tools, json_pack("{s:s, s:o}", "type", "function", "function", function), error);
}

static bool convert_tools(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error)
{
    return server_convert_tools(row, value, add_tool, chat, error);
}

/* {"type": "allowed_tools", "mode": ..., "tools": [{"type": "function", "name": ...}]} */
static bool convert_allowed(const struct server_conversion *row, const json_t *value, json_t *chat,
                            struct server_error *error)
{
    static const char *const members[] = {"type", "mode", "tools"};
    const json_t *mode = json_object_get(value, "mode"), *tools = json_object_get(value, "tools");
    if (!server_convert_members(row->field, value, members, 3, error)) return false;
    if (!json_is_string(mode) || !json_is_array(tools))
        return server_convert_wrong(error, row->field, "a \"mode\" and an array of \"tools\"",
                                    json_is_string(mode) ? tools : mode);
    json_t *allowed = json_array();
    bool ok = allowed || server_fail_memory(error);
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        const json_t *name = json_object_get(json_array_get(tools, i), "name");
        ok = json_is_string(name)
                 ? server_convert_add(allowed,
                                      json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name), error)
                 : server_convert_wrong(error, row->field, "functions with a \"name\" in \"tools\"", name);
    }
    ok = ok && server_convert_put(chat, "tool_choice",
                                  json_pack("{s:s, s:{s:O, s:O}}", "type", "allowed_tools", "allowed_tools", "mode",
                                            mode, "tools", allowed),
                                  error);
    json_decref(allowed);
    return ok;
}

static bool convert_choice(const struct server_conversion *row, const json_t *value, json_t *chat,
                           struct server_error *error)
{
    static const char *const members[] = {"type", "name"};
    const json_t *name = json_object_get(value, "name");
    if (json_is_string(value)) return server_convert_copy(row, value, chat, error);
    if (is_text(json_object_get(value, "type"), "allowed_tools")) return convert_allowed(row, value, chat, error);
    if (!json_is_object(value) || !is_text(json_object_get(value, "type"), "function") || !json_is_string(name))
        return server_convert_wrong(error, row->field, "a string, or an object of type \"function\" with a \"name\"",
                                    value);
    return server_convert_members(row->field, value, members, 2, error) &&
           server_convert_put(chat, "tool_choice",
                              json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name), error);
}

/* ---- other fields ---- */

static bool convert_text(const struct server_conversion *row, const json_t *value, json_t *chat,
                         struct server_error *error)
{
    static const char *const members[] = {"format", "verbosity"};
    json_t *format = server_convert_get(value, "format");
    const json_t *verbosity = server_convert_get(value, "verbosity");
    if (!json_is_object(value)) return server_convert_wrong(error, row->field, "an object", value);
    if (!server_convert_members(row->field, value, members, 2, error)) return false;
    if (verbosity && !is_text(verbosity, "medium"))
        return server_convert_wrong(error, row->field, "\"medium\" in \"verbosity\", or nothing", verbosity);
    if (!format) return true;
    if (!is_text(json_object_get(format, "type"), "json_schema"))
        return server_convert_put(chat, "response_format", json_incref(format), error);
    json_t *inner = json_copy(format);
    if (!inner) return server_fail_memory(error);
    json_object_del(inner, "type");
    return server_convert_put(chat, "response_format",
                              json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", inner), error);
}

/* The reasoning is given in full, so that a summary that the server may choose is not needed. */
static bool convert_reasoning(const struct server_conversion *row, const json_t *value, json_t *chat,
                              struct server_error *error)
{
    static const char *const members[] = {"effort", "summary"};
    json_t *effort = server_convert_get(value, "effort");
    const json_t *summary = server_convert_get(value, "summary");
    if (!json_is_object(value)) return server_convert_wrong(error, row->field, "an object", value);
    if (!server_convert_members(row->field, value, members, 2, error)) return false;
    if (summary && !is_text(summary, "auto") && !is_text(summary, "detailed"))
        return server_convert_wrong(error, row->field, "\"auto\" or \"detailed\" in \"summary\", or nothing", summary);
    if (effort && !json_is_string(effort))
        return server_convert_wrong(error, row->field, "a string in \"effort\"", effort);
    return !effort || server_convert_put(chat, "reasoning_effort", json_incref(effort), error);
}

static bool convert_metadata(const struct server_conversion *row, const json_t *value, json_t *chat,
                             struct server_error *error)
{
    const char *key;
    const json_t *text;
    (void)chat;
    if (!json_is_object(value)) return server_convert_wrong(error, row->field, "an object", value);
    json_object_foreach ((json_t *)(uintptr_t)value, key, text)
        if (!json_is_string(text)) return server_convert_wrong(error, row->field, "an object of strings", text);
    return true;
}

static bool convert_hint(const struct server_conversion *row, const json_t *value, json_t *chat,
                         struct server_error *error)
{
    (void)chat;
    return json_is_object(value) || server_convert_wrong(error, row->field, "an object", value);
}

/* Log-probabilities are all that an answer can include. Reasoning is given as a text, which can be sent back, and needs no encrypted form. */
static bool convert_include(const struct server_conversion *row, const json_t *value, json_t *chat,
                            struct server_error *error)
{
    bool has_logprobs = false;
    if (!json_is_array(value)) return server_convert_wrong(error, row->field, "an array", value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const bool is_logprobs = is_text(one, "message.output_text.logprobs");
        if (!is_logprobs && !is_text(one, "reasoning.encrypted_content"))
            return server_convert_wrong(error, row->field,
                                        "\"message.output_text.logprobs\", \"reasoning.encrypted_content\" or nothing",
                                        one);
        has_logprobs = has_logprobs || is_logprobs;
    }
    return !has_logprobs || server_convert_put(chat, "logprobs", json_true(), error);
}

static bool convert_top_logprobs(const struct server_conversion *row, const json_t *value, json_t *chat,
                                 struct server_error *error)
{
    return server_convert_copy(row, value, chat, error) &&
           (json_integer_value(value) == 0 || server_convert_put(chat, "logprobs", json_true(), error));
}

static const struct server_conversion rows[] = {
    {"model", .convert = server_convert_copy},
    {"input", .convert = convert_input, .name = "messages"},
    {"instructions", .convert = convert_instructions},
    {"tools", .convert = convert_tools},
    {"tool_choice", .convert = convert_choice},
    {"parallel_tool_calls", .convert = server_convert_copy},
    {"text", .convert = convert_text, .name = "response_format"},
    {"reasoning", .convert = convert_reasoning, .name = "reasoning_effort"},
    {"max_output_tokens", .convert = server_convert_copy, .name = "max_completion_tokens"},
    {"temperature", .convert = server_convert_copy},
    {"top_p", .convert = server_convert_copy},
    {"stream", .convert = server_convert_copy},
    {"metadata", .convert = convert_metadata},
    {"user", .convert = server_convert_label},
    {"safety_identifier", .convert = server_convert_label},
    {"prompt_cache_key", .convert = server_convert_label},
    {"prompt_cache_retention", .convert = server_convert_label},
    {"prompt_cache_options", .convert = convert_hint},
    {"store", .neutral = {"false"}},
    {"previous_response_id", .convert = NULL},
    {"conversation", .convert = NULL},
    {"background", .neutral = {"false"}},
    {"include", .convert = convert_include},
    {"truncation", .neutral = {"\"disabled\""}},
    {"service_tier", .neutral = {"\"auto\"", "\"default\""}},
    {"top_logprobs", .convert = convert_top_logprobs},
    {"max_tool_calls", .convert = NULL},
    {"prompt", .convert = NULL},
    {"stream_options", .neutral = {"{}", "{\"include_obfuscation\":false}", "{\"include_obfuscation\":true}"}},
};

/* The fields that a response repeats, and what they are where the request leaves them out. */
static json_t *make_echo(const json_t *body)
{
    static const struct {
        const char *name, *absent;
    } fields[] = {{"instructions", "null"},
                  {"max_output_tokens", "null"},
                  {"metadata", "{}"},
                  {"parallel_tool_calls", "true"},
                  {"reasoning", "{\"effort\":null,\"summary\":null}"},
                  {"temperature", "null"},
                  {"text", "{\"format\":{\"type\":\"text\"}}"},
                  {"tool_choice", "\"auto\""},
                  {"tools", "[]"},
                  {"top_logprobs", "0"},
                  {"top_p", "null"},
                  {"user", "null"},
                  {"background", "false"},
                  {"previous_response_id", "null"},
                  {"store", "false"},
                  {"truncation", "\"disabled\""}};
    json_t *echo = json_object();
    bool ok = echo != NULL;
    for (size_t i = 0; ok && i < sizeof fields / sizeof *fields; i++) {
        json_t *given = server_convert_get(body, fields[i].name);
        ok = json_put(echo, fields[i].name,
                      given ? json_incref(given) : json_loads(fields[i].absent, JSON_DECODE_ANY, NULL));
    }
    if (ok) return echo;
    json_decref(echo);
    return NULL;
}

const char *server_responses_field(const char *name)
{
    return server_convert_field(rows, sizeof rows / sizeof *rows, name);
}

bool server_responses_read(const json_t *body, json_t **chat, json_t **echo, struct server_error *error)
{
    json_t *made = json_object(), *repeated = NULL;
    bool ok =
        (made || server_fail_memory(error)) && server_convert(body, rows, sizeof rows / sizeof *rows, made, error);
    if (ok && !server_convert_get(body, "input"))
        ok =
            server_fail(error, 400, "missing_required_parameter", "input", "input: expected this field, found nothing");
    if (ok) ok = (repeated = make_echo(body)) != NULL || server_fail_memory(error);
    *chat = ok ? made : NULL;
    *echo = ok ? repeated : NULL;
    if (!ok) json_decref(made);
    return ok;
}
