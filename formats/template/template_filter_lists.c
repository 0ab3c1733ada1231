/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of lists and dictionaries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_filters.h"

/* ---- attributes: "a.b.0" ---- */

struct value attribute_of(struct render *render, const struct value *value, const struct value *path)
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

static struct value folded(struct render *render, struct value key, bool case_sensitive)
{
    return case_sensitive || key.kind != VALUE_STRING ? key : value_string(string_case(render, key.string, "lower"));
}

static struct value key_of(const struct call *call, const struct value *item, const struct value *attribute,
                           bool case_sensitive)
{
    const struct value key =
        attribute && attribute->kind != VALUE_NONE ? attribute_of(call->render, item, attribute) : *item;
    return folded(call->render, key, case_sensitive);
}

/* The key of sort: a list of the attributes "a,b.c", so that undefined ones equal each other; without attributes the item. */
static struct value keys_of(const struct call *call, const struct value *item, const struct value *attributes,
                            bool case_sensitive)
{
    struct render *render = call->render;
    if (!attributes || attributes->kind != VALUE_STRING) return key_of(call, item, attributes, case_sensitive);
    const struct string all = attributes->string;
    struct value keys = value_list(render, VALUE_LIST);
    for (size_t begin = 0; begin <= all.size && !render->failed;) {
        size_t end = string_find(all, string_of(","), begin);
        if (end == SIZE_MAX) end = all.size;
        const struct value path = value_string(string_part(all, begin, end));
        list_add(render, keys.list, key_of(call, item, &path, case_sensitive));
        begin = end + 1;
    }
    return keys;
}

/* ---- lists ---- */

static struct value list_of(struct render *render, const struct value *value)
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

struct value filter_sort(const struct call *call)
{
    struct render *render = call->render;
    struct value list = list_of(render, &call->value);
    struct value *keys = render_take(render, (list.list->count + 1) * sizeof *keys);
    const struct value *attribute = call_argument(call, 2, "attribute");
    for (size_t i = 0; keys && i < list.list->count; i++)
        keys[i] = keys_of(call, &list.list->items[i], attribute, call_flag(call, 1, "case_sensitive", false));
    if (keys && !render->failed)
        sort_items(call, list.list->items, keys, list.list->count, call_flag(call, 0, "reverse", false));
    return list;
}

struct value filter_dictsort(const struct call *call)
{
    struct render *render = call->render;
    struct value list = value_list(render, VALUE_LIST);
    if (call->value.kind != VALUE_DICT) {
        render_fail(render, "TypeError: dictsort: expected a dict, found %s", value_type(&call->value));
        return list;
    }
    const struct dict *dict = call->value.dict;
    const bool by_value = string_is(call_string(call, 1, "by", "key"), "value");
    struct value *keys = render_take(render, (dict->count + 1) * sizeof *keys);
    for (size_t i = 0; keys && i < dict->count && !render->failed; i++) {
        struct value pair = value_list(render, VALUE_TUPLE);
        list_add(render, pair.list, dict->keys[i]);
        list_add(render, pair.list, dict->values[i]);
        list_add(render, list.list, pair);
        keys[i] = key_of(call, by_value ? &dict->values[i] : &dict->keys[i], NULL,
                         call_flag(call, 0, "case_sensitive", false));
    }
    if (keys && !render->failed)
        sort_items(call, list.list->items, keys, list.list->count, call_flag(call, 2, "reverse", false));
    return list;
}

struct value filter_unique(const struct call *call)
{
    struct render *render = call->render;
    struct value list = value_list(render, VALUE_GENERATOR), seen = value_dict(render, VALUE_DICT);
    const struct list *items = value_items(render, &call->value);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        const struct value key = key_of(call, &items->items[i], call_argument(call, 1, "attribute"),
                                        call_flag(call, 0, "case_sensitive", false));
        if (dict_find(render, seen.dict, key)) continue;
        dict_set(render, seen.dict, key, value_none());
        list_add(render, list.list, items->items[i]);
    }
    return list;
}

struct value filter_groupby(const struct call *call)
{
    struct render *render = call->render;
    const struct value *attribute = call_argument(call, 0, "attribute"), *absent = call_argument(call, 1, "default");
    const bool case_sensitive = call_flag(call, 2, "case_sensitive", false);
    struct value list = list_of(render, &call->value), groups = value_list(render, VALUE_LIST);
    const size_t count = list.list->count;
    struct value *keys = render_take(render, (count + 1) * sizeof *keys);
    struct value *pairs = render_take(render, (count + 1) * sizeof *pairs);
    if (!keys || !pairs) return groups;
    for (size_t i = 0; i < count; i++) { /* sorted by their folded keys, named by the first one */
        struct value key = key_of(call, &list.list->items[i], attribute, true), pair = value_list(render, VALUE_TUPLE);
        if (key.kind == VALUE_UNDEFINED && absent) key = *absent;
        list_add(render, pair.list, key);
        list_add(render, pair.list, list.list->items[i]);
        pairs[i] = pair;
        keys[i] = folded(render, key, case_sensitive);
    }
    if (!render->failed) sort_items(call, pairs, keys, count, false);
    for (size_t i = 0; i < count && !render->failed;) {
        struct value group = value_list(render, VALUE_TUPLE), members = value_list(render, VALUE_LIST);
        const size_t first = i;
        for (; i < count && value_equal(render, &keys[i], &keys[first]); i++)
            list_add(render, members.list, pairs[i].list->items[1]);
        if (i == first) break;
        list_add(render, group.list, pairs[first].list->items[0]);
        list_add(render, group.list, members);
        group.is_group = true;
        list_add(render, groups.list, group);
    }
    return groups;
}

/* min, max: `sign` -1, 1. */
static struct value extreme(const struct call *call, int sign)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    const bool exact = call_flag(call, 0, "case_sensitive", false);
    const struct value *attribute = call_argument(call, 1, "attribute");
    if (!items->count) return value_undefined(render, "No aggregated item, sequence was empty.");
    size_t best = 0;
    struct value best_key = key_of(call, &items->items[0], attribute, exact);
    for (size_t i = 1; i < items->count && !render->failed; i++) {
        const struct value key = key_of(call, &items->items[i], attribute, exact);
        if (sign * value_order(render, &key, &best_key, "<") > 0) best = i, best_key = key;
    }
    return items->items[best];
}

struct value filter_sum(const struct call *call)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    const struct value *attribute = call_argument(call, 0, "attribute"), *start = call_argument(call, 1, "start");
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

struct value filter_join(const struct call *call)
{
    struct render *render = call->render;
    const struct list *items = value_items(render, &call->value);
    const struct string by = call_string(call, 0, "d", "");
    const struct value *attribute = call_argument(call, 1, "attribute");
    struct builder builder;
    builder_open(&builder, render);
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        const struct value item = attribute ? attribute_of(render, &items->items[i], attribute) : items->items[i];
        if (i) builder_add(&builder, by);
        builder_add_value(&builder, &item);
    }
    return builder_value(&builder);
}

struct value filter_max(const struct call *call) { return extreme(call, 1); }
struct value filter_min(const struct call *call) { return extreme(call, -1); }
struct value filter_list(const struct call *call) { return list_of(call->render, &call->value); }

struct value filter_first(const struct call *call)
{
    if (call->value.kind == VALUE_GENERATOR && call->value.list->count) return list_take(call->value.list);
    const struct list *items = value_items(call->render, &call->value);
    if (!items->count) return value_undefined(call->render, "No first item, sequence was empty.");
    return items->items[0];
}

struct value filter_last(const struct call *call)
{
    if (call->value.kind == VALUE_GENERATOR)
        render_fail(call->render, "TypeError: 'generator' object is not reversible");
    const struct list *items = value_items(call->render, &call->value);
    if (!items->count) return value_undefined(call->render, "No last item, sequence was empty.");
    return items->items[items->count - 1];
}

struct value filter_reverse(const struct call *call)
{
    struct render *render = call->render;
    const bool is_generator = call->value.kind == VALUE_GENERATOR;
    const struct list *items = value_items(render, &call->value);
    struct value list = value_list(render, is_generator ? VALUE_LIST : VALUE_GENERATOR);
    struct builder builder;
    builder_open(&builder, render);
    for (size_t i = items->count; i-- > 0 && !render->failed;) {
        list_add(render, list.list, items->items[i]);
        if (call->value.kind == VALUE_STRING) builder_add(&builder, items->items[i].string);
    }
    return call->value.kind == VALUE_STRING ? builder_value(&builder) : list;
}

struct value filter_length(const struct call *call)
{
    const struct value *value = &call->value;
    switch (value->kind) {
    case VALUE_UNDEFINED: return value_integer(0);
    case VALUE_STRING:
        render_step(call->render, value->string.size);
        return value_integer((int64_t)string_length(value->string));
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_RANGE:
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
    const int64_t wanted = call_integer(call, 0, slices ? "slices" : "linecount", 1);
    const struct value *fill = call_argument(call, 1, "fill_with");
    if (fill && fill->kind == VALUE_NONE) fill = NULL;
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
        if (fill && slices && i >= more) list_add(render, piece.list, *fill);
        list_add(render, list.list, piece);
    }
    return list;
}

struct value filter_batch(const struct call *call) { return pieces(call, false); }
struct value filter_slice(const struct call *call) { return pieces(call, true); }

struct value filter_items(const struct call *call)
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
