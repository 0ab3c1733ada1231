/* SPDX-License-Identifier: Apache-2.0 */
/* The filters of jinja2: `value | name(arguments)`. Those that give an iterator there give a generator here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_value.h"

struct call {
    struct render *render;
    struct value value;
    const struct arguments *arguments;
    const char *name;
};

static const struct value *given(const struct call *call, size_t index, const char *name)
{
    return argument(call->arguments, index, name);
}

static bool flag(const struct call *call, size_t index, const char *name, bool absent)
{
    const struct value *value = given(call, index, name);
    return value ? value_truth(value) : absent;
}

static int64_t number(const struct call *call, size_t index, const char *name, int64_t absent)
{
    int64_t integer = absent;
    const struct value *value = given(call, index, name);
    if (value && value->kind != VALUE_NONE && !value_is_integer(value, &integer))
        render_fail(call->render, "TypeError: filter '%s': %s: expected an integer, found %s", call->name, name,
                    value_type(value));
    return integer;
}

static struct string text(const struct call *call, size_t index, const char *name, const char *absent)
{
    const struct value *value = given(call, index, name);
    return value ? value_str(call->render, value) : string_of(absent);
}

static struct string own_text(const struct call *call) { return value_str(call->render, &call->value); }

/* ---- attributes: "a.b.0" ---- */

static struct value attribute_of(struct render *render, const struct value *value, const struct value *path)
{
    struct value found = *value;
    int64_t index;
    if (value_is_integer(path, &index)) return value_item(render, value, path);
    const struct string all = value_str(render, path);
    for (size_t begin = 0; begin <= all.size && !render->failed;) {
        size_t end = string_find(all, string_of("."), begin);
        if (end == SIZE_MAX) end = all.size;
        const struct string part = string_part(all, begin, end);
        char digits[20];
        snprintf(digits, sizeof digits, "%.*s", (int)part.size, part.bytes);
        const bool is_index = part.size && part.size < 18 && strspn(digits, "0123456789") == part.size;
        const struct value key = is_index ? value_integer(strtoll(digits, NULL, 10)) : value_string(part);
        found = value_item(render, &found, &key);
        begin = end + 1;
    }
    return found;
}

static struct value key_of(const struct call *call, const struct value *item, const struct value *attribute,
                           bool case_sensitive)
{
    const struct value key =
        attribute && attribute->kind != VALUE_NONE ? attribute_of(call->render, item, attribute) : *item;
    if (case_sensitive || key.kind != VALUE_STRING) return key;
    return value_string(string_case(call->render, key.string, "lower"));
}

/* ---- lists ---- */

static struct value to_list(struct render *render, const struct value *value)
{
    struct value list = value_list(render, VALUE_LIST);
    const struct list *items = value_items(render, value);
    for (size_t i = 0; i < items->count && !render->failed; i++) list_add(render, list.list, items->items[i]);
    return list;
}

/* Stable, by merging. */
static void sort_items(const struct call *call, struct value *items, struct value *keys, size_t count, bool reverse)
{
    struct render *render = call->render;
    struct value *other = render_take(render, (count + 1) * sizeof *other);
    struct value *other_keys = render_take(render, (count + 1) * sizeof *other_keys);
    for (size_t width = 1; other && other_keys && width < count && !render->failed; width *= 2) {
        for (size_t first = 0; first < count; first += 2 * width) {
            const size_t middle = first + width < count ? first + width : count;
            const size_t last = first + 2 * width < count ? first + 2 * width : count;
            size_t a = first, b = middle;
            for (size_t to = first; to < last; to++) {
                bool takes_b = a >= middle;
                if (a < middle && b < last) {
                    const int order = value_order(render, &keys[b], &keys[a], "<");
                    takes_b = reverse ? order > 0 : order < 0;
                }
                const size_t from = takes_b ? b++ : a++;
                other[to] = items[from];
                other_keys[to] = keys[from];
            }
        }
        memcpy(items, other, count * sizeof *items);
        memcpy(keys, other_keys, count * sizeof *keys);
    }
}

static struct value filter_sort(const struct call *call)
{
    struct render *render = call->render;
    struct value list = to_list(render, &call->value);
    struct value *keys = render_take(render, (list.list->count + 1) * sizeof *keys);
    const struct value *attribute = given(call, 2, "attribute");
    for (size_t i = 0; keys && i < list.list->count; i++)
        keys[i] = key_of(call, &list.list->items[i], attribute, flag(call, 1, "case_sensitive", false));
    if (keys && !render->failed)
        sort_items(call, list.list->items, keys, list.list->count, flag(call, 0, "reverse", false));
    return list;
}

static struct value filter_dictsort(const struct call *call)
{
    struct render *render = call->render;
    struct value list = value_list(render, VALUE_LIST);
    if (call->value.kind != VALUE_DICT) {
        render_fail(render, "TypeError: dictsort: expected a dict, found %s", value_type(&call->value));
        return list;
    }
    const struct dict *dict = call->value.dict;
    const bool by_value = string_is(text(call, 1, "by", "key"), "value");
    struct value *keys = render_take(render, (dict->count + 1) * sizeof *keys);
    for (size_t i = 0; keys && i < dict->count && !render->failed; i++) {
        struct value pair = value_list(render, VALUE_TUPLE);
        list_add(render, pair.list, dict->keys[i]);
        list_add(render, pair.list, dict->values[i]);
        list_add(render, list.list, pair);
        keys[i] =
            key_of(call, by_value ? &dict->values[i] : &dict->keys[i], NULL, flag(call, 0, "case_sensitive", false));
    }
    if (keys && !render->failed)
        sort_items(call, list.list->items, keys, list.list->count, flag(call, 2, "reverse", false));
    return list;
}

static struct value filter_unique(const struct call *call)
{
    struct render *render = call->render;
    struct value list = value_list(render, VALUE_GENERATOR), seen = value_dict(render, VALUE_DICT);
    const struct list *items = value_items(render, &call->value);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        const struct value key =
            key_of(call, &items->items[i], given(call, 1, "attribute"), flag(call, 0, "case_sensitive", false));
        if (dict_find(render, seen.dict, key)) continue;
        dict_set(render, seen.dict, key, value_none());
        list_add(render, list.list, items->items[i]);
    }
    return list;
}

static struct value filter_groupby(const struct call *call)
{
    struct render *render = call->render;
    const struct value *attribute = given(call, 0, "attribute"), *absent = given(call, 1, "default");
    struct value list = to_list(render, &call->value), groups = value_list(render, VALUE_LIST);
    struct value *keys = render_take(render, (list.list->count + 1) * sizeof *keys);
    for (size_t i = 0; keys && i < list.list->count; i++) {
        keys[i] = key_of(call, &list.list->items[i], attribute, flag(call, 2, "case_sensitive", false));
        if (keys[i].kind == VALUE_UNDEFINED && absent) keys[i] = *absent;
    }
    if (keys && !render->failed) sort_items(call, list.list->items, keys, list.list->count, false);
    for (size_t i = 0; keys && i < list.list->count && !render->failed;) {
        struct value group = value_list(render, VALUE_TUPLE), members = value_list(render, VALUE_LIST);
        const size_t first = i;
        for (; i < list.list->count && value_equal(render, &keys[i], &keys[first]); i++)
            list_add(render, members.list, list.list->items[i]);
        if (i == first) break;
        list_add(render, group.list,
                 attribute ? attribute_of(render, &list.list->items[first], attribute) : keys[first]);
        list_add(render, group.list, members);
        list_add(render, groups.list, group);
    }
    return groups;
}

/* min, max: `sign` -1, 1. */
static struct value extreme(const struct call *call, int sign)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    const bool exact = flag(call, 0, "case_sensitive", false);
    const struct value *attribute = given(call, 1, "attribute");
    if (!items->count) return value_undefined(render, "No aggregated item, sequence was empty.");
    size_t best = 0;
    struct value best_key = key_of(call, &items->items[0], attribute, exact);
    for (size_t i = 1; i < items->count && !render->failed; i++) {
        const struct value key = key_of(call, &items->items[i], attribute, exact);
        if (sign * value_order(render, &key, &best_key, "<") > 0) best = i, best_key = key;
    }
    return items->items[best];
}

static struct value filter_sum(const struct call *call)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    const struct value *attribute = given(call, 0, "attribute"), *start = given(call, 1, "start");
    int64_t total = 0, integer;
    double real = 0;
    bool is_real = false;
    for (size_t i = 0; i <= items->count && !render->failed; i++) {
        const struct value zero = value_integer(0);
        const struct value item = i == items->count ? (start ? *start : zero)
                                  : attribute       ? attribute_of(render, &items->items[i], attribute)
                                                    : items->items[i];
        if (!value_is_number(&item))
            render_fail(render, "TypeError: unsupported operand type(s) for +: 'int' and '%s'", value_type(&item));
        else if (value_is_integer(&item, &integer)) {
            if (__builtin_add_overflow(total, integer, &total))
                render_fail(render, "OverflowError: an integer is too large");
        } else
            is_real = true, real += value_real(&item);
    }
    return is_real ? value_float(real + (double)total) : value_integer(total);
}

static struct value filter_join(const struct call *call)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    const struct string by = text(call, 0, "d", "");
    const struct value *attribute = given(call, 1, "attribute");
    struct builder builder;
    builder_open(&builder, render);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        const struct value item = attribute ? attribute_of(render, &items->items[i], attribute) : items->items[i];
        if (i) builder_add(&builder, by);
        builder_add_value(&builder, &item);
    }
    return builder_value(&builder);
}

static struct value edge(const struct call *call, bool last)
{
    const struct list *items = value_items(call->render, &call->value);
    if (!items->count) return value_undefined(call->render, "No %s item, sequence was empty.", last ? "last" : "first");
    return items->items[last ? items->count - 1 : 0];
}

static struct value filter_reverse(const struct call *call)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    struct value list = value_list(render, VALUE_GENERATOR);
    struct builder builder;
    builder_open(&builder, render);
    for (size_t i = items->count; i-- > 0 && !render->failed;) {
        list_add(render, list.list, items->items[i]);
        if (call->value.kind == VALUE_STRING) builder_add(&builder, items->items[i].string);
    }
    return call->value.kind == VALUE_STRING ? builder_value(&builder) : list;
}

static struct value filter_length(const struct call *call)
{
    const struct value *value = &call->value;
    switch (value->kind) {
    case VALUE_UNDEFINED: return value_integer(0);
    case VALUE_STRING:
        render_step(call->render, value->string.size);
        return value_integer((int64_t)string_length(value->string));
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW: return value_integer((int64_t)value->list->count);
    case VALUE_DICT: return value_integer((int64_t)value->dict->count);
    default: render_fail(call->render, "TypeError: object of type '%s' has no len()", value_type(value)); return *value;
    }
}

/* batch: lists of so many items; slice: so many lists. */
static struct value pieces(const struct call *call, bool slices)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    const int64_t wanted = number(call, 0, slices ? "slices" : "linecount", 1);
    const struct value *fill = given(call, 1, "fill_with");
    struct value list = value_list(render, VALUE_GENERATOR);
    if (wanted < 1 || wanted > 1 << 20) {
        render_fail(render, "ValueError: filter '%s': expected a count from 1 on", call->name);
        return list;
    }
    const size_t count = (size_t)wanted, each = items->count / count, more = items->count % count;
    size_t at = 0;
    for (size_t i = 0; (slices ? i < count : at < items->count) && !render->failed; i++) {
        struct value piece = value_list(render, VALUE_LIST);
        const size_t size = !slices ? count : each + (i < more);
        for (size_t j = 0; j < size && at < items->count; j++) list_add(render, piece.list, items->items[at++]);
        while (fill && !slices && piece.list->count < size && !render->failed) list_add(render, piece.list, *fill);
        if (fill && slices && more && i >= more) list_add(render, piece.list, *fill);
        list_add(render, list.list, piece);
    }
    return list;
}

static struct arguments rest_of(const struct arguments *all, size_t from)
{
    struct arguments rest = *all;
    const size_t passed = all->count < from ? all->count : from;
    if (passed) rest.positional += passed; /* without arguments there is no array */
    rest.count -= passed;
    return rest;
}

/* jinja2 asks for the truth of the value first, so that these take none as well. */
static const struct list *walked(const struct call *call)
{
    return value_truth(&call->value) ? value_items(call->render, &call->value)
                                     : value_list(call->render, VALUE_LIST).list;
}

static struct value filter_map(const struct call *call)
{
    struct render *render = call->render;
    const struct list *items = walked(call);
    struct value list = value_list(render, VALUE_GENERATOR);
    const struct value *attribute = argument(call->arguments, SIZE_MAX, "attribute");
    const struct value *absent = argument(call->arguments, SIZE_MAX, "default");
    if (!attribute && !call->arguments->count)
        render_fail(render, "FilterArgumentError: map requires a filter argument");
    const struct arguments rest = rest_of(call->arguments, 1);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        struct value made;
        if (attribute) {
            made = attribute_of(render, &items->items[i], attribute);
            if (made.kind == VALUE_UNDEFINED && absent) made = *absent;
        } else {
            made = filter_apply(render, value_str(render, &call->arguments->positional[0]), items->items[i], &rest);
        }
        list_add(render, list.list, made);
    }
    return list;
}

/* select, reject, selectattr, rejectattr. */
static struct value choose(const struct call *call, bool wanted, bool by_attribute)
{
    struct render *render = call->render;
    const struct list *items = walked(call);
    const struct arguments *all = call->arguments;
    struct value list = value_list(render, VALUE_GENERATOR);
    const size_t test = by_attribute ? 1 : 0;
    if (all->count < test) render_fail(render, "FilterArgumentError: %s requires an attribute", call->name);
    const struct arguments rest = rest_of(all, test + 1);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        const struct value item =
            by_attribute ? attribute_of(render, &items->items[i], &all->positional[0]) : items->items[i];
        const bool holds = all->count > test
                               ? test_apply(render, value_str(render, &all->positional[test]), &item, &rest)
                               : value_truth(&item);
        if (holds == wanted) list_add(render, list.list, items->items[i]);
    }
    return list;
}

static struct value filter_items(const struct call *call)
{
    struct render *render = call->render;
    struct value list = value_list(render, VALUE_GENERATOR), found;
    if (call->value.kind == VALUE_UNDEFINED) return list;
    if (call->value.kind != VALUE_DICT) {
        render_fail(render, "TypeError: Can only get item pairs from a mapping.");
        return list;
    }
    if (!method_find(render, &call->value, string_of("items"), &found)) return list;
    list.list = method_call(render, &found, &(struct arguments){.count = 0}).list;
    return list;
}

/* ---- texts ---- */

static struct value filter_indent(const struct call *call)
{
    struct render *render = call->render;
    const struct value *width = given(call, 0, "width");
    const bool first = flag(call, 1, "first", false), blank = flag(call, 2, "blank", false);
    struct builder by, builder;
    builder_open(&by, render);
    builder_open(&builder, render);
    if (width && width->kind == VALUE_STRING)
        builder_add(&by, width->string);
    else
        for (int64_t i = number(call, 0, "width", 4); i > 0 && !render->failed; i--) builder_add_text(&by, " ");
    const struct string spaces = builder_value(&by).string, in = own_text(call);
    for (size_t begin = 0; begin <= in.size && !render->failed;) {
        size_t end = string_find(in, string_of("\n"), begin);
        if (end == SIZE_MAX) end = in.size;
        if (begin == 0 ? first : blank || end > begin) builder_add(&builder, spaces);
        builder_add(&builder, string_part(in, begin, end < in.size ? end + 1 : end));
        begin = end + 1;
    }
    return builder_value(&builder);
}

static struct value filter_truncate(const struct call *call)
{
    struct render *render = call->render;
    const struct string in = own_text(call), end = text(call, 2, "end", "...");
    const int64_t length = number(call, 0, "length", 255), leeway = number(call, 3, "leeway", 5);
    const int64_t own = (int64_t)string_length(in), kept = length - (int64_t)string_length(end);
    struct builder builder;
    if (kept < 0 || leeway < 0) render_fail(render, "AssertionError: truncate: length is below that of the end");
    if (render->failed || own <= length + leeway) return value_string(in);
    struct string cut = string_part(in, 0, string_offset(in, (size_t)kept));
    for (size_t at = cut.size; !flag(call, 1, "killwords", false) && at-- > 0;)
        if (cut.bytes[at] == ' ') {
            cut = string_part(cut, 0, at);
            break;
        }
    builder_open(&builder, render);
    builder_add(&builder, cut);
    builder_add(&builder, end);
    return builder_value(&builder);
}

static struct value filter_title(const struct call *call)
{
    /* Words begin after these, and not after other characters as in str.title(). */
    struct render *render = call->render;
    const struct string in = own_text(call), lower = string_case(render, in, "lower");
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

static struct value markup(struct string string)
{
    struct value value = value_string(string);
    value.is_markup = true;
    return value;
}

static struct value filter_urlencode(const struct call *call)
{
    const struct string in = own_text(call);
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

static struct value filter_center(const struct call *call)
{
    struct value found, in = value_string(own_text(call)), width = value_integer(number(call, 0, "width", 80));
    if (!method_find(call->render, &in, string_of("center"), &found)) return in;
    return method_call(call->render, &found, &(struct arguments){.positional = &width, .count = 1});
}

static struct value filter_wordcount(const struct call *call)
{
    const struct string in = own_text(call);
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

static struct value filter_tojson(const struct call *call)
{
    struct render *render = call->render;
    const struct value *indent = given(call, 1, "indent"), *separators = given(call, 2, "separators");
    struct json_style style = {.indent = -1,
                               .ensure_ascii = flag(call, 0, "ensure_ascii", false),
                               .sort_keys = flag(call, 3, "sort_keys", false)};
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

/* ---- numbers ---- */

static struct value filter_int(const struct call *call)
{
    const struct value *value = &call->value, *absent = given(call, 0, "default");
    int64_t integer;
    if (value_is_integer(value, &integer)) return value_integer(integer);
    if (value->kind == VALUE_FLOAT && fabs(value->real) < 9e18) return value_integer((int64_t)value->real);
    if (value->kind == VALUE_STRING) {
        char digits[64], *end;
        const struct string in = string_strip(value->string, NULL, 3);
        const int base = (int)number(call, 1, "base", 10);
        snprintf(digits, sizeof digits, "%.*s", (int)in.size, in.bytes);
        integer = strtoll(digits, &end, base >= 2 && base <= 36 ? base : 10);
        if (in.size && in.size < sizeof digits && !*end) return value_integer(integer);
        const double real = strtod(digits, &end);
        if (in.size && in.size < sizeof digits && !*end && fabs(real) < 9e18) return value_integer((int64_t)real);
    }
    return absent ? *absent : value_integer(0);
}

static struct value filter_float(const struct call *call)
{
    const struct value *absent = given(call, 0, "default");
    if (value_is_number(&call->value)) return value_float(value_real(&call->value));
    if (call->value.kind == VALUE_STRING) {
        char digits[64], *end;
        const struct string in = string_strip(call->value.string, NULL, 3);
        snprintf(digits, sizeof digits, "%.*s", (int)in.size, in.bytes);
        const double real = strtod(digits, &end);
        if (in.size && in.size < sizeof digits && !*end) return value_float(real);
    }
    return absent ? *absent : value_float(0);
}

static struct value filter_round(const struct call *call)
{
    const int64_t precision = number(call, 0, "precision", 0);
    const struct string method = text(call, 1, "method", "common");
    if (!value_is_number(&call->value) || precision < -300 || precision > 300) {
        render_fail(call->render, "TypeError: round: expected a number, found %s", value_type(&call->value));
        return call->value;
    }
    const double unit = pow(10, (double)precision), real = value_real(&call->value);
    if (string_is(method, "ceil")) return value_float(ceil(real * unit) / unit);
    if (string_is(method, "floor")) return value_float(floor(real * unit) / unit);
    int64_t integer;
    if (precision >= 0 && value_is_integer(&call->value, &integer)) return value_integer(integer);
    char digits[400]; /* correctly rounded, halves to even in decimal, as round() */
    if (precision < 0) return value_float(nearbyint(real * unit) / unit);
    snprintf(digits, sizeof digits, "%.*f", (int)precision < 40 ? (int)precision : 40, real);
    return value_float(fabs(real) < 1e300 ? strtod(digits, NULL) : real);
}

static struct value filter_abs(const struct call *call)
{
    int64_t integer;
    if (value_is_integer(&call->value, &integer)) {
        if (integer == INT64_MIN) render_fail(call->render, "OverflowError: an integer is too large");
        return value_integer(integer < 0 ? -(integer + (integer == INT64_MIN)) : integer);
    }
    if (call->value.kind == VALUE_FLOAT) return value_float(fabs(call->value.real));
    render_fail(call->render, "TypeError: bad operand type for abs(): '%s'", value_type(&call->value));
    return call->value;
}

static struct value filter_default(const struct call *call)
{
    const struct value *other = given(call, 0, "default_value");
    const bool replaces =
        call->value.kind == VALUE_UNDEFINED || (flag(call, 1, "boolean", false) && !value_truth(&call->value));
    return !replaces ? call->value : other ? *other : value_text("");
}

static struct value filter_format(const struct call *call)
{
    struct value tuple = value_list(call->render, VALUE_TUPLE);
    for (size_t i = 0; i < call->arguments->count; i++)
        list_add(call->render, tuple.list, call->arguments->positional[i]);
    return string_percent(call->render, own_text(call), &tuple);
}

enum filter_id {
    FILTER_ABS,
    FILTER_ATTR,
    FILTER_BATCH,
    FILTER_CAPITALIZE,
    FILTER_CENTER,
    FILTER_DEFAULT,
    FILTER_DICTSORT,
    FILTER_ESCAPE,
    FILTER_FIRST,
    FILTER_FLOAT,
    FILTER_FORMAT,
    FILTER_GROUPBY,
    FILTER_INDENT,
    FILTER_INT,
    FILTER_ITEMS,
    FILTER_JOIN,
    FILTER_LAST,
    FILTER_LENGTH,
    FILTER_LIST,
    FILTER_LOWER,
    FILTER_MAP,
    FILTER_MAX,
    FILTER_MIN,
    FILTER_REJECT,
    FILTER_REJECTATTR,
    FILTER_REPLACE,
    FILTER_REVERSE,
    FILTER_ROUND,
    FILTER_SAFE,
    FILTER_SELECT,
    FILTER_SELECTATTR,
    FILTER_SLICE,
    FILTER_SORT,
    FILTER_STRING,
    FILTER_SUM,
    FILTER_TITLE,
    FILTER_TOJSON,
    FILTER_TRIM,
    FILTER_TRUNCATE,
    FILTER_UNIQUE,
    FILTER_UPPER,
    FILTER_URLENCODE,
    FILTER_WORDCOUNT,
};

/* `arguments`: names in their order; NULL: any. */
static const struct {
    const char *name;
    enum filter_id id;
    const char *arguments;
} filters[] = {
    {"abs", FILTER_ABS, ""},
    {"attr", FILTER_ATTR, "name"},
    {"batch", FILTER_BATCH, "linecount fill_with"},
    {"capitalize", FILTER_CAPITALIZE, ""},
    {"center", FILTER_CENTER, "width"},
    {"count", FILTER_LENGTH, ""},
    {"d", FILTER_DEFAULT, "default_value boolean"},
    {"default", FILTER_DEFAULT, "default_value boolean"},
    {"dictsort", FILTER_DICTSORT, "case_sensitive by reverse"},
    {"e", FILTER_ESCAPE, ""},
    {"escape", FILTER_ESCAPE, ""},
    {"first", FILTER_FIRST, ""},
    {"float", FILTER_FLOAT, "default"},
    {"forceescape", FILTER_ESCAPE, ""},
    {"format", FILTER_FORMAT, NULL},
    {"groupby", FILTER_GROUPBY, "attribute default case_sensitive"},
    {"indent", FILTER_INDENT, "width first blank"},
    {"int", FILTER_INT, "default base"},
    {"items", FILTER_ITEMS, ""},
    {"join", FILTER_JOIN, "d attribute"},
    {"last", FILTER_LAST, ""},
    {"length", FILTER_LENGTH, ""},
    {"list", FILTER_LIST, ""},
    {"lower", FILTER_LOWER, ""},
    {"map", FILTER_MAP, NULL},
    {"max", FILTER_MAX, "case_sensitive attribute"},
    {"min", FILTER_MIN, "case_sensitive attribute"},
    {"reject", FILTER_REJECT, NULL},
    {"rejectattr", FILTER_REJECTATTR, NULL},
    {"replace", FILTER_REPLACE, "old new count"},
    {"reverse", FILTER_REVERSE, ""},
    {"round", FILTER_ROUND, "precision method"},
    {"safe", FILTER_SAFE, ""},
    {"select", FILTER_SELECT, NULL},
    {"selectattr", FILTER_SELECTATTR, NULL},
    {"slice", FILTER_SLICE, "slices fill_with"},
    {"sort", FILTER_SORT, "reverse case_sensitive attribute"},
    {"string", FILTER_STRING, ""},
    {"sum", FILTER_SUM, "attribute start"},
    {"title", FILTER_TITLE, ""},
    {"tojson", FILTER_TOJSON, "ensure_ascii indent separators sort_keys"},
    {"trim", FILTER_TRIM, "chars"},
    {"truncate", FILTER_TRUNCATE, "length killwords end leeway"},
    {"unique", FILTER_UNIQUE, "case_sensitive attribute"},
    {"upper", FILTER_UPPER, ""},
    {"urlencode", FILTER_URLENCODE, ""},
    {"wordcount", FILTER_WORDCOUNT, ""},
};

static struct value apply(const struct call *call, enum filter_id id)
{
    struct render *render = call->render;
    const struct value *set;
    switch (id) {
    case FILTER_ABS: return filter_abs(call);
    case FILTER_ATTR: return value_attribute(render, &call->value, text(call, 0, "name", ""));
    case FILTER_BATCH: return pieces(call, false);
    case FILTER_CAPITALIZE: return value_string(string_case(render, own_text(call), "capitalize"));
    case FILTER_CENTER: return filter_center(call);
    case FILTER_DEFAULT: return filter_default(call);
    case FILTER_DICTSORT: return filter_dictsort(call);
    case FILTER_ESCAPE:
        if (call->value.is_markup && call->name[0] == 'e') return call->value;
        return markup(string_escape(render, own_text(call)));
    case FILTER_FIRST: return edge(call, false);
    case FILTER_FLOAT: return filter_float(call);
    case FILTER_FORMAT: return filter_format(call);
    case FILTER_GROUPBY: return filter_groupby(call);
    case FILTER_INDENT: return filter_indent(call);
    case FILTER_INT: return filter_int(call);
    case FILTER_ITEMS: return filter_items(call);
    case FILTER_JOIN: return filter_join(call);
    case FILTER_LAST: return edge(call, true);
    case FILTER_LENGTH: return filter_length(call);
    case FILTER_LIST: return to_list(render, &call->value);
    case FILTER_LOWER: return value_string(string_case(render, own_text(call), "lower"));
    case FILTER_MAP: return filter_map(call);
    case FILTER_MAX: return extreme(call, 1);
    case FILTER_MIN: return extreme(call, -1);
    case FILTER_REJECT: return choose(call, false, false);
    case FILTER_REJECTATTR: return choose(call, false, true);
    case FILTER_REPLACE:
        return value_string(string_replace(render, own_text(call), text(call, 0, "old", ""), text(call, 1, "new", ""),
                                           number(call, 2, "count", -1)));
    case FILTER_REVERSE: return filter_reverse(call);
    case FILTER_ROUND: return filter_round(call);
    case FILTER_SAFE: return markup(own_text(call));
    case FILTER_STRING: return call->value.kind == VALUE_STRING ? call->value : value_string(own_text(call));
    case FILTER_SELECT: return choose(call, true, false);
    case FILTER_SELECTATTR: return choose(call, true, true);
    case FILTER_SLICE: return pieces(call, true);
    case FILTER_SORT: return filter_sort(call);
    case FILTER_SUM: return filter_sum(call);
    case FILTER_TITLE: return filter_title(call);
    case FILTER_TOJSON: return filter_tojson(call);
    case FILTER_TRIM:
        set = given(call, 0, "chars");
        return value_string(string_strip(own_text(call), set && set->kind == VALUE_STRING ? &set->string : NULL, 3));
    case FILTER_TRUNCATE: return filter_truncate(call);
    case FILTER_UNIQUE: return filter_unique(call);
    case FILTER_UPPER: return value_string(string_case(render, own_text(call), "upper"));
    case FILTER_URLENCODE: return filter_urlencode(call);
    case FILTER_WORDCOUNT: return filter_wordcount(call);
    }
    return call->value;
}

struct value filter_apply(struct render *render, struct string name, struct value value,
                          const struct arguments *arguments)
{
    struct value made = value_none();
    size_t i = 0;
    while (i < sizeof filters / sizeof *filters && !string_is(name, filters[i].name)) i++;
    if (i == sizeof filters / sizeof *filters) {
        render_fail(render, "TemplateRuntimeError: No filter named '%.*s' found.", (int)name.size, name.bytes);
        return made;
    }
    const struct call call = {render, value, arguments, filters[i].name};
    if (filters[i].arguments && !arguments_check(render, arguments, filters[i].name, filters[i].arguments)) return made;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail(render, "RecursionError: maximum recursion depth exceeded");
    if (!render->failed) made = apply(&call, filters[i].id);
    render->depth--;
    return made;
}
