/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of expressions. */
#include <math.h>

#include "formats/template/template_tree.h"

void render_fail_operands(struct render *render, const char *sign, const struct value *a, const struct value *b)
{
    const struct value *undefined = a->kind == VALUE_UNDEFINED ? a : b->kind == VALUE_UNDEFINED ? b : NULL;
    if (undefined)
        render_fail_undefined(render, undefined);
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
    render_fail_operands(render, "+", a, b);
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

static struct value real_arithmetic(struct render *render, enum operator_id operation, double a, double b)
{
    switch (operation) {
    case OPERATOR_ADD: return value_float(a + b);
    case OPERATOR_SUBTRACT: return value_float(a - b);
    case OPERATOR_MULTIPLY: return value_float(a * b);
    case OPERATOR_POWER:
        if (a == 0 && b < 0) render_fail(render, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
        if (isfinite(a) && isfinite(b) && isinf(pow(a, b))) render_fail(render, "OverflowError: Result too large");
        return value_float(pow(a, b));
    default: break;
    }
    if (b == 0) {
        render_fail(render, "ZeroDivisionError: float division by zero");
        return value_none();
    }
    if (operation == OPERATOR_DIVIDE) return value_float(a / b);
    if (operation == OPERATOR_FLOOR_DIVIDE) return value_float(floor(a / b));
    const double rest = fmod(a, b);
    if (rest == 0) return value_float(copysign(0, b));
    return value_float((rest < 0) != (b < 0) ? rest + b : rest);
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
        if (b < 0) return real_arithmetic(render, operation, (double)a, (double)b);
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

struct value value_binary(struct render *render, enum operator_id operation, const struct value *a,
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
    render_fail_operands(render, names[operation], a, b);
    return value_none();
}

bool value_compares(struct render *render, enum operator_id operation, const struct value *a, const struct value *b)
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

static int64_t slice_bound(struct render *render, const struct value *given, int64_t absent, int64_t count, bool falls)
{
    int64_t index;
    if (!given || given->kind == VALUE_NONE) return absent;
    if (!value_is_integer(given, &index)) {
        render_fail(render, "TypeError: slice indices must be integers or None or have an __index__ method");
        return absent;
    }
    if (index < 0) index += count;
    const int64_t least = falls ? -1 : 0, most = falls ? count - 1 : count;
    return index < least ? least : index > most ? most : index;
}

struct value value_slice(struct render *render, const struct value *of, const struct value *begin,
                         const struct value *end, const struct value *step)
{
    const bool is_string = of->kind == VALUE_STRING;
    if (of->kind == VALUE_UNDEFINED)
        render_fail_undefined(render, of);
    else if (of->kind == VALUE_DICT)
        render_fail(render, "TypeError: unhashable type: 'slice'");
    else if (!is_string && !value_is_sequence(of))
        render_fail(render, "TypeError: '%s' object is not subscriptable", value_type(of));
    if (render->failed) return value_none();
    if (!render_step(render, is_string ? of->string.size : of->list->count)) return value_none();
    const int64_t count = is_string ? (int64_t)string_length(of->string) : (int64_t)of->list->count;
    int64_t by = 1;
    if (step && step->kind != VALUE_NONE && !value_is_integer(step, &by))
        render_fail(render, "TypeError: slice step is no integer");
    if (step && step->kind == VALUE_NONE) by = 1;
    if (by == 0) render_fail(render, "ValueError: slice step cannot be zero");
    if (by < -count - 1) by = -count - 1;
    if (by > count + 1) by = count + 1;
    const int64_t first = slice_bound(render, begin, by < 0 ? count - 1 : 0, count, by < 0);
    const int64_t last = slice_bound(render, end, by < 0 ? -1 : count, count, by < 0);
    if (render->failed) return value_none();
    if (is_string && by == 1) {
        const size_t at = string_offset(of->string, (size_t)first);
        if (last <= first) return value_text("");
        const struct string rest = string_part(of->string, at, of->string.size);
        return value_string(string_part(of->string, at, at + string_offset(rest, (size_t)(last - first))));
    }
    const struct list *items = value_items(render, of);
    struct value list = value_list(render, is_string || of->kind == VALUE_RANGE ? VALUE_LIST : of->kind);
    struct builder builder;
    builder_open(&builder, render);
    for (int64_t i = first; (by > 0 ? i < last : i > last) && !render->failed; i += by) {
        if (is_string)
            builder_add(&builder, items->items[i].string);
        else
            list_add(render, list.list, items->items[i]);
    }
    return is_string ? builder_value(&builder) : list;
}
