/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_convert.h"

#include <stdint.h>
#include <string.h>

#include "formats/base/json.h"
#include "runtime/server/server_buffer.h"

bool server_convert_wrong(struct server_error *error, const char *param, const char *expected, const json_t *found)
{
    char text[160];
    json_value_text(found, text, sizeof text);
    return server_fail(error, 400, "invalid_value", param, "%s: expected %s, found %s", param, expected, text);
}

json_t *server_convert_get(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool server_convert_put(json_t *object, const char *name, json_t *value, struct server_error *error)
{
    return json_put(object, name, value) || server_fail_memory(error);
}

bool server_convert_add(json_t *array, json_t *value, struct server_error *error)
{
    return json_add(array, value) || server_fail_memory(error);
}

json_t *server_convert_join(const json_t *strings, struct server_error *error)
{
    struct server_buffer text = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(strings); i++) {
        const json_t *string = json_array_get(strings, i);
        ok = (!i || server_buffer_text(&text, "\n")) &&
             server_buffer_add(&text, json_string_value(string), json_string_length(string));
    }
    json_t *joined = ok ? json_stringn(text.data ? text.data : "", text.size) : NULL;
    server_buffer_free(&text);
    if (!joined) server_fail_memory(error);
    return joined;
}

bool server_convert_members(const char *param, const json_t *object, const char *const *names, size_t count,
                            struct server_error *error)
{
    const char *key;
    const json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)object, key, value) {
        bool known = json_is_null(value);
        for (size_t i = 0; !known && i < count; i++) known = strcmp(key, names[i]) == 0;
        if (!known)
            return server_fail(error, 400, "unknown_parameter", param,
                               "%s: field '%.64s' is not supported by this server", param, key);
    }
    return true;
}

bool server_convert_copy(const struct server_conversion *row, const json_t *value, json_t *chat,
                         struct server_error *error)
{
    return server_convert_put(chat, row->name ? row->name : row->field, json_incref((json_t *)(uintptr_t)value), error);
}

bool server_convert_label(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error)
{
    (void)chat;
    return json_is_string(value) || server_convert_wrong(error, row->field, "a string", value);
}

const char *server_convert_field(const struct server_conversion *rows, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].name ? rows[i].name : rows[i].field, name) == 0) return rows[i].field;
    return NULL;
}

static bool is_neutral(const struct server_conversion *row, const json_t *value)
{
    bool equal = false;
    for (int i = 0; !equal && i < SERVER_MOST_NEUTRAL_VALUES && row->neutral[i]; i++) {
        json_t *neutral = json_loads(row->neutral[i], JSON_DECODE_ANY, NULL);
        equal = json_equal(value, neutral);
        json_decref(neutral);
    }
    return equal;
}

static bool convert_field(const struct server_conversion *row, const json_t *value, json_t *chat,
                          struct server_error *error)
{
    if (is_neutral(row, value)) return true;
    if (row->convert) return row->convert(row, value, chat, error);
    return server_fail(error, 400, "unsupported_parameter", row->field,
                       "%s is not supported by this server; leave it out%s%s", row->field,
                       row->neutral[0] ? " or set it to " : "", row->neutral[0] ? row->neutral[0] : "");
}

bool server_convert(const json_t *body, const struct server_conversion *rows, size_t count, json_t *chat,
                    struct server_error *error)
{
    const char *field;
    const json_t *value;
    if (!json_is_object(body)) return server_convert_wrong(error, "body", "an object", body);
    json_object_foreach ((json_t *)(uintptr_t)body, field, value) {
        size_t i = 0;
        while (i < count && strcmp(rows[i].field, field) != 0) i++;
        if (json_is_null(value)) continue;
        if (i == count)
            return server_fail(error, 400, "unknown_parameter", field,
                               "field '%.64s' is not known to this server; leave it out", field);
        if (!convert_field(&rows[i], value, chat, error)) return false;
    }
    return true;
}

bool server_convert_tools(const struct server_conversion *row, const json_t *value,
                          bool (*add)(size_t index, const json_t *tool, json_t *tools, struct server_error *error),
                          json_t *chat, struct server_error *error)
{
    if (!json_is_array(value)) return server_convert_wrong(error, row->field, "an array of tools", value);
    json_t *tools = json_array();
    bool ok = tools || server_fail_memory(error);
    for (size_t i = 0; ok && i < json_array_size(value); i++) ok = add(i, json_array_get(value, i), tools, error);
    ok = ok && server_convert_put(chat, "tools", json_incref(tools), error);
    json_decref(tools);
    return ok;
}
