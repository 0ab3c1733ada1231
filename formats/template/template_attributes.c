/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes and items of values, and which methods they have, as Python's classes have them. What changes an object is refused, as the
 * immutable sandbox does. */
#include <inttypes.h>
#include <string.h>

#include "formats/template/template_methods.h"

const struct value *argument(const struct arguments *arguments, size_t index, const char *name)
{
    if (index < arguments->count) return &arguments->positional[index];
    for (size_t i = 0; i < arguments->named_count; i++)
        if (string_is(arguments->names[i], name)) return &arguments->named[i];
    return NULL;
}

static bool is_listed(struct string name, const char *names)
{
    for (const char *at = names; *at;) {
        const size_t length = strcspn(at, " ");
        if (string_equal(name, (struct string){at, NULL, length})) return true;
        at += length + strspn(at + length, " ");
    }
    return false;
}

bool arguments_check(struct render *render, const struct arguments *arguments, const char *callee, const char *names)
{
    size_t most = *names ? 1 : 0;
    for (const char *at = names; *at; at++) most += *at == ' ';
    if (arguments->count > most)
        render_fail(render, "TypeError: %s takes at most %zu argument(s), %zu were given", callee, most,
                    arguments->count);
    for (size_t i = 0; i < arguments->named_count; i++)
        if (!is_listed(arguments->names[i], names))
            render_fail(render, "TypeError: %s got an unexpected keyword argument '%.*s'", callee,
                        (int)arguments->names[i].size, arguments->names[i].bytes);
    return !render->failed;
}

/* ---- which there are ---- */

static const struct method string_methods[] = {
    {"capitalize", "", 0, false},
    {"casefold", "", 0, false},
    {"center", "width fillchar", 1, false},
    {"count", "sub start end", 1, false},
    {"endswith", "suffix start end", 1, false},
    {"find", "sub start end", 1, false},
    {"format", NULL, 0, true},
    {"index", "sub start end", 1, false},
    {"isalnum", "", 0, false},
    {"isalpha", "", 0, false},
    {"isascii", "", 0, false},
    {"isdecimal", "", 0, false},
    {"isdigit", "", 0, false},
    {"islower", "", 0, false},
    {"isnumeric", "", 0, false},
    {"isprintable", "", 0, false},
    {"isspace", "", 0, false},
    {"isupper", "", 0, false},
    {"join", "iterable", 1, false},
    {"ljust", "width fillchar", 1, false},
    {"lower", "", 0, false},
    {"lstrip", "chars", 0, false},
    {"partition", "sep", 1, false},
    {"removeprefix", "prefix", 1, false},
    {"removesuffix", "suffix", 1, false},
    {"replace", "old new count", 2, true},
    {"rfind", "sub start end", 1, false},
    {"rindex", "sub start end", 1, false},
    {"rjust", "width fillchar", 1, false},
    {"rpartition", "sep", 1, false},
    {"rsplit", "sep maxsplit", 0, true},
    {"rstrip", "chars", 0, false},
    {"split", "sep maxsplit", 0, true},
    {"splitlines", "keepends", 0, true},
    {"startswith", "prefix start end", 1, false},
    {"strip", "chars", 0, false},
    {"swapcase", "", 0, false},
    {"title", "", 0, false},
    {"upper", "", 0, false},
    {"zfill", "width", 1, false},
};
static const struct method list_methods[] = {{"copy", "", 0, false},
                                             {"count", "value", 1, false},
                                             {"index", "value start stop", 1, false}};
static const struct method dict_methods[] = {{"copy", "", 0, false},
                                             {"get", "key default", 1, false},
                                             {"items", "", 0, false},
                                             {"keys", "", 0, false},
                                             {"values", "", 0, false}};
static const char list_changes[] = "append clear extend insert pop remove reverse sort";
static const char dict_changes[] = "clear pop popitem setdefault update";

const struct method *method_of(const struct value *object, struct string name)
{
    const struct method *methods = dict_methods;
    size_t count = 0;
    if (object->kind == VALUE_STRING) methods = string_methods, count = sizeof string_methods / sizeof *methods;
    if (object->kind == VALUE_LIST) methods = list_methods, count = sizeof list_methods / sizeof *methods;
    /* Those of a tuple and a range are a list's without copy. */
    if (object->kind == VALUE_TUPLE || object->kind == VALUE_RANGE)
        methods = list_methods + 1, count = sizeof list_methods / sizeof *methods - 1;
    if (object->kind == VALUE_DICT) count = sizeof dict_methods / sizeof *methods;
    for (size_t i = 0; i < count; i++)
        if (string_is(name, methods[i].name)) return &methods[i];
    return NULL;
}

bool method_find(struct render *render, const struct value *object, struct string name, struct value *method)
{
    const char *changes = object->kind == VALUE_LIST ? list_changes : object->kind == VALUE_DICT ? dict_changes : "";
    if (is_listed(name, changes)) {
        *method = value_undefined(render, "access to attribute '%.*s' of '%s' object is unsafe.", (int)name.size,
                                  name.bytes, value_type(object));
        method->is_unsafe = true;
        return !render->failed;
    }
    if (!method_of(object, name)) return false;
    struct value *copy = render_take(render, sizeof *copy);
    if (!copy) return false;
    *copy = *object;
    *method = (struct value){.kind = VALUE_METHOD, .string = name, .object = copy};
    return true;
}

struct value value_attribute(struct render *render, const struct value *value, struct string name)
{
    struct value found;
    if (value->kind == VALUE_UNDEFINED) {
        render_fail_undefined(render, value);
        return value_none();
    }
    const bool is_namespace = value->kind == VALUE_NAMESPACE || value->kind == VALUE_LOOP;
    if (!is_namespace && method_find(render, value, name, &found)) return found;
    if (render->failed) return value_none();
    if (value->is_group && string_is(name, "grouper")) return value->list->items[0];
    if (value->is_group && string_is(name, "list")) return value->list->items[1];
    if (value->kind == VALUE_DICT || is_namespace) {
        const struct value *item = dict_find(render, value->dict, value_string(name));
        if (item) return *item;
    }
    if (value->kind == VALUE_NONE)
        return value_undefined(render, "'None' has no attribute '%.*s'", (int)name.size, name.bytes);
    return value_undefined(render, "'%s object' has no attribute '%.*s'", value_type(value), (int)name.size,
                           name.bytes);
}

struct value value_item(struct render *render, const struct value *value, const struct value *key)
{
    int64_t index;
    if (value->kind == VALUE_UNDEFINED) {
        render_fail_undefined(render, value);
        return value_none();
    }
    if (value->kind == VALUE_DICT) {
        const struct value *item = dict_find(render, value->dict, *key);
        if (item) return *item;
    }
    const bool is_string = value->kind == VALUE_STRING;
    if ((is_string || value_is_sequence(value)) && value_is_integer(key, &index)) {
        const int64_t count = is_string ? (int64_t)string_length(value->string) : (int64_t)value->list->count;
        if (!render_step(render, is_string ? value->string.size : 0)) return value_none();
        if (index < 0) index += count;
        if (index >= 0 && index < count) {
            if (!is_string) return value->list->items[index];
            const size_t at = string_offset(value->string, (size_t)index);
            return value_string(string_part(value->string, at,
                                            string_offset(string_part(value->string, at, value->string.size), 1) + at));
        }
        return value_undefined(render, "%s object has no element %" PRId64, value_type(value), index);
    }
    if (key->kind == VALUE_STRING) {
        struct value found;
        if (value->kind == VALUE_NAMESPACE || value->kind == VALUE_LOOP)
            return value_attribute(render, value, key->string);
        if (method_find(render, value, key->string, &found)) return found;
        if (value->kind == VALUE_NONE)
            return value_undefined(render, "'None' has no attribute '%.*s'", (int)key->string.size, key->string.bytes);
        return value_undefined(render, "'%s object' has no attribute '%.*s'", value_type(value), (int)key->string.size,
                               key->string.bytes);
    }
    return value_undefined(render, "%s object has no such element", value_type(value));
}
