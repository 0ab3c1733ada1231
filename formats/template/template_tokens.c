/* SPDX-License-Identifier: Apache-2.0 */
/* The parser's state and the tokens of a tag. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "formats/template/template_parse.h"

/* ---- failures and nodes ---- */

void parser_fail(struct parser *parser, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    render_fail(parser->memory, "chat template: line %d: %s", parser->line, text);
}

bool parser_has_failed(const struct parser *parser) { return parser->memory->failed; }

/* Never NULL: nodes of a parser that failed are written and not read. */
struct node *parser_node(struct parser *parser, enum node_kind kind)
{
    static _Thread_local struct node lost;
    struct node *node = render_take(parser->memory, sizeof *node);
    if (!node) node = &lost;
    *node = (struct node){.kind = kind, .line = parser->line, .text = string_of("")};
    return node;
}

void parser_enter(struct parser *parser)
{
    if (++parser->depth > TEMPLATE_MOST_DEPTH)
        parser_fail(parser, "more than %d levels of nesting", TEMPLATE_MOST_DEPTH);
}

void node_chain_add(struct node_chain *chain, struct node *node)
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

void parser_advance(struct parser *parser, size_t bytes)
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

bool parser_is_decimal(char c) { return c >= '0' && c <= '9'; }

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
            parser_fail(parser, "a string has an escape that is no character");
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
    while (at < parser->size && parser->text[at] != quote && !parser_has_failed(parser)) {
        size_t used = 1;
        if (parser->text[at] == '\\' && at + 1 < parser->size)
            add_escape(parser, &builder, parser->text + at, &used);
        else
            builder_add_bytes(&builder, parser->text + at, 1, false);
        at += used;
    }
    if (at >= parser->size) {
        parser_fail(parser, "a string does not end");
        return;
    }
    parser->token = (struct token){TOKEN_STRING, builder_value(&builder).string};
    parser_advance(parser, at + 1 - parser->at);
}

static void read_number(struct parser *parser)
{
    size_t at = parser->at;
    const char *text = parser->text;
    enum token_kind kind = TOKEN_INTEGER;
    if (text[at] == '0' && at + 1 < parser->size && strchr("xXoObB", text[at + 1])) {
        at += 2;
        while (at < parser->size &&
               (parser_is_decimal(text[at]) || ((text[at] | 32) >= 'a' && (text[at] | 32) <= 'f') || text[at] == '_'))
            at++;
    } else {
        while (at < parser->size && (parser_is_decimal(text[at]) || text[at] == '_')) at++;
        if (at + 1 < parser->size && text[at] == '.' && parser_is_decimal(text[at + 1])) {
            kind = TOKEN_FLOAT;
            at++;
            while (at < parser->size && (parser_is_decimal(text[at]) || text[at] == '_')) at++;
        }
        size_t mark = at;
        if (mark < parser->size && (text[mark] | 32) == 'e') {
            mark++;
            if (mark < parser->size && (text[mark] == '+' || text[mark] == '-')) mark++;
            if (mark < parser->size && parser_is_decimal(text[mark])) {
                kind = TOKEN_FLOAT;
                while (mark < parser->size && parser_is_decimal(text[mark])) mark++;
                at = mark;
            }
        }
    }
    parser->token = (struct token){kind, {text + parser->at, NULL, at - parser->at}};
    parser_advance(parser, at - parser->at);
}

/* The end of a tag: "%}" or "}}", or one with a sign before it. Sets `size`; 0: none here. */
size_t parser_tag_end(const struct parser *parser, bool is_block)
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
    const struct string rest = {parser->text, NULL, parser->size};
    uint32_t c = 0;
    size_t bytes = 0;
    while (parser->at < parser->size && (bytes = string_character(rest, parser->at, &c)) && character_is_space(c))
        parser_advance(parser, bytes);
    parser->token = (struct token){TOKEN_END, string_of("")};
    if (parser_has_failed(parser)) return;
    if (parser->at >= parser->size) {
        parser_fail(parser, "a tag does not end");
        return;
    }
    if (parser->brackets == 0 && parser_tag_end(parser, is_block)) return;
    if (c == '"' || c == '\'') {
        read_string(parser);
    } else if (c < 0x80 && parser_is_decimal((char)c)) {
        read_number(parser);
    } else if (is_name_start(c)) {
        size_t at = parser->at;
        while (at < parser->size &&
               (is_name_start(c) || utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND)) {
            at += bytes;
            if (at < parser->size) bytes = string_character(rest, at, &c);
        }
        parser->token = (struct token){TOKEN_NAME, string_part(rest, parser->at, at)};
        parser_advance(parser, at - parser->at);
    } else {
        size_t i = 0;
        while (i < sizeof operators / sizeof *operators && !starts(parser, operators[i])) i++;
        if (i == sizeof operators / sizeof *operators) {
            parser_fail(parser, "a character that no expression has ('%.*s')", (int)bytes, parser->text + parser->at);
            return;
        }
        parser->token = (struct token){TOKEN_OPERATOR, string_of(operators[i])};
        if (strchr("([{", *operators[i])) parser->brackets++;
        if (strchr(")]}", *operators[i])) parser->brackets--;
        if (parser->brackets < 0) parser_fail(parser, "'%s' closes nothing", operators[i]);
        parser_advance(parser, strlen(operators[i]));
    }
}

void parser_next(struct parser *parser) { next_token(parser, parser->in_tag); }

bool parser_at_operator(const struct parser *parser, const char *operator)
{
    return parser->token.kind == TOKEN_OPERATOR && string_is(parser->token.text, operator);
}

bool parser_at_name(const struct parser *parser, const char *name)
{
    return parser->token.kind == TOKEN_NAME && string_is(parser->token.text, name);
}

bool parser_accept_operator(struct parser *parser, const char *operator)
{
    if (!parser_at_operator(parser, operator)) return false;
    parser_next(parser);
    return true;
}

bool parser_accept_name(struct parser *parser, const char *name)
{
    if (!parser_at_name(parser, name)) return false;
    parser_next(parser);
    return true;
}

void parser_expected(struct parser *parser, const char *what)
{
    const struct token *token = &parser->token;
    if (token->kind == TOKEN_END)
        parser_fail(parser, "expected %s, found the end of the tag", what);
    else
        parser_fail(parser, "expected %s, found '%.*s'", what, (int)(token->text.size < 60 ? token->text.size : 60),
                    token->text.bytes);
}

void parser_expect_operator(struct parser *parser, const char *operator)
{
    if (!parser_accept_operator(parser, operator)) parser_expected(parser, operator);
}

struct string parser_expect_name(struct parser *parser)
{
    const struct string name = parser->token.text;
    if (parser->token.kind != TOKEN_NAME) {
        parser_expected(parser, "a name");
        return string_of("");
    }
    parser_next(parser);
    return name;
}
