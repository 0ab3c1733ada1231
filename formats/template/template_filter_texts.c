/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_filters.h"

static struct value markup(struct string string)
{
    struct value value = value_string(string);
    value.is_markup = true;
    return value;
}

struct value filter_capitalize(const struct call *call)
{
    return value_string(string_case(call->render, call_text(call), "capitalize"));
}

struct value filter_lower(const struct call *call)
{
    return value_string(string_case(call->render, call_text(call), "lower"));
}

struct value filter_upper(const struct call *call)
{
    return value_string(string_case(call->render, call_text(call), "upper"));
}

struct value filter_escape(const struct call *call)
{
    return call->value.is_markup ? call->value : filter_forceescape(call);
}

struct value filter_forceescape(const struct call *call)
{
    return markup(string_escape(call->render, call_text(call)));
}

struct value filter_safe(const struct call *call) { return markup(call_text(call)); }

struct value filter_string(const struct call *call)
{
    return call->value.kind == VALUE_STRING ? call->value : value_string(call_text(call));
}

struct value filter_trim(const struct call *call)
{
    const struct value *set = call_argument(call, 0, "chars");
    return value_string(string_strip(call_text(call), set && set->kind == VALUE_STRING ? &set->string : NULL, 3));
}

struct value filter_replace(const struct call *call)
{
    return value_string(string_replace(call->render, call_text(call), call_string(call, 0, "old", ""),
                                       call_string(call, 1, "new", ""), call_integer(call, 2, "count", -1)));
}

struct value filter_format(const struct call *call)
{
    const struct arguments *given = call->arguments;
    struct value values = value_list(call->render, VALUE_TUPLE);
    if (given->count && given->named_count)
        render_fail(call->render,
                    "FilterArgumentError: can't handle positional and keyword arguments at the same time");
    for (size_t i = 0; i < given->count; i++) list_add(call->render, values.list, given->positional[i]);
    if (given->named_count) values = value_dict(call->render, VALUE_DICT);
    for (size_t i = 0; i < given->named_count; i++)
        dict_set(call->render, values.dict, value_string(given->names[i]), given->named[i]);
    return string_percent(call->render, call_text(call), &values);
}

struct value filter_indent(const struct call *call)
{
    struct render *render = call->render;
    const struct value *width = call_argument(call, 0, "width");
    const bool first = call_flag(call, 1, "first", false), blank = call_flag(call, 2, "blank", false);
    struct builder by, builder;
    builder_open(&by, render);
    builder_open(&builder, render);
    if (call->value.kind != VALUE_STRING) {
        render_fail(render, "TypeError: indent: expected a string, found %s", value_type(&call->value));
        return call->value;
    }
    if (width && width->kind == VALUE_STRING)
        builder_add(&by, width->string);
    else
        for (int64_t i = call_integer(call, 0, "width", 4); i > 0 && !render->failed; i--) builder_add_text(&by, " ");
    const struct string spaces = builder_value(&by).string, in = call->value.string;
    size_t bytes = 0;
    for (size_t begin = 0, end = 0; begin <= in.size && !render->failed; begin = end += bytes) {
        bytes = 0;
        while (end < in.size && !(bytes = string_line_break(in, end))) end++;
        if (begin == 0 ? first : blank || end > begin) builder_add(&builder, spaces);
        builder_add(&builder, string_part(in, begin, end));
        if (!bytes) break;
        builder_add_bytes(&builder, "\n", 1, in.foreign && in.foreign[end]); /* in place of any other line break */
    }
    return builder_value(&builder);
}

struct value filter_truncate(const struct call *call)
{
    struct render *render = call->render;
    const struct string in = call_text(call), end = call_string(call, 2, "end", "...");
    const int64_t length = call_integer(call, 0, "length", 255), leeway = call_integer(call, 3, "leeway", 5);
    const bool is_list = value_is_sequence(&call->value); /* returned as it is where it has few items */
    if (is_list && (int64_t)call->value.list->count <= length + leeway) return call->value;
    if (call->value.kind != VALUE_STRING && call->value.kind != VALUE_UNDEFINED)
        render_fail(render, "TypeError: truncate: expected a string, found %s", value_type(&call->value));
    const int64_t own = (int64_t)string_length(in), kept = length - (int64_t)string_length(end);
    struct builder builder;
    if (kept < 0 || leeway < 0) render_fail(render, "AssertionError: truncate: length is below that of the end");
    if (render->failed || own <= length + leeway) return call->value;
    struct string cut = string_part(in, 0, string_offset(in, (size_t)kept));
    for (size_t at = cut.size; !call_flag(call, 1, "killwords", false) && at-- > 0;)
        if (cut.bytes[at] == ' ') {
            cut = string_part(cut, 0, at);
            break;
        }
    builder_open(&builder, render);
    builder_add(&builder, cut);
    builder_add(&builder, end);
    return builder_value(&builder);
}

struct value filter_title(const struct call *call)
{
    /* Words begin after these, and not after other characters as in str.title(). */
    struct render *render = call->render;
    const struct string in = call_text(call), lower = string_case(render, in, "lower");
    struct builder builder;
    bool begins = true;
    builder_open(&builder, render);
    for (size_t at = 0; at < lower.size && !render->failed;) {
        uint32_t c;
        const size_t bytes = string_character(lower, at, &c);
        const struct string part = string_part(lower, at, at + bytes);
        builder_add(&builder, begins ? string_case(render, part, "upper") : part);
        begins = character_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
        at += bytes;
    }
    return builder_value(&builder);
}

struct value filter_urlencode(const struct call *call)
{
    const struct string in = call_text(call);
    struct builder builder;
    builder_open(&builder, call->render);
    for (size_t i = 0; i < in.size && !call->render->failed; i++) {
        const unsigned char c = (unsigned char)in.bytes[i];
        const bool plain =
            (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("_.-~/", c));
        char escaped[8];
        snprintf(escaped, sizeof escaped, "%%%02X", c);
        builder_add_bytes(&builder, plain ? in.bytes + i : escaped, plain ? 1 : 3, in.foreign && in.foreign[i]);
    }
    return builder_value(&builder);
}

struct value filter_center(const struct call *call)
{
    struct value found, in = value_string(call_text(call)), width = value_integer(call_integer(call, 0, "width", 80));
    if (!method_find(call->render, &in, string_of("center"), &found)) return in;
    return method_call(call->render, &found, &(struct arguments){.positional = &width, .count = 1});
}

struct value filter_wordcount(const struct call *call)
{
    const struct string in = call_text(call);
    int64_t words = 0;
    bool inside = false;
    for (size_t at = 0; at < in.size;) {
        uint32_t c;
        at += string_character(in, at, &c);
        const bool is_word = c == '_' || c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        words += is_word && !inside;
        inside = is_word;
    }
    return value_integer(words);
}

struct value filter_tojson(const struct call *call)
{
    struct render *render = call->render;
    const struct value *indent = call_argument(call, 1, "indent"), *separators = call_argument(call, 2, "separators");
    struct json_style style = {.indent = -1,
                               .ensure_ascii = call_flag(call, 0, "ensure_ascii", false),
                               .sort_keys = call_flag(call, 3, "sort_keys", false)};
    int64_t width;
    if (indent && value_is_integer(indent, &width))
        style.indent = width < 0 ? 0 : width;
    else if (indent && indent->kind == VALUE_STRING)
        style.indent_text = indent->string, style.indent = 0;
    else if (indent && indent->kind != VALUE_NONE)
        render_fail(render, "TypeError: tojson: indent: expected an integer or a string, found %s", value_type(indent));
    style.item_separator = string_of(style.indent >= 0 ? "," : ", ");
    style.key_separator = string_of(": ");
    if (separators && separators->kind != VALUE_NONE) {
        const struct list *both = value_items(render, separators);
        if (both->count != 2 || both->items[0].kind != VALUE_STRING || both->items[1].kind != VALUE_STRING) {
            render_fail(render, "ValueError: tojson: separators: expected two strings");
            return call->value;
        }
        style.item_separator = both->items[0].string;
        style.key_separator = both->items[1].string;
    }
    struct builder builder;
    builder_open(&builder, render);
    builder_add_json(&builder, &call->value, &style, 0);
    return builder_value(&builder);
}
