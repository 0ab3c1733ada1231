/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of jinja2: `value is name(arguments)`. */
#include <string.h>

#include "formats/template/template_value.h"

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
};

static bool is_same(struct render *render, const struct value *a, const struct value *b)
{
    if (a->kind != b->kind) return false;
    if (value_is_list(a)) return a->list == b->list;
    if (a->kind == VALUE_DICT || a->kind == VALUE_NAMESPACE) return a->dict == b->dict;
    return value_equal(render, a, b);
}

static int64_t remainder_of(struct render *render, const struct value *value, int64_t by)
{
    int64_t integer;
    if (!value_is_integer(value, &integer)) {
        render_fail(render, "TypeError: unsupported operand type(s) for %%: '%s' and 'int'", value_type(value));
        return 0;
    }
    if (by == 0) {
        render_fail(render, "ZeroDivisionError: integer modulo by zero");
        return 0;
    }
    return by == -1 ? 0 : integer % by;
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

bool test_apply(struct render *render, struct string name, const struct value *value, const struct arguments *arguments)
{
    size_t i = 0;
    while (i < sizeof tests / sizeof *tests && !string_is(name, tests[i].name)) i++;
    if (i == sizeof tests / sizeof *tests) {
        render_fail(render, "TemplateRuntimeError: No test named '%.*s' found.", (int)name.size, name.bytes);
        return false;
    }
    const struct value none = value_none(), *other = arguments->count ? &arguments->positional[0] : &none;
    int64_t by;
    const enum test_id id = tests[i].id;
    const bool compares = (id >= TEST_SAMEAS && id <= TEST_IN) || id == TEST_DIVISIBLE;
    if (compares != (arguments->count == 1) || arguments->count > 1 || arguments->named_count) {
        render_fail(render, "TypeError: test '%s' takes %d argument(s)", tests[i].name, compares ? 1 : 0);
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
        return value->kind == VALUE_MACRO || value->kind == VALUE_METHOD || value->kind == VALUE_FUNCTION;
    case TEST_SAMEAS: return is_same(render, value, other);
    case TEST_EQ: return value_equal(render, value, other);
    case TEST_NE: return !value_equal(render, value, other);
    case TEST_LT: return value_order(render, value, other, "<") < 0;
    case TEST_LE: return value_order(render, value, other, "<=") <= 0;
    case TEST_GT: return value_order(render, value, other, ">") > 0;
    case TEST_GE: return value_order(render, value, other, ">=") >= 0;
    case TEST_IN: return value_contains(render, other, value);
    case TEST_ODD: return remainder_of(render, value, 2) != 0;
    case TEST_EVEN: return remainder_of(render, value, 2) == 0;
    case TEST_DIVISIBLE:
        if (!value_is_integer(other, &by)) render_fail(render, "TypeError: divisibleby takes an integer");
        return !render->failed && remainder_of(render, value, by) == 0;
    case TEST_LOWER: return has_case(render, value, "islower");
    case TEST_UPPER: return has_case(render, value, "isupper");
    case TEST_ESCAPED: return false;
    }
    return false;
}
