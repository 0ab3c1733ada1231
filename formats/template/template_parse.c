/* SPDX-License-Identifier: Apache-2.0 */
/* From a template's text to its tree: the grammar of jinja2, without what needs other templates. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/template/template_tree.h"

enum token_kind { TOKEN_END, TOKEN_NAME, TOKEN_STRING, TOKEN_INTEGER, TOKEN_FLOAT, TOKEN_OPERATOR };

struct token {
    enum token_kind kind;
    struct string text; /* of a string: its value */
};

struct parser {
    struct render *memory;
    struct status *status;
    const char *text;
    size_t size, at;
    int line, depth, brackets, loop_names;
    bool trims, in_tag;
    struct token token; /* the current one, in a tag */
    struct string name; /* of the tag that ended a body */
};

/* ---- failures and nodes ---- */

static void fail(struct parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct parser *parser, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    render_fail(parser->memory, "chat template: line %d: %s", parser->line, text);
}

static bool has_failed(const struct parser *parser) { return parser->memory->failed; }

/* Never NULL: nodes of a parser that failed are written and not read. */
static struct node *new_node(struct parser *parser, enum node_kind kind)
{
    static _Thread_local struct node lost;
    struct node *node = render_take(parser->memory, sizeof *node);
    if (!node) node = &lost;
    *node = (struct node){.kind = kind, .line = parser->line, .text = string_of("")};
    return node;
}

static void enter(struct parser *parser)
{
    if (++parser->depth > TEMPLATE_MOST_DEPTH) fail(parser, "more than %d levels of nesting", TEMPLATE_MOST_DEPTH);
}

struct chain {
    struct node *first, **end;
};

static void chain_add(struct chain *chain, struct node *node)
{
    if (!chain->end) chain->end = &chain->first;
    *chain->end = node;
    chain->end = &node->next;
}

/* ---- tokens of a tag ---- */

static bool starts(const struct parser *parser, const char *text)
{
    const size_t size = strlen(text);
    return parser->size - parser->at >= size && memcmp(parser->text + parser->at, text, size) == 0;
}

static void advance(struct parser *parser, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) parser->line += parser->text[parser->at + i] == '\n';
    parser->at += bytes;
}

static bool is_name_start(uint32_t c)
{
    if (c == '_') return true;
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(char c) { return c >= '0' && c <= '9'; }

static void add_escape(struct parser *parser, struct builder *builder, const char *escape, size_t *used)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char c = escape[1];
    const char *found = c ? strchr(from, c) : NULL;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    *used = 2;
    if (found) {
        builder_add_bytes(builder, to + (found - from), 1, false);
    } else if (digits) {
        char hex[9] = "", bytes[4], *end;
        memcpy(hex, escape + 2, digits < strnlen(escape + 2, digits) ? digits : strnlen(escape + 2, digits));
        const unsigned long code = strtoul(hex, &end, 16);
        if (*end || strlen(hex) != digits || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            fail(parser, "a string has an escape that is no character");
        else
            builder_add_bytes(builder, bytes, string_encode((uint32_t)code, bytes), false);
        *used += digits;
    } else if (c >= '0' && c <= '7') {
        char bytes[4];
        uint32_t code = 0;
        size_t count = 0;
        while (count < 3 && escape[1 + count] >= '0' && escape[1 + count] <= '7')
            code = code * 8 + (uint32_t)(escape[1 + count++] - '0');
        builder_add_bytes(builder, bytes, string_encode(code, bytes), false);
        *used = 1 + count;
    } else if (c != '\n') {
        builder_add_bytes(builder, escape, 2, false);
    }
}

static void read_string(struct parser *parser)
{
    const char quote = parser->text[parser->at];
    size_t at = parser->at + 1;
    struct builder builder;
    builder_open(&builder, parser->memory);
    while (at < parser->size && parser->text[at] != quote && !has_failed(parser)) {
        size_t used = 1;
        if (parser->text[at] == '\\' && at + 1 < parser->size)
            add_escape(parser, &builder, parser->text + at, &used);
        else
            builder_add_bytes(&builder, parser->text + at, 1, false);
        at += used;
    }
    if (at >= parser->size) {
        fail(parser, "a string does not end");
        return;
    }
    parser->token = (struct token){TOKEN_STRING, builder_value(&builder).string};
    advance(parser, at + 1 - parser->at);
}

static void read_number(struct parser *parser)
{
    size_t at = parser->at;
    const char *text = parser->text;
    enum token_kind kind = TOKEN_INTEGER;
    if (text[at] == '0' && at + 1 < parser->size && strchr("xXoObB", text[at + 1])) {
        at += 2;
        while (at < parser->size &&
               (is_decimal(text[at]) || ((text[at] | 32) >= 'a' && (text[at] | 32) <= 'f') || text[at] == '_'))
            at++;
    } else {
        while (at < parser->size && (is_decimal(text[at]) || text[at] == '_')) at++;
        if (at + 1 < parser->size && text[at] == '.' && is_decimal(text[at + 1])) {
            kind = TOKEN_FLOAT;
            at++;
            while (at < parser->size && (is_decimal(text[at]) || text[at] == '_')) at++;
        }
        size_t mark = at;
        if (mark < parser->size && (text[mark] | 32) == 'e') {
            mark++;
            if (mark < parser->size && (text[mark] == '+' || text[mark] == '-')) mark++;
            if (mark < parser->size && is_decimal(text[mark])) {
                kind = TOKEN_FLOAT;
                while (mark < parser->size && is_decimal(text[mark])) mark++;
                at = mark;
            }
        }
    }
    parser->token = (struct token){kind, {text + parser->at, NULL, at - parser->at}};
    advance(parser, at - parser->at);
}

/* The end of a tag: "%}" or "}}", or one with a sign before it. Sets `size`; 0: none here. */
static size_t tag_end(const struct parser *parser, bool is_block)
{
    const char *end = is_block ? "%}" : "}}";
    if (starts(parser, end)) return 2;
    if ((starts(parser, "-") || (is_block && starts(parser, "+"))) && parser->size - parser->at >= 3 &&
        memcmp(parser->text + parser->at + 1, end, 2) == 0)
        return 3;
    return 0;
}

static void next_token(struct parser *parser, bool is_block)
{
    static const char *const operators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  "<",  ">", "=", ".", ":", "|", ",", ";"};
    while (parser->at < parser->size && strchr(" \t\r\n\f\v", parser->text[parser->at]) && parser->text[parser->at])
        advance(parser, 1);
    parser->token = (struct token){TOKEN_END, string_of("")};
    if (has_failed(parser)) return;
    if (parser->at >= parser->size) {
        fail(parser, "a tag does not end");
        return;
    }
    if (parser->brackets == 0 && tag_end(parser, is_block)) return;
    uint32_t c;
    const struct string rest = {parser->text, NULL, parser->size};
    size_t bytes = string_character(rest, parser->at, &c);
    if (c == '"' || c == '\'') {
        read_string(parser);
    } else if (c < 0x80 && is_decimal((char)c)) {
        read_number(parser);
    } else if (is_name_start(c)) {
        size_t at = parser->at;
        while (at < parser->size &&
               (is_name_start(c) || utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND)) {
            at += bytes;
            if (at < parser->size) bytes = string_character(rest, at, &c);
        }
        parser->token = (struct token){TOKEN_NAME, string_part(rest, parser->at, at)};
        advance(parser, at - parser->at);
    } else {
        size_t i = 0;
        while (i < sizeof operators / sizeof *operators && !starts(parser, operators[i])) i++;
        if (i == sizeof operators / sizeof *operators) {
            fail(parser, "a character that no expression has ('%.*s')", (int)bytes, parser->text + parser->at);
            return;
        }
        parser->token = (struct token){TOKEN_OPERATOR, string_of(operators[i])};
        if (strchr("([{", *operators[i])) parser->brackets++;
        if (strchr(")]}", *operators[i])) parser->brackets--;
        if (parser->brackets < 0) fail(parser, "'%s' closes nothing", operators[i]);
        advance(parser, strlen(operators[i]));
    }
}

static void next(struct parser *parser) { next_token(parser, parser->in_tag); }

static bool at_operator(const struct parser *parser, const char *operator)
{
    return parser->token.kind == TOKEN_OPERATOR && string_is(parser->token.text, operator);
}

static bool at_name(const struct parser *parser, const char *name)
{
    return parser->token.kind == TOKEN_NAME && string_is(parser->token.text, name);
}

static bool accept_operator(struct parser *parser, const char *operator)
{
    if (!at_operator(parser, operator)) return false;
    next(parser);
    return true;
}

static bool accept_name(struct parser *parser, const char *name)
{
    if (!at_name(parser, name)) return false;
    next(parser);
    return true;
}

static void expected(struct parser *parser, const char *what)
{
    const struct token *token = &parser->token;
    if (token->kind == TOKEN_END)
        fail(parser, "expected %s, found the end of the tag", what);
    else
        fail(parser, "expected %s, found '%.*s'", what, (int)(token->text.size < 60 ? token->text.size : 60),
             token->text.bytes);
}

static void expect_operator(struct parser *parser, const char *operator)
{
    if (!accept_operator(parser, operator)) expected(parser, operator);
}

static struct string expect_name(struct parser *parser)
{
    const struct string name = parser->token.text;
    if (parser->token.kind != TOKEN_NAME) {
        expected(parser, "a name");
        return string_of("");
    }
    next(parser);
    return name;
}

/* ---- expressions ---- */

static struct node *parse_expression(struct parser *parser);
static struct node *parse_unary(struct parser *parser, bool with_filter);

static struct node *constant(struct parser *parser, struct value value)
{
    struct node *node = new_node(parser, NODE_CONSTANT);
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
            strtoll(digits + (prefixed && base != 10 && !is_decimal(digits[1]) ? 2 : 0), &end, base);
        if (*end || used > 18) fail(parser, "an integer that is too large, or none: '%s'", digits);
        node = constant(parser, value_integer(integer));
    }
    next(parser);
    return node;
}

/* Items up to a closing operator; a comma may be the last thing. */
static struct node *parse_items(struct parser *parser, const char *close)
{
    struct chain items = {0};
    while (!at_operator(parser, close) && !has_failed(parser)) {
        chain_add(&items, parse_expression(parser));
        if (!accept_operator(parser, ",")) break;
    }
    expect_operator(parser, close);
    return items.first;
}

static struct node *parse_parentheses(struct parser *parser)
{
    next(parser);
    if (accept_operator(parser, ")")) return new_node(parser, NODE_TUPLE);
    struct node *first = parse_expression(parser);
    if (!at_operator(parser, ",")) {
        expect_operator(parser, ")");
        return first;
    }
    next(parser);
    struct node *tuple = new_node(parser, NODE_TUPLE);
    tuple->list = first;
    first->next = parse_items(parser, ")");
    return tuple;
}

static struct node *parse_dict(struct parser *parser)
{
    struct node *dict = new_node(parser, NODE_DICT);
    struct chain pairs = {0};
    next(parser);
    while (!at_operator(parser, "}") && !has_failed(parser)) {
        struct node *pair = new_node(parser, NODE_PAIR);
        pair->a = parse_expression(parser);
        expect_operator(parser, ":");
        pair->b = parse_expression(parser);
        chain_add(&pairs, pair);
        if (!accept_operator(parser, ",")) break;
    }
    expect_operator(parser, "}");
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
            if (accept_name(parser, names[i].name))
                return constant(parser, (struct value){.kind = names[i].kind, .boolean = names[i].truth});
        node = new_node(parser, NODE_NAME);
        node->text = parser->token.text;
        parser->loop_names += string_is(node->text, "loop");
        next(parser);
        return node;
    case TOKEN_STRING: {
        struct builder builder;
        builder_open(&builder, parser->memory);
        for (; parser->token.kind == TOKEN_STRING && !has_failed(parser); next(parser))
            builder_add(&builder, parser->token.text);
        return constant(parser, builder_value(&builder));
    }
    case TOKEN_INTEGER:
    case TOKEN_FLOAT: return number_node(parser);
    default: break;
    }
    if (at_operator(parser, "(")) return parse_parentheses(parser);
    if (at_operator(parser, "{")) return parse_dict(parser);
    if (at_operator(parser, "[")) {
        node = new_node(parser, NODE_LIST);
        next(parser);
        node->list = parse_items(parser, "]");
        return node;
    }
    expected(parser, "an expression");
    return new_node(parser, NODE_CONSTANT);
}

static struct node *parse_arguments(struct parser *parser)
{
    struct chain arguments = {0};
    next(parser); /* ( */
    while (!at_operator(parser, ")") && !has_failed(parser)) {
        struct node *argument = new_node(parser, NODE_ARGUMENT);
        if (at_operator(parser, "*") || at_operator(parser, "**")) {
            argument->text = parser->token.text;
            next(parser);
            argument->a = parse_expression(parser);
        } else {
            argument->a = parse_expression(parser);
            if (argument->a->kind == NODE_NAME && accept_operator(parser, "=")) {
                argument->text = argument->a->text;
                argument->a = parse_expression(parser);
            }
        }
        chain_add(&arguments, argument);
        if (!accept_operator(parser, ",")) break;
    }
    expect_operator(parser, ")");
    return arguments.first;
}

static struct node *parse_subscript(struct parser *parser, struct node *of)
{
    struct node *node;
    if (accept_operator(parser, ".")) {
        if (parser->token.kind == TOKEN_INTEGER) {
            node = new_node(parser, NODE_ITEM);
            node->a = of;
            node->b = number_node(parser);
            return node;
        }
        node = new_node(parser, NODE_ATTRIBUTE);
        node->a = of;
        node->text = expect_name(parser);
        return node;
    }
    next(parser); /* [ */
    struct node *parts[3] = {NULL, NULL, NULL};
    int part = 0;
    if (!at_operator(parser, ":")) parts[0] = parse_expression(parser);
    while (part < 2 && accept_operator(parser, ":")) {
        part++;
        if (!at_operator(parser, ":") && !at_operator(parser, "]")) parts[part] = parse_expression(parser);
    }
    expect_operator(parser, "]");
    node = new_node(parser, part ? NODE_SLICE : NODE_ITEM);
    node->a = of;
    node->b = parts[0], node->c = parts[1], node->d = parts[2];
    return node;
}

static struct node *parse_call(struct parser *parser, struct node *of)
{
    struct node *node = new_node(parser, NODE_CALL);
    node->a = of;
    node->list = parse_arguments(parser);
    return node;
}

static struct node *parse_postfix(struct parser *parser, struct node *node)
{
    while (!has_failed(parser)) {
        if (at_operator(parser, ".") || at_operator(parser, "["))
            node = parse_subscript(parser, node);
        else if (at_operator(parser, "("))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

static struct node *parse_filter(struct parser *parser, struct node *of)
{
    struct node *node = new_node(parser, NODE_FILTER);
    node->a = of;
    node->text = expect_name(parser);
    if (at_operator(parser, "(")) node->list = parse_arguments(parser);
    return node;
}

static struct node *parse_test(struct parser *parser, struct node *of)
{
    const bool negated = accept_name(parser, "not");
    struct node *node = new_node(parser, NODE_TEST);
    node->a = of;
    node->text = expect_name(parser);
    if (at_operator(parser, "(")) {
        node->list = parse_arguments(parser);
    } else if (parser->token.kind != TOKEN_END &&
               (parser->token.kind != TOKEN_OPERATOR || at_operator(parser, "[") || at_operator(parser, "{")) &&
               !at_name(parser, "else") && !at_name(parser, "or") && !at_name(parser, "and") &&
               !at_name(parser, "if") && !at_name(parser, "in") && !at_name(parser, "not")) {
        if (at_name(parser, "is")) fail(parser, "tests in a row, which need parentheses");
        struct node *argument = new_node(parser, NODE_ARGUMENT);
        argument->a = parse_postfix(parser, parse_primary(parser));
        node->list = argument;
    }
    if (!negated) return node;
    struct node *not = new_node(parser, NODE_NOT);
    not ->a = node;
    return not ;
}

static struct node *parse_unary(struct parser *parser, bool with_filter)
{
    struct node *node;
    enter(parser);
    if (at_operator(parser, "-") || at_operator(parser, "+")) {
        node = new_node(parser, at_operator(parser, "-") ? NODE_NEGATIVE : NODE_POSITIVE);
        next(parser);
        if (!has_failed(parser)) node->a = parse_unary(parser, false);
    } else {
        node = parse_primary(parser);
    }
    node = parse_postfix(parser, node);
    while (with_filter && !has_failed(parser)) {
        if (accept_operator(parser, "|"))
            node = parse_filter(parser, node);
        else if (accept_name(parser, "is"))
            node = parse_test(parser, node);
        else if (at_operator(parser, "("))
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
    while (!has_failed(parser)) {
        size_t i = 0;
        while (i < sizeof operators / sizeof *operators &&
               (operators[i].level != level || !at_operator(parser, operators[i].text)))
            i++;
        if (i == sizeof operators / sizeof *operators) break;
        struct node *node = new_node(parser, NODE_BINARY);
        node->operation = operators[i].operation;
        next(parser);
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
    struct chain operands = {0};
    while (!has_failed(parser)) {
        size_t i = 0;
        struct node *operand = new_node(parser, NODE_OPERAND);
        while (i < sizeof operators / sizeof *operators && !at_operator(parser, operators[i].text)) i++;
        if (i < sizeof operators / sizeof *operators) {
            operand->operation = operators[i].operation;
            next(parser);
        } else if (accept_name(parser, "in")) {
            operand->operation = OPERATOR_IN;
        } else if (at_name(parser, "not")) {
            next(parser);
            if (!accept_name(parser, "in")) expected(parser, "in");
            operand->operation = OPERATOR_NOT_IN;
        } else {
            break;
        }
        operand->a = parse_binary(parser, 0);
        chain_add(&operands, operand);
    }
    if (!operands.first) return left;
    struct node *node = new_node(parser, NODE_COMPARE);
    node->a = left;
    node->list = operands.first;
    return node;
}

static struct node *parse_not(struct parser *parser)
{
    if (!at_name(parser, "not")) return parse_compare(parser);
    struct node *node = new_node(parser, NODE_NOT);
    enter(parser);
    next(parser);
    if (!has_failed(parser)) node->a = parse_not(parser);
    parser->depth--;
    return node;
}

static struct node *parse_and(struct parser *parser)
{
    struct node *left = parse_not(parser);
    while (!has_failed(parser) && accept_name(parser, "and")) {
        struct node *node = new_node(parser, NODE_AND);
        node->a = left;
        node->b = parse_not(parser);
        left = node;
    }
    return left;
}

static struct node *parse_or(struct parser *parser)
{
    struct node *left = parse_and(parser);
    while (!has_failed(parser) && accept_name(parser, "or")) {
        struct node *node = new_node(parser, NODE_OR);
        node->a = left;
        node->b = parse_and(parser);
        left = node;
    }
    return left;
}

static struct node *parse_expression(struct parser *parser)
{
    enter(parser);
    struct node *node = has_failed(parser) ? new_node(parser, NODE_CONSTANT) : parse_or(parser);
    while (!has_failed(parser) && accept_name(parser, "if")) {
        struct node *condition = new_node(parser, NODE_CONDITION);
        condition->b = node;
        condition->a = parse_or(parser);
        if (accept_name(parser, "else")) condition->c = parse_expression(parser);
        node = condition;
    }
    parser->depth--;
    return node;
}

/* Expressions with commas between them: a tuple. */
static struct node *parse_tuple(struct parser *parser, bool with_condition)
{
    struct node *first = with_condition ? parse_expression(parser) : parse_or(parser);
    if (!at_operator(parser, ",")) return first;
    struct node *tuple = new_node(parser, NODE_TUPLE);
    struct chain items = {0};
    chain_add(&items, first);
    while (!has_failed(parser) && accept_operator(parser, ",")) {
        if (parser->token.kind == TOKEN_END || at_operator(parser, "=")) break;
        chain_add(&items, with_condition ? parse_expression(parser) : parse_or(parser));
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
    advance(parser, (*tag ? at + 2 : parser->size) - parser->at);
    if (*tag && (sign == '-' || (*tag != '{' && sign == '+'))) advance(parser, 1);
    parser->trims = false;
    return text;
}

/* What follows a tag's end: white space after "-", one line break after a block or a comment. */
static void end_tag(struct parser *parser, char sign, bool is_block)
{
    parser->trims = sign == '-';
    if (sign == '-' || !is_block || sign == '+') return;
    if (parser->at < parser->size && parser->text[parser->at] == '\n') advance(parser, 1);
}

static void finish_tag(struct parser *parser)
{
    const bool is_block = parser->in_tag;
    const size_t size = parser->token.kind == TOKEN_END ? tag_end(parser, is_block) : 0;
    if (has_failed(parser)) return;
    if (!size) {
        expected(parser, is_block ? "the end of the tag (%})" : "the end of the tag (}})");
        return;
    }
    const char sign = size == 3 ? parser->text[parser->at] : 0;
    advance(parser, size);
    end_tag(parser, sign, is_block);
}

static void skip_comment(struct parser *parser)
{
    const char *end = memmem(parser->text + parser->at, parser->size - parser->at, "#}", 2);
    if (!end) {
        fail(parser, "a comment does not end");
        return;
    }
    const char sign = end > parser->text + parser->at && strchr("-+", end[-1]) ? end[-1] : 0;
    advance(parser, (size_t)(end - parser->text) + 2 - parser->at);
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
    struct node *node = new_node(parser, NODE_TEXT);
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
        advance(parser, name + 6 - parser->at);
        parser->trims = false;
        next(parser);
        finish_tag(parser);
        return node;
    }
    fail(parser, "expected {%% endraw %%}, found the end of the template");
    return node;
}

static struct node *parse_if(struct parser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *node = new_node(parser, NODE_IF);
    enter(parser);
    node->a = parse_tuple(parser, false);
    finish_tag(parser);
    node->body = has_failed(parser) ? NULL : parse_body(parser, ends);
    if (!has_failed(parser)) {
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
    struct chain names = {0};
    bool several = false;
    const bool parenthesised = accept_operator(parser, "(");
    do {
        struct node *name = new_node(parser, NODE_NAME);
        if (several && parser->token.kind != TOKEN_NAME) break;
        name->text = expect_name(parser);
        if (attributes && accept_operator(parser, ".")) {
            struct node *attribute = new_node(parser, NODE_ATTRIBUTE);
            attribute->a = name;
            attribute->text = expect_name(parser);
            name = attribute;
        }
        chain_add(&names, name);
        if (at_operator(parser, ",")) several = true;
    } while (!has_failed(parser) && accept_operator(parser, ","));
    if (parenthesised) expect_operator(parser, ")");
    if (!several) return names.first;
    struct node *tuple = new_node(parser, NODE_TUPLE);
    tuple->list = names.first;
    return tuple;
}

static struct node *parse_for(struct parser *parser)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *node = new_node(parser, NODE_FOR);
    const int before = parser->loop_names;
    enter(parser);
    node->a = parse_target(parser, false);
    if (!accept_name(parser, "in")) expected(parser, "in");
    node->b = parse_tuple(parser, false);
    if (accept_name(parser, "if")) node->c = parse_expression(parser);
    if (at_name(parser, "recursive")) fail(parser, "recursive loops are not supported");
    finish_tag(parser);
    node->body = has_failed(parser) ? NULL : parse_body(parser, ends);
    node->uses_loop = parser->loop_names != before;
    if (!has_failed(parser) && string_is(parser->name, "else")) {
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
    while (!has_failed(parser) && accept_operator(parser, "|")) filter = parse_filter(parser, filter);
    return filter;
}

static struct node *parse_set(struct parser *parser)
{
    struct node *node = new_node(parser, NODE_SET);
    node->a = parse_target(parser, true);
    if (accept_operator(parser, "=")) {
        node->b = parse_tuple(parser, true);
        finish_tag(parser);
        return node;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = filters_of(parser, NULL);
    finish_tag(parser);
    node->body = has_failed(parser) ? NULL : body_until(parser, "endset");
    return node;
}

static struct node *parse_parameters(struct parser *parser)
{
    struct chain parameters = {0};
    expect_operator(parser, "(");
    while (!at_operator(parser, ")") && !has_failed(parser)) {
        struct node *parameter = new_node(parser, NODE_PARAMETER);
        parameter->text = expect_name(parser);
        if (accept_operator(parser, "=")) parameter->a = parse_expression(parser);
        chain_add(&parameters, parameter);
        if (!accept_operator(parser, ",")) break;
    }
    expect_operator(parser, ")");
    return parameters.first;
}

static struct node *parse_macro(struct parser *parser)
{
    struct node *node = new_node(parser, NODE_MACRO);
    node->text = expect_name(parser);
    node->list = parse_parameters(parser);
    finish_tag(parser);
    node->body = has_failed(parser) ? NULL : body_until(parser, "endmacro");
    return node;
}

static struct node *parse_call_block(struct parser *parser)
{
    struct node *node = new_node(parser, NODE_CALL_BLOCK);
    if (at_operator(parser, "(")) node->list = parse_parameters(parser);
    node->text = string_of("caller");
    node->a = parse_expression(parser);
    if (!has_failed(parser) && node->a->kind != NODE_CALL) fail(parser, "expected a call after 'call'");
    finish_tag(parser);
    node->body = has_failed(parser) ? NULL : body_until(parser, "endcall");
    return node;
}

static struct node *parse_with(struct parser *parser)
{
    struct node *node = new_node(parser, NODE_WITH);
    struct chain sets = {0};
    while (parser->token.kind != TOKEN_END && !has_failed(parser)) {
        struct node *set = new_node(parser, NODE_SET);
        set->a = parse_target(parser, false);
        expect_operator(parser, "=");
        set->b = parse_expression(parser);
        chain_add(&sets, set);
        if (!accept_operator(parser, ",")) break;
    }
    finish_tag(parser);
    node->list = sets.first;
    node->body = has_failed(parser) ? NULL : body_until(parser, "endwith");
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
        node = new_node(parser, NODE_FILTER_BLOCK);
        node->a = filters_of(parser, parse_filter(parser, NULL));
        finish_tag(parser);
        node->body = has_failed(parser) ? NULL : body_until(parser, "endfilter");
        return node;
    }
    if (string_is(name, "generation")) { /* marks what a model wrote, for training */
        node = new_node(parser, NODE_WITH);
        finish_tag(parser);
        node->body = has_failed(parser) ? NULL : body_until(parser, "endgeneration");
        return node;
    }
    if (string_is(name, "print")) {
        node = new_node(parser, NODE_OUTPUT);
        node->a = parse_tuple(parser, true);
        finish_tag(parser);
        return node;
    }
    if (string_is(name, "break") || string_is(name, "continue")) {
        node = new_node(parser, string_is(name, "break") ? NODE_BREAK : NODE_CONTINUE);
        finish_tag(parser);
        return node;
    }
    fail(parser, "a tag that is not supported, or stands at the wrong place: '%.*s'",
         (int)(name.size < 60 ? name.size : 60), name.bytes);
    return new_node(parser, NODE_TEXT);
}

/* Statements up to a tag of one of these names, which is left in `name` with its tag open; `ends` NULL: to the end of the text. */
static struct node *parse_body(struct parser *parser, const char *const *ends)
{
    struct chain body = {0};
    enter(parser);
    while (!has_failed(parser)) {
        char tag;
        struct node *text = new_node(parser, NODE_TEXT);
        text->text = read_text(parser, &tag);
        if (text->text.size) chain_add(&body, text);
        if (!tag) {
            while (ends && ends[1]) ends++; /* the last one closes the block */
            if (ends) fail(parser, "expected {%% %s %%}, found the end of the template", *ends);
            break;
        }
        if (tag == '#') {
            skip_comment(parser);
            continue;
        }
        parser->in_tag = tag == '%';
        parser->brackets = 0;
        next(parser);
        if (tag == '{') {
            struct node *output = new_node(parser, NODE_OUTPUT);
            output->a = parse_tuple(parser, true);
            finish_tag(parser);
            chain_add(&body, output);
            continue;
        }
        const struct string name = expect_name(parser);
        bool ended = false;
        for (size_t i = 0; ends && ends[i]; i++) ended |= string_is(name, ends[i]);
        parser->name = name;
        if (ended) break;
        chain_add(&body, parse_statement(parser, name));
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
            fail(&parser, "expected UTF-8 text without NUL, found another byte at %zu", at);
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

void template_close(struct template *template)
{
    if (!template) return;
    render_free(&template->memory);
    free(template->source);
    free(template);
}
