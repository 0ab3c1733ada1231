/* SPDX-License-Identifier: Apache-2.0 */
/* From a template's text to its tree: the grammar of jinja2, without what needs other templates. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/template/template_parse.h"

/* ---- expressions ---- */

static struct node *parse_expression(struct parser *parser);
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
        const long long integer =
            strtoll(digits + (prefixed && base != 10 && !parser_is_decimal(digits[1]) ? 2 : 0), &end, base);
        if (*end || used > 18) parser_fail(parser, "an integer that is too large, or none: '%s'", digits);
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
        node_chain_add(&items, parse_expression(parser));
        if (!parser_accept_operator(parser, ",")) break;
    }
    parser_expect_operator(parser, close);
    return items.first;
}

static struct node *parse_parentheses(struct parser *parser)
{
    parser_next(parser);
    if (parser_accept_operator(parser, ")")) return parser_node(parser, NODE_TUPLE);
    struct node *first = parse_expression(parser);
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
        pair->a = parse_expression(parser);
        parser_expect_operator(parser, ":");
        pair->b = parse_expression(parser);
        node_chain_add(&pairs, pair);
        if (!parser_accept_operator(parser, ",")) break;
    }
    parser_expect_operator(parser, "}");
    dict->list = pairs.first;
    return dict;
}

static struct node *parse_primary(struct parser *parser)
{
    static const struct {
        const char *name;
        enum value_kind kind;
        bool truth;
    } names[] = {{"true", VALUE_BOOL, true},   {"True", VALUE_BOOL, true},  {"false", VALUE_BOOL, false},
                 {"False", VALUE_BOOL, false}, {"none", VALUE_NONE, false}, {"None", VALUE_NONE, false}};
    struct node *node;
    switch (parser->token.kind) {
    case TOKEN_NAME:
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (parser_accept_name(parser, names[i].name))
                return constant(parser, (struct value){.kind = names[i].kind, .boolean = names[i].truth});
        node = parser_node(parser, NODE_NAME);
        node->text = parser->token.text;
        parser->loop_names += string_is(node->text, "loop");
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
            argument->a = parse_expression(parser);
        } else {
            argument->a = parse_expression(parser);
            if (argument->a->kind == NODE_NAME && parser_accept_operator(parser, "=")) {
                argument->text = argument->a->text;
                argument->a = parse_expression(parser);
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
    if (!parser_at_operator(parser, ":")) parts[0] = parse_expression(parser);
    while (part < 2 && parser_accept_operator(parser, ":")) {
        part++;
        if (!parser_at_operator(parser, ":") && !parser_at_operator(parser, "]"))
            parts[part] = parse_expression(parser);
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

static struct node *parse_filter(struct parser *parser, struct node *of)
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
            node = parse_filter(parser, node);
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

static struct node *parse_expression(struct parser *parser)
{
    parser_enter(parser);
    struct node *node = parser_has_failed(parser) ? parser_node(parser, NODE_CONSTANT) : parse_or(parser);
    while (!parser_has_failed(parser) && parser_accept_name(parser, "if")) {
        struct node *condition = parser_node(parser, NODE_CONDITION);
        condition->b = node;
        condition->a = parse_or(parser);
        if (parser_accept_name(parser, "else")) condition->c = parse_expression(parser);
        node = condition;
    }
    parser->depth--;
    return node;
}

/* Expressions with commas between them: a tuple. */
static struct node *parse_tuple(struct parser *parser, bool with_condition)
{
    struct node *first = with_condition ? parse_expression(parser) : parse_or(parser);
    if (!parser_at_operator(parser, ",")) return first;
    struct node *tuple = parser_node(parser, NODE_TUPLE);
    struct node_chain items = {0};
    node_chain_add(&items, first);
    while (!parser_has_failed(parser) && parser_accept_operator(parser, ",")) {
        if (parser->token.kind == TOKEN_END || parser_at_operator(parser, "=")) break;
        node_chain_add(&items, with_condition ? parse_expression(parser) : parse_or(parser));
    }
    tuple->list = items.first;
    return tuple;
}

/* ---- text and tags ---- */

static bool is_space(char c) { return c == ' ' || (c >= 9 && c <= 13); }

/* Text up to the next tag. `*tag`: '{', '%' or '#'; 0: the end. Leaves the position after the tag's opening. */
static struct string read_text(struct parser *parser, char *tag)
{
    size_t begin = parser->at, at = begin;
    if (parser->trims)
        while (begin < parser->size && is_space(parser->text[begin])) begin++;
    at = begin;
    while (at + 1 < parser->size &&
           !(parser->text[at] == '{' && strchr("{%#", parser->text[at + 1]) && parser->text[at + 1]))
        at++;
    *tag = at + 1 < parser->size ? parser->text[at + 1] : 0;
    size_t end = *tag ? at : parser->size;
    const char sign = *tag && at + 2 < parser->size ? parser->text[at + 2] : 0;
    if (*tag && sign == '-') {
        while (end > begin && is_space(parser->text[end - 1])) end--;
    } else if (*tag && *tag != '{' && sign != '+') {
        size_t blank = end;
        while (blank > begin && is_space(parser->text[blank - 1]) && parser->text[blank - 1] != '\n') blank--;
        /* Only white space since the beginning of the line. */
        if (blank == 0 || parser->text[blank - 1] == '\n') end = blank;
    }
    const struct string text = {parser->text + begin, NULL, end - begin};
    parser_advance(parser, (*tag ? at + 2 : parser->size) - parser->at);
    if (*tag && (sign == '-' || (*tag != '{' && sign == '+'))) parser_advance(parser, 1);
    parser->trims = false;
    return text;
}

/* What follows a tag's end: white space after "-", one line break after a block or a comment. */
static void end_tag(struct parser *parser, char sign, bool is_block)
{
    parser->trims = sign == '-';
    if (sign == '-' || !is_block || sign == '+') return;
    if (parser->at < parser->size && parser->text[parser->at] == '\n') parser_advance(parser, 1);
}

static void finish_tag(struct parser *parser)
{
    const bool is_block = parser->in_tag;
    const size_t size = parser->token.kind == TOKEN_END ? parser_tag_end(parser, is_block) : 0;
    if (parser_has_failed(parser)) return;
    if (!size) {
        parser_expected(parser, is_block ? "the end of the tag (%})" : "the end of the tag (}})");
        return;
    }
    const char sign = size == 3 ? parser->text[parser->at] : 0;
    parser_advance(parser, size);
    end_tag(parser, sign, is_block);
}

static void skip_comment(struct parser *parser)
{
    const char *end = memmem(parser->text + parser->at, parser->size - parser->at, "#}", 2);
    if (!end) {
        parser_fail(parser, "a comment does not end");
        return;
    }
    const char sign = end > parser->text + parser->at && strchr("-+", end[-1]) ? end[-1] : 0;
    parser_advance(parser, (size_t)(end - parser->text) + 2 - parser->at);
    end_tag(parser, sign, true);
}

static struct node *parse_body(struct parser *parser, const char *const *ends);

static struct node *body_until(struct parser *parser, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *body = parse_body(parser, ends);
    finish_tag(parser);
    return body;
}

static struct node *raw_text(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_TEXT);
    finish_tag(parser);
    size_t begin = parser->at;
    while (parser->trims && begin < parser->size && is_space(parser->text[begin])) begin++;
    for (size_t at = begin; at + 2 <= parser->size; at++) {
        if (parser->text[at] != '{' || parser->text[at + 1] != '%') continue;
        size_t name = at + 2, end = at;
        const char sign = name < parser->size ? parser->text[name] : 0;
        if (sign == '-' || sign == '+') name++;
        while (name < parser->size && is_space(parser->text[name])) name++;
        if (parser->size - name < 6 || memcmp(parser->text + name, "endraw", 6) != 0) continue;
        while (end > begin && is_space(parser->text[end - 1]) &&
               (sign == '-' || (sign != '+' && parser->text[end - 1] != '\n')))
            end--;
        if (sign != '-' && sign != '+' && end > begin && parser->text[end - 1] != '\n')
            end = at; /* more than white space */
        node->text = (struct string){parser->text + begin, NULL, end - begin};
        parser_advance(parser, name + 6 - parser->at);
        parser->trims = false;
        parser_next(parser);
        finish_tag(parser);
        return node;
    }
    parser_fail(parser, "expected {%% endraw %%}, found the end of the template");
    return node;
}

static struct node *parse_if(struct parser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *node = parser_node(parser, NODE_IF);
    parser_enter(parser);
    node->a = parse_tuple(parser, false);
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : parse_body(parser, ends);
    if (!parser_has_failed(parser)) {
        if (string_is(parser->name, "elif")) {
            node->other = parse_if(parser);
            parser->depth--;
            return node;
        }
        if (string_is(parser->name, "else")) {
            finish_tag(parser);
            node->other = body_until(parser, "endif");
        } else {
            finish_tag(parser);
        }
    }
    parser->depth--;
    return node;
}

/* A name, an attribute of a namespace (`attributes`), or several with commas. */
static struct node *parse_target(struct parser *parser, bool attributes)
{
    struct node_chain names = {0};
    bool several = false;
    const bool parenthesised = parser_accept_operator(parser, "(");
    do {
        struct node *name = parser_node(parser, NODE_NAME);
        if (several && parser->token.kind != TOKEN_NAME) break;
        name->text = parser_expect_name(parser);
        if (attributes && parser_accept_operator(parser, ".")) {
            struct node *attribute = parser_node(parser, NODE_ATTRIBUTE);
            attribute->a = name;
            attribute->text = parser_expect_name(parser);
            name = attribute;
        }
        node_chain_add(&names, name);
        if (parser_at_operator(parser, ",")) several = true;
    } while (!parser_has_failed(parser) && parser_accept_operator(parser, ","));
    if (parenthesised) parser_expect_operator(parser, ")");
    if (!several) return names.first;
    struct node *tuple = parser_node(parser, NODE_TUPLE);
    tuple->list = names.first;
    return tuple;
}

static struct node *parse_for(struct parser *parser)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *node = parser_node(parser, NODE_FOR);
    const int before = parser->loop_names;
    parser_enter(parser);
    node->a = parse_target(parser, false);
    if (!parser_accept_name(parser, "in")) parser_expected(parser, "in");
    node->b = parse_tuple(parser, false);
    if (parser_accept_name(parser, "if")) node->c = parse_expression(parser);
    if (parser_at_name(parser, "recursive")) parser_fail(parser, "recursive loops are not supported");
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : parse_body(parser, ends);
    node->uses_loop = parser->loop_names != before;
    if (!parser_has_failed(parser) && string_is(parser->name, "else")) {
        finish_tag(parser);
        node->other = body_until(parser, "endfor");
    } else {
        finish_tag(parser);
    }
    parser->depth--;
    return node;
}

static struct node *filters_of(struct parser *parser, struct node *filter)
{
    while (!parser_has_failed(parser) && parser_accept_operator(parser, "|")) filter = parse_filter(parser, filter);
    return filter;
}

static struct node *parse_set(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_SET);
    node->a = parse_target(parser, true);
    if (parser_accept_operator(parser, "=")) {
        node->b = parse_tuple(parser, true);
        finish_tag(parser);
        return node;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = filters_of(parser, NULL);
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endset");
    return node;
}

static struct node *parse_parameters(struct parser *parser)
{
    struct node_chain parameters = {0};
    parser_expect_operator(parser, "(");
    while (!parser_at_operator(parser, ")") && !parser_has_failed(parser)) {
        struct node *parameter = parser_node(parser, NODE_PARAMETER);
        parameter->text = parser_expect_name(parser);
        if (parser_accept_operator(parser, "=")) parameter->a = parse_expression(parser);
        node_chain_add(&parameters, parameter);
        if (!parser_accept_operator(parser, ",")) break;
    }
    parser_expect_operator(parser, ")");
    return parameters.first;
}

static struct node *parse_macro(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_MACRO);
    node->text = parser_expect_name(parser);
    node->list = parse_parameters(parser);
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endmacro");
    return node;
}

static struct node *parse_call_block(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_CALL_BLOCK);
    if (parser_at_operator(parser, "(")) node->list = parse_parameters(parser);
    node->text = string_of("caller");
    node->a = parse_expression(parser);
    if (!parser_has_failed(parser) && node->a->kind != NODE_CALL) parser_fail(parser, "expected a call after 'call'");
    finish_tag(parser);
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endcall");
    return node;
}

static struct node *parse_with(struct parser *parser)
{
    struct node *node = parser_node(parser, NODE_WITH);
    struct node_chain sets = {0};
    while (parser->token.kind != TOKEN_END && !parser_has_failed(parser)) {
        struct node *set = parser_node(parser, NODE_SET);
        set->a = parse_target(parser, false);
        parser_expect_operator(parser, "=");
        set->b = parse_expression(parser);
        node_chain_add(&sets, set);
        if (!parser_accept_operator(parser, ",")) break;
    }
    finish_tag(parser);
    node->list = sets.first;
    node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endwith");
    return node;
}

static struct node *parse_statement(struct parser *parser, struct string name)
{
    struct node *node;
    if (string_is(name, "if")) return parse_if(parser);
    if (string_is(name, "for")) return parse_for(parser);
    if (string_is(name, "set")) return parse_set(parser);
    if (string_is(name, "macro")) return parse_macro(parser);
    if (string_is(name, "call")) return parse_call_block(parser);
    if (string_is(name, "with")) return parse_with(parser);
    if (string_is(name, "raw")) return raw_text(parser);
    if (string_is(name, "filter")) {
        node = parser_node(parser, NODE_FILTER_BLOCK);
        node->a = filters_of(parser, parse_filter(parser, NULL));
        finish_tag(parser);
        node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endfilter");
        return node;
    }
    if (string_is(name, "generation")) { /* marks what a model wrote, for training */
        node = parser_node(parser, NODE_WITH);
        finish_tag(parser);
        node->body = parser_has_failed(parser) ? NULL : body_until(parser, "endgeneration");
        return node;
    }
    if (string_is(name, "print")) {
        node = parser_node(parser, NODE_OUTPUT);
        node->a = parse_tuple(parser, true);
        finish_tag(parser);
        return node;
    }
    if (string_is(name, "break") || string_is(name, "continue")) {
        node = parser_node(parser, string_is(name, "break") ? NODE_BREAK : NODE_CONTINUE);
        finish_tag(parser);
        return node;
    }
    parser_fail(parser, "a tag that is not supported, or stands at the wrong place: '%.*s'",
                (int)(name.size < 60 ? name.size : 60), name.bytes);
    return parser_node(parser, NODE_TEXT);
}

/* Statements up to a tag of one of these names, which is left in `name` with its tag open; `ends` NULL: to the end of the text. */
static struct node *parse_body(struct parser *parser, const char *const *ends)
{
    struct node_chain body = {0};
    parser_enter(parser);
    while (!parser_has_failed(parser)) {
        char tag;
        struct node *text = parser_node(parser, NODE_TEXT);
        text->text = read_text(parser, &tag);
        if (text->text.size) node_chain_add(&body, text);
        if (!tag) {
            while (ends && ends[1]) ends++; /* the last one closes the block */
            if (ends) parser_fail(parser, "expected {%% %s %%}, found the end of the template", *ends);
            break;
        }
        if (tag == '#') {
            skip_comment(parser);
            continue;
        }
        parser->in_tag = tag == '%';
        parser->brackets = 0;
        parser_next(parser);
        if (tag == '{') {
            struct node *output = parser_node(parser, NODE_OUTPUT);
            output->a = parse_tuple(parser, true);
            finish_tag(parser);
            node_chain_add(&body, output);
            continue;
        }
        const struct string name = parser_expect_name(parser);
        bool ended = false;
        for (size_t i = 0; ends && ends[i]; i++) ended |= string_is(name, ends[i]);
        parser->name = name;
        if (ended) break;
        node_chain_add(&body, parse_statement(parser, name));
    }
    parser->depth--;
    return body.first;
}

struct template *template_open(const char *text, size_t size, struct status *status)
{
    if (size > TEMPLATE_MOST_BYTES) {
        status_fail(status, STATUS_BAD_INPUT, "chat template: expected at most %d bytes, found %zu",
                    TEMPLATE_MOST_BYTES, size);
        return NULL;
    }
    struct template *template = calloc(1, sizeof *template);
    char *source = malloc(size + 1);
    if (!template || !source) {
        free(template), free(source);
        status_fail(status, STATUS_MACHINE, "out of memory while a template is read");
        return NULL;
    }
    template->source = source;
    size_t used = 0;
    for (size_t i = 0; i < size; i++) /* all line breaks are one character */
        if (text[i] != '\r')
            source[used++] = text[i];
        else if (i + 1 == size || text[i + 1] != '\n')
            source[used++] = '\n';
    if (used && source[used - 1] == '\n') used--; /* jinja2 drops one at the end */
    source[used] = 0;
    template->memory = (struct render){.status = status};
    struct parser parser = {.memory = &template->memory, .status = status, .text = source, .size = used, .line = 1};
    for (size_t at = 0; at < used;) {
        utf8proc_int32_t character;
        const utf8proc_ssize_t bytes =
            utf8proc_iterate((const utf8proc_uint8_t *)source + at, (utf8proc_ssize_t)(used - at), &character);
        if (bytes <= 0 || character == 0) {
            parser_fail(&parser, "expected UTF-8 text without NUL, found another byte at %zu", at);
            break;
        }
        at += (size_t)bytes;
    }
    if (!template->memory.failed) template->body = parse_body(&parser, NULL);
    template->memory.status = NULL;
    if (!template->memory.failed) return template;
    template_close(template);
    return NULL;
}

const char *template_text(const struct template *template) { return template->source; }

void template_close(struct template *template)
{
    if (!template) return;
    render_free(&template->memory);
    free(template->source);
    free(template);
}
