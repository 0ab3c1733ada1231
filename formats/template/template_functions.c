/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that every template has. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/template/template_value.h"

enum { MOST_RANGE = 100000 };

static struct value call_range(struct render *render, const struct arguments *arguments)
{
    int64_t bounds[3] = {0, 0, 1};
    struct value list = value_list(render, VALUE_RANGE), *name = render_take(render, sizeof *name);
    char text[80];
    list.object = name;
    if (arguments->count < 1 || arguments->count > 3 || arguments->named_count) {
        render_fail(render, "TypeError: range expected 1 to 3 arguments, got %zu", arguments->count);
        return list;
    }
    for (size_t i = 0; i < arguments->count; i++)
        if (!value_is_integer(&arguments->positional[i], &bounds[arguments->count == 1 ? 1 : i]))
            render_fail(render, "TypeError: '%s' object cannot be interpreted as an integer",
                        value_type(&arguments->positional[i]));
    if (bounds[2] == 0) render_fail(render, "ValueError: range() arg 3 must not be zero");
    for (int64_t i = bounds[0]; !render->failed && (bounds[2] > 0 ? i < bounds[1] : i > bounds[1]);) {
        if (list.list->count == MOST_RANGE)
            render_fail(render, "OverflowError: Range too big. The sandbox blocks ranges larger than 100000.");
        list_add(render, list.list, value_integer(i));
        if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    snprintf(text, sizeof text,
             bounds[2] == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
             bounds[0], bounds[1], bounds[2]);
    struct builder builder;
    builder_open(&builder, render);
    builder_add_text(&builder, text);
    if (name) *name = builder_value(&builder);
    return list;
}

/* One conversion or one character of a format of strftime; those of Python where C has others. */
static size_t format_moment(const char *format, const struct tm *now, char *text, size_t size)
{
    const char kind = *format == '%' ? format[1] : 0;
    char one[4] = {0};
    size_t used = kind ? 2 : 1;
    if (kind && strchr("-_0^#EO", kind) && format[2]) used = 3;
    memcpy(one, format, used);
    text[0] = 0;
    if (kind == 'f') strcpy(text, "000000");                    /* the clock counts seconds here */
    if (kind == 'f' || kind == 'z' || kind == 'Z') return used; /* Python's time has no zone */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (kind)
        strftime(text, size, one, now);
    else
        strcpy(text, one);
#pragma GCC diagnostic pop
    return used;
}

static struct value call_now(struct render *render, const struct arguments *arguments)
{
    struct tm now;
    const struct value *given = argument(arguments, 0, "format");
    if (!arguments_check(render, arguments, "strftime_now", "format") || !given || given->kind != VALUE_STRING) {
        render_fail(render, "TypeError: strftime_now expected a format");
        return value_none();
    }
    if (render->now) {
        now = *render->now;
    } else {
        const time_t seconds = time(NULL);
        localtime_r(&seconds, &now);
    }
    struct builder format, builder;
    builder_open(&format, render);
    builder_open(&builder, render);
    builder_add(&format, given->string);
    builder_add_bytes(&format, "\0\0\0", 3, false);
    for (size_t at = 0; at < given->string.size && !render->failed;) {
        char text[256];
        at += format_moment(format.bytes + at, &now, text, sizeof text);
        builder_add_text(&builder, text);
    }
    return builder_value(&builder);
}

/* dict and namespace: of a dictionary or of pairs, and of keywords. */
static struct value call_dict(struct render *render, const struct arguments *arguments, enum value_kind kind)
{
    struct value made = value_dict(render, kind);
    const struct value *from = arguments->count ? &arguments->positional[0] : NULL;
    if (arguments->count > 1) render_fail(render, "TypeError: dict expected at most 1 argument");
    if (from && from->kind == VALUE_DICT) {
        for (size_t i = 0; i < from->dict->count; i++)
            dict_set(render, made.dict, from->dict->keys[i], from->dict->values[i]);
    } else if (from) {
        const struct list *pairs = value_items(render, from);
        for (size_t i = 0; i < pairs->count && !render->failed; i++) {
            const struct list *pair = value_items(render, &pairs->items[i]);
            if (pair->count == 2)
                dict_set(render, made.dict, pair->items[0], pair->items[1]);
            else
                render_fail(render, "ValueError: dictionary update sequence element #%zu has length %zu; 2 is required",
                            i, pair->count);
        }
    }
    for (size_t i = 0; i < arguments->named_count; i++)
        dict_set(render, made.dict, value_string(arguments->names[i]), arguments->named[i]);
    return made;
}

/* joiner(separator): gives nothing when it is called first, and then the separator. cycler(a, b, ..): next(), current, reset(). */
static struct value new_state(struct render *render, const char *const names[], const char *const functions[])
{
    struct value *state = render_take(render, sizeof *state);
    const struct value made = value_dict(render, VALUE_NAMESPACE);
    if (!state) return made;
    *state = made;
    for (size_t i = 0; names[i]; i++)
        dict_set(render, made.dict, value_text(names[i]),
                 (struct value){.kind = VALUE_FUNCTION, .string = string_of(functions[i]), .object = state});
    return made;
}

struct value loop_new(struct render *render)
{
    static const char *const names[] = {"cycle", "changed", NULL}, *const functions[] = {"loop.cycle", "loop.changed"};
    struct value loop = new_state(render, names, functions);
    loop.kind = VALUE_LOOP;
    return loop;
}

static struct value call_joiner(struct render *render, const struct arguments *arguments)
{
    static const char *const names[] = {"(call)", NULL}, *const functions[] = {"joiner()"};
    const struct value comma = value_text(", "), *separator = argument(arguments, 0, "sep");
    const struct value state = new_state(render, names, functions);
    const struct value *function = dict_find_text(render, state.dict, "(call)");
    dict_set(render, state.dict, value_text("(separator)"), separator ? *separator : comma);
    return function ? *function : comma;
}

static struct value call_cycler(struct render *render, const struct arguments *arguments)
{
    static const char *const names[] = {"next", "reset", NULL}, *const functions[] = {"cycler.next", "cycler.reset"};
    const struct value state = new_state(render, names, functions);
    struct value items = value_list(render, VALUE_TUPLE);
    if (!arguments->count) {
        render_fail(render, "RuntimeError: at least one item has to be provided");
        return state;
    }
    for (size_t i = 0; i < arguments->count; i++) list_add(render, items.list, arguments->positional[i]);
    dict_set(render, state.dict, value_text("items"), items);
    dict_set(render, state.dict, value_text("pos"), value_integer(0));
    dict_set(render, state.dict, value_text("current"), arguments->positional[0]);
    return state;
}

static struct value turn_cycler(struct render *render, struct dict *state, bool resets)
{
    const struct value *items = dict_find_text(render, state, "items"), *at = dict_find_text(render, state, "pos");
    if (!items || !at || items->kind != VALUE_TUPLE || at->kind != VALUE_INTEGER) return value_none();
    const size_t count = items->list->count, now = (size_t)at->integer % count, next = resets ? 0 : (now + 1) % count;
    const struct value given = items->list->items[now];
    dict_set(render, state, value_text("current"), items->list->items[next]);
    dict_set(render, state, value_text("pos"), value_integer((int64_t)next));
    return resets ? value_none() : given;
}

static struct value call_joined(struct render *render, struct dict *state)
{
    const struct value *separator = dict_find_text(render, state, "(separator)");
    if (!dict_find_text(render, state, "(used)")) {
        dict_set(render, state, value_text("(used)"), value_bool(true));
        return value_text("");
    }
    return separator ? *separator : value_none();
}

/* loop.cycle(a, b, ..) and loop.changed(value); `object`: the loop. */
static struct value call_loop(struct render *render, const struct value *function, const struct arguments *arguments)
{
    struct dict *loop = function->object->dict;
    if (string_is(function->string, "loop.cycle")) {
        const struct value *index = dict_find_text(render, loop, "index0");
        if (!arguments->count) render_fail(render, "TypeError: no items for cycling given");
        return arguments->count && index ? arguments->positional[(size_t)index->integer % arguments->count]
                                         : value_none();
    }
    struct value now = value_list(render, VALUE_TUPLE);
    for (size_t i = 0; i < arguments->count; i++) list_add(render, now.list, arguments->positional[i]);
    const struct value *before = dict_find_text(render, loop, "(changed)");
    const bool changed = !before || !value_equal(render, before, &now);
    dict_set(render, loop, value_text("(changed)"), now);
    return value_bool(changed);
}

struct value function_find(struct string name)
{
    static const char *const names[] = {"raise_exception", "strftime_now", "namespace", "range", "dict",
                                        "joiner",          "cycler"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (string_is(name, names[i])) return (struct value){.kind = VALUE_FUNCTION, .string = string_of(names[i])};
    return value_none();
}

struct value function_call(struct render *render, const struct value *function, const struct arguments *arguments)
{
    const struct string name = function->string;
    if (function->object) {
        struct dict *state = function->object->dict;
        if (string_is(name, "joiner()")) return call_joined(render, state);
        if (string_is(name, "cycler.next")) return turn_cycler(render, state, false);
        if (string_is(name, "cycler.reset")) return turn_cycler(render, state, true);
        return call_loop(render, function, arguments);
    }
    if (string_is(name, "range")) return call_range(render, arguments);
    if (string_is(name, "strftime_now")) return call_now(render, arguments);
    if (string_is(name, "joiner")) return call_joiner(render, arguments);
    if (string_is(name, "cycler")) return call_cycler(render, arguments);
    if (string_is(name, "raise_exception")) {
        const struct value none = value_text(""), *given = argument(arguments, 0, "message");
        const struct string message = value_str(render, given ? given : &none);
        render_fail(render, "TemplateError: %.*s", (int)message.size, message.bytes);
        return value_none();
    }
    return call_dict(render, arguments, string_is(name, "namespace") ? VALUE_NAMESPACE : VALUE_DICT);
}
