/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of expressions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "formats/template/template_parse.h"

static struct node *parse_unary(struct parser *parser, bool with_filter);

static struct node *constant(struct parser *parser, struct value value)
{
    struct node *node = parser_node(parser, NODE_CONSTANT);
    node->constant = value;
    return node;
}

static struct node *number_node(struct parser *parser)
{
    char digits[64];
    size_t used = 0;
    const struct string text = parser->token.text;
    for (size_t i = 0; i < text.size && used < sizeof digits - 1; i++)
        if (text.bytes[i] != '_') digits[used++] = text.bytes[i];
    digits[used] = 0;
    struct node *node;
    if (parser->token.kind == TOKEN_FLOAT) {
        node = constant(parser, value_float(strtod(digits, NULL)));
    } else {
        const bool prefixed = digits[0] == '0' && used > 1;
        const int base = prefixed ? ((digits[1] | 32) == 'x' ? 16 : (digits[1] | 32) == 'o' ? 8 : 2) : 10;
        char *end;
        errno = 0;
        const long long integer =
            strtoll(digits + (prefixed && base != 10 && !parser_is_decimal(digits[1]) ? 2 : 0), &end, base);
        if (*end || errno || used > 60) parser_fail(parser, "an integer that is too large, or none: '%s'", digits);
        node = constant(parser, value_integer(integer));
    }
    parser_next(parser);
    return node;
}

/* Items up to a closing operator; a comma may be the last thing. */
static struct node *parse_items(struct parser *parser, const char *close)
{
    struct node_chain items = {0};
    while (!parser_at_operator(parser, close) && !parser_has_failed(parser)) {
        node_chain_add(&items, parser_expression(parser));
        if (!parser_accept_operator(parser, ",")) break;
    }
    parser_expect_operator(parser, close);
    return items.first;
}

static struct node *parse_parentheses(struct parser *parser)
{
    parser_next(parser);
    if (parser_accept_operator(parser, ")")) return parser_node(parser, NODE_TUPLE);
    struct node *first = parser_expression(parser);
    if (!parser_at_operator(parser, ",")) {
        parser_expect_operator(parser, ")");
        return first;
    }
    parser_next(parser);
    struct node *tuple = parser_node(parser, NODE_TUPLE);
    tuple->list = first;
    first->next = parse_items(parser, ")");
    return tuple;
}

static struct node *parse_dict(struct parser *parser)
{
    struct node *dict = parser_node(parser, NODE_DICT);
    struct node_chain pairs = {0};
    parser_next(parser);
    while (!parser_at_operator(parser, "}") && !parser_has_failed(parser)) {
        struct node *pair = parser_node(parser, NODE_PAIR);
        pair->a = parser_expression(parser);
        parser_expect_operator(parser, ":");
        pair->b = parser_expression(parser);
        node_chain_add(&pairs, pair);
        if (!parser_accept_operator(parser, ",")) break;
    }
    parser_expect_operator(parser, "}");
    dict->list = pairs.first;
    return dict;
}

bool parser_constant_name(struct string name, struct value *value)
{
    static const struct {
        const char *name;
        enum value_kind kind;
        bool truth;
    } names[] = {{"true", VALUE_BOOL, true},   {"True", VALUE_BOOL, true},  {"false", VALUE_BOOL, false},
                 {"False", VALUE_BOOL, false}, {"none", VALUE_NONE, false}, {"None", VALUE_NONE, false}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!string_is(name, names[i].name)) continue;
        *value = (struct value){.kind = names[i].kind, .boolean = names[i].truth};
        return true;
    }
    return false;
}

static struct node *parse_primary(struct parser *parser)
{
    struct node *node;
    struct value value;
    switch (parser->token.kind) {
    case TOKEN_NAME:
        if (parser_constant_name(parser->token.text, &value)) {
            parser_next(parser);
            return constant(parser, value);
        }
        node = parser_node(parser, NODE_NAME);
        node->text = parser->token.text;
        parser->loop_names += string_is(node->text, "loop");
        parser->caller_names += string_is(node->text, "caller");
        parser->varargs_names += string_is(node->text, "varargs");
        parser->kwargs_names += string_is(node->text, "kwargs");
        parser_next(parser);
        return node;
    case TOKEN_STRING: {
        struct builder builder;
        builder_open(&builder, parser->memory);
        for (; parser->token.kind == TOKEN_STRING && !parser_has_failed(parser); parser_next(parser))
            builder_add(&builder, parser->token.text);
        return constant(parser, builder_value(&builder));
    }
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: return number_node(parser);
    default: break;
    }
    if (parser_at_operator(parser, "(")) return parse_parentheses(parser);
    if (parser_at_operator(parser, "{")) return parse_dict(parser);
    if (parser_at_operator(parser, "[")) {
        node = parser_node(parser, NODE_LIST);
        parser_next(parser);
        node->list = parse_items(parser, "]");
        return node;
    }
    parser_expected(parser, "an expression");
    return parser_node(parser, NODE_CONSTANT);
}

static struct node *parse_arguments(struct parser *parser)
{
    struct node_chain arguments = {0};
    parser_next(parser); /* ( */
    while (!parser_at_operator(parser, ")") && !parser_has_failed(parser)) {
        struct node *argument = parser_node(parser, NODE_ARGUMENT);
        if (parser_at_operator(parser, "*") || parser_at_operator(parser, "**")) {
            argument->text = parser->token.text;
            parser_next(parser);
            argument->a = parser_expression(parser);
        } else {
            argument->a = parser_expression(parser);
            if (argument->a->kind == NODE_NAME && parser_accept_operator(parser, "=")) {
                argument->text = argument->a->text;
                argument->a = parser_expression(parser);
            }
        }
        node_chain_add(&arguments, argument);
        if (!parser_accept_operator(parser, ",")) break;
    }
    parser_expect_operator(parser, ")");
    return arguments.first;
}

static struct node *parse_subscript(struct parser *parser, struct node *of)
{
    struct node *node;
    if (parser_accept_operator(parser, ".")) {
        if (parser->token.kind == TOKEN_INTEGER) {
            node = parser_node(parser, NODE_ITEM);
            node->a = of;
            node->b = number_node(parser);
            return node;
        }
        node = parser_node(parser, NODE_ATTRIBUTE);
        node->a = of;
        node->text = parser_expect_name(parser);
        return node;
    }
    parser_next(parser); /* [ */
    struct node *parts[3] = {NULL, NULL, NULL};
    int part = 0;
    if (!parser_at_operator(parser, ":")) parts[0] = parser_expression(parser);
    while (part < 2 && parser_accept_operator(parser, ":")) {
        part++;
        if (!parser_at_operator(parser, ":") && !parser_at_operator(parser, "]"))
            parts[part] = parser_expression(parser);
    }
    parser_expect_operator(parser, "]");
    node = parser_node(parser, part ? NODE_SLICE : NODE_ITEM);
    node->a = of;
    node->b = parts[0], node->c = parts[1], node->d = parts[2];
    return node;
}

static struct node *parse_call(struct parser *parser, struct node *of)
{
    struct node *node = parser_node(parser, NODE_CALL);
    node->a = of;
    node->list = parse_arguments(parser);
    return node;
}

static struct node *parse_postfix(struct parser *parser, struct node *node)
{
    while (!parser_has_failed(parser)) {
        if (parser_at_operator(parser, ".") || parser_at_operator(parser, "["))
            node = parse_subscript(parser, node);
        else if (parser_at_operator(parser, "("))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

struct node *parser_filter(struct parser *parser, struct node *of)
{
    struct node *node = parser_node(parser, NODE_FILTER);
    node->a = of;
    node->text = parser_expect_name(parser);
    if (parser_at_operator(parser, "(")) node->list = parse_arguments(parser);
    return node;
}

static struct node *parse_test(struct parser *parser, struct node *of)
{
    const bool negated = parser_accept_name(parser, "not");
    struct node *node = parser_node(parser, NODE_TEST);
    node->a = of;
    node->text = parser_expect_name(parser);
    if (parser_at_operator(parser, "(")) {
        node->list = parse_arguments(parser);
    } else if (parser->token.kind != TOKEN_END &&
               (parser->token.kind != TOKEN_OPERATOR || parser_at_operator(parser, "[") ||
                parser_at_operator(parser, "{")) &&
               !parser_at_name(parser, "else") && !parser_at_name(parser, "or") && !parser_at_name(parser, "and") &&
               !parser_at_name(parser, "if") && !parser_at_name(parser, "in") && !parser_at_name(parser, "not")) {
        if (parser_at_name(parser, "is")) parser_fail(parser, "tests in a row, which need parentheses");
        struct node *argument = parser_node(parser, NODE_ARGUMENT);
        argument->a = parse_postfix(parser, parse_primary(parser));
        node->list = argument;
    }
    if (!negated) return node;
    struct node *not = parser_node(parser, NODE_NOT);
    not ->a = node;
    return not ;
}

static struct node *parse_unary(struct parser *parser, bool with_filter)
{
    struct node *node;
    parser_enter(parser);
    if (parser_at_operator(parser, "-") || parser_at_operator(parser, "+")) {
        node = parser_node(parser, parser_at_operator(parser, "-") ? NODE_NEGATIVE : NODE_POSITIVE);
        parser_next(parser);
        if (!parser_has_failed(parser)) node->a = parse_unary(parser, false);
    } else {
        node = parse_primary(parser);
    }
    node = parse_postfix(parser, node);
    while (with_filter && !parser_has_failed(parser)) {
        if (parser_accept_operator(parser, "|"))
            node = parser_filter(parser, node);
        else if (parser_accept_name(parser, "is"))
            node = parse_test(parser, node);
        else if (parser_at_operator(parser, "("))
            node = parse_call(parser, node);
        else
            break;
    }
    parser->depth--;
    return node;
}

/* Operators of each level, loosest first; all from left to right. */
static struct node *parse_binary(struct parser *parser, int level)
{
    static const struct {
        const char *text;
        int level;
        enum operator_id operation;
    } operators[] = {{"+", 0, OPERATOR_ADD},      {"-", 0, OPERATOR_SUBTRACT}, {"~", 1, OPERATOR_CONCATENATE},
                     {"*", 2, OPERATOR_MULTIPLY}, {"/", 2, OPERATOR_DIVIDE},   {"//", 2, OPERATOR_FLOOR_DIVIDE},
                     {"%", 2, OPERATOR_MODULO},   {"**", 3, OPERATOR_POWER}};
    struct node *left = level == 3 ? parse_unary(parser, true) : parse_binary(parser, level + 1);
    while (!parser_has_failed(parser)) {
        size_t i = 0;
        while (i < sizeof operators / sizeof *operators &&
               (operators[i].level != level || !parser_at_operator(parser, operators[i].text)))
            i++;
        if (i == sizeof operators / sizeof *operators) break;
        struct node *node = parser_node(parser, NODE_BINARY);
        node->operation = operators[i].operation;
        parser_next(parser);
        node->a = left;
        node->b = level == 3 ? parse_unary(parser, true) : parse_binary(parser, level + 1);
        left = node;
    }
    return left;
}

static struct node *parse_compare(struct parser *parser)
{
    static const struct {
        const char *text;
        enum operator_id operation;
    } operators[] = {{"==", OPERATOR_EQUAL},    {"!=", OPERATOR_NOT_EQUAL}, {"<=", OPERATOR_AT_MOST},
                     {">=", OPERATOR_AT_LEAST}, {"<", OPERATOR_BELOW},      {">", OPERATOR_ABOVE}};
    struct node *left = parse_binary(parser, 0);
    struct node_chain operands = {0};
    while (!parser_has_failed(parser)) {
        size_t i = 0;
        struct node *operand = parser_node(parser, NODE_OPERAND);
        while (i < sizeof operators / sizeof *operators && !parser_at_operator(parser, operators[i].text)) i++;
        if (i < sizeof operators / sizeof *operators) {
            operand->operation = operators[i].operation;
            parser_next(parser);
        } else if (parser_accept_name(parser, "in")) {
            operand->operation = OPERATOR_IN;
        } else if (parser_at_name(parser, "not")) {
            parser_next(parser);
            if (!parser_accept_name(parser, "in")) parser_expected(parser, "in");
            operand->operation = OPERATOR_NOT_IN;
        } else {
            break;
        }
        operand->a = parse_binary(parser, 0);
        node_chain_add(&operands, operand);
    }
    if (!operands.first) return left;
    struct node *node = parser_node(parser, NODE_COMPARE);
    node->a = left;
    node->list = operands.first;
    return node;
}

static struct node *parse_not(struct parser *parser)
{
    if (!parser_at_name(parser, "not")) return parse_compare(parser);
    struct node *node = parser_node(parser, NODE_NOT);
    parser_enter(parser);
    parser_next(parser);
    if (!parser_has_failed(parser)) node->a = parse_not(parser);
    parser->depth--;
    return node;
}

static struct node *parse_and(struct parser *parser)
{
    struct node *left = parse_not(parser);
    while (!parser_has_failed(parser) && parser_accept_name(parser, "and")) {
        struct node *node = parser_node(parser, NODE_AND);
        node->a = left;
        node->b = parse_not(parser);
        left = node;
    }
    return left;
}

static struct node *parse_or(struct parser *parser)
{
    struct node *left = parse_and(parser);
    while (!parser_has_failed(parser) && parser_accept_name(parser, "or")) {
        struct node *node = parser_node(parser, NODE_OR);
        node->a = left;
        node->b = parse_and(parser);
        left = node;
    }
    return left;
}

struct node *parser_expression(struct parser *parser)
{
    parser_enter(parser);
    struct node *node = parser_has_failed(parser) ? parser_node(parser, NODE_CONSTANT) : parse_or(parser);
    while (!parser_has_failed(parser) && parser_accept_name(parser, "if")) {
        struct node *condition = parser_node(parser, NODE_CONDITION);
        condition->b = node;
        condition->a = parse_or(parser);
        if (parser_accept_name(parser, "else")) condition->c = parser_expression(parser);
        node = condition;
    }
    parser->depth--;
    return node;
}

struct node *parser_tuple(struct parser *parser, bool with_condition)
{
    struct node *first = with_condition ? parser_expression(parser) : parse_or(parser);
    if (!parser_at_operator(parser, ",")) return first;
    struct node *tuple = parser_node(parser, NODE_TUPLE);
    struct node_chain items = {0};
    node_chain_add(&items, first);
    while (!parser_has_failed(parser) && parser_accept_operator(parser, ",")) {
        if (parser->token.kind == TOKEN_END || parser_at_operator(parser, "=")) break;
        node_chain_add(&items, with_condition ? parser_expression(parser) : parse_or(parser));
    }
    tuple->list = items.first;
    return tuple;
}
