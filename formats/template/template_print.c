/* SPDX-License-Identifier: Apache-2.0 */
/* str() and repr() of values. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_value.h"


/* The shortest digits that read back the same, as repr() has them. */
static void add_real(struct builder *builder, double real)
{
    char text[40];
    if (isnan(real) || isinf(real)) {
        builder_add_text(builder, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    int digits = 1;
    do snprintf(text, sizeof text, "%.*e", digits - 1, real);
    while (strtod(text, NULL) != real && ++digits <= 17);
    const char *mark = strchr(text, 'e');
    const int exponent = mark ? atoi(mark + 1) : 0;
    if (exponent >= -4 && exponent < 16) {
        const int decimals = digits - 1 - exponent;
        snprintf(text, sizeof text, "%.*f", decimals > 0 ? decimals : 0, real);
        builder_add_text(builder, text);
        if (decimals <= 0) builder_add_text(builder, ".0");
    } else {
        snprintf(text, sizeof text, "%.*e", digits - 1, real);
        builder_add_text(builder, text);
    }
}

static void add_quoted(struct builder *builder, struct string string)
{
    const bool doubles = memchr(string.bytes, '\'', string.size) && !memchr(string.bytes, '"', string.size);
    const char quote = doubles ? '"' : '\'';
    builder_add_bytes(builder, &quote, 1, false);
    for (size_t at = 0; at < string.size && !builder->render->failed;) {
        uint32_t c;
        char text[16];
        const size_t bytes = string_character(string, at, &c);
        if (c == '\\' || c == (uint32_t)quote)
            snprintf(text, sizeof text, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (character_is_printable(c))
            text[0] = 0;
        else
            snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        if (text[0])
            builder_add_text(builder, text);
        else
            builder_add(builder, string_part(string, at, at + bytes));
        at += bytes;
    }
    builder_add_bytes(builder, &quote, 1, false);
}

static void add_items(struct builder *builder, const struct list *list, const char *open, const char *close)
{
    builder_add_text(builder, open);
    for (size_t i = 0; i < list->count && !builder->render->failed; i++) {
        if (i) builder_add_text(builder, ", ");
        builder_add_representation(builder, &list->items[i]);
    }
    builder_add_text(builder, close);
}

static void add_dict(struct builder *builder, const struct dict *dict)
{
    builder_add_text(builder, "{");
    for (size_t i = 0; i < dict->count && !builder->render->failed; i++) {
        if (i) builder_add_text(builder, ", ");
        builder_add_representation(builder, &dict->keys[i]);
        builder_add_text(builder, ": ");
        builder_add_representation(builder, &dict->values[i]);
    }
    builder_add_text(builder, "}");
}

static void add_item(struct builder *builder, const struct dict *dict, const char *key)
{
    const struct value *item = dict_find_text(builder->render, dict, key);
    if (item) builder_add_representation(builder, item);
}

void builder_add_representation(struct builder *builder, const struct value *value)
{
    struct render *render = builder->render;
    char text[32];
    if (!render_step(render, 0)) return;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail_bound(render, "depth");
    switch (value->kind) {
    case VALUE_UNDEFINED: builder_add_text(builder, "Undefined"); break;
    case VALUE_NONE: builder_add_text(builder, "None"); break;
    case VALUE_BOOL: builder_add_text(builder, value->boolean ? "True" : "False"); break;
    case VALUE_INTEGER:
        snprintf(text, sizeof text, "%" PRId64, value->integer);
        builder_add_text(builder, text);
        break;
    case VALUE_FLOAT: add_real(builder, value->real); break;
    case VALUE_STRING:
        if (value->is_markup) builder_add_text(builder, "Markup(");
        add_quoted(builder, value->string);
        if (value->is_markup) builder_add_text(builder, ")");
        break;
    case VALUE_LIST: add_items(builder, value->list, "[", "]"); break;
    case VALUE_TUPLE: add_items(builder, value->list, "(", value->list->count == 1 ? ",)" : ")"); break;
    case VALUE_RANGE: builder_add(builder, value->object->string); break;
    case VALUE_VIEW:
        builder_add_text(builder, value_type(value));
        add_items(builder, value->list, "([", "])");
        break;
    case VALUE_LOOP:
        builder_add_text(builder, "<LoopContext ");
        add_item(builder, value->dict, "index");
        builder_add_text(builder, "/");
        add_item(builder, value->dict, "length");
        builder_add_text(builder, ">");
        break;
    case VALUE_NAMESPACE:
        builder_add_text(builder, "<Namespace ");
        add_dict(builder, value->dict);
        builder_add_text(builder, ">");
        break;
    case VALUE_DICT: add_dict(builder, value->dict); break;
    default: /* as Python, which prints an address */
        builder_add_text(builder, "<");
        builder_add_text(builder, value_type(value));
        builder_add_text(builder, " object>");
        break;
    }
    render->depth--;
}

void builder_add_value(struct builder *builder, const struct value *value)
{
    if (value->kind == VALUE_STRING)
        builder_add(builder, value->string);
    else if (value->kind != VALUE_UNDEFINED)
        builder_add_representation(builder, value);
}

struct string value_str(struct render *render, const struct value *value)
{
    struct builder builder;
    if (value->kind == VALUE_STRING) return value->string;
    builder_open(&builder, render);
    builder_add_value(&builder, value);
    return builder_value(&builder).string;
}
