/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_calls.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_buffer.h"
#include "runtime/server/server_literals.h"

/* A grammar allows a name twice in an object with any names: the last value counts. */
static json_t *parse(const char *text, size_t size) { return json_loadb(text, size, JSON_DECODE_ANY, NULL); }

/* The text of arguments: an object, or a string that has the text of one. */
static enum server_calls add_named(const char *name, const char *id, const json_t *arguments,
                                   const struct server_tools *tools, struct server_parts *parts)
{
    if (!server_tools_find(tools, name, strlen(name))) return SERVER_CALLS_NONE;
    json_t *read = NULL;
    if (json_is_string(arguments)) {
        read = parse(json_string_value(arguments), json_string_length(arguments));
        arguments = read;
    }
    enum server_calls added = SERVER_CALLS_NONE;
    if (json_is_object(arguments)) {
        char *text = json_format(arguments, JSON_COMPACT);
        added = text && server_parts_call(parts, name, id, text, strlen(text)) ? SERVER_CALLS_ADDED
                                                                               : SERVER_CALLS_NO_MEMORY;
        free(text);
    }
    json_decref(read);
    return added;
}

/* ---- JSON with the names ---- */

static const json_t *first_of(const json_t *object, const char *const *keys, size_t count)
{
    const json_t *value = NULL;
    for (size_t i = 0; !value && i < count; i++) value = json_object_get(object, keys[i]);
    return value;
}

static enum server_calls add_object(const json_t *object, const struct server_tools *tools, struct server_parts *parts)
{
    static const char *const names[] = {"name", "tool_name"}, *const places[] = {"arguments", "parameters"};
    const json_t *inner = json_object_get(object, "function"), *id = json_object_get(object, "id");
    const json_t *call = json_is_object(inner) ? inner : object;
    const json_t *name = first_of(call, names, 2), *arguments = first_of(call, places, 2);
    const char *key;
    const json_t *value;
    if (json_is_string(name))
        return add_named(json_string_value(name), json_is_string(id) ? json_string_value(id) : "", arguments, tools,
                         parts);
    /* {NAME: ARGUMENTS} */
    if (json_object_size(object) != 1) return SERVER_CALLS_NONE;
    json_object_foreach ((json_t *)(uintptr_t)object, key, value) return add_named(key, "", value, tools, parts);
    return SERVER_CALLS_NONE;
}

static enum server_calls add_all(const json_t *value, const struct server_tools *tools, struct server_parts *parts)
{
    const size_t before = parts->count;
    enum server_calls added = json_is_object(value) ? add_object(value, tools, parts) : SERVER_CALLS_NONE;
    for (size_t i = 0; i < json_array_size(value); i++) {
        added = add_object(json_array_get(value, i), tools, parts);
        if (added != SERVER_CALLS_ADDED) break;
    }
    if (added != SERVER_CALLS_ADDED) server_parts_truncate(parts, before);
    return added;
}

/* Takes the reference of `value`; NULL: no such value. */
static enum server_calls add_value(json_t *value, const struct server_tools *tools, struct server_parts *parts)
{
    enum server_calls added = add_all(value, tools, parts);
    json_decref(value);
    return added;
}

/* ---- a name, and arguments after it ---- */

/* The name in an id such as "functions.NAME:0". */
static struct server_span name_in_id(struct server_span id, const char *text)
{
    static const char prefix[] = "functions.";
    const size_t length = sizeof prefix - 1;
    while (id.size && strchr(" \n", text[id.begin + id.size - 1])) id.size--;
    if (id.size > length && memcmp(text + id.begin, prefix, length) == 0) id.begin += length, id.size -= length;
    const char *colon = memrchr(text + id.begin, ':', id.size);
    if (colon) id.size = (size_t)(colon - text) - id.begin;
    return id;
}

static bool is_string_type(const json_t *type)
{
    bool is_string = json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *one = json_string_value(json_array_get(type, i));
        if (!one || (strcmp(one, "string") != 0 && strcmp(one, "null") != 0)) return false;
        is_string = is_string || strcmp(one, "string") == 0;
    }
    return is_string;
}

bool server_calls_is_string(const json_t *function, const char *key)
{
    const json_t *schema = json_object_get(json_object_get(json_object_get(function, "parameters"), "properties"), key);
    return is_string_type(json_object_get(schema, "type"));
}

/* The text without the line feeds that some models put around it. NULL: no memory, or no UTF-8. */
static json_t *value_of(const struct server_argument *argument, const char *text, bool is_string)
{
    const char *begin = text + argument->value.begin, *type = text + argument->type.begin;
    size_t size = argument->value.size;
    if (size && *begin == '\n') begin++, size--;
    if (size && begin[size - 1] == '\n') size--;
    if (argument->type.size) is_string = argument->type.size == 4 && memcmp(type, "true", 4) == 0;
    json_t *value = is_string ? NULL : parse(begin, size);
    return value ? value : json_stringn(begin, size);
}

static bool put_argument(json_t *object, const json_t *function, const struct server_argument *argument,
                         const char *text)
{
    char *key = server_text_copy(text + argument->key.begin, argument->key.size);
    bool ok = key && !json_object_get(object, key) &&
              json_put(object, key, value_of(argument, text, server_calls_is_string(function, key)));
    free(key);
    return ok;
}

static enum server_calls add_arguments(const struct server_found *found, const char *name, const char *text,
                                       const struct server_tools *tools, struct server_parts *parts)
{
    json_t *object = json_object();
    if (!object) return SERVER_CALLS_NO_MEMORY;
    const json_t *function = server_tools_find(tools, name, strlen(name));
    enum server_calls added = SERVER_CALLS_ADDED;
    for (size_t i = 0; added == SERVER_CALLS_ADDED && i < found->argument_count; i++)
        if (!put_argument(object, function, &found->arguments[i], text)) added = SERVER_CALLS_NONE;
    if (added == SERVER_CALLS_ADDED) added = add_named(name, "", object, tools, parts);
    json_decref(object);
    return added;
}

/* The text of the arguments is kept as it is. */
static enum server_calls add_text(const struct server_found *found, const char *name, const char *id, const char *text,
                                  struct server_parts *parts)
{
    const char *arguments = text + found->args.begin;
    json_t *value = parse(arguments, found->args.size);
    const bool is_object = json_is_object(value);
    json_decref(value);
    if (!is_object) return SERVER_CALLS_NONE;
    return server_parts_call(parts, name, id, arguments, found->args.size) ? SERVER_CALLS_ADDED
                                                                           : SERVER_CALLS_NO_MEMORY;
}

static enum server_calls add_after_name(const struct server_found *found, const char *text,
                                        const struct server_tools *tools, struct server_parts *parts)
{
    const struct server_span span = found->name.size ? found->name : name_in_id(found->id, text);
    struct server_span id = found->id;
    char name[SERVER_MOST_TOOL_NAME_BYTES + 1], given[SERVER_CALL_ID_BYTES] = "";
    if (!span.size || span.size >= sizeof name || !server_tools_find(tools, text + span.begin, span.size))
        return SERVER_CALLS_NONE;
    memcpy(name, text + span.begin, span.size);
    name[span.size] = 0;
    while (id.size && strchr(" \n", text[id.begin + id.size - 1])) id.size--;
    if (id.size < sizeof given) memcpy(given, text + id.begin, id.size);
    if (found->gemma.size) {
        json_t *object = server_gemma_object(text + found->gemma.begin, found->gemma.size);
        enum server_calls added = add_named(name, given, object, tools, parts);
        json_decref(object);
        return added;
    }
    if (found->args.size) return add_text(found, name, given, text, parts);
    return add_arguments(found, name, text, tools, parts);
}

enum server_calls server_calls_add(const struct server_found *found, const char *text, const struct server_tools *tools,
                                   struct server_parts *parts)
{
    if (found->calls.size) return add_value(parse(text + found->calls.begin, found->calls.size), tools, parts);
    if (found->python.size)
        return add_value(server_python_calls(text + found->python.begin, found->python.size), tools, parts);
    return add_after_name(found, text, tools, parts);
}

/* ---- calls that are cut ---- */

/* Whether they are the same; !is_whole: or the text is the beginning of the word. */
static bool is_word(const char *text, size_t size, bool is_whole, const char *word)
{
    const size_t length = strlen(word);
    return (is_whole ? size == length : size <= length) && memcmp(word, text, size) == 0;
}

static bool is_tool(const char *name, size_t size, bool is_whole, const struct server_tools *tools)
{
    for (size_t i = 0; i < json_array_size(tools->list); i++) {
        const json_t *own = json_object_get(json_object_get(json_array_get(tools->list, i), "function"), "name");
        if (is_word(name, size, is_whole, json_string_value(own))) return true;
    }
    return false;
}

static bool is_member(const char *key, size_t size, bool is_whole, const char *const *members, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (is_word(key, size, is_whole, members[i])) return true;
    return false;
}

/* Whether nothing but these bytes are in the text. */
static bool has_only(const char *text, size_t size, const char *bytes)
{
    for (size_t i = 0; i < size; i++)
        if (!text[i] || !strchr(bytes, text[i])) return false;
    return true;
}

/* The first member that no call has, or the name of the first call, tells. */
static bool may_be_json(const char *text, size_t size, const struct server_tools *tools)
{
    static const char *const names[] = {"name", "tool_name"}, *const places[] = {"arguments", "parameters"},
                             *const others[] = {"function", "id", "type", "tool_call_id"};
    const char *const end = text + size;
    bool is_name = false;
    for (const char *at = text, *quote; at < end; at++) {
        if (!(quote = memchr(at, '"', (size_t)(end - at)))) return at > text || has_only(text, size, "[{ \n\t\r");
        const bool is_key = memchr(at, '{', (size_t)(quote - at)) || memchr(at, ',', (size_t)(quote - at));
        const char *word = quote + 1, *close = memchr(word, '"', (size_t)(end - word));
        const size_t length = (size_t)((close ? close : end) - word);
        if (is_name) return is_tool(word, length, close, tools);
        is_name = is_key && is_member(word, length, close, names, 2);
        if (is_key && is_member(word, length, close, places, 2)) return true;
        if (is_key && !is_name && !is_member(word, length, close, others, 4))
            return is_tool(word, length, close, tools);
        if (!close) return true;
        at = close;
    }
    return true;
}

bool server_calls_may_be(const struct server_match *match, const char *text, size_t size,
                         const struct server_tools *tools)
{
    const char *element = match->pattern + match->element, *rest = text + match->at;
    const struct server_found *found = &match->found;
    const size_t left = size - match->at;
    struct server_span name = found->name;
    if (strncmp(element, "$name", 5) == 0) return is_tool(rest, left, false, tools);
    if (strncmp(element, "$calls", 6) == 0) return may_be_json(rest, left, tools);
    if (strncmp(element, "$python", 7) == 0) {
        size_t begin = 0, end;
        while (begin < left && strchr("[ \n", rest[begin])) begin++;
        for (end = begin; end < left && rest[end] != '(';) end++;
        return is_tool(rest + begin, end - begin, end < left, tools);
    }
    if (found->id.size && !strstr(match->pattern, "$name")) name = name_in_id(found->id, text);
    return !name.size || is_tool(text + name.begin, name.size, true, tools);
}
