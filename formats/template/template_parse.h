/* SPDX-License-Identifier: Apache-2.0 */
/* The parser's state, tokens of a tag (template_tokens.c) and expressions (template_expressions.c), for the grammar of statements
 * (template_parse.c). Not for threads to share. After a failure functions return, and what they return is not used. */
#ifndef FORMATS_TEMPLATE_TEMPLATE_PARSE_H
#define FORMATS_TEMPLATE_TEMPLATE_PARSE_H

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
    int line, depth, brackets;
    int loop_names, caller_names, varargs_names, kwargs_names; /* uses of these names up to here */
    bool trims, in_tag;
    struct token token; /* the current one, in a tag */
    struct string name; /* of the tag that ended a body */
};

struct node_chain {
    struct node *first, **end;
};

/* Fails with the line and this message; the first failure stays. */
void parser_fail(struct parser *parser, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool parser_has_failed(const struct parser *parser);
/* Never NULL: nodes of a parser that failed are written and not read. They belong to the template. */
struct node *parser_node(struct parser *parser, enum node_kind kind);
/* One level of nesting more; fails above TEMPLATE_MOST_DEPTH. */
void parser_enter(struct parser *parser);
void node_chain_add(struct node_chain *chain, struct node *node);

/* Passes over `bytes`, which the text has, and counts lines. */
void parser_advance(struct parser *parser, size_t bytes);
bool parser_is_decimal(char c);
/* Bytes of the tag's end, "%}" or "}}", or one with a sign before it; 0: none here. */
size_t parser_tag_end(const struct parser *parser, bool is_block);
/* Reads the next token of the tag; at its end, a TOKEN_END. */
void parser_next(struct parser *parser);
bool parser_at_operator(const struct parser *parser, const char *operator);
bool parser_at_name(const struct parser *parser, const char *name);
/* Passes over the token if it is this one. */
bool parser_accept_operator(struct parser *parser, const char *operator);
bool parser_accept_name(struct parser *parser, const char *name);
/* Fails: this was expected instead of the current token. */
void parser_expected(struct parser *parser, const char *what);
void parser_expect_operator(struct parser *parser, const char *operator);
struct string parser_expect_name(struct parser *parser);

/* ---- expressions ---- */

/* True, False and None, which no target of an assignment may be. */
bool parser_constant_name(struct string name, struct value *value);

struct node *parser_expression(struct parser *parser);
/* Expressions with commas between them are a tuple. `with_condition`: each may be "a if b else c". */
struct node *parser_tuple(struct parser *parser, bool with_condition);
/* The filter that follows "|", applied to `of`. */
struct node *parser_filter(struct parser *parser, struct node *of);

#endif
