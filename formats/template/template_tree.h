/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed template. Private to this folder. */
#ifndef FORMATS_TEMPLATE_TEMPLATE_TREE_H
#define FORMATS_TEMPLATE_TEMPLATE_TREE_H

#include "formats/template/template_value.h"

enum node_kind {
    /* Expressions. */
    NODE_CONSTANT,  /* constant */
    NODE_NAME,      /* text */
    NODE_LIST,      /* list: items */
    NODE_TUPLE,     /* likewise */
    NODE_DICT,      /* list: NODE_PAIR */
    NODE_PAIR,      /* a: b */
    NODE_ATTRIBUTE, /* a.text */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a[b:c:d], each may be NULL */
    NODE_CALL,      /* a(list of NODE_ARGUMENT) */
    NODE_ARGUMENT,  /* a; text: its name, "*" and "**" for unpacked ones, empty: positional */
    NODE_FILTER,    /* a | text(list); a NULL: the text of a block */
    NODE_TEST,      /* a is text(list) */
    NODE_CONDITION, /* b if a else c, which may be NULL */
    NODE_OR,
    NODE_AND,
    NODE_NOT,
    NODE_COMPARE, /* a, then list of NODE_OPERAND: each compares the one before it */
    NODE_OPERAND, /* operator a */
    NODE_BINARY,  /* a operator b */
    NODE_NEGATIVE,
    NODE_POSITIVE,
    /* Statements. */
    NODE_TEXT,         /* text */
    NODE_OUTPUT,       /* a */
    NODE_IF,           /* a: body, else other */
    NODE_FOR,          /* a in b if c (may be NULL): body, else other */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = body, through filter b (may be NULL) */
    NODE_MACRO,        /* text(list of NODE_PARAMETER): body */
    NODE_PARAMETER,    /* text, default a (may be NULL) */
    NODE_CALL_BLOCK,   /* the call a, whose caller is the macro of list and body */
    NODE_FILTER_BLOCK, /* body through filter a */
    NODE_WITH,         /* list of NODE_SET: body, with names of its own */
    NODE_BLOCK,        /* body, which sees only names of the whole template */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum operator_id {
    OPERATOR_ADD,
    OPERATOR_SUBTRACT,
    OPERATOR_MULTIPLY,
    OPERATOR_DIVIDE,
    OPERATOR_FLOOR_DIVIDE,
    OPERATOR_MODULO,
    OPERATOR_POWER,
    OPERATOR_CONCATENATE,
    OPERATOR_EQUAL,
    OPERATOR_NOT_EQUAL,
    OPERATOR_BELOW,
    OPERATOR_AT_MOST,
    OPERATOR_ABOVE,
    OPERATOR_AT_LEAST,
    OPERATOR_IN,
    OPERATOR_NOT_IN
};

/* ---- template_arithmetic.c: operators with Python's meaning; they fail for operands that have none ---- */

struct value value_binary(struct render *render, enum operator_id operation, const struct value *a,
                          const struct value *b);
bool value_compares(struct render *render, enum operator_id operation, const struct value *a, const struct value *b);
void render_fail_operands(struct render *render, const char *sign, const struct value *a, const struct value *b);
/* of[begin:end:step], where NULL is an absent bound. */
struct value value_slice(struct render *render, const struct value *of, const struct value *begin,
                         const struct value *end, const struct value *step);

struct node {
    enum node_kind kind;
    enum operator_id operation;
    int line;
    bool uses_loop, is_recursive;                /* of a loop */
    bool uses_caller, uses_varargs, uses_kwargs; /* of a macro's body */
    struct string text;
    struct value constant;
    struct node *a, *b, *c, *d;
    struct node *list, *body, *other;
    struct node *next;
};

struct template
{
    struct render memory; /* of nodes and constants */
    struct node *body;
    char *source; /* owned */
    struct status unused;
};

#endif
