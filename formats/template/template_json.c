/* SPDX-License-Identifier: Apache-2.0 */
/* The filter tojson as transformers sets it up: json.dumps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "formats/template/template_value.h"

static void add_escaped(struct builder *builder, uint32_t c)
{
    char text[16];
    if (c >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + (unsigned)((c - 0x10000) >> 10),
                 0xdc00 + (unsigned)((c - 0x10000) & 0x3ff));
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    builder_add_text(builder, text);
}

static void add_string(struct builder *builder, struct string string, const struct json_style *style)
{
    builder_add_text(builder, "\"");
    size_t begin = 0;
    for (size_t at = 0; at < string.size && !builder->render->failed;) {
        uint32_t c;
        const size_t bytes = string_character(string, at, &c);
        static const char plain[] = "\"\\\n\r\t\b\f", escaped[] = "\"\\nrtbf";
        const char *found = c < 0x80 && c ? __builtin_strchr(plain, (int)c) : NULL;
        if (found || c < 0x20 || (style->ensure_ascii && c >= 0x7f)) {
            builder_add(builder, string_part(string, begin, at));
            if (found) {
                const char text[3] = {'\\', escaped[found - plain], 0};
                builder_add_text(builder, text);
            } else if (c == 0x7f) {
                builder_add(builder, string_part(string, at, at + bytes));
            } else {
                add_escaped(builder, c);
            }
            begin = at + bytes;
        }
        at += bytes;
    }
    builder_add(builder, string_part(string, begin, string.size));
    builder_add_text(builder, "\"");
}

static void add_line(struct builder *builder, const struct json_style *style, int depth)
{
    if (style->indent < 0 && !style->indent_text.size) return;
    builder_add_text(builder, "\n");
    for (int i = 0; i < depth && !builder->render->failed; i++) {
        if (style->indent_text.size) builder_add(builder, style->indent_text);
        for (int64_t j = 0; j < style->indent && !builder->render->failed; j++) builder_add_text(builder, " ");
    }
}

static void add_key(struct builder *builder, const struct value *key, const struct json_style *style)
{
    struct string text = value_str(builder->render, key);
    if (key->kind == VALUE_BOOL) text = string_of(key->boolean ? "true" : "false");
    if (key->kind == VALUE_NONE) text = string_of("null");
    if (key->kind != VALUE_STRING && key->kind != VALUE_NONE && !value_is_number(key))
        render_fail(builder->render, "TypeError: keys must be str, int, float, bool or None, not %s", value_type(key));
    add_string(builder, text, style);
}

static void add_list(struct builder *builder, const struct list *list, const struct json_style *style, int depth)
{
    builder_add_text(builder, "[");
    for (size_t i = 0; i < list->count && !builder->render->failed; i++) {
        if (i) builder_add(builder, style->item_separator);
        add_line(builder, style, depth + 1);
        builder_add_json(builder, &list->items[i], style, depth + 1);
    }
    if (list->count) add_line(builder, style, depth);
    builder_add_text(builder, "]");
}

/* Sorts indices by their keys. */
static size_t *sorted(struct render *render, const struct dict *dict, bool sorts)
{
    size_t *order = render_take(render, (dict->count + 1) * sizeof *order);
    for (size_t i = 0; order && i < dict->count; i++) {
        size_t at = i;
        for (; sorts && at > 0 && value_order(render, &dict->keys[order[at - 1]], &dict->keys[i], "<") > 0; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

static void add_dict(struct builder *builder, const struct dict *dict, const struct json_style *style, int depth)
{
    const size_t *order = sorted(builder->render, dict, style->sort_keys);
    builder_add_text(builder, "{");
    for (size_t i = 0; order && i < dict->count && !builder->render->failed; i++) {
        if (i) builder_add(builder, style->item_separator);
        add_line(builder, style, depth + 1);
        add_key(builder, &dict->keys[order[i]], style);
        builder_add(builder, style->key_separator);
        builder_add_json(builder, &dict->values[order[i]], style, depth + 1);
    }
    if (dict->count) add_line(builder, style, depth);
    builder_add_text(builder, "}");
}

void builder_add_json(struct builder *builder, const struct value *value, const struct json_style *style, int depth)
{
    struct render *render = builder->render;
    if (!render_step(render, 0)) return;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail(render, "RecursionError: maximum recursion depth exceeded");
    switch (value->kind) {
    case VALUE_NONE: builder_add_text(builder, "null"); break;
    case VALUE_BOOL: builder_add_text(builder, value->boolean ? "true" : "false"); break;
    case VALUE_INTEGER: builder_add_representation(builder, value); break;
    case VALUE_FLOAT:
        if (isnan(value->real))
            builder_add_text(builder, "NaN");
        else if (isinf(value->real))
            builder_add_text(builder, value->real > 0 ? "Infinity" : "-Infinity");
        else
            builder_add_representation(builder, value);
        break;
    case VALUE_STRING: add_string(builder, value->string, style); break;
    case VALUE_LIST:
    case VALUE_TUPLE: add_list(builder, value->list, style, depth); break;
    case VALUE_DICT: add_dict(builder, value->dict, style, depth); break;
    default: render_fail(render, "TypeError: Object of type %s is not JSON serializable", value_type(value)); break;
    }
    render->depth--;
}
