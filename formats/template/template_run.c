/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a template. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_tree.h"

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
static enum flow run_for(struct render *render, const struct node *node, const struct scope *scope, struct value over,
                         int64_t depth, struct builder *out);

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
    for (; scope; scope = scope->parent) {
        const struct value *found = dict_find(render, &scope->names, value_string(name));
        if (found) return *found;
    }
    const struct value function = function_find(name);
    if (function.kind != VALUE_NONE) return function;
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

/* Arguments that no parameter takes. */
static void take_rest(struct render *render, const struct node *macro, const struct arguments *arguments,
                      size_t parameters, struct dict *names)
{
    struct value varargs = value_list(render, VALUE_TUPLE), kwargs = value_dict(render, VALUE_DICT);
    for (size_t i = parameters; i < arguments->count; i++) list_add(render, varargs.list, arguments->positional[i]);
    for (size_t i = 0; i < arguments->named_count; i++)
        if (!dict_find(render, names, value_string(arguments->names[i])))
            dict_set(render, kwargs.dict, value_string(arguments->names[i]), arguments->named[i]);
    if (varargs.list->count && !macro->uses_varargs)
        render_fail(render, "TypeError: macro '%.*s' takes not more than %zu argument(s)", (int)macro->text.size,
                    macro->text.bytes, parameters);
    if (kwargs.dict->count && !macro->uses_kwargs)
        render_fail(render, "TypeError: macro '%.*s' takes no such keyword argument", (int)macro->text.size,
                    macro->text.bytes);
    if (macro->uses_varargs) dict_set(render, names, value_text("varargs"), varargs);
    if (macro->uses_kwargs) dict_set(render, names, value_text("kwargs"), kwargs);
}

static struct value call_macro(struct render *render, const struct macro *macro, const struct arguments *arguments,
                               const struct value *caller)
{
    const struct node *called = macro->node;
    struct scope *scope = scope_new(render, macro->scope);
    size_t parameters = 0;
    bool takes_caller = called->uses_caller;
    struct builder out;
    builder_open(&out, render);
    for (const struct node *node = called->list; node && !render->failed; node = node->next, parameters++) {
        struct value value =
            value_undefined(render, "parameter '%.*s' was not provided", (int)node->text.size, node->text.bytes);
        bool found = parameters < arguments->count;
        if (found) value = arguments->positional[parameters];
        for (size_t n = 0; n < arguments->named_count; n++) {
            if (!string_equal(arguments->names[n], node->text)) continue;
            if (found)
                render_fail(render, "TypeError: macro '%.*s' got multiple values for argument '%.*s'",
                            (int)called->text.size, called->text.bytes, (int)node->text.size, node->text.bytes);
            value = arguments->named[n], found = true;
        }
        if (!found && node->a) value = evaluate(render, node->a, scope);
        takes_caller |= string_is(node->text, "caller");
        dict_set(render, &scope->names, value_string(node->text), value);
    }
    take_rest(render, called, arguments, parameters, &scope->names);
    if (caller && !takes_caller)
        render_fail(render, "TypeError: macro '%.*s' was called with a block and has no caller()",
                    (int)called->text.size, called->text.bytes);
    if (called->uses_caller && !dict_find_text(render, &scope->names, "caller"))
        dict_set(render, &scope->names, value_text("caller"), value_undefined(render, "No caller defined"));
    if (caller) dict_set(render, &scope->names, value_text("caller"), *caller);
    if (!render->failed) run_body(render, called->body, scope, &out);
    return builder_value(&out);
}

static struct value macro_attribute(struct render *render, const struct node *macro, struct string name)
{
    if (string_is(name, "name")) return value_string(macro->text);
    if (string_is(name, "caller")) return value_bool(macro->uses_caller);
    if (string_is(name, "catch_varargs")) return value_bool(macro->uses_varargs);
    if (string_is(name, "catch_kwargs")) return value_bool(macro->uses_kwargs);
    struct value names = value_list(render, VALUE_TUPLE);
    for (const struct node *node = macro->list; node; node = node->next)
        list_add(render, names.list, value_string(node->text));
    if (string_is(name, "arguments")) return names;
    return value_undefined(render, "'Macro object' has no attribute '%.*s'", (int)name.size, name.bytes);
}

/* loop(items) in a recursive loop: its body for other items, one level deeper. */
static struct value call_loop(struct render *render, const struct value *loop, const struct arguments *arguments)
{
    const struct value *recursion = dict_find_text(render, loop->dict, "(recursion)");
    const struct value *depth = dict_find_text(render, loop->dict, "depth");
    struct builder out;
    builder_open(&out, render);
    if (!recursion || arguments->count != 1 || !depth)
        render_fail(render, "TypeError: loop(items) needs a loop with 'recursive', and one argument");
    else
        run_for(render, recursion->macro->node, recursion->macro->scope, arguments->positional[0], depth->integer + 1,
                &out);
    return builder_value(&out);
}

static struct value call_value(struct render *render, const struct value *callee, const struct arguments *arguments,
                               const struct value *caller)
{
    if (render->failed) return value_none();
    switch (callee->kind) {
    case VALUE_MACRO: return call_macro(render, callee->macro, arguments, caller);
    case VALUE_METHOD: return method_call(render, callee, arguments);
    case VALUE_FUNCTION: return function_call(render, callee, arguments);
    case VALUE_LOOP: return call_loop(render, callee, arguments);
    case VALUE_UNDEFINED: render_fail_undefined(render, callee); return value_none();
    default: render_fail(render, "TypeError: '%s' object is not callable", value_type(callee)); return value_none();
    }
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
        if (render->failed || !value_compares(render, operand->operation, &left, &right)) return value_bool(false);
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
            render_fail_operands(render, "-", &value, &zero);
        else
            render_fail(render, "TypeError: bad operand type for unary %c: '%s'",
                        node->kind == NODE_NEGATIVE ? '-' : '+', value_type(&value));
        return value;
    }
    if (node->kind == NODE_POSITIVE) return value_binary(render, OPERATOR_ADD, &zero, &value);
    if (value.kind == VALUE_FLOAT) return value_float(-value.real);
    return value_binary(render, OPERATOR_SUBTRACT, &zero, &value);
}

static struct value evaluate_slice(struct render *render, const struct node *node, struct scope *scope)
{
    const struct node *const nodes[4] = {node->a, node->b, node->c, node->d};
    struct value values[4];
    for (int i = 0; i < 4; i++) {
        if (nodes[i]) values[i] = evaluate(render, nodes[i], scope);
        if (render->failed) return value_none();
    }
    return value_slice(render, &values[0], nodes[1] ? &values[1] : NULL, nodes[2] ? &values[2] : NULL,
                       nodes[3] ? &values[3] : NULL);
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
        if (a.kind == VALUE_MACRO && !render->failed) return macro_attribute(render, a.macro->node, node->text);
        return render->failed ? a : value_attribute(render, &a, node->text);
    case NODE_ITEM:
        a = evaluate(render, node->a, scope);
        b = render->failed ? a : evaluate(render, node->b, scope);
        return render->failed ? a : value_item(render, &a, &b);
    case NODE_SLICE: return evaluate_slice(render, node, scope);
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
        return render->failed ? a : value_binary(render, node->operation, &a, &b);
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

static void set_loop(struct render *render, struct value *loop, const struct list *items, size_t i, int64_t depth)
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
        {"depth", value_integer(depth)},
        {"depth0", value_integer(depth - 1)},
    };
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        dict_set(render, loop->dict, value_text(fields[f].name), fields[f].value);
}

static struct value new_macro(struct render *render, const struct node *node, const struct scope *scope)
{
    static struct macro none;
    struct macro *macro = render_take(render, sizeof *macro);
    if (macro) *macro = (struct macro){node, scope};
    return (struct value){.kind = VALUE_MACRO, .macro = macro ? macro : &none};
}

static enum flow run_for(struct render *render, const struct node *node, const struct scope *scope, struct value over,
                         int64_t depth, struct builder *out)
{
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
    struct value loop = node->uses_loop ? loop_new(render) : value_none();
    if (node->uses_loop && node->is_recursive)
        dict_set(render, loop.dict, value_text("(recursion)"), new_macro(render, node, scope));
    bool completes = false;
    for (size_t i = 0; i < items->count && !render->failed; i++) {
        struct scope *inner = scope_new(render, scope);
        if (node->uses_loop) {
            set_loop(render, &loop, items, i, depth);
            dict_set(render, &inner->names, value_text("loop"), loop);
        }
        assign(render, node->a, items->items[i], inner);
        if (render->failed) break;
        const enum flow flow = run_body(render, node->body, inner, out);
        completes |= flow == FLOW_ON;
        if (flow != FLOW_BREAK) continue;
        for (i++; over.kind == VALUE_GENERATOR && i < items->count; i++)
            list_add(render, over.list, items->items[i]); /* those that the loop did not take */
        break;
    }
    /* As in jinja2 also where each turn left the body early. */
    if (!completes && node->other) return run_body(render, node->other, scope_new(render, scope), out);
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

static void run_call_block(struct render *render, const struct node *node, struct scope *scope, struct builder *out)
{
    const struct value callee = evaluate(render, node->a->a, scope);
    const struct arguments arguments = evaluate_arguments(render, node->a->list, scope);
    const struct value caller = new_macro(render, node, scope);
    const struct value made = call_value(render, &callee, &arguments, &caller);
    if (!render->failed) builder_add_value(out, &made);
}

/* Names of the template outside loops and macros: those that a block sees. */
static const struct scope *top_of(const struct scope *scope)
{
    while (scope->parent && scope->parent->parent) scope = scope->parent;
    return scope;
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
    case NODE_FOR: value = evaluate(render, node->b, scope); return run_for(render, node, scope, value, 1, out);
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
    case NODE_BLOCK: return run_body(render, node->body, scope_new(render, top_of(scope)), out);
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
