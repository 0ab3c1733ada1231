/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes, items and methods of values, as Python's classes have them. What changes an object is refused, as the immutable
 * sandbox does. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/template/template_value.h"

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

static const char string_methods[] = "strip lstrip rstrip split rsplit splitlines startswith endswith replace upper "
                                     "lower title capitalize swapcase casefold join "
                                     "find rfind index rindex count format isdigit isdecimal isnumeric isalpha isalnum "
                                     "isspace isupper islower zfill center "
                                     "ljust rjust removeprefix removesuffix partition rpartition";
static const char list_methods[] = "index count copy";
static const char list_changes[] = "append clear extend insert pop remove reverse sort";
static const char dict_methods[] = "items keys values get copy";
static const char dict_changes[] = "clear pop popitem setdefault update";

bool method_find(struct render *render, const struct value *object, struct string name, struct value *method)
{
    const char *methods = "", *changes = "";
    if (object->kind == VALUE_STRING) methods = string_methods;
    if (object->kind == VALUE_LIST || object->kind == VALUE_TUPLE) methods = list_methods;
    if (object->kind == VALUE_LIST) changes = list_changes;
    if (object->kind == VALUE_DICT) methods = dict_methods, changes = dict_changes;
    if (is_listed(name, changes)) {
        /* A method that is looked up and not called does no harm; jinja2 fails when the value is used. */
        render_fail(render, "SecurityError: access to attribute '%.*s' of '%s' object is unsafe.", (int)name.size,
                    name.bytes, value_type(object));
        return false;
    }
    if (!is_listed(name, methods)) return false;
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
        render_fail(render, "UndefinedError: %.*s", (int)value->string.size, value->string.bytes);
        return value_none();
    }
    const bool is_namespace = value->kind == VALUE_NAMESPACE;
    if (!is_namespace && method_find(render, value, name, &found)) return found;
    if (render->failed) return value_none();
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
        render_fail(render, "UndefinedError: %.*s", (int)value->string.size, value->string.bytes);
        return value_none();
    }
    if (value->kind == VALUE_DICT) {
        const struct value *item = dict_find(render, value->dict, *key);
        if (item) return *item;
    }
    const bool is_string = value->kind == VALUE_STRING;
    if ((is_string || value->kind == VALUE_LIST || value->kind == VALUE_TUPLE) && value_is_integer(key, &index)) {
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
        if (value->kind == VALUE_NAMESPACE) return value_attribute(render, value, key->string);
        if (method_find(render, value, key->string, &found)) return found;
        if (value->kind == VALUE_NONE)
            return value_undefined(render, "'None' has no attribute '%.*s'", (int)key->string.size, key->string.bytes);
        return value_undefined(render, "'%s object' has no attribute '%.*s'", value_type(value), (int)key->string.size,
                               key->string.bytes);
    }
    return value_undefined(render, "%s object has no such element", value_type(value));
}

/* ---- strings ---- */

static struct string text_argument(struct render *render, const struct value *value, const char *callee)
{
    if (value && value->kind == VALUE_STRING) return value->string;
    render_fail(render, "TypeError: %s: expected a string, found %s", callee, value ? value_type(value) : "nothing");
    return string_of("");
}

static int64_t integer_argument(struct render *render, const struct value *value, int64_t absent, const char *callee)
{
    int64_t integer = absent;
    if (value && value->kind != VALUE_NONE && !value_is_integer(value, &integer))
        render_fail(render, "TypeError: %s: expected an integer, found %s", callee, value_type(value));
    return integer;
}

struct string string_replace(struct render *render, struct string in, struct string old, struct string new,
                             int64_t count)
{
    struct builder builder;
    size_t from = 0, at;
    builder_open(&builder, render);
    if (!old.size) {
        while (count-- != 0 && from <= in.size && render_step(render, 0)) {
            builder_add(&builder, new);
            if (from == in.size) return builder_value(&builder).string;
            const size_t bytes = string_offset(string_part(in, from, in.size), 1);
            builder_add(&builder, string_part(in, from, from + bytes));
            from += bytes;
        }
    } else {
        for (; count != 0 && (at = string_find(in, old, from)) != SIZE_MAX && render_step(render, at - from); count--) {
            builder_add(&builder, string_part(in, from, at));
            builder_add(&builder, new);
            from = at + old.size;
        }
    }
    builder_add(&builder, string_part(in, from, in.size));
    return builder_value(&builder).string;
}

static bool is_letter(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_digit(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND; }
static bool is_number(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

static bool is_upper(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
}
static bool is_lower(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL; }

/* upper, lower, title, capitalize, swapcase and casefold, character by character. */
struct string string_case(struct render *render, struct string in, const char *method)
{
    struct builder builder;
    bool inside = false; /* a word, for title; the string, for capitalize */
    builder_open(&builder, render);
    for (size_t at = 0; at < in.size && !render->failed;) {
        uint32_t c;
        char bytes[8];
        const size_t size = string_character(in, at, &c);
        const utf8proc_int32_t upper = utf8proc_toupper((utf8proc_int32_t)c),
                               lower = utf8proc_tolower((utf8proc_int32_t)c);
        uint32_t made = c;
        const char first = method[0];
        if (first == 'u' || (first == 't' && !inside) || (method[2] == 'p' && first == 'c' && !inside))
            made = (uint32_t)(first == 'u' ? upper : utf8proc_totitle((utf8proc_int32_t)c));
        else if (first == 's')
            made = (uint32_t)(is_upper(c) ? lower : is_lower(c) ? upper : (utf8proc_int32_t)c);
        else
            made = (uint32_t)lower;
        inside = first == 't' ? is_letter(c) : true;
        if (made == c) {
            builder_add(&builder, string_part(in, at, at + size));
        } else if (c == 0xdf && first == 'u') {
            builder_add_bytes(&builder, "SS", 2, in.foreign && in.foreign[at]);
        } else {
            builder_add_bytes(&builder, bytes, string_encode(made, bytes), in.foreign && in.foreign[at]);
        }
        at += size;
    }
    return builder_value(&builder).string;
}

struct string string_escape(struct render *render, struct string in)
{
    static const char *const pairs[][2] = {{"&", "&amp;"},
                                           {"<", "&lt;"},
                                           {">", "&gt;"},
                                           {"'", "&#39;"},
                                           {"\"", "&#34;"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        in = string_replace(render, in, string_of(pairs[i][0]), string_of(pairs[i][1]), -1);
    return in;
}

static bool all_are(struct string string, bool (*is)(uint32_t))
{
    for (size_t at = 0; at < string.size;) {
        uint32_t c;
        at += string_character(string, at, &c);
        if (!is(c)) return false;
    }
    return string.size != 0;
}

static bool is_alphanumeric(uint32_t c) { return is_letter(c) || is_number(c); }

/* isupper, islower: no cased character is of the other case, and there is one. */
static bool cased(struct string string, bool upper)
{
    bool found = false;
    for (size_t at = 0; at < string.size;) {
        uint32_t c;
        at += string_character(string, at, &c);
        if (upper ? is_lower(c) : is_upper(c)) return false;
        found |= upper ? is_upper(c) : is_lower(c);
    }
    return found;
}

static struct value split_spaces(struct render *render, struct string in, int64_t most, bool from_right)
{
    struct value list = value_list(render, VALUE_LIST);
    struct string rest = string_strip(in, NULL, 3);
    while (rest.size && render_step(render, 0)) {
        size_t at = from_right ? rest.size : 0;
        uint32_t c = 0;
        if (most-- == 0) {
            list_add(render, list.list, value_string(rest));
            break;
        }
        if (from_right) {
            while (at > 0) {
                size_t begin = at - 1;
                while (begin > 0 && ((uint8_t)rest.bytes[begin] & 0xc0) == 0x80) begin--;
                string_character(rest, begin, &c);
                if (character_is_space(c)) break;
                at = begin;
            }
            list_add(render, list.list, value_string(string_part(rest, at, rest.size)));
            rest = string_strip(string_part(rest, 0, at), NULL, 2);
        } else {
            while (at < rest.size) {
                const size_t bytes = string_character(rest, at, &c);
                if (character_is_space(c)) break;
                at += bytes;
            }
            list_add(render, list.list, value_string(string_part(rest, 0, at)));
            rest = string_strip(string_part(rest, at, rest.size), NULL, 1);
        }
    }
    return list;
}

static void reverse(struct list *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        const struct value item = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = item;
    }
}

/* The last place before `end`. */
static size_t find_last(struct string in, struct string what, size_t end)
{
    if (what.size > end) return SIZE_MAX;
    for (size_t at = end - what.size + 1; at-- > 0;)
        if (!what.size || memcmp(in.bytes + at, what.bytes, what.size) == 0) return at;
    return SIZE_MAX;
}

static struct value split(struct render *render, struct string in, const struct arguments *arguments, bool from_right)
{
    const struct value *separator = argument(arguments, 0, "sep");
    int64_t most = integer_argument(render, argument(arguments, 1, "maxsplit"), -1, "split");
    struct value list = value_list(render, VALUE_LIST);
    if (!separator || separator->kind == VALUE_NONE) {
        list = split_spaces(render, in, most, from_right);
    } else {
        const struct string by = text_argument(render, separator, "split");
        size_t begin = 0, end = in.size, at;
        if (!by.size) render_fail(render, "ValueError: empty separator");
        while (!render->failed && most-- != 0 && render_step(render, in.size / 8)) {
            at = from_right ? find_last(in, by, end) : string_find(in, by, begin);
            if (at == SIZE_MAX) break;
            list_add(render, list.list,
                     value_string(from_right ? string_part(in, at + by.size, end) : string_part(in, begin, at)));
            begin = at + by.size;
            if (from_right) end = at, begin = 0;
        }
        list_add(render, list.list, value_string(string_part(in, begin, end)));
    }
    if (from_right) reverse(list.list);
    return list;
}

static struct value split_lines(struct render *render, struct string in, bool keeps)
{
    struct value list = value_list(render, VALUE_LIST);
    size_t begin = 0;
    for (size_t at = 0; at < in.size && !render->failed;) {
        uint32_t c;
        const size_t bytes = string_character(in, at, &c), end = at;
        at += bytes;
        if (!((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
        if (c == '\r' && at < in.size && in.bytes[at] == '\n') at++;
        list_add(render, list.list, value_string(string_part(in, begin, keeps ? at : end)));
        begin = at;
    }
    if (begin < in.size) list_add(render, list.list, value_string(string_part(in, begin, in.size)));
    return list;
}

static bool has_end(struct string in, struct string part, bool at_start)
{
    return part.size <= in.size &&
           (!part.size || memcmp(in.bytes + (at_start ? 0 : in.size - part.size), part.bytes, part.size) == 0);
}

static bool has_any_end(struct render *render, struct string in, const struct value *parts, bool at_start)
{
    if (!parts || parts->kind != VALUE_TUPLE)
        return has_end(in, text_argument(render, parts, at_start ? "startswith" : "endswith"), at_start);
    for (size_t i = 0; i < parts->list->count; i++)
        if (has_end(in, text_argument(render, &parts->list->items[i], "startswith"), at_start)) return true;
    return false;
}

static struct value join(struct render *render, struct string by, const struct value *parts)
{
    struct builder builder;
    builder_open(&builder, render);
    const struct list *items = parts ? value_items(render, parts) : value_list(render, VALUE_LIST).list;
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        if (items->items[i].kind != VALUE_STRING)
            render_fail(render, "TypeError: sequence item %zu: expected str instance, %s found", i,
                        value_type(&items->items[i]));
        else {
            if (i) builder_add(&builder, by);
            builder_add(&builder, items->items[i].string);
        }
    }
    return builder_value(&builder);
}

static struct value pad(struct render *render, struct string in, const struct arguments *arguments, const char *method)
{
    const int64_t width = integer_argument(render, argument(arguments, 0, "width"), 0, method);
    const struct value *with = argument(arguments, 1, "fillchar");
    const struct string fill = with ? text_argument(render, with, method) : string_of(method[0] == 'z' ? "0" : " ");
    const int64_t missing = width - (int64_t)string_length(in);
    const int64_t left = missing <= 0                           ? 0
                         : method[0] == 'c'                     ? missing / 2 + (missing & width & 1)
                         : method[0] == 'r' || method[0] == 'z' ? missing
                                                                : 0;
    struct builder builder;
    size_t sign = 0;
    builder_open(&builder, render);
    if (method[0] == 'z' && in.size && (in.bytes[0] == '-' || in.bytes[0] == '+')) sign = 1;
    builder_add(&builder, string_part(in, 0, sign));
    for (int64_t i = 0; i < left && !render->failed; i++) builder_add(&builder, fill);
    builder_add(&builder, string_part(in, sign, in.size));
    for (int64_t i = left; i < missing && !render->failed; i++) builder_add(&builder, fill);
    return builder_value(&builder);
}

static struct value partition(struct render *render, struct string in, struct string by, bool last)
{
    struct value tuple = value_list(render, VALUE_TUPLE);
    const size_t at = last ? find_last(in, by, in.size) : string_find(in, by, 0);
    const struct string empty = string_of("");
    if (!by.size) render_fail(render, "ValueError: empty separator");
    const struct string parts[2][3] = {{in, empty, empty}, {empty, empty, in}};
    for (int i = 0; i < 3; i++)
        list_add(render, tuple.list,
                 value_string(at == SIZE_MAX ? parts[last][i]
                              : i == 0       ? string_part(in, 0, at)
                              : i == 1       ? string_part(in, at, at + by.size)
                                             : string_part(in, at + by.size, in.size)));
    return tuple;
}

/* str.format: fields {}, {0}, {name}, with conversions !s and !r, without format specifications. */
static struct value format_fields(struct render *render, struct string in, const struct arguments *arguments)
{
    struct builder builder;
    size_t next = 0;
    builder_open(&builder, render);
    for (size_t at = 0; at < in.size && !render->failed;) {
        const char c = in.bytes[at];
        if ((c == '{' || c == '}') && at + 1 < in.size && in.bytes[at + 1] == c) {
            builder_add(&builder, string_part(in, at, at + 1));
            at += 2;
            continue;
        }
        if (c != '{') {
            builder_add(&builder, string_part(in, at, at + 1));
            at++;
            continue;
        }
        const char *end = memchr(in.bytes + at, '}', in.size - at);
        if (!end) {
            render_fail(render, "ValueError: expected '}' before end of string");
            break;
        }
        struct string field = string_part(in, at + 1, (size_t)(end - in.bytes));
        at = (size_t)(end - in.bytes) + 1;
        bool represents = false;
        if (field.size >= 2 && field.bytes[field.size - 2] == '!') {
            represents = field.bytes[field.size - 1] == 'r';
            field = string_part(field, 0, field.size - 2);
        }
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)field.size, field.bytes);
        const bool is_index = !field.size || strspn(name, "0123456789") == field.size;
        const size_t index = !is_index ? SIZE_MAX : field.size ? (size_t)strtoul(name, NULL, 10) : next++;
        const struct value *value = strpbrk(name, ".[:") ? NULL : argument(arguments, index, is_index ? "" : name);
        if (!value)
            render_fail(render, "ValueError: format: field '{%s}' has no argument, or is not supported", name);
        else if (represents)
            builder_add_representation(&builder, value);
        else
            builder_add_value(&builder, value);
    }
    return builder_value(&builder);
}

static int64_t count_of(struct render *render, struct string in, struct string what)
{
    int64_t count = 0;
    if (!what.size) return (int64_t)string_length(in) + 1;
    for (size_t at = 0; (at = string_find(in, what, at)) != SIZE_MAX && render_step(render, 0); at += what.size)
        count++;
    return count;
}

static struct value place(struct render *render, struct string in, const struct arguments *arguments, bool last,
                          bool must)
{
    const struct string what = text_argument(render, argument(arguments, 0, "sub"), "find");
    const int64_t begin = integer_argument(render, argument(arguments, 1, "start"), 0, "find");
    size_t from = string_offset(in, begin < 0 ? 0 : (size_t)begin);
    const size_t at = last ? find_last(in, what, in.size) : string_find(in, what, from);
    if (at == SIZE_MAX && must) render_fail(render, "ValueError: substring not found");
    return value_integer(at == SIZE_MAX || at < from ? -1 : (int64_t)string_length(string_part(in, 0, at)));
}

static struct value call_string(struct render *render, struct string in, struct string name,
                                const struct arguments *arguments)
{
    char method[24];
    snprintf(method, sizeof method, "%.*s", (int)name.size, name.bytes);
    const bool from_right = method[0] == 'r';
    if (strcmp(method, "format") == 0) return format_fields(render, in, arguments);
    if (!arguments_check(render, arguments, method,
                         strstr("split rsplit", method)                    ? "sep maxsplit"
                         : strcmp(method, "replace") == 0                  ? "old new count"
                         : strstr("find rfind index rindex count", method) ? "sub start"
                         : strstr("center ljust rjust", method)            ? "width fillchar"
                         : strcmp(method, "zfill") == 0                    ? "width"
                         : strcmp(method, "splitlines") == 0               ? "keepends"
                                                                           : "value"))
        return value_none();
    const struct value *first = argument(arguments, 0, "value");
    if (strstr("strip lstrip rstrip", method)) {
        const int sides = method[0] == 'l' ? 1 : method[0] == 'r' ? 2 : 3;
        if (!render_step(render, in.size)) return value_none();
        if (!first || first->kind == VALUE_NONE) return value_string(string_strip(in, NULL, sides));
        const struct string set = text_argument(render, first, method);
        return value_string(string_strip(in, &set, sides));
    }
    if (strcmp(method, "splitlines") == 0) {
        const struct value *keeps = argument(arguments, 0, "keepends");
        return split_lines(render, in, keeps && value_truth(keeps));
    }
    if (strstr("split rsplit", method)) return split(render, in, arguments, from_right);
    if (strcmp(method, "startswith") == 0) return value_bool(has_any_end(render, in, first, true));
    if (strcmp(method, "endswith") == 0) return value_bool(has_any_end(render, in, first, false));
    if (strcmp(method, "replace") == 0)
        return value_string(string_replace(render, in, text_argument(render, argument(arguments, 0, "old"), method),
                                           text_argument(render, argument(arguments, 1, "new"), method),
                                           integer_argument(render, argument(arguments, 2, "count"), -1, method)));
    if (strstr("upper lower title capitalize swapcase casefold", method))
        return value_string(string_case(render, in, method));
    if (strcmp(method, "join") == 0) return join(render, in, first);
    if (strstr("find rfind", method)) return place(render, in, arguments, from_right, false);
    if (strstr("index rindex", method)) return place(render, in, arguments, from_right, true);
    if (strcmp(method, "count") == 0)
        return value_integer(count_of(render, in, text_argument(render, argument(arguments, 0, "sub"), method)));
    if (strstr("isdigit isdecimal", method)) return value_bool(all_are(in, is_digit));
    if (strcmp(method, "isnumeric") == 0) return value_bool(all_are(in, is_number));
    if (strcmp(method, "isalpha") == 0) return value_bool(all_are(in, is_letter));
    if (strcmp(method, "isalnum") == 0) return value_bool(all_are(in, is_alphanumeric));
    if (strcmp(method, "isspace") == 0) return value_bool(all_are(in, character_is_space));
    if (strcmp(method, "isupper") == 0) return value_bool(cased(in, true));
    if (strcmp(method, "islower") == 0) return value_bool(cased(in, false));
    if (strstr("zfill center ljust rjust", method)) return pad(render, in, arguments, method);
    const struct string part = text_argument(render, first, method);
    if (strcmp(method, "removeprefix") == 0)
        return value_string(has_end(in, part, true) ? string_part(in, part.size, in.size) : in);
    if (strcmp(method, "removesuffix") == 0)
        return value_string(has_end(in, part, false) ? string_part(in, 0, in.size - part.size) : in);
    return partition(render, in, part, from_right);
}

/* ---- lists and dictionaries ---- */

static struct value call_list(struct render *render, const struct value *object, struct string name,
                              const struct arguments *arguments)
{
    int64_t count = 0;
    const struct list *list = object->list;
    if (string_is(name, "copy")) {
        struct value copy = value_list(render, object->kind);
        for (size_t i = 0; i < list->count; i++) list_add(render, copy.list, list->items[i]);
        return copy;
    }
    if (!arguments_check(render, arguments, "index", "value") || !arguments->count) {
        render_fail(render, "TypeError: expected one argument");
        return value_none();
    }
    for (size_t i = 0; i < list->count && !render->failed; i++)
        if (value_equal(render, &list->items[i], &arguments->positional[0])) {
            if (string_is(name, "index")) return value_integer((int64_t)i);
            count++;
        }
    if (string_is(name, "index")) render_fail(render, "ValueError: the value is not in the list");
    return value_integer(count);
}

static struct value call_dict(struct render *render, const struct dict *dict, struct string name,
                              const struct arguments *arguments)
{
    if (string_is(name, "get")) {
        const struct value *key = argument(arguments, 0, "key"), *absent = argument(arguments, 1, "default");
        if (!arguments_check(render, arguments, "get", "key default") || !key) {
            render_fail(render, "TypeError: get expected at least 1 argument, got 0");
            return value_none();
        }
        const struct value *found = dict_find(render, dict, *key);
        return found ? *found : absent ? *absent : value_none();
    }
    if (!arguments_check(render, arguments, "items", "")) return value_none();
    if (string_is(name, "copy")) {
        struct value copy = value_dict(render, VALUE_DICT);
        for (size_t i = 0; i < dict->count; i++) dict_set(render, copy.dict, dict->keys[i], dict->values[i]);
        return copy;
    }
    struct value view = value_list(render, VALUE_VIEW);
    for (size_t i = 0; i < dict->count && !render->failed; i++) {
        struct value item = string_is(name, "keys") ? dict->keys[i] : dict->values[i];
        if (string_is(name, "items")) {
            item = value_list(render, VALUE_TUPLE);
            list_add(render, item.list, dict->keys[i]);
            list_add(render, item.list, dict->values[i]);
        }
        list_add(render, view.list, item);
    }
    return view;
}

struct value method_call(struct render *render, const struct value *method, const struct arguments *arguments)
{
    const struct value *object = method->object;
    if (object->kind == VALUE_STRING) return call_string(render, object->string, method->string, arguments);
    if (object->kind == VALUE_DICT) return call_dict(render, object->dict, method->string, arguments);
    return call_list(render, object, method->string, arguments);
}

/* ---- format % arguments ---- */

struct value string_percent(struct render *render, struct string format, const struct value *arguments)
{
    struct builder builder;
    const bool is_tuple = arguments->kind == VALUE_TUPLE;
    size_t used = 0;
    builder_open(&builder, render);
    for (size_t at = 0; at < format.size && !render->failed; at++) {
        if (format.bytes[at] != '%') {
            builder_add(&builder, string_part(format, at, at + 1));
            continue;
        }
        char spec[16] = "%", text[400];
        size_t length = 1;
        const struct value *value = NULL;
        at++;
        if (at < format.size && format.bytes[at] == '(' && arguments->kind == VALUE_DICT) {
            const char *end = memchr(format.bytes + at, ')', format.size - at);
            const size_t stop = end ? (size_t)(end - format.bytes) : format.size;
            value = dict_find(render, arguments->dict, value_string(string_part(format, at + 1, stop)));
            at = stop + 1;
        }
        while (at < format.size && strchr("-+ #0123456789.", format.bytes[at]) && length < 10)
            spec[length++] = format.bytes[at++];
        const char kind = at < format.size ? format.bytes[at] : 0;
        if (kind == '%' && length == 1) {
            builder_add_text(&builder, "%");
            continue;
        }
        if (!value && is_tuple && used < arguments->list->count) value = &arguments->list->items[used++];
        if (!value && !is_tuple && used == 0 && arguments->kind != VALUE_DICT) value = arguments, used++;
        int64_t integer = 0;
        if (!value || !kind || !strchr("sdirfgexX", kind)) {
            render_fail(render,
                        "TypeError: not enough arguments for format string, or an unsupported format character");
        } else if (kind == 's' || kind == 'r') {
            struct builder part;
            builder_open(&part, render);
            if (kind == 's')
                builder_add_value(&part, value);
            else
                builder_add_representation(&part, value);
            const long width = strtol(spec + 1 + (spec[1] == '-'), NULL, 10);
            const struct string made = builder_value(&part).string;
            const long missing = width - (long)string_length(made);
            for (long i = 0; spec[1] != '-' && i < missing && !render->failed; i++) builder_add_text(&builder, " ");
            builder_add(&builder, made);
            for (long i = 0; spec[1] == '-' && i < missing && !render->failed; i++) builder_add_text(&builder, " ");
        } else if (!value_is_number(value)) {
            render_fail(render, "TypeError: %%%c format: a real number is required, not %s", kind, value_type(value));
        } else if (strtol(spec + 1 + strspn(spec + 1, "-+ #0"), NULL, 10) > 300) {
            render_fail(render, "ValueError: width of more than 300 in a format");
        } else if (strchr("dixX", kind)) {
            if (!value_is_integer(value, &integer)) integer = (int64_t)value_real(value);
            snprintf(spec + length, sizeof spec - length, "ll%c", kind == 'i' ? 'd' : kind);
            snprintf(text, sizeof text, spec, (long long)integer);
            builder_add_text(&builder, text);
        } else {
            const char *dot = strchr(spec, '.');
            spec[length] = kind;
            spec[length + 1] = 0;
            if (dot && strtol(dot + 1, NULL, 10) > 60)
                render_fail(render, "ValueError: precision of more than 60 in a format");
            snprintf(text, sizeof text, spec, value_real(value));
            builder_add_text(&builder, text);
        }
    }
    if (is_tuple && used < arguments->list->count)
        render_fail(render, "TypeError: not all arguments converted during string formatting");
    return builder_value(&builder);
}
