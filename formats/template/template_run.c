/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a template. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_tree.h"

enum { MOST_RANGE = 100000 };

/* Names that a block gave values. Those of the blocks around it are seen, and never changed from inside. */
struct scope {
    const struct scope *parent;
    struct dict names;
};

struct macro {
    const struct node *node;   /* NODE_MACRO or NODE_CALL_BLOCK */
    const struct scope *scope; /* where it was written */
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static struct value evaluate(struct render *render, const struct node *node, struct scope *scope);
static enum flow run_body(struct render *render, const struct node *body, struct scope *scope, struct builder *out);

/* ---- names ---- */

static struct scope *scope_new(struct render *render, const struct scope *parent)
{
    static struct scope none;
    struct scope *scope = render_take(render, sizeof *scope);
    if (!scope) return &none;
    *scope = (struct scope){.parent = parent};
    return scope;
}

static struct value find_name(struct render *render, struct string name, const struct scope *scope)
{
    static const char *const functions[] = {"raise_exception", "strftime_now", "namespace", "range", "dict"};
    for (; scope; scope = scope->parent) {
        const struct value *found = dict_find(render, &scope->names, value_string(name));
        if (found) return *found;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (string_is(name, functions[i]))
            return (struct value){.kind = VALUE_FUNCTION, .string = string_of(functions[i])};
    return value_undefined(render, "'%.*s' is undefined", (int)name.size, name.bytes);
}

static void assign(struct render *render, const struct node *target, struct value value, struct scope *scope)
{
    if (target->kind == NODE_NAME) {
        dict_set(render, &scope->names, value_string(target->text), value);
    } else if (target->kind == NODE_ATTRIBUTE) {
        const struct value object = evaluate(render, target->a, scope);
        if (render->failed) return;
        if (object.kind == VALUE_NAMESPACE)
            dict_set(render, object.dict, value_string(target->text), value);
        else
            render_fail(render, "TemplateRuntimeError: cannot assign attribute on non-namespace object");
    } else {
        const struct list *items = value_items(render, &value);
        size_t i = 0;
        for (const struct node *part = target->list; part && !render->failed; part = part->next, i++) {
            if (i >= items->count) {
                render_fail(render, "ValueError: not enough values to unpack (got %zu)", items->count);
                return;
            }
            assign(render, part, items->items[i], scope);
        }
        if (!render->failed && i < items->count)
            render_fail(render, "ValueError: too many values to unpack (expected %zu)", i);
    }
}

/* ---- arithmetic ---- */

static void fail_operands(struct render *render, const char *sign, const struct value *a, const struct value *b)
{
    const struct value *undefined = a->kind == VALUE_UNDEFINED ? a : b->kind == VALUE_UNDEFINED ? b : NULL;
    if (undefined)
        render_fail(render, "UndefinedError: %.*s", (int)undefined->string.size, undefined->string.bytes);
    else if (*sign == '+' && (a->kind == VALUE_STRING || a->kind == VALUE_LIST))
        render_fail(render, "TypeError: can only concatenate %s (not \"%s\") to %s", value_type(a), value_type(b),
                    value_type(a));
    else
        render_fail(render, "TypeError: unsupported operand type(s) for %s: '%s' and '%s'", sign, value_type(a),
                    value_type(b));
}

static struct value add_values(struct render *render, const struct value *a, const struct value *b)
{
    if (a->kind == VALUE_STRING && b->kind == VALUE_STRING) {
        struct builder builder;
        builder_open(&builder, render);
        const bool is_markup = a->is_markup || b->is_markup;
        builder_add(&builder, is_markup && !a->is_markup ? string_escape(render, a->string) : a->string);
        builder_add(&builder, is_markup && !b->is_markup ? string_escape(render, b->string) : b->string);
        struct value sum = builder_value(&builder);
        sum.is_markup = is_markup;
        return sum;
    }
    if (a->kind == b->kind && (a->kind == VALUE_LIST || a->kind == VALUE_TUPLE)) {
        struct value sum = value_list(render, a->kind);
        for (size_t i = 0; i < a->list->count && render_step(render, 0); i++)
            list_add(render, sum.list, a->list->items[i]);
        for (size_t i = 0; i < b->list->count && render_step(render, 0); i++)
            list_add(render, sum.list, b->list->items[i]);
        return sum;
    }
    fail_operands(render, "+", a, b);
    return value_none();
}

static struct value repeat(struct render *render, const struct value *what, int64_t times)
{
    if (what->kind == VALUE_STRING) {
        struct builder builder;
        builder_open(&builder, render);
        for (int64_t i = 0; i < times && what->string.size && !render->failed; i++) builder_add(&builder, what->string);
        return builder_value(&builder);
    }
    struct value made = value_list(render, what->kind);
    for (int64_t i = 0; i < times && what->list->count && !render->failed; i++)
        for (size_t j = 0; j < what->list->count && render_step(render, 0); j++)
            list_add(render, made.list, what->list->items[j]);
    return made;
}

static struct value integer_arithmetic(struct render *render, enum operator_id operation, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflows = false;
    switch (operation) {
    case OPERATOR_ADD: overflows = __builtin_add_overflow(a, b, &result); break;
    case OPERATOR_SUBTRACT: overflows = __builtin_sub_overflow(a, b, &result); break;
    case OPERATOR_MULTIPLY: overflows = __builtin_mul_overflow(a, b, &result); break;
    case OPERATOR_DIVIDE:
    case OPERATOR_FLOOR_DIVIDE:
    case OPERATOR_MODULO:
        if (b == 0) {
            render_fail(render, "ZeroDivisionError: division by zero");
        } else if (operation == OPERATOR_DIVIDE) {
            return value_float((double)a / (double)b);
        } else if (b == -1) {
            overflows = operation == OPERATOR_FLOOR_DIVIDE && __builtin_sub_overflow((int64_t)0, a, &result);
        } else { /* rounds down, as Python does */
            const int64_t rest = a % b, below = rest != 0 && (rest < 0) != (b < 0);
            result = operation == OPERATOR_MODULO ? rest + below * b : a / b - below;
        }
        break;
    default: /* power */
        if (b < 0) return value_float(pow((double)a, (double)b));
        result = 1;
        for (int64_t i = 0; i < b && !overflows && a != 1 && !(a == 0 && i > 0); i++) {
            if (a == -1 && i > 1) {
                result = b % 2 ? -1 : 1;
                break;
            }
            overflows = __builtin_mul_overflow(result, a, &result);
        }
        break;
    }
    if (overflows) render_fail(render, "OverflowError: an integer of more than 64 bits");
    return value_integer(result);
}

static struct value real_arithmetic(struct render *render, enum operator_id operation, double a, double b)
{
    switch (operation) {
    case OPERATOR_ADD: return value_float(a + b);
    case OPERATOR_SUBTRACT: return value_float(a - b);
    case OPERATOR_MULTIPLY: return value_float(a * b);
    case OPERATOR_POWER: return value_float(pow(a, b));
    default: break;
    }
    if (b == 0) {
        render_fail(render, "ZeroDivisionError: float division by zero");
        return value_none();
    }
    if (operation == OPERATOR_DIVIDE) return value_float(a / b);
    if (operation == OPERATOR_FLOOR_DIVIDE) return value_float(floor(a / b));
    const double rest = fmod(a, b);
    return value_float(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

static struct value binary(struct render *render, enum operator_id operation, const struct value *a,
                           const struct value *b)
{
    static const char *const names[] = {[OPERATOR_ADD] = "+",
                                        [OPERATOR_SUBTRACT] = "-",
                                        [OPERATOR_MULTIPLY] = "*",
                                        [OPERATOR_DIVIDE] = "/",
                                        [OPERATOR_FLOOR_DIVIDE] = "//",
                                        [OPERATOR_MODULO] = "%",
                                        [OPERATOR_POWER] = "** or pow()"};
    int64_t x, y;
    if (operation == OPERATOR_CONCATENATE) {
        struct builder builder;
        builder_open(&builder, render);
        builder_add_value(&builder, a);
        builder_add_value(&builder, b);
        return builder_value(&builder);
    }
    if (operation == OPERATOR_MODULO && a->kind == VALUE_STRING) return string_percent(render, a->string, b);
    if (value_is_number(a) && value_is_number(b)) {
        if (value_is_integer(a, &x) && value_is_integer(b, &y)) return integer_arithmetic(render, operation, x, y);
        return real_arithmetic(render, operation, value_real(a), value_real(b));
    }
    if (operation == OPERATOR_ADD) return add_values(render, a, b);
    if (operation == OPERATOR_MULTIPLY) {
        const bool a_repeats = a->kind == VALUE_STRING || a->kind == VALUE_LIST || a->kind == VALUE_TUPLE;
        const bool b_repeats = b->kind == VALUE_STRING || b->kind == VALUE_LIST || b->kind == VALUE_TUPLE;
        if (a_repeats && value_is_integer(b, &y)) return repeat(render, a, y);
        if (b_repeats && value_is_integer(a, &x)) return repeat(render, b, x);
    }
    fail_operands(render, names[operation], a, b);
    return value_none();
}

static bool compares(struct render *render, enum operator_id operation, const struct value *a, const struct value *b)
{
    switch (operation) {
    case OPERATOR_EQUAL: return value_equal(render, a, b);
    case OPERATOR_NOT_EQUAL: return !value_equal(render, a, b);
    case OPERATOR_BELOW: return value_order(render, a, b, "<") < 0;
    case OPERATOR_AT_MOST: return value_order(render, a, b, "<=") <= 0;
    case OPERATOR_ABOVE: return value_order(render, a, b, ">") > 0;
    case OPERATOR_AT_LEAST: return value_order(render, a, b, ">=") >= 0;
    case OPERATOR_IN: return value_contains(render, b, a);
    default: return !value_contains(render, b, a);
    }
}

/* ---- slices ---- */

static int64_t bound(struct render *render, const struct node *node, struct scope *scope, int64_t absent, int64_t count,
                     bool falls)
{
    int64_t index;
    if (!node) return absent;
    const struct value value = evaluate(render, node, scope);
    if (value.kind == VALUE_NONE || render->failed) return absent;
    if (!value_is_integer(&value, &index)) {
        render_fail(render, "TypeError: slice indices must be integers or None or have an __index__ method");
        return absent;
    }
    if (index < 0) index += count;
    const int64_t least = falls ? -1 : 0, most = falls ? count - 1 : count;
    return index < least ? least : index > most ? most : index;
}

static struct value slice(struct render *render, const struct node *node, struct scope *scope)
{
    const struct value of = evaluate(render, node->a, scope);
    if (render->failed) return of;
    const bool is_string = of.kind == VALUE_STRING;
    if (!is_string && of.kind != VALUE_LIST && of.kind != VALUE_TUPLE) {
        if (of.kind == VALUE_UNDEFINED)
            render_fail(render, "UndefinedError: %.*s", (int)of.string.size, of.string.bytes);
        return value_undefined(render, "'%s object' has no such element", value_type(&of));
    }
    if (!render_step(render, is_string ? of.string.size : of.list->count)) return value_none();
    const int64_t count = is_string ? (int64_t)string_length(of.string) : (int64_t)of.list->count;
    int64_t step = 1;
    if (node->d) {
        const struct value given = evaluate(render, node->d, scope);
        if (given.kind != VALUE_NONE && !value_is_integer(&given, &step))
            render_fail(render, "TypeError: slice step is no integer");
        if (given.kind == VALUE_NONE) step = 1;
        if (step == 0) render_fail(render, "ValueError: slice step cannot be zero");
        if (step < -count - 1) step = -count - 1;
        if (step > count + 1) step = count + 1;
    }
    const int64_t begin = bound(render, node->b, scope, step < 0 ? count - 1 : 0, count, step < 0);
    const int64_t end = bound(render, node->c, scope, step < 0 ? -1 : count, count, step < 0);
    if (render->failed) return value_none();
    if (is_string && step == 1) {
        const size_t first = string_offset(of.string, (size_t)begin);
        if (end <= begin) return value_text("");
        return value_string(
            string_part(of.string, first,
                        first + string_offset(string_part(of.string, first, of.string.size), (size_t)(end - begin))));
    }
    const struct list *items = value_items(render, &of);
    struct value list = value_list(render, is_string ? VALUE_LIST : of.kind);
    struct builder builder;
    builder_open(&builder, render);
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && !render->failed; i += step) {
        if (is_string)
            builder_add(&builder, items->items[i].string);
        else
            list_add(render, list.list, items->items[i]);
    }
    return is_string ? builder_value(&builder) : list;
}

/* ---- calls ---- */

static struct arguments evaluate_arguments(struct render *render, const struct node *list, struct scope *scope)
{
    struct value positional = value_list(render, VALUE_LIST), names = value_dict(render, VALUE_DICT);
    for (const struct node *node = list; node && !render->failed; node = node->next) {
        const struct value value = evaluate(render, node->a, scope);
        if (render->failed) break;
        if (string_is(node->text, "*")) {
            const struct list *items = value_items(render, &value);
            for (size_t i = 0; i < items->count; i++) list_add(render, positional.list, items->items[i]);
        } else if (string_is(node->text, "**")) {
            if (value.kind != VALUE_DICT) {
                render_fail(render, "TypeError: argument after ** must be a mapping, not %s", value_type(&value));
                break;
            }
            for (size_t i = 0; i < value.dict->count; i++)
                dict_set(render, names.dict, value_string(value_str(render, &value.dict->keys[i])),
                         value.dict->values[i]);
        } else if (node->text.size) {
            dict_set(render, names.dict, value_string(node->text), value);
        } else {
            list_add(render, positional.list, value);
        }
    }
    struct arguments arguments = {.positional = positional.list->items, .count = positional.list->count};
    arguments.names = render_take(render, (names.dict->count + 1) * sizeof *arguments.names);
    arguments.named = names.dict->values;
    for (size_t i = 0; arguments.names && i < names.dict->count; i++) arguments.names[i] = names.dict->keys[i].string;
    arguments.named_count = render->failed ? 0 : names.dict->count;
    if (render->failed) arguments.count = 0;
    return arguments;
}

static struct value call_macro(struct render *render, const struct macro *macro, const struct arguments *arguments,
                               const struct value *caller)
{
    struct scope *scope = scope_new(render, macro->scope);
    struct string name = macro->node->text;
    size_t i = 0, used = 0;
    struct builder out;
    builder_open(&out, render);
    for (const struct node *node = macro->node->list; node && !render->failed; node = node->next, i++) {
        struct value value =
            value_undefined(render, "parameter '%.*s' was not provided", (int)node->text.size, node->text.bytes);
        bool found = i < arguments->count;
        if (found) value = arguments->positional[i];
        for (size_t n = 0; n < arguments->named_count && !found; n++)
            if (string_equal(arguments->names[n], node->text)) value = arguments->named[n], found = true, used++;
        if (!found && node->a) value = evaluate(render, node->a, scope);
        dict_set(render, &scope->names, value_string(node->text), value);
    }
    if (arguments->count > i)
        render_fail(render, "TypeError: macro '%.*s' takes not more than %zu argument(s)", (int)name.size, name.bytes,
                    i);
    if (arguments->named_count > used)
        render_fail(render, "TypeError: macro '%.*s' takes no such keyword argument", (int)name.size, name.bytes);
    if (caller) dict_set(render, &scope->names, value_text("caller"), *caller);
    if (!render->failed) run_body(render, macro->node->body, scope, &out);
    return builder_value(&out);
}

static struct value call_range(struct render *render, const struct arguments *arguments)
{
    int64_t bounds[3] = {0, 0, 1};
    struct value list = value_list(render, VALUE_LIST);
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
    return list;
}

static struct value call_now(struct render *render, const struct arguments *arguments)
{
    char format[256], text[1024];
    struct tm now;
    if (arguments->count != 1 || arguments->positional[0].kind != VALUE_STRING ||
        arguments->positional[0].string.size >= sizeof format) {
        render_fail(render, "TypeError: strftime_now expected one format of up to 255 bytes");
        return value_none();
    }
    const struct string given = arguments->positional[0].string;
    memcpy(format, given.bytes, given.size);
    format[given.size] = 0;
    if (render->now) {
        now = *render->now;
    } else {
        const time_t seconds = time(NULL);
        localtime_r(&seconds, &now);
    }
    text[0] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const size_t size = strftime(text, sizeof text, format, &now);
#pragma GCC diagnostic pop
    struct builder builder;
    builder_open(&builder, render);
    builder_add_bytes(&builder, text, size, false);
    return builder_value(&builder);
}

static struct value call_dict(struct render *render, const struct arguments *arguments, enum value_kind kind)
{
    struct value made = value_dict(render, kind);
    if (arguments->count > 1 || (arguments->count && arguments->positional[0].kind != VALUE_DICT)) {
        render_fail(render, "TypeError: expected at most one dict and keyword arguments");
        return made;
    }
    for (size_t i = 0; arguments->count && i < arguments->positional[0].dict->count; i++)
        dict_set(render, made.dict, arguments->positional[0].dict->keys[i], arguments->positional[0].dict->values[i]);
    for (size_t i = 0; i < arguments->named_count; i++)
        dict_set(render, made.dict, value_string(arguments->names[i]), arguments->named[i]);
    return made;
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

static struct value call_value(struct render *render, const struct value *callee, const struct arguments *arguments,
                               const struct value *caller)
{
    if (render->failed) return value_none();
    switch (callee->kind) {
    case VALUE_MACRO: return call_macro(render, callee->macro, arguments, caller);
    case VALUE_METHOD: return method_call(render, callee, arguments);
    case VALUE_FUNCTION: break;
    case VALUE_UNDEFINED:
        render_fail(render, "UndefinedError: %.*s", (int)callee->string.size, callee->string.bytes);
        return value_none();
    default: render_fail(render, "TypeError: '%s' object is not callable", value_type(callee)); return value_none();
    }
    if (callee->object) return call_loop(render, callee, arguments);
    if (string_is(callee->string, "range")) return call_range(render, arguments);
    if (string_is(callee->string, "strftime_now")) return call_now(render, arguments);
    if (string_is(callee->string, "raise_exception")) {
        const struct value none = value_text("");
        const struct string message = value_str(render, arguments->count ? &arguments->positional[0] : &none);
        render_fail(render, "TemplateError: %.*s", (int)message.size, message.bytes);
        return value_none();
    }
    return call_dict(render, arguments, string_is(callee->string, "namespace") ? VALUE_NAMESPACE : VALUE_DICT);
}

/* ---- expressions ---- */

static struct value evaluate_items(struct render *render, const struct node *node, struct scope *scope)
{
    struct value made = node->kind == NODE_DICT
                            ? value_dict(render, VALUE_DICT)
                            : value_list(render, node->kind == NODE_LIST ? VALUE_LIST : VALUE_TUPLE);
    for (const struct node *item = node->list; item && !render->failed; item = item->next) {
        if (node->kind == NODE_DICT) {
            const struct value key = evaluate(render, item->a, scope), value = evaluate(render, item->b, scope);
            dict_set(render, made.dict, key, value);
        } else {
            list_add(render, made.list, evaluate(render, item, scope));
        }
    }
    return made;
}

static struct value evaluate_compare(struct render *render, const struct node *node, struct scope *scope)
{
    struct value left = evaluate(render, node->a, scope);
    for (const struct node *operand = node->list; operand && !render->failed; operand = operand->next) {
        const struct value right = evaluate(render, operand->a, scope);
        if (render->failed || !compares(render, operand->operation, &left, &right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static struct value evaluate_sign(struct render *render, const struct node *node, struct scope *scope)
{
    const struct value value = evaluate(render, node->a, scope), zero = value_integer(0);
    if (render->failed) return value;
    if (!value_is_number(&value)) {
        if (value.kind == VALUE_UNDEFINED)
            fail_operands(render, "-", &value, &zero);
        else
            render_fail(render, "TypeError: bad operand type for unary %c: '%s'",
                        node->kind == NODE_NEGATIVE ? '-' : '+', value_type(&value));
        return value;
    }
    if (node->kind == NODE_POSITIVE) return binary(render, OPERATOR_ADD, &zero, &value);
    if (value.kind == VALUE_FLOAT) return value_float(-value.real);
    return binary(render, OPERATOR_SUBTRACT, &zero, &value);
}

static struct value evaluate_now(struct render *render, const struct node *node, struct scope *scope)
{
    struct value a, b;
    struct arguments arguments;
    switch (node->kind) {
    case NODE_CONSTANT: return node->constant;
    case NODE_NAME: return find_name(render, node->text, scope);
    case NODE_LIST:
    case NODE_TUPLE:
    case NODE_DICT: return evaluate_items(render, node, scope);
    case NODE_ATTRIBUTE:
        a = evaluate(render, node->a, scope);
        return render->failed ? a : value_attribute(render, &a, node->text);
    case NODE_ITEM:
        a = evaluate(render, node->a, scope);
        b = render->failed ? a : evaluate(render, node->b, scope);
        return render->failed ? a : value_item(render, &a, &b);
    case NODE_SLICE: return slice(render, node, scope);
    case NODE_CALL:
        a = evaluate(render, node->a, scope);
        arguments = evaluate_arguments(render, node->list, scope);
        return call_value(render, &a, &arguments, NULL);
    case NODE_FILTER:
        a = evaluate(render, node->a, scope);
        arguments = evaluate_arguments(render, node->list, scope);
        return render->failed ? a : filter_apply(render, node->text, a, &arguments);
    case NODE_TEST:
        a = evaluate(render, node->a, scope);
        arguments = evaluate_arguments(render, node->list, scope);
        return render->failed ? a : value_bool(test_apply(render, node->text, &a, &arguments));
    case NODE_CONDITION:
        a = evaluate(render, node->a, scope);
        if (render->failed) return a;
        if (value_truth(&a)) return evaluate(render, node->b, scope);
        if (node->c) return evaluate(render, node->c, scope);
        return value_undefined(render, "the inline if-expression evaluated to false and no else section was defined.");
    case NODE_OR:
    case NODE_AND:
        a = evaluate(render, node->a, scope);
        if (render->failed || value_truth(&a) == (node->kind == NODE_OR)) return a;
        return evaluate(render, node->b, scope);
    case NODE_NOT: a = evaluate(render, node->a, scope); return value_bool(!value_truth(&a));
    case NODE_COMPARE: return evaluate_compare(render, node, scope);
    case NODE_BINARY:
        a = evaluate(render, node->a, scope);
        b = render->failed ? a : evaluate(render, node->b, scope);
        return render->failed ? a : binary(render, node->operation, &a, &b);
    case NODE_NEGATIVE:
    case NODE_POSITIVE: return evaluate_sign(render, node, scope);
    default: return value_none();
    }
}

static struct value evaluate(struct render *render, const struct node *node, struct scope *scope)
{
    struct value value = value_none();
    if (!render_step(render, 0)) return value;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail(render, "RecursionError: maximum recursion depth exceeded");
    if (!render->failed) value = evaluate_now(render, node, scope);
    render->depth--;
    return value;
}

/* ---- statements ---- */

static void set_loop(struct render *render, struct value *loop, const struct list *items, size_t i)
{
    const struct value undefined = value_undefined(render, "there is no such item");
    const size_t count = items->count;
    const struct {
        const char *name;
        struct value value;
    } fields[] = {
        {"index", value_integer((int64_t)i + 1)},
        {"index0", value_integer((int64_t)i)},
        {"revindex", value_integer((int64_t)(count - i))},
        {"revindex0", value_integer((int64_t)(count - i - 1))},
        {"first", value_bool(i == 0)},
        {"last", value_bool(i + 1 == count)},
        {"length", value_integer((int64_t)count)},
        {"previtem", i ? items->items[i - 1] : undefined},
        {"nextitem", i + 1 < count ? items->items[i + 1] : undefined},
        {"depth", value_integer(1)},
        {"depth0", value_integer(0)},
    };
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        dict_set(render, loop->dict, value_text(fields[f].name), fields[f].value);
}

static struct value new_loop(struct render *render)
{
    struct value *loop = render_take(render, sizeof *loop);
    const struct value made = value_dict(render, VALUE_NAMESPACE);
    if (!loop) return made;
    *loop = made;
    dict_set(render, made.dict, value_text("cycle"),
             (struct value){.kind = VALUE_FUNCTION, .string = string_of("loop.cycle"), .object = loop});
    dict_set(render, made.dict, value_text("changed"),
             (struct value){.kind = VALUE_FUNCTION, .string = string_of("loop.changed"), .object = loop});
    return made;
}

static enum flow run_for(struct render *render, const struct node *node, struct scope *scope, struct builder *out)
{
    const struct value over = evaluate(render, node->b, scope);
    if (render->failed) return FLOW_ON;
    const struct list *items = value_items(render, &over);
    if (node->c) {
        struct list *kept = value_list(render, VALUE_LIST).list;
        for (size_t i = 0; i < items->count && !render->failed; i++) {
            struct scope *inner = scope_new(render, scope);
            assign(render, node->a, items->items[i], inner);
            const struct value wanted = evaluate(render, node->c, inner);
            if (value_truth(&wanted)) list_add(render, kept, items->items[i]);
        }
        items = kept;
    }
    struct value loop = node->uses_loop ? new_loop(render) : value_none();
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        struct scope *inner = scope_new(render, scope);
        if (node->uses_loop) {
            set_loop(render, &loop, items, i);
            dict_set(render, &inner->names, value_text("loop"), loop);
        }
        assign(render, node->a, items->items[i], inner);
        if (render->failed || run_body(render, node->body, inner, out) == FLOW_BREAK) break;
    }
    if (!items->count && node->other) return run_body(render, node->other, scope_new(render, scope), out);
    return FLOW_ON;
}

/* Filters of a block: the innermost has no operand, and gets the block's text. */
static struct value through(struct render *render, const struct node *filter, struct value text, struct scope *scope)
{
    if (!filter || render->failed) return text;
    if (filter->a) text = through(render, filter->a, text, scope);
    const struct arguments arguments = evaluate_arguments(render, filter->list, scope);
    return render->failed ? text : filter_apply(render, filter->text, text, &arguments);
}

static struct value text_of_body(struct render *render, const struct node *body, struct scope *scope)
{
    struct builder out;
    builder_open(&out, render);
    run_body(render, body, scope_new(render, scope), &out);
    return builder_value(&out);
}

static struct value new_macro(struct render *render, const struct node *node, const struct scope *scope)
{
    static struct macro none;
    struct macro *macro = render_take(render, sizeof *macro);
    if (macro) *macro = (struct macro){node, scope};
    return (struct value){.kind = VALUE_MACRO, .macro = macro ? macro : &none};
}

static void run_call_block(struct render *render, const struct node *node, struct scope *scope, struct builder *out)
{
    const struct value callee = evaluate(render, node->a->a, scope);
    const struct arguments arguments = evaluate_arguments(render, node->a->list, scope);
    const struct value caller = new_macro(render, node, scope);
    const struct value made = call_value(render, &callee, &arguments, &caller);
    if (!render->failed) builder_add_value(out, &made);
}

static enum flow run_statement(struct render *render, const struct node *node, struct scope *scope, struct builder *out)
{
    struct value value;
    struct scope *inner;
    switch (node->kind) {
    case NODE_TEXT: builder_add(out, node->text); return FLOW_ON;
    case NODE_OUTPUT:
        value = evaluate(render, node->a, scope);
        if (!render->failed) builder_add_value(out, &value);
        return FLOW_ON;
    case NODE_IF:
        value = evaluate(render, node->a, scope);
        if (render->failed) return FLOW_ON;
        return run_body(render, value_truth(&value) ? node->body : node->other, scope, out);
    case NODE_FOR: return run_for(render, node, scope, out);
    case NODE_SET:
        value = evaluate(render, node->b, scope);
        if (!render->failed) assign(render, node->a, value, scope);
        return FLOW_ON;
    case NODE_SET_BLOCK:
        value = text_of_body(render, node->body, scope);
        value = through(render, node->b, value, scope);
        if (!render->failed) assign(render, node->a, value, scope);
        return FLOW_ON;
    case NODE_MACRO:
        dict_set(render, &scope->names, value_string(node->text), new_macro(render, node, scope));
        return FLOW_ON;
    case NODE_CALL_BLOCK: run_call_block(render, node, scope, out); return FLOW_ON;
    case NODE_FILTER_BLOCK:
        value = text_of_body(render, node->body, scope);
        value = through(render, node->a, value, scope);
        if (!render->failed) builder_add_value(out, &value);
        return FLOW_ON;
    case NODE_WITH:
        inner = scope_new(render, scope);
        for (const struct node *set = node->list; set && !render->failed; set = set->next) {
            value = evaluate(render, set->b, scope);
            assign(render, set->a, value, inner);
        }
        return run_body(render, node->body, inner, out);
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: return FLOW_ON;
    }
}

static enum flow run_body(struct render *render, const struct node *body, struct scope *scope, struct builder *out)
{
    enum flow flow = FLOW_ON;
    if (++render->depth > TEMPLATE_MOST_DEPTH) render_fail(render, "RecursionError: maximum recursion depth exceeded");
    for (const struct node *node = body; node && !render->failed && flow == FLOW_ON; node = node->next)
        if (render_step(render, 0)) flow = run_statement(render, node, scope, out);
    render->depth--;
    return flow;
}

/* ---- the whole ---- */

static bool take_result(struct render *render, const struct builder *out, struct template_result *result)
{
    result->text = malloc(out->size + 1);
    result->foreign = malloc(out->size + 1);
    result->size = out->size;
    if (!result->text || !result->foreign) {
        template_result_free(result);
        return status_fail(render->status, STATUS_MACHINE, "out of memory while a template runs");
    }
    if (out->size) {
        memcpy(result->text, out->bytes, out->size);
        memcpy(result->foreign, out->foreign, out->size);
    }
    result->text[out->size] = 0;
    return true;
}

bool template_render(const struct template *template, const json_t *variables, const json_t *own, const struct tm *now,
                     struct template_result *result, struct status *status)
{
    struct render render = {.template = template, .now = now, .status = status};
    struct builder out;
    *result = (struct template_result){0};
    builder_open(&out, &render);
    struct scope *context = scope_new(&render, NULL);
    const struct value given = value_of_json(&render, variables, true);
    value_own_roles(&render, &given);
    if (given.kind == VALUE_DICT)
        context->names = *given.dict;
    else
        render_fail(&render, "expected the variables of a template as a JSON object, found %s", value_type(&given));
    if (own) {
        const struct value tokens = value_of_json(&render, own, false);
        for (size_t i = 0; tokens.kind == VALUE_DICT && i < tokens.dict->count; i++)
            dict_set(&render, &context->names, tokens.dict->keys[i], tokens.dict->values[i]);
    }
    if (!render.failed) run_body(&render, template->body, scope_new(&render, context), &out);
    const bool done = !render.failed && take_result(&render, &out, result);
    render_free(&render);
    return done;
}

void template_result_free(struct template_result *result)
{
    free(result->text);
    free(result->foreign);
    *result = (struct template_result){0};
}
