/* SPDX-License-Identifier: Apache-2.0 */
/* What the methods of values do, as those of Python's classes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/template/template_methods.h"

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

/* Characters that become several; NULL: this one does not. */
static const char *several(uint32_t c, char method, bool begins)
{
    if (c == 0x130 && method != 'u' && !begins) return "i\xcc\x87";
    if (c != 0xdf || method == 'l') return NULL;
    return method == 'u' || method == 's' ? "SS" : method == 'f' ? "ss" : begins ? "Ss" : NULL;
}

/* upper, lower, title, capitalize, swapcase and casefold, character by character. */
struct string string_case(struct render *render, struct string in, const char *method)
{
    struct builder builder;
    bool inside = false; /* a word, for title; the string, for capitalize */
    const char first = strcmp(method, "casefold") == 0 ? 'f' : *method;
    builder_open(&builder, render);
    for (size_t at = 0; at < in.size && !render->failed;) {
        uint32_t c;
        char bytes[8];
        const size_t size = string_character(in, at, &c);
        const utf8proc_int32_t upper = utf8proc_toupper((utf8proc_int32_t)c),
                               lower = utf8proc_tolower((utf8proc_int32_t)c);
        const bool is_foreign = in.foreign && in.foreign[at], begins = (first == 't' || first == 'c') && !inside;
        const char *made_several = several(c, first, begins);
        uint32_t made = (uint32_t)lower;
        if (first == 'u' || begins)
            made = (uint32_t)(first == 'u' ? upper : utf8proc_totitle((utf8proc_int32_t)c));
        else if (first == 's')
            made = (uint32_t)(is_upper(c) ? lower : is_lower(c) ? upper : (utf8proc_int32_t)c);
        inside = first == 't' ? is_letter(c) : true;
        if (made_several)
            builder_add_bytes(&builder, made_several, strlen(made_several), is_foreign);
        else if (made == c)
            builder_add(&builder, string_part(in, at, at + size));
        else
            builder_add_bytes(&builder, bytes, string_encode(made, bytes), is_foreign);
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

static bool is_ascii(uint32_t c) { return c < 0x80; }
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
    const int near = from_right ? 2 : 1;
    struct string rest = string_strip(in, NULL, near);
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
            rest = string_strip(string_part(rest, 0, at), NULL, near);
        } else {
            while (at < rest.size) {
                const size_t bytes = string_character(rest, at, &c);
                if (character_is_space(c)) break;
                at += bytes;
            }
            list_add(render, list.list, value_string(string_part(rest, 0, at)));
            rest = string_strip(string_part(rest, at, rest.size), NULL, near);
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
        while (!render->failed && most-- != 0) {
            at = from_right ? find_last(in, by, end) : string_find(in, by, begin);
            if (at == SIZE_MAX || !render_step(render, from_right ? end - at : at - begin)) break;
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

size_t string_line_break(struct string in, size_t at)
{
    uint32_t c;
    const size_t bytes = string_character(in, at, &c);
    if (c == '\r' && at + 1 < in.size && in.bytes[at + 1] == '\n') return 2;
    const bool breaks = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    return breaks ? bytes : 0;
}

static struct value split_lines(struct render *render, struct string in, bool keeps)
{
    struct value list = value_list(render, VALUE_LIST);
    size_t begin = 0;
    for (size_t at = 0; at < in.size && !render->failed;) {
        const size_t bytes = string_line_break(in, at), end = at;
        at += bytes ? bytes : 1;
        if (!bytes) continue;
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

/* The part that arguments 1 and 2 give, as a slice does; `first`: the byte where it begins. False: it begins after the end. */
static bool part_of(struct render *render, struct string in, const struct arguments *arguments, const char *callee,
                    struct string *part, size_t *first)
{
    const int64_t count = (int64_t)string_length(in);
    int64_t begin = integer_argument(render, argument(arguments, 1, "start"), 0, callee);
    int64_t end = integer_argument(render, argument(arguments, 2, "end"), count, callee);
    if (begin < 0) begin = begin + count < 0 ? 0 : begin + count;
    if (end < 0) end += count;
    if (end > count) end = count;
    if (begin > count || end < begin) return false;
    *first = string_offset(in, (size_t)begin);
    *part = string_part(in, *first, string_offset(in, (size_t)end));
    return true;
}

static bool has_any_end(struct render *render, struct string in, const struct arguments *arguments, bool at_start)
{
    const char *callee = at_start ? "startswith" : "endswith";
    const struct value *parts = argument(arguments, 0, "");
    size_t first;
    const bool is_part = part_of(render, in, arguments, callee, &in, &first);
    if (!parts || parts->kind != VALUE_TUPLE)
        return has_end(in, text_argument(render, parts, callee), at_start) && is_part;
    for (size_t i = 0; i < parts->list->count; i++)
        if (has_end(in, text_argument(render, &parts->list->items[i], callee), at_start)) return is_part;
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
    if (string_length(fill) != 1)
        render_fail(render, "TypeError: The fill character must be exactly one character long");
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

static int64_t count_of(struct render *render, struct string in, const struct arguments *arguments)
{
    const struct string what = text_argument(render, argument(arguments, 0, ""), "count");
    int64_t count = 0;
    size_t first;
    if (!part_of(render, in, arguments, "count", &in, &first)) return 0;
    if (!what.size) return (int64_t)string_length(in) + 1;
    for (size_t at = 0; (at = string_find(in, what, at)) != SIZE_MAX && render_step(render, 0); at += what.size)
        count++;
    return count;
}

static struct value place(struct render *render, struct string in, const struct arguments *arguments, bool last,
                          bool must)
{
    const struct string what = text_argument(render, argument(arguments, 0, ""), "find");
    struct string part = in;
    size_t first = 0, at = SIZE_MAX;
    if (part_of(render, in, arguments, "find", &part, &first))
        at = last ? find_last(part, what, part.size) : string_find(part, what, 0);
    if (at == SIZE_MAX && must) render_fail(render, "ValueError: substring not found");
    return value_integer(at == SIZE_MAX ? -1 : (int64_t)string_length(string_part(in, 0, first + at)));
}

static struct value call_string(struct render *render, const struct value *object, const char *method,
                                const struct arguments *arguments)
{
    const struct string in = object->string;
    const bool from_right = method[0] == 'r';
    if (strcmp(method, "format") == 0) return string_format(render, in, arguments);
    const struct value *first = argument(arguments, 0, "");
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
    if (strcmp(method, "startswith") == 0) return value_bool(has_any_end(render, in, arguments, true));
    if (strcmp(method, "endswith") == 0) return value_bool(has_any_end(render, in, arguments, false));
    if (strcmp(method, "replace") == 0)
        return value_string(string_replace(render, in, text_argument(render, argument(arguments, 0, "old"), method),
                                           text_argument(render, argument(arguments, 1, "new"), method),
                                           integer_argument(render, argument(arguments, 2, "count"), -1, method)));
    if (strstr("upper lower title capitalize swapcase casefold", method))
        return value_string(string_case(render, in, method));
    if (strcmp(method, "join") == 0) return join(render, in, first);
    if (strstr("find rfind", method)) return place(render, in, arguments, from_right, false);
    if (strstr("index rindex", method)) return place(render, in, arguments, from_right, true);
    if (strcmp(method, "count") == 0) return value_integer(count_of(render, in, arguments));
    if (strstr("isdigit isdecimal", method)) return value_bool(all_are(in, is_digit));
    if (strcmp(method, "isnumeric") == 0) return value_bool(all_are(in, is_number));
    if (strcmp(method, "isalpha") == 0) return value_bool(all_are(in, is_letter));
    if (strcmp(method, "isalnum") == 0) return value_bool(all_are(in, is_alphanumeric));
    if (strcmp(method, "isascii") == 0) return value_bool(!in.size || all_are(in, is_ascii));
    if (strcmp(method, "isprintable") == 0) return value_bool(!in.size || all_are(in, character_is_printable));
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

static struct value call_list(struct render *render, const struct value *object, const char *method,
                              const struct arguments *arguments)
{
    int64_t found = 0, count = (int64_t)object->list->count;
    if (strcmp(method, "copy") == 0) {
        struct value copy = value_list(render, object->kind);
        for (int64_t i = 0; i < count; i++) list_add(render, copy.list, object->list->items[i]);
        return copy;
    }
    int64_t begin = integer_argument(render, argument(arguments, 1, ""), 0, method);
    int64_t end = integer_argument(render, argument(arguments, 2, ""), count, method);
    if (begin < 0) begin = begin + count < 0 ? 0 : begin + count;
    if (end < 0) end += count;
    const bool is_index = strcmp(method, "index") == 0;
    for (int64_t i = begin; i < count && i < end && !render->failed; i++)
        if (value_equal(render, &object->list->items[i], &arguments->positional[0])) {
            if (is_index) return value_integer(i);
            found++;
        }
    if (is_index) render_fail(render, "ValueError: the value is not in the list");
    return value_integer(found);
}

static struct value call_dict(struct render *render, const struct dict *dict, const char *method,
                              const struct arguments *arguments)
{
    static const struct value names[] = {{.kind = VALUE_STRING, .string = {"dict_keys", NULL, 9}},
                                         {.kind = VALUE_STRING, .string = {"dict_values", NULL, 11}},
                                         {.kind = VALUE_STRING, .string = {"dict_items", NULL, 10}}};
    if (strcmp(method, "get") == 0) {
        const struct value *key = argument(arguments, 0, ""), *absent = argument(arguments, 1, "");
        if (!value_is_hashable(render, key)) return value_none();
        const struct value *found = dict_find(render, dict, *key);
        return found ? *found : absent ? *absent : value_none();
    }
    if (strcmp(method, "copy") == 0) {
        struct value copy = value_dict(render, VALUE_DICT);
        for (size_t i = 0; i < dict->count; i++) dict_set(render, copy.dict, dict->keys[i], dict->values[i]);
        return copy;
    }
    struct value view = value_list(render, VALUE_VIEW);
    view.object = &names[*method == 'k' ? 0 : *method == 'v' ? 1 : 2];
    for (size_t i = 0; i < dict->count && !render->failed; i++) {
        struct value item = *method == 'k' ? dict->keys[i] : dict->values[i];
        if (*method == 'i') {
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
    const struct method *called = method_of(object, method->string);
    if (!called || (called->arguments && !arguments_check(render, arguments, called->name, called->arguments)))
        return value_none();
    if (arguments->named_count && !called->keywords)
        render_fail(render, "TypeError: %s.%s() takes no keyword arguments", value_type(object), called->name);
    if (arguments->count + arguments->named_count < called->least)
        render_fail(render, "TypeError: %s expected at least %zu argument(s), got %zu", called->name, called->least,
                    arguments->count);
    if (render->failed) return value_none();
    if (object->kind == VALUE_STRING) return call_string(render, object, called->name, arguments);
    if (object->kind == VALUE_DICT) return call_dict(render, object->dict, called->name, arguments);
    return call_list(render, object, called->name, arguments);
}
