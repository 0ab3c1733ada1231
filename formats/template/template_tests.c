/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of jinja2: `value is name(arguments)`. */
#include <string.h>

#include "formats/template/template_filters.h"
#include "formats/template/template_tree.h"

enum test_id {
    TEST_DEFINED,
    TEST_UNDEFINED,
    TEST_NONE,
    TEST_BOOLEAN,
    TEST_TRUE,
    TEST_FALSE,
    TEST_INTEGER,
    TEST_FLOAT,
    TEST_NUMBER,
    TEST_STRING,
    TEST_MAPPING,
    TEST_ITERABLE,
    TEST_SEQUENCE,
    TEST_CALLABLE,
    TEST_SAMEAS,
    TEST_EQ,
    TEST_NE,
    TEST_LT,
    TEST_LE,
    TEST_GT,
    TEST_GE,
    TEST_IN,
    TEST_ODD,
    TEST_EVEN,
    TEST_DIVISIBLE,
    TEST_LOWER,
    TEST_UPPER,
    TEST_ESCAPED,
    TEST_FILTER,
    TEST_TEST,
    TEST_COUNT,
};

static const struct {
    const char *name;
    enum test_id id;
} tests[] = {
    {"defined", TEST_DEFINED},
    {"undefined", TEST_UNDEFINED},
    {"none", TEST_NONE},
    {"boolean", TEST_BOOLEAN},
    {"true", TEST_TRUE},
    {"false", TEST_FALSE},
    {"integer", TEST_INTEGER},
    {"float", TEST_FLOAT},
    {"number", TEST_NUMBER},
    {"string", TEST_STRING},
    {"mapping", TEST_MAPPING},
    {"iterable", TEST_ITERABLE},
    {"sequence", TEST_SEQUENCE},
    {"callable", TEST_CALLABLE},
    {"sameas", TEST_SAMEAS},
    {"eq", TEST_EQ},
    {"equalto", TEST_EQ},
    {"==", TEST_EQ},
    {"ne", TEST_NE},
    {"!=", TEST_NE},
    {"lt", TEST_LT},
    {"lessthan", TEST_LT},
    {"<", TEST_LT},
    {"le", TEST_LE},
    {"<=", TEST_LE},
    {"gt", TEST_GT},
    {"greaterthan", TEST_GT},
    {">", TEST_GT},
    {"ge", TEST_GE},
    {">=", TEST_GE},
    {"in", TEST_IN},
    {"odd", TEST_ODD},
    {"even", TEST_EVEN},
    {"divisibleby", TEST_DIVISIBLE},
    {"lower", TEST_LOWER},
    {"upper", TEST_UPPER},
    {"escaped", TEST_ESCAPED},
    {"filter", TEST_FILTER},
    {"test", TEST_TEST},
};

/* TEST_COUNT: there is none of that name. */
static enum test_id find_test(struct string name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (string_is(name, tests[i].name)) return tests[i].id;
    return TEST_COUNT;
}

static bool is_same(struct render *render, const struct value *a, const struct value *b)
{
    if (a->kind != b->kind) return false;
    if (value_is_list(a)) return a->list == b->list;
    if (a->kind == VALUE_DICT || a->kind == VALUE_NAMESPACE) return a->dict == b->dict;
    return value_equal(render, a, b);
}

/* value % by == rest */
static bool leaves(struct render *render, const struct value *value, const struct value *by, int64_t rest)
{
    const struct value remainder = value_binary(render, OPERATOR_MODULO, value, by), wanted = value_integer(rest);
    return !render->failed && value_equal(render, &remainder, &wanted);
}

static bool has_case(struct render *render, const struct value *value, const char *method)
{
    const struct value text = value_string(value_str(render, value));
    struct value found, result = value_bool(false);
    if (method_find(render, &text, string_of(method), &found))
        result = method_call(render, &found, &(struct arguments){.count = 0});
    return value_truth(&result);
}

static bool walks(const struct value *value)
{
    return value_is_list(value) || value->kind == VALUE_STRING || value->kind == VALUE_DICT ||
           value->kind == VALUE_UNDEFINED;
}

bool test_value(struct render *render, struct string name, const struct value *value, const struct arguments *arguments)
{
    const enum test_id id = find_test(name);
    if (id == TEST_COUNT) {
        render_fail(render, "TemplateRuntimeError: No test named '%.*s' found.", (int)name.size, name.bytes);
        return false;
    }
    const struct value none = value_none(), two = value_integer(2),
                       *other = arguments->count ? &arguments->positional[0] : &none;
    const bool compares = (id >= TEST_SAMEAS && id <= TEST_IN) || id == TEST_DIVISIBLE;
    if (compares != (arguments->count == 1) || arguments->count > 1 || arguments->named_count) {
        render_fail(render, "TypeError: test '%.*s' takes %d argument(s)", (int)name.size, name.bytes,
                    compares ? 1 : 0);
        return false;
    }
    switch (id) {
    case TEST_DEFINED: return value->kind != VALUE_UNDEFINED;
    case TEST_UNDEFINED: return value->kind == VALUE_UNDEFINED;
    case TEST_NONE: return value->kind == VALUE_NONE;
    case TEST_BOOLEAN: return value->kind == VALUE_BOOL;
    case TEST_TRUE: return value->kind == VALUE_BOOL && value->boolean;
    case TEST_FALSE: return value->kind == VALUE_BOOL && !value->boolean;
    case TEST_INTEGER: return value->kind == VALUE_INTEGER;
    case TEST_FLOAT: return value->kind == VALUE_FLOAT;
    case TEST_NUMBER: return value_is_number(value);
    case TEST_STRING: return value->kind == VALUE_STRING;
    case TEST_MAPPING: return value->kind == VALUE_DICT;
    case TEST_ITERABLE: return walks(value);
    case TEST_SEQUENCE: return walks(value) && value->kind != VALUE_GENERATOR && value->kind != VALUE_VIEW;
    case TEST_CALLABLE:
        return value->kind == VALUE_MACRO || value->kind == VALUE_METHOD || value->kind == VALUE_FUNCTION ||
               value->kind == VALUE_UNDEFINED; /* which fails when it is called */
    case TEST_SAMEAS: return is_same(render, value, other);
    case TEST_EQ: return value_equal(render, value, other);
    case TEST_NE: return !value_equal(render, value, other);
    case TEST_LT: return value_order(render, value, other, "<") < 0;
    case TEST_LE: return value_order(render, value, other, "<=") <= 0;
    case TEST_GT: return value_order(render, value, other, ">") > 0;
    case TEST_GE: return value_order(render, value, other, ">=") >= 0;
    case TEST_IN: return value_contains(render, other, value);
    case TEST_ODD: return leaves(render, value, &two, 1);
    case TEST_EVEN: return leaves(render, value, &two, 0);
    case TEST_DIVISIBLE: return leaves(render, value, other, 0);
    case TEST_TEST: return value->kind == VALUE_STRING && find_test(value->string) != TEST_COUNT;
    case TEST_LOWER: return has_case(render, value, "islower");
    case TEST_UPPER: return has_case(render, value, "isupper");
    case TEST_ESCAPED: return value->is_markup;
    case TEST_FILTER: /* test_apply has it */
    case TEST_COUNT: break;
    }
    return false;
}
