/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_buffer.h"
#include "runtime/server/server_partial.h"

enum { MOST_ROLE_BYTES = 32 };

static bool wrong(struct server_error *error, size_t index, const char *member, const char *expected,
                  const json_t *found)
{
    char param[64], text[160];
    json_value_text(found, text, sizeof text);
    snprintf(param, sizeof param, "messages[%zu]%s", index, member);
    return server_fail(error, 400, "invalid_value", param, "%s: expected %s, found %s", param, expected, text);
}

static bool is_role(const json_t *value)
{
    const char *role = json_string_value(value);
    const size_t size = role ? strlen(role) : 0;
    return size > 0 && size <= MOST_ROLE_BYTES &&
           strspn(role, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == size;
}

/* Members that say what to keep for later requests, which the server does by itself: routers put them where Anthropic's API has them. */
static bool is_hint(const char *key)
{
    return strcmp(key, "cache_control") == 0 || strcmp(key, "prompt_cache_breakpoint") == 0;
}

/* Appends the text of one part. */
static bool add_part(size_t index, const json_t *part, struct server_buffer *text, struct server_error *error)
{
    const char *type = json_string_value(json_object_get(part, "type")), *key;
    const json_t *content = json_object_get(part, "text"), *value;
    if (!type || strcmp(type, "text") != 0)
        return wrong(error, index, ".content", "parts of type \"text\", since the engine reads nothing else",
                     json_object_get(part, "type"));
    if (!json_is_string(content)) return wrong(error, index, ".content", "a string in \"text\" of each part", content);
    json_object_foreach ((json_t *)(uintptr_t)part, key, value)
        if (strcmp(key, "type") != 0 && strcmp(key, "text") != 0 && !is_hint(key) && !json_is_null(value))
            return server_fail(error, 400, "unknown_parameter", "messages",
                               "messages[%zu].content: field '%.64s' of a part is not known to this server", index,
                               key);
    return ((!text->size || server_buffer_text(text, "\n")) &&
            server_buffer_add(text, json_string_value(content), json_string_length(content))) ||
           server_fail_memory(error);
}

/* An owned JSON string; NULL: failed. */
static json_t *read_content(size_t index, const json_t *content, struct server_error *error)
{
    struct server_buffer text = {0};
    json_t *string = NULL;
    if (json_is_string(content)) return json_incref((json_t *)(uintptr_t)content);
    if (!json_is_array(content) || !json_array_size(content)) {
        wrong(error, index, ".content", "a string or an array of text parts", content);
        return NULL;
    }
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(content); i++)
        ok = add_part(index, json_array_get(content, i), &text, error);
    if (ok) {
        string = json_stringn(text.data ? text.data : "", text.size);
        if (!string) server_fail_memory(error);
    }
    server_buffer_free(&text);
    return string;
}

static bool is_empty_list(const json_t *value) { return json_is_array(value) && !json_array_size(value); }

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "assistant") == 0;
}

static bool check_fields(size_t index, json_t *message, struct server_error *error)
{
    static const char *const known[] = {"role",         "content",           "name",     "tool_calls",
                                        "tool_call_id", "reasoning_content", "reasoning"};
    const char *key;
    const json_t *value;
    char param[SERVER_PARAM_BYTES];
    json_object_foreach (message, key, value) {
        /* Answers of other servers have empty lists. parsed: the content once more, which OpenAI's package adds. */
        bool is_known = json_is_null(value) || is_hint(key) ||
                        (is_answer(message) && (is_empty_list(value) || strcmp(key, "parsed") == 0));
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) is_known = is_known || strcmp(key, known[i]) == 0;
        if (is_known) continue;
        snprintf(param, sizeof param, "messages[%zu].%s", index, key);
        return server_fail(
            error, 400, "unknown_parameter", param,
            "messages[%zu]: field '%.64s' is not supported by this server; expected role, content, name, "
            "tool_calls, tool_call_id and reasoning_content",
            index, key);
    }
    return true;
}

/* ---- calls ---- */

/* The complete values of an object that was cut, as those of a named function may be; NULL: the text is something else. */
static json_t *read_cut_arguments(const char *text, size_t size)
{
    struct server_partial partial = {0};
    server_partial_push(&partial, text, size);
    return text[strspn(text, " \t\r\n")] == '{' && !partial.is_whole ? server_partial_object(text, size) : NULL;
}

/* An owned object; NULL: the text or value is none. */
static json_t *read_arguments(const json_t *value)
{
    struct status ignored = {0};
    if (json_is_object(value)) return json_incref((json_t *)(uintptr_t)value);
    if (!json_is_string(value)) return NULL;
    if (!json_string_length(value)) return json_object();
    json_t *read = json_parse(json_string_value(value), json_string_length(value), "arguments", &ignored);
    if (!read) return read_cut_arguments(json_string_value(value), json_string_length(value));
    if (json_is_object(read)) return read;
    json_decref(read);
    return NULL;
}

static bool add_call(size_t index, const json_t *call, json_t *list, struct server_error *error)
{
    const json_t *function = json_object_get(call, "function"), *name = json_object_get(function, "name"),
                 *id = json_object_get(call, "id"), *type = json_object_get(call, "type");
    if (!json_is_object(call)) return wrong(error, index, ".tool_calls", "an array of objects", call);
    if (type && !json_is_null(type) && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        return wrong(error, index, ".tool_calls", "calls of type \"function\"", type);
    if (!json_is_string(name)) return wrong(error, index, ".tool_calls", "the name of a function in each call", name);
    if (id && !json_is_null(id) && !json_is_string(id))
        return wrong(error, index, ".tool_calls", "a string in \"id\" of each call", id);
    json_t *arguments = read_arguments(json_object_get(function, "arguments"));
    if (!arguments)
        return wrong(error, index, ".tool_calls", "a JSON object, or its text, in \"arguments\" of each call",
                     json_object_get(function, "arguments"));
    json_t *made =
        json_pack("{s:s, s:{s:O, s:O}}", "type", "function", "function", "name", name, "arguments", arguments);
    bool ok = made && (!json_is_string(id) || json_put(made, "id", json_incref((json_t *)(uintptr_t)id))) &&
              json_add(list, json_incref(made));
    json_decref(arguments);
    json_decref(made);
    return ok || server_fail_memory(error);
}

/* Adds the calls of a message, if it has any. */
static bool add_calls(size_t index, const json_t *calls, json_t *made, struct server_error *error)
{
    if (!calls || json_is_null(calls)) return true;
    if (!json_is_array(calls)) return wrong(error, index, ".tool_calls", "an array", calls);
    if (!json_array_size(calls)) return true;
    json_t *list = json_array();
    bool ok = list || server_fail_memory(error);
    for (size_t i = 0; ok && i < json_array_size(calls); i++)
        ok = add_call(index, json_array_get(calls, i), list, error);
    ok = ok && (json_put(made, "tool_calls", json_incref(list)) || server_fail_memory(error));
    json_decref(list);
    return ok;
}

/* ---- messages ---- */

/* Adds the text of one member under the name of another. */
static bool add_text_as(size_t index, const json_t *message, const char *member, const char *name, json_t *made,
                        struct server_error *error)
{
    char place[32];
    json_t *value = json_object_get(message, member);
    snprintf(place, sizeof place, ".%s", member);
    if (!value || json_is_null(value)) return true;
    if (!json_is_string(value)) return wrong(error, index, place, "a string", value);
    return json_put(made, name, json_incref(value)) || server_fail_memory(error);
}

static bool add_text(size_t index, const json_t *message, const char *member, json_t *made, struct server_error *error)
{
    return add_text_as(index, message, member, member, made, error);
}

/* A message that has calls needs no content, and an answer may be empty, as one whose only call was cut is. */
static json_t *content_of(size_t index, const json_t *message, struct server_error *error)
{
    const json_t *content = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls");
    const bool has_none = !content || json_is_null(content);
    bool is_empty = has_none && json_array_size(calls);
    if (is_answer(message)) is_empty = (has_none && json_is_array(calls)) || is_empty_list(content);
    if (!is_empty) return read_content(index, content, error);
    json_t *empty = json_string("");
    if (!empty) server_fail_memory(error);
    return empty;
}

/* An owned string: templates know no developer, whose place is the system's. */
static json_t *role_of(json_t *role)
{
    return strcmp(json_string_value(role), "developer") == 0 ? json_string("system") : json_incref(role);
}

static bool add_message(size_t index, json_t *message, json_t *list, struct server_error *error)
{
    if (!json_is_object(message)) return wrong(error, index, "", "an object", message);
    json_t *role = json_object_get(message, "role");
    if (!check_fields(index, message, error)) return false;
    if (!is_role(role))
        return wrong(error, index, ".role", "a role of letters, digits, '_' and '-' that the chat template knows",
                     role);
    json_t *content = content_of(index, message, error);
    if (!content) return false;
    json_t *made = json_object();
    bool ok = (made && json_put(made, "role", role_of(role)) && json_put(made, "content", json_incref(content))) ||
              server_fail_memory(error);
    ok = ok && add_text(index, message, "name", made, error) && add_text(index, message, "tool_call_id", made, error) &&
         add_text_as(index, message, "reasoning", "reasoning_content", made, error) && /* newer releases of vLLM */
         add_text(index, message, "reasoning_content", made, error) &&
         add_calls(index, json_object_get(message, "tool_calls"), made, error);
    ok = ok && (json_add(list, json_incref(made)) || server_fail_memory(error));
    json_decref(content);
    json_decref(made);
    return ok;
}

static bool add_messages(const json_t *messages, json_t *list, struct server_error *error)
{
    if (!json_is_array(messages) || !json_array_size(messages)) {
        char text[160];
        json_value_text(messages, text, sizeof text);
        return server_fail(error, 400, "invalid_value", "messages",
                           "messages: expected an array of at least one message, found %s", text);
    }
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!add_message(i, json_array_get(messages, i), list, error)) return false;
    return true;
}

static bool add_variables(const json_t *given, json_t *variables, struct server_error *error)
{
    const char *key;
    json_t *value;
    if (!given || json_is_null(given)) return true;
    if (!json_is_object(given))
        return server_fail(error, 400, "invalid_value", "chat_template_kwargs",
                           "chat_template_kwargs: expected an object, found %s", json_type_name(given));
    json_object_foreach ((json_t *)(uintptr_t)given, key, value) {
        if (strcmp(key, "messages") == 0)
            return server_fail(error, 400, "invalid_value", "chat_template_kwargs",
                               "chat_template_kwargs: messages belong in the field of that name");
        if (!json_put(variables, key, json_incref(value))) return server_fail_memory(error);
    }
    return true;
}

bool server_chat_variables(json_t *body, bool add_generation_prompt, const struct server_tools *tools, char **variables,
                           struct server_error *error)
{
    json_t *made = json_object(), *list = json_array();
    bool ok = (made && list && json_put(made, "add_generation_prompt", json_boolean(add_generation_prompt))) ||
              server_fail_memory(error);
    ok = ok && add_messages(json_object_get(body, "messages"), list, error) &&
         add_variables(json_object_get(body, "chat_template_kwargs"), made, error);
    if (ok && server_tools_are_active(tools))
        ok = json_put(made, "tools", json_incref(tools->list)) || server_fail_memory(error);
    if (ok) {
        *variables = json_put(made, "messages", json_incref(list)) ? json_format(made, JSON_COMPACT) : NULL;
        ok = *variables || server_fail_memory(error);
    }
    json_decref(list);
    json_decref(made);
    return ok;
}

/* *found: there was a call. False: out of memory. */
static bool make_text(json_t *call, bool *found)
{
    json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    if (!json_is_object(arguments)) return true;
    char *text = json_format(arguments, 0);
    *found = true;
    bool ok = text && json_put(function, "arguments", json_string(text));
    free(text);
    return ok;
}

bool server_chat_text_arguments(char **variables)
{
    json_t *read = json_loads(*variables, 0, NULL), *message, *call;
    size_t index, other;
    bool ok = read != NULL, found = false;
    json_array_foreach (json_object_get(read, "messages"), index, message)
        json_array_foreach (json_object_get(message, "tool_calls"), other, call) ok = ok && make_text(call, &found);
    char *text = ok && found ? json_format(read, JSON_COMPACT) : NULL;
    json_decref(read);
    if (!text) return false;
    free(*variables);
    *variables = text;
    return true;
}
