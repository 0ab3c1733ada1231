/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_convert.h"

enum { MOST_SCHEMA_DEPTH = 100 };

static bool wrong(struct server_error *error, const char *param, const char *expected, const json_t *found)
{
    char text[160];
    json_value_text(found, text, sizeof text);
    return server_fail(error, 400, "invalid_value", param, "%s: expected %s, found %s", param, expected, text);
}

/* ---- the list ---- */

static bool is_name(const json_t *value)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const char *name = json_string_value(value);
    const size_t size = name ? strlen(name) : 0;
    return size > 0 && size <= SERVER_MOST_TOOL_NAME_BYTES && strspn(name, letters) == size;
}

static bool is_kind(const json_t *value, bool is_right) { return !value || json_is_null(value) || is_right; }

static bool check_function(const char *param, const json_t *function, struct server_error *error)
{
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    const json_t *description = json_object_get(function, "description"),
                 *parameters = json_object_get(function, "parameters"), *strict = json_object_get(function, "strict");
    if (!json_is_object(function)) return wrong(error, param, "an object in \"function\"", function);
    if (!server_convert_members(param, function, members, sizeof members / sizeof *members, error)) return false;
    if (!is_name(json_object_get(function, "name")))
        return wrong(error, param, "a name of 1 to 128 letters, digits, '_', '-' and '.'",
                     json_object_get(function, "name"));
    if (!is_kind(description, json_is_string(description)))
        return wrong(error, param, "a string in \"description\"", description);
    if (!is_kind(parameters, json_is_object(parameters)))
        return wrong(error, param, "a JSON Schema, an object, in \"parameters\"", parameters);
    return is_kind(strict, json_is_boolean(strict)) || wrong(error, param, "true or false in \"strict\"", strict);
}

static bool check_tool(size_t index, const json_t *tool, const struct server_tools *tools, struct server_error *error)
{
    static const char *const members[] = {"type", "function"};
    char param[32];
    snprintf(param, sizeof param, "tools[%zu]", index);
    if (!json_is_object(tool)) return wrong(error, param, "an object", tool);
    const json_t *type = json_object_get(tool, "type"), *function = json_object_get(tool, "function");
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)
        return wrong(error, param, "\"function\" in \"type\", since this server has no tools of its own", type);
    if (!server_convert_members(param, tool, members, 2, error) || !check_function(param, function, error))
        return false;
    const json_t *name = json_object_get(function, "name"),
                 *first = server_tools_find(tools, json_string_value(name), json_string_length(name));
    return first == function || server_fail(error, 400, "invalid_value", param,
                                            "%s: expected functions of different names, found two that are named '%s'",
                                            param, json_string_value(name));
}

/* What to keep for later requests is the server's choice, and nothing for the chat template to show. */
static void drop_hint(json_t *object)
{
    if (json_is_object(object)) json_object_del(object, "cache_control");
}

bool server_tools_read(json_t *list, struct server_tools *tools, struct server_error *error)
{
    if (!json_is_array(list) || json_array_size(list) > SERVER_MOST_TOOLS)
        return wrong(error, "tools", "an array of up to 128 tools", list);
    if (!json_array_size(list)) return true;
    tools->list = json_incref(list);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *tool = json_array_get(list, i);
        drop_hint(tool);
        drop_hint(json_object_get(tool, "function"));
        if (!check_tool(i, tool, tools, error)) return false;
    }
    return true;
}

const json_t *server_tools_find(const struct server_tools *tools, const char *name, size_t size)
{
    for (size_t i = 0; i < json_array_size(tools->list); i++) {
        const json_t *function = json_object_get(json_array_get(tools->list, i), "function"),
                     *own = json_object_get(function, "name");
        if (json_is_string(own) && json_string_length(own) == size && memcmp(json_string_value(own), name, size) == 0)
            return function;
    }
    return NULL;
}

void server_tools_free(struct server_tools *tools)
{
    json_decref(tools->list);
    *tools = (struct server_tools){0};
}

bool server_tools_are_forced(const struct server_tools *tools)
{
    return tools->list && (tools->choice == SERVER_TOOLS_REQUIRED || tools->choice == SERVER_TOOLS_NAMED);
}

bool server_tools_are_active(const struct server_tools *tools)
{
    return tools->list && tools->choice != SERVER_TOOLS_NONE;
}

/* ---- the choice ---- */

static bool choose_named(const json_t *choice, struct server_tools *tools, struct server_error *error)
{
    static const char *const members[] = {"type", "function"}, *const inner[] = {"name"};
    static const char param[] = "tool_choice";
    const json_t *type = json_object_get(choice, "type"), *function = json_object_get(choice, "function"),
                 *name = json_object_get(function, "name");
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)
        return wrong(error, param, "\"function\" in \"type\"", type);
    if (!server_convert_members(param, choice, members, 2, error) ||
        !server_convert_members(param, function, inner, 1, error))
        return false;
    if (!json_is_string(name)) return wrong(error, param, "the name of a function", name);
    const json_t *found = server_tools_find(tools, json_string_value(name), json_string_length(name));
    if (!found) return wrong(error, param, "the name of one of the tools", name);
    tools->named = json_string_value(json_object_get(found, "name"));
    tools->choice = SERVER_TOOLS_NAMED;
    return true;
}

/* The name that an element of a list of allowed tools has; NULL: *error is set. */
static const char *allowed_name(const json_t *allowed, const struct server_tools *tools, struct server_error *error)
{
    const json_t *name = json_object_get(json_object_get(allowed, "function"), "name");
    if (json_is_string(name) && server_tools_find(tools, json_string_value(name), json_string_length(name)))
        return json_string_value(name);
    wrong(error, "tool_choice", "the name of one of the tools in each of those that are allowed", name);
    return NULL;
}

static bool is_allowed(const json_t *tool, const json_t *allowed)
{
    const char *own = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
    size_t i;
    const json_t *one;
    json_array_foreach ((json_t *)(uintptr_t)allowed, i, one)
        if (strcmp(json_string_value(json_object_get(json_object_get(one, "function"), "name")), own) == 0) return true;
    return false;
}

/* The other tools are left out: the model does not see them, and a call of one is none. */
static bool choose_allowed(const json_t *choice, struct server_tools *tools, struct server_error *error)
{
    static const char *const members[] = {"type", "allowed_tools"}, *const inner[] = {"mode", "tools"};
    static const char param[] = "tool_choice";
    const json_t *object = json_object_get(choice, "allowed_tools"), *allowed = json_object_get(object, "tools");
    const char *mode = json_string_value(json_object_get(object, "mode"));
    const bool is_required = mode && strcmp(mode, "required") == 0;
    if (!server_convert_members(param, choice, members, 2, error)) return false;
    if (!json_is_object(object)) return wrong(error, param, "an object in \"allowed_tools\"", object);
    if (!server_convert_members(param, object, inner, 2, error)) return false;
    if (!is_required && !(mode && strcmp(mode, "auto") == 0))
        return wrong(error, param, "\"auto\" or \"required\" in \"mode\"", json_object_get(object, "mode"));
    if (!json_is_array(allowed) || !json_array_size(allowed))
        return wrong(error, param, "an array of at least one of the tools", allowed);
    for (size_t i = 0; i < json_array_size(allowed); i++)
        if (!allowed_name(json_array_get(allowed, i), tools, error)) return false;
    json_t *kept = json_array();
    bool ok = kept != NULL;
    for (size_t i = 0; ok && i < json_array_size(tools->list); i++) {
        json_t *tool = json_array_get(tools->list, i);
        ok = !is_allowed(tool, allowed) || json_add(kept, json_incref(tool));
    }
    if (!ok) {
        json_decref(kept);
        return server_fail_memory(error);
    }
    json_decref(tools->list);
    tools->list = kept;
    tools->choice = is_required ? SERVER_TOOLS_REQUIRED : SERVER_TOOLS_AUTO;
    return true;
}

static bool is_type(const json_t *choice, const char *type)
{
    const char *own = json_string_value(json_object_get(choice, "type"));
    return own && strcmp(own, type) == 0;
}

bool server_tools_choose(const json_t *choice, struct server_tools *tools, struct server_error *error)
{
    static const struct {
        const char *name;
        enum server_tool_choice choice;
    } names[] = {{"auto", SERVER_TOOLS_AUTO}, {"none", SERVER_TOOLS_NONE}, {"required", SERVER_TOOLS_REQUIRED}};
    if (!choice || json_is_null(choice)) return true;
    for (size_t i = 0; json_is_string(choice) && i < sizeof names / sizeof *names; i++) {
        if (strcmp(json_string_value(choice), names[i].name) != 0) continue;
        tools->choice = names[i].choice;
        if (tools->list || tools->choice != SERVER_TOOLS_REQUIRED) return true;
        return server_fail(error, 400, "invalid_value", "tool_choice", "tool_choice: \"required\" only with tools");
    }
    if (is_type(choice, "allowed_tools")) return choose_allowed(choice, tools, error);
    if (json_is_object(choice)) return choose_named(choice, tools, error);
    return wrong(error, "tool_choice", "\"none\", \"auto\", \"required\" or an object that names a function", choice);
}

/* ---- the format of an answer that must be a call ---- */

/* Whether the members of an object are schemas by name, or a value in which a "$ref" is no reference. */
static bool has_names(const char *key)
{
    return strcmp(key, "properties") == 0 || strcmp(key, "$defs") == 0 || strcmp(key, "definitions") == 0 ||
           strcmp(key, "patternProperties") == 0 || strcmp(key, "dependentSchemas") == 0 ||
           strcmp(key, "dependencies") == 0;
}

static bool is_value(const char *key)
{
    return strcmp(key, "const") == 0 || strcmp(key, "enum") == 0 || strcmp(key, "default") == 0 ||
           strcmp(key, "examples") == 0;
}

/* References within a schema hold after it was put at #/$defs/INDEX, beside others with the same anchors. `names`: the members are
 * schemas, whatever their keys. */
static bool move_references(json_t *schema, size_t index, bool names, int depth)
{
    const char *key;
    json_t *value;
    size_t i;
    if (depth > MOST_SCHEMA_DEPTH) return true; /* which the reader of schemas refuses */
    json_array_foreach (schema, i, value)
        if (!move_references(value, index, false, depth + 1)) return false;
    json_object_foreach (schema, key, value) {
        const char *text = json_string_value(value);
        const bool is_reference = !names && text && strcmp(key, "$ref") == 0 && (text[0] == '#' || text[0] == '/');
        if (is_reference || (!names && text && strcmp(key, "$anchor") == 0)) {
            const char *place = text + (text[0] == '#');
            json_t *moved = is_reference && (place[0] == '/' || !place[0]) ? json_sprintf("#/$defs/%zu%s", index, place)
                                                                           : json_sprintf("%s-%zu", text, index);
            if (!moved || json_object_set_new(schema, key, moved)) return false;
        } else if (names || !is_value(key)) {
            if (!move_references(value, index, !names && has_names(key), depth + 1)) return false;
        }
    }
    return true;
}

json_t *server_tools_schema(const json_t *function)
{
    const json_t *parameters = json_object_get(function, "parameters");
    if (!json_is_object(parameters) || !json_object_size(parameters))
        return json_pack("{s:s, s:{}, s:b}", "type", "object", "properties", "additionalProperties", 0);
    json_t *schema = json_deep_copy(parameters);
    if (schema && !json_object_get(schema, "type") && !json_object_get(schema, "$ref") &&
        !json_put(schema, "type", json_string("object"))) {
        json_decref(schema);
        return NULL;
    }
    return schema;
}

/* Puts the definitions that the schema refers to into `used`, and those that they refer to. False: it refers to something else. */
static bool find_definitions(const json_t *schema, const json_t *definitions, json_t *used, int depth)
{
    static const char place[] = "#/$defs/";
    const char *key, *text = json_string_value(json_object_get(schema, "$ref")), *name;
    json_t *value;
    size_t i;
    if (depth > MOST_SCHEMA_DEPTH) return false;
    if (json_object_get(schema, "$ref")) {
        if (!text || strncmp(text, place, sizeof place - 1) != 0) return false;
        name = text + sizeof place - 1;
        json_t *definition = strpbrk(name, "/~%") ? NULL : json_object_get(definitions, name);
        if (!definition) return false;
        if (!json_object_get(used, name) &&
            (json_object_set(used, name, definition) || !find_definitions(definition, definitions, used, depth + 1)))
            return false;
    }
    json_array_foreach ((json_t *)(uintptr_t)schema, i, value)
        if (!find_definitions(value, definitions, used, depth + 1)) return false;
    json_object_foreach ((json_t *)(uintptr_t)schema, key, value)
        if (!find_definitions(value, definitions, used, depth + 1)) return false;
    return true;
}

/* With the definitions that it needs, and with the whole schema around it where it refers to other places. */
json_t *server_tools_property_schema(const json_t *function, const char *key)
{
    const json_t *parameters = json_object_get(function, "parameters");
    json_t *property = json_object_get(json_object_get(parameters, "properties"), key), *used = json_object();
    const bool is_found = used && find_definitions(property, json_object_get(parameters, "$defs"), used, 0);
    json_t *copy = is_found ? json_pack("{s:[O], s:O}", "allOf", property, "$defs", used) : NULL;
    if (is_found && json_object_size(used) == 0) {
        json_decref(copy);
        copy = json_incref(property);
    }
    json_decref(used);
    if (is_found) return copy;
    json_t *schema = server_tools_schema(function);
    if (schema && move_references(schema, 0, false, 0)) {
        property = json_object_get(json_object_get(schema, "properties"), key);
        copy = json_pack("{s:[O], s:{s:O}}", "allOf", property, "$defs", "0", schema);
    }
    json_decref(schema);
    return copy;
}

/* How a model that was trained with a dialect writes a call, where it is not {"name": ..., "arguments": ...}. */
static const struct {
    const char *dialect, *id, *name, *arguments;
} keys[] = {
    {"command-r", "tool_call_id", "tool_name", "parameters"},
    {"llama3", NULL, "name", "parameters"},
    {"functionary-3.1", NULL, "name", "parameters"},
    {"apertus", NULL, NULL, NULL}, /* {NAME: ARGUMENTS} */
    {NULL, NULL, "name", "arguments"},
};

/* The schema of a call of the function, whose arguments are at `reference`. */
static json_t *schema_of_call(const char *dialect, const json_t *function, const char *reference)
{
    const json_t *name = json_object_get(function, "name");
    size_t row = 0;
    while (keys[row].dialect && !(dialect && strcmp(keys[row].dialect, dialect) == 0)) row++;
    if (!keys[row].name)
        return json_pack("{s:s, s:{s:{s:s}}, s:[O], s:b}", "type", "object", "properties", json_string_value(name),
                         "$ref", reference, "required", name, "additionalProperties", 0);
    json_t *properties = json_object(), *required = json_array();
    bool ok = properties && required;
    if (ok && keys[row].id)
        ok = json_put(properties, keys[row].id, json_pack("{s:s, s:s}", "type", "string", "pattern", "^[0-9]{1,3}$")) &&
             json_add(required, json_string(keys[row].id));
    ok = ok && json_put(properties, keys[row].name, json_pack("{s:O}", "const", name)) &&
         json_put(properties, keys[row].arguments, json_pack("{s:s}", "$ref", reference)) &&
         json_add(required, json_string(keys[row].name)) && json_add(required, json_string(keys[row].arguments));
    json_t *schema = ok ? json_pack("{s:s, s:O, s:O, s:b}", "type", "object", "properties", properties, "required",
                                    required, "additionalProperties", 0)
                        : NULL;
    json_decref(properties);
    json_decref(required);
    return schema;
}

static bool add_alternative(size_t index, const char *dialect, const json_t *function, json_t *alternatives,
                            json_t *definitions)
{
    char key[32], reference[48];
    snprintf(key, sizeof key, "%zu", index);
    snprintf(reference, sizeof reference, "#/$defs/%zu", index);
    json_t *schema = server_tools_schema(function);
    if (!schema || !move_references(schema, index, false, 0)) {
        json_decref(schema);
        return false;
    }
    return json_put(definitions, key, schema) && json_add(alternatives, schema_of_call(dialect, function, reference));
}

json_t *server_tools_calls_schema(const struct server_tools *tools, const char *dialect, bool is_list)
{
    json_t *alternatives = json_array(), *definitions = json_object();
    bool ok = alternatives && definitions;
    for (size_t i = 0; ok && i < json_array_size(tools->list); i++)
        ok = add_alternative(i, dialect, json_object_get(json_array_get(tools->list, i), "function"), alternatives,
                             definitions);
    json_t *schema = !ok        ? NULL
                     : !is_list ? json_pack("{s:O, s:O}", "anyOf", alternatives, "$defs", definitions)
                                : json_pack("{s:s, s:i, s:{s:O}, s:O}", "type", "array", "minItems", 1, "items",
                                            "anyOf", alternatives, "$defs", definitions);
    json_decref(alternatives);
    json_decref(definitions);
    if (schema && is_list && tools->one_call && !json_put(schema, "maxItems", json_integer(1))) {
        json_decref(schema);
        return NULL;
    }
    return schema;
}

bool server_tools_format(const struct server_tools *tools, struct server_format *format, struct server_error *error)
{
    json_t *schema = tools->named ? server_tools_schema(server_tools_find(tools, tools->named, strlen(tools->named)))
                                  : server_tools_calls_schema(tools, NULL, true);
    char *text = schema ? json_format(schema, JSON_COMPACT) : NULL;
    json_decref(schema);
    if (!text) return server_fail_memory(error);
    *format =
        (struct server_format){.field = "tools", .kind = ENG_GRAMMAR_JSON_SCHEMA, .text = text, .size = strlen(text)};
    return true;
}
