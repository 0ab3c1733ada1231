/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_messages_read.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_convert.h"
#include "runtime/server/server_reasoning.h"

enum { PLACE_BYTES = 64 };

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* ---- blocks of content ---- */

/* What the blocks of one message become; the lists and strings are owned. */
struct blocks {
    json_t *texts;    /* array of text parts */
    json_t *calls;    /* array of calls */
    json_t *thoughts; /* array of strings */
};

static void free_blocks(struct blocks *blocks)
{
    json_decref(blocks->texts);
    json_decref(blocks->calls);
    json_decref(blocks->thoughts);
    *blocks = (struct blocks){0};
}

static bool make_blocks(struct blocks *blocks, struct server_error *error)
{
    *blocks = (struct blocks){.texts = json_array(), .calls = json_array(), .thoughts = json_array()};
    return (blocks->texts && blocks->calls && blocks->thoughts) || server_fail_memory(error);
}

/* cache_control says what to keep for later requests, which the server does by itself; citations, what an answer of another server is based
 * on. */
static bool read_text_block(const char *place, const json_t *block, json_t *texts, struct server_error *error)
{
    static const char *const members[] = {"type", "text", "cache_control", "citations"};
    const json_t *text = json_object_get(block, "text");
    if (!server_convert_members(place, block, members, sizeof members / sizeof *members, error)) return false;
    if (!json_is_string(text)) return server_convert_wrong(error, place, "a string in \"text\"", text);
    return server_convert_add(texts, json_pack("{s:s, s:O}", "type", "text", "text", text), error);
}

/* A string, or an array of text blocks, as an array of text parts. */
static bool read_texts(const char *place, const json_t *content, json_t *texts, struct server_error *error)
{
    if (json_is_string(content))
        return server_convert_add(texts, json_pack("{s:s, s:O}", "type", "text", "text", content), error);
    if (!json_is_array(content))
        return server_convert_wrong(error, place, "a string or an array of text blocks", content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        if (!is_text(json_object_get(block, "type"), "text"))
            return server_convert_wrong(error, place, "blocks of type \"text\", since the engine reads nothing else",
                                        json_object_get(block, "type"));
        if (!read_text_block(place, block, texts, error)) return false;
    }
    return true;
}

static bool read_thinking(const char *place, const json_t *block, struct blocks *blocks, struct server_error *error)
{
    static const char *const members[] = {"type", "thinking", "signature"};
    json_t *thought = json_object_get(block, "thinking");
    if (!server_convert_members(place, block, members, sizeof members / sizeof *members, error)) return false;
    if (!json_is_string(thought)) return server_convert_wrong(error, place, "a string in \"thinking\"", thought);
    return server_convert_add(blocks->thoughts, json_incref(thought), error);
}

static bool is_direct(const json_t *caller) { return !caller || is_text(json_object_get(caller, "type"), "direct"); }

static bool read_tool_use(const char *place, const json_t *block, struct blocks *blocks, struct server_error *error)
{
    static const char *const members[] = {"type", "id", "name", "input", "cache_control", "caller"};
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
                 *input = json_object_get(block, "input");
    if (!server_convert_members(place, block, members, sizeof members / sizeof *members, error)) return false;
    if (!json_is_string(id) || !json_is_string(name))
        return server_convert_wrong(error, place, "strings in \"id\" and \"name\"", json_is_string(id) ? name : id);
    if (!json_is_object(input)) return server_convert_wrong(error, place, "an object in \"input\"", input);
    if (!is_direct(server_convert_get(block, "caller")))
        return server_convert_wrong(error, place, "\"direct\" in the \"type\" of \"caller\"",
                                    json_object_get(json_object_get(block, "caller"), "type"));
    return server_convert_add(blocks->calls,
                              json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name",
                                        name, "arguments", input),
                              error);
}

/* ---- messages ---- */

/* Adds what the blocks have, and empties them. */
static bool flush(const char *role, struct blocks *blocks, json_t *messages, struct server_error *error)
{
    const bool has_texts = json_array_size(blocks->texts), has_calls = json_array_size(blocks->calls),
               has_thoughts = json_array_size(blocks->thoughts);
    bool ok = true;
    if (has_texts || has_calls || has_thoughts) {
        json_t *message =
            json_pack("{s:s, s:o}", "role", role, "content", has_texts ? json_incref(blocks->texts) : json_string(""));
        ok = message || server_fail_memory(error);
        if (ok && has_calls) ok = server_convert_put(message, "tool_calls", json_incref(blocks->calls), error);
        /* Some models reason several times in an answer; templates have one text for that. */
        if (ok && has_thoughts)
            ok = server_convert_put(message, "reasoning_content", server_convert_join(blocks->thoughts, error), error);
        ok = ok && server_convert_add(messages, json_incref(message), error);
        json_decref(message);
    }
    free_blocks(blocks);
    return ok && make_blocks(blocks, error);
}

/* The text of an error begins with that word: templates know nothing else for it. */
static bool read_tool_result(const char *place, const json_t *block, json_t *messages, struct server_error *error)
{
    static const char *const members[] = {"type", "tool_use_id", "content", "is_error", "cache_control"};
    const json_t *id = json_object_get(block, "tool_use_id"), *content = server_convert_get(block, "content"),
                 *is_error = server_convert_get(block, "is_error");
    if (!server_convert_members(place, block, members, sizeof members / sizeof *members, error)) return false;
    if (!json_is_string(id)) return server_convert_wrong(error, place, "a string in \"tool_use_id\"", id);
    if (is_error && !json_is_boolean(is_error))
        return server_convert_wrong(error, place, "true or false in \"is_error\"", is_error);
    json_t *texts = json_array();
    bool ok = texts || server_fail_memory(error);
    if (ok && json_is_true(is_error))
        ok = server_convert_add(texts, json_pack("{s:s, s:s}", "type", "text", "text", "Error:"), error);
    ok = ok && (!content || read_texts(place, content, texts, error));
    if (ok)
        ok = server_convert_add(messages,
                                json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content",
                                          json_array_size(texts) ? json_incref(texts) : json_string("")),
                                error);
    json_decref(texts);
    return ok;
}

static bool read_block(const char *place, const char *role, const json_t *block, struct blocks *blocks,
                       json_t *messages, struct server_error *error)
{
    const json_t *type = json_object_get(block, "type");
    const bool is_user = role[0] == 'u';
    if (is_text(type, "text")) return read_text_block(place, block, blocks->texts, error);
    if (is_user && is_text(type, "tool_result"))
        return flush(role, blocks, messages, error) && read_tool_result(place, block, messages, error);
    if (!is_user && is_text(type, "tool_use")) return read_tool_use(place, block, blocks, error);
    if (!is_user && is_text(type, "thinking")) return read_thinking(place, block, blocks, error);
    /* None but the server that has made it can read it. */
    if (!is_user && is_text(type, "redacted_thinking")) return true;
    return server_convert_wrong(error, place,
                                is_user ? "a block of type \"text\" or \"tool_result\""
                                        : "a block of type \"text\", \"tool_use\" or \"thinking\"",
                                type);
}

/* What a later message of the system says holds from there on. */
static bool add_system(const char *place, const json_t *content, json_t *messages, struct server_error *error)
{
    json_t *texts = json_array();
    bool ok = (texts || server_fail_memory(error)) && read_texts(place, content, texts, error);
    if (ok && json_array_size(texts))
        ok = server_convert_add(messages, json_pack("{s:s, s:O}", "role", "system", "content", texts), error);
    json_decref(texts);
    return ok;
}

static bool read_message(size_t index, const json_t *message, json_t *messages, struct server_error *error)
{
    static const char *const members[] = {"role", "content"};
    char place[PLACE_BYTES];
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    snprintf(place, sizeof place, "messages.%zu", index);
    if (!json_is_object(message)) return server_convert_wrong(error, place, "an object", message);
    if (!server_convert_members(place, message, members, 2, error)) return false;
    if (is_text(role, "system") && index) return add_system(place, content, messages, error);
    if (!is_text(role, "user") && !is_text(role, "assistant"))
        return server_convert_wrong(error, place,
                                    index ? "\"user\", \"assistant\" or \"system\" in \"role\""
                                          : "\"user\" or \"assistant\" in \"role\"",
                                    role);
    if (json_is_string(content))
        return server_convert_add(messages, json_pack("{s:O, s:O}", "role", role, "content", content), error);
    snprintf(place, sizeof place, "messages.%zu.content", index);
    /* An answer whose only call was cut has no blocks. */
    if (json_is_array(content) && !json_array_size(content) && is_text(role, "assistant"))
        return server_convert_add(messages, json_pack("{s:O, s:s}", "role", role, "content", ""), error);
    if (!json_is_array(content) || !json_array_size(content))
        return server_convert_wrong(error, place, "a string or an array of blocks", content);
    struct blocks blocks = {0};
    bool ok = make_blocks(&blocks, error);
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        snprintf(place, sizeof place, "messages.%zu.content.%zu", index, i);
        ok = read_block(place, json_string_value(role), json_array_get(content, i), &blocks, messages, error);
    }
    ok = ok && flush(json_string_value(role), &blocks, messages, error);
    free_blocks(&blocks);
    return ok;
}

/* The list is in `chat` already, with the system's message if there is one. */
static json_t *messages_of(json_t *chat, struct server_error *error)
{
    json_t *messages = json_object_get(chat, "messages");
    if (messages) return messages;
    messages = json_array();
    return server_convert_put(chat, "messages", messages, error) ? messages : NULL;
}

static bool convert_messages(const struct server_conversion *row, const json_t *value, json_t *chat,
                             struct server_error *error)
{
    json_t *messages = messages_of(chat, error);
    if (!messages) return false;
    if (!json_is_array(value) || !json_array_size(value))
        return server_convert_wrong(error, row->field, "an array of at least one message", value);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!read_message(i, json_array_get(value, i), messages, error)) return false;
    const json_t *last = json_array_get(value, json_array_size(value) - 1);
    return !is_text(json_object_get(last, "role"), "assistant") ||
           server_convert_wrong(error, row->field,
                                "a last message of the user, since this server does not continue answers",
                                json_object_get(last, "role"));
}

static bool convert_system(const struct server_conversion *row, const json_t *value, json_t *chat,
                           struct server_error *error)
{
    json_t *texts = json_array(), *messages = messages_of(chat, error);
    bool ok = messages && (texts || server_fail_memory(error)) && read_texts(row->field, value, texts, error);
    if (ok && json_array_size(texts)) {
        json_t *message = json_pack("{s:s, s:O}", "role", "system", "content", texts);
        ok = (message && !json_array_insert_new(messages, 0, message)) || server_fail_memory(error);
    }
    json_decref(texts);
    return ok;
}

/* ---- tools ---- */

static bool add_tool(size_t index, const json_t *tool, json_t *tools, struct server_error *error)
{
    static const char *const members[] = {"type",          "name",   "description",          "input_schema",
                                          "cache_control", "strict", "eager_input_streaming"};
    char place[PLACE_BYTES];
    const json_t *type = server_convert_get(tool, "type"), *name = json_object_get(tool, "name"),
                 *schema = json_object_get(tool, "input_schema");
    json_t *description = server_convert_get(tool, "description");
    snprintf(place, sizeof place, "tools.%zu", index);
    if (!json_is_object(tool)) return server_convert_wrong(error, place, "an object", tool);
    if (type && !is_text(type, "custom"))
        return server_convert_wrong(error, place, "\"custom\" in \"type\", since this server has no tools of its own",
                                    type);
    if (!server_convert_members(place, tool, members, sizeof members / sizeof *members, error)) return false;
    if (!json_is_string(name)) return server_convert_wrong(error, place, "a string in \"name\"", name);
    if (!json_is_object(schema))
        return server_convert_wrong(error, place, "a JSON Schema, an object, in \"input_schema\"", schema);
    json_t *function = json_pack("{s:O, s:O}", "name", name, "parameters", schema);
    bool ok = (function || server_fail_memory(error)) &&
              (!description || server_convert_put(function, "description", json_incref(description), error)) &&
              server_convert_add(tools, json_pack("{s:s, s:O}", "type", "function", "function", function), error);
    json_decref(function);
    return ok;
}

static bool convert_tools(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error)
{
    return server_convert_tools(row, value, add_tool, chat, error);
}

static bool convert_choice(const struct server_conversion *row, const json_t *value, json_t *chat,
                           struct server_error *error)
{
    static const char *const members[] = {"type", "name", "disable_parallel_tool_use"};
    const json_t *type = json_object_get(value, "type"), *name = json_object_get(value, "name"),
                 *single = server_convert_get(value, "disable_parallel_tool_use");
    if (!json_is_object(value)) return server_convert_wrong(error, row->field, "an object", value);
    if (!server_convert_members(row->field, value, members, sizeof members / sizeof *members, error)) return false;
    if (single && !json_is_boolean(single))
        return server_convert_wrong(error, row->field, "true or false in \"disable_parallel_tool_use\"", single);
    if (single && !server_convert_put(chat, "parallel_tool_calls", json_boolean(json_is_false(single)), error))
        return false;
    json_t *choice = NULL;
    if (is_text(type, "auto") || is_text(type, "none"))
        choice = json_string(json_string_value(type));
    else if (is_text(type, "any"))
        choice = json_string("required");
    else if (is_text(type, "tool") && json_is_string(name))
        choice = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    else
        return server_convert_wrong(error, row->field,
                                    "\"auto\", \"any\", \"none\", or \"tool\" with a \"name\", in \"type\"", type);
    return server_convert_put(chat, "tool_choice", choice, error);
}

/* ---- other fields ---- */

static bool convert_stops(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error)
{
    bool good = json_is_array(value) && json_array_size(value) <= SERVER_MOST_STOPS;
    for (size_t i = 0; good && i < json_array_size(value); i++) {
        const json_t *stop = json_array_get(value, i);
        good = json_is_string(stop) && json_string_length(stop) && json_string_length(stop) <= SERVER_MOST_STOP_BYTES;
    }
    if (!good) return server_convert_wrong(error, row->field, "an array of up to 16 strings of 1 to 1024 bytes", value);
    return server_convert_copy(row, value, chat, error);
}

static bool convert_metadata(const struct server_conversion *row, const json_t *value, json_t *chat,
                             struct server_error *error)
{
    static const char *const members[] = {"user_id"};
    (void)chat;
    if (!json_is_object(value)) return server_convert_wrong(error, row->field, "an object", value);
    return server_convert_members(row->field, value, members, 1, error);
}

static bool convert_thinking(const struct server_conversion *row, const json_t *value, json_t *chat,
                             struct server_error *error)
{
    enum { LEAST_BUDGET = 1024 };
    static const char *const members[] = {"type", "display", "budget_tokens"};
    const json_t *type = json_object_get(value, "type"), *display = server_convert_get(value, "display");
    json_t *budget = server_convert_get(value, "budget_tokens");
    const bool has_budget = is_text(type, "enabled");
    if (display && !is_text(display, "summarized"))
        return server_convert_wrong(error, row->field, "\"summarized\" in \"display\", or nothing", display);
    if (!is_text(type, "disabled") && !is_text(type, "adaptive") && !has_budget)
        return server_convert_wrong(error, row->field, "\"disabled\", \"adaptive\" or \"enabled\" in \"type\"", type);
    if (has_budget && (!json_is_integer(budget) || json_integer_value(budget) < LEAST_BUDGET))
        return server_convert_wrong(error, row->field, "an integer of at least 1024 in \"budget_tokens\"", budget);
    if (!server_convert_members(row->field, value, members, has_budget ? 3 : 2, error)) return false;
    return server_convert_put(chat, "chat_template_kwargs", server_reasoning_switch(json_string_value(type), budget),
                              error);
}

/* Says what to keep for later requests, which the server does by itself. */
static bool convert_cache(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error)
{
    (void)chat;
    return is_text(json_object_get(value, "type"), "ephemeral") ||
           server_convert_wrong(error, row->field, "\"ephemeral\" in \"type\"", json_object_get(value, "type"));
}

static bool convert_output(const struct server_conversion *row, const json_t *value, json_t *chat,
                           struct server_error *error)
{
    static const char *const members[] = {"format", "effort"}, *const inner[] = {"type", "schema"};
    json_t *format = server_convert_get(value, "format"), *effort = server_convert_get(value, "effort");
    if (!json_is_object(value)) return server_convert_wrong(error, row->field, "an object", value);
    if (!server_convert_members(row->field, value, members, 2, error)) return false;
    if (effort && !json_is_string(effort))
        return server_convert_wrong(error, row->field, "a string in \"effort\"", effort);
    if (effort && !server_convert_put(chat, "reasoning_effort", json_incref(effort), error)) return false;
    if (!format) return true;
    const json_t *type = json_object_get(format, "type"), *schema = json_object_get(format, "schema");
    if (!is_text(type, "json_schema"))
        return server_convert_wrong(error, row->field, "\"json_schema\" in the \"type\" of \"format\"", type);
    if (!server_convert_members(row->field, format, inner, 2, error)) return false;
    if (!json_is_object(schema)) return server_convert_wrong(error, row->field, "a JSON Schema in \"schema\"", schema);
    return server_convert_put(chat, "response_format",
                              json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema),
                              error);
}

/* Clients ask to keep all reasoning of earlier answers, which is what the server does. */
static bool convert_management(const struct server_conversion *row, const json_t *value, json_t *chat,
                               struct server_error *error)
{
    static const char *const members[] = {"edits"}, *const inner[] = {"type", "keep"};
    const json_t *edits = server_convert_get(value, "edits");
    (void)chat;
    if (!json_is_object(value)) return server_convert_wrong(error, row->field, "an object", value);
    if (!server_convert_members(row->field, value, members, 1, error)) return false;
    if (edits && !json_is_array(edits)) return server_convert_wrong(error, row->field, "an array in \"edits\"", edits);
    for (size_t i = 0; i < json_array_size(edits); i++) {
        const json_t *edit = json_array_get(edits, i), *type = json_object_get(edit, "type");
        if (!json_is_string(type) || strncmp(json_string_value(type), "clear_thinking_", 15) != 0 ||
            !is_text(json_object_get(edit, "keep"), "all"))
            return server_convert_wrong(error, row->field,
                                        "no edit but \"clear_thinking_...\" that has \"all\" in \"keep\"", type);
        if (!server_convert_members(row->field, edit, inner, 2, error)) return false;
    }
    return true;
}

/* Anthropic's packages then send all messages each time. */
static bool convert_thread(const struct server_conversion *row, const json_t *value, json_t *chat,
                           struct server_error *error)
{
    (void)value, (void)chat;
    return server_fail(error, 400, "thread_unsupported_request", row->field,
                       "%s: this server keeps no conversations; leave it out and send all messages", row->field);
}

static const struct server_conversion rows[] = {
    {"model", .convert = server_convert_copy},
    {"messages", .convert = convert_messages},
    {"system", .convert = convert_system},
    {"tools", .convert = convert_tools},
    {"tool_choice", .convert = convert_choice},
    {"thinking", .convert = convert_thinking},
    {"output_config", .convert = convert_output, .name = "response_format"},
    {"output_config", .name = "reasoning_effort"}, /* for failures alone */
    {"cache_control", .convert = convert_cache},
    {"speed", .neutral = {"\"standard\""}},
    {"mcp_servers", .neutral = {"[]"}},
    {"context_management", .convert = convert_management},
    /* Not in bodies whose tokens are counted, from here on. */
    {"max_tokens", .convert = server_convert_copy},
    {"stream", .convert = server_convert_copy},
    {"temperature", .convert = server_convert_copy},
    {"top_p", .convert = server_convert_copy},
    {"top_k", .convert = server_convert_copy},
    {"stop_sequences", .convert = convert_stops, .name = "stop"},
    {"metadata", .convert = convert_metadata},
    {"service_tier", .neutral = {"\"auto\"", "\"standard_only\""}},
    {"container", .convert = NULL},
    {"thread", .convert = convert_thread},
};
enum { COUNTED_ROWS = 12 };

static const json_t *budget_of(const json_t *body)
{
    return json_object_get(json_object_get(body, "thinking"), "budget_tokens");
}

enum server_thinking server_messages_thinking(const json_t *body)
{
    const json_t *type = json_object_get(json_object_get(body, "thinking"), "type");
    return is_text(type, "enabled")    ? SERVER_THINKING_ON
           : is_text(type, "disabled") ? SERVER_THINKING_OFF
                                       : SERVER_THINKING_FREE;
}

const char *server_messages_field(const char *name)
{
    return server_convert_field(rows, sizeof rows / sizeof *rows, name);
}

bool server_messages_read(const json_t *body, bool counts, json_t **chat, struct server_error *error)
{
    json_t *made = json_object();
    bool ok = (made || server_fail_memory(error)) &&
              server_convert(body, rows, counts ? COUNTED_ROWS : sizeof rows / sizeof *rows, made, error);
    if (ok && !server_convert_get(body, "messages"))
        ok = server_fail(error, 400, "missing_required_parameter", "messages",
                         "messages: expected this field, found nothing");
    if (ok && !counts && !server_convert_get(body, "max_tokens"))
        ok = server_fail(error, 400, "missing_required_parameter", "max_tokens",
                         "max_tokens: expected this field, found nothing");
    const json_t *most = json_object_get(body, "max_tokens");
    if (ok && !counts && server_messages_thinking(body) == SERVER_THINKING_ON && json_is_integer(most) &&
        json_integer_value(budget_of(body)) >= json_integer_value(most))
        ok = server_fail(error, 400, "invalid_value", "thinking",
                         "thinking: expected fewer \"budget_tokens\" than max_tokens");
    *chat = ok ? made : NULL;
    if (!ok) json_decref(made);
    return ok;
}
