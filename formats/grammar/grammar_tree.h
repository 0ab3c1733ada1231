/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars as expressions: what the readers of schemas and regular expressions build, and grammar_compile.c makes an automaton of. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_TREE_H
#define FORMATS_GRAMMAR_GRAMMAR_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/base/status.h"

enum tree_kind {
    TREE_EMPTY,    /* the empty text */
    TREE_NEVER,    /* no text */
    TREE_LITERAL,  /* bytes[a .. a + b) */
    TREE_CLASS,    /* one character: b sequences of byte ranges, words[a ..) */
    TREE_SEQUENCE, /* b nodes, words[a ..) */
    TREE_CHOICE,   /* b nodes, words[a ..) */
    TREE_REPEAT,   /* node a, b to c times */
    TREE_LIST,     /* b items (struct tree_item), words[a ..), with the node c between two that are present */
    TREE_CALL,     /* rule a */
    TREE_GRAPH,    /* an automaton of c states: b edges (struct tree_edge), words[a ..); it begins in 0 */
};
enum {
    TREE_NODE_EMPTY = 0,
    TREE_NODE_NEVER = 1,
    TREE_MOST_NODES = 1 << 20,
    TREE_MOST_WORDS = 1 << 23,
    TREE_MOST_RANGES = 1024, /* of a set of characters */
    TREE_LAST_CHARACTER = 0x10FFFF,
};
#define TREE_UNLIMITED UINT32_MAX

struct tree_node {
    uint32_t a, b, c;
    uint32_t states; /* of the automaton, about; saturates */
    uint8_t kind;
    bool nullable;
};

struct tree_item {
    uint32_t node, least, most; /* most: TREE_UNLIMITED */
    uint32_t is_last;           /* not 0: where a copy is left out, the list ends */
};

struct tree_edge {
    uint32_t from, low, high; /* bytes */
    uint32_t to;              /* TREE_ACCEPT, with `low` and `high` unused: the text may end in `from` */
};
#define TREE_ACCEPT UINT32_MAX

struct tree_rule {
    uint32_t node;
    char *name; /* owned: for messages */
    bool nullable;
};

/* Functions fail once: from then on they return TREE_NODE_EMPTY, and `status` has the first fault. */
struct tree {
    struct tree_node *nodes;
    uint32_t *words;
    uint8_t *bytes;
    struct tree_rule *rules;
    uint32_t node_count, node_capacity, word_count, word_capacity, byte_count, byte_capacity, rule_count, rule_capacity;
    uint32_t schemas_read; /* of SCHEMA_MOST_READ, and steps of SCHEMA_MOST_MERGED, by all schemas of the tree */
    uint64_t schema_steps;
    bool
        excludes; /* a schema does, by "not", "if" or "oneOf", and with what it excludes other values that cannot be told from it */
    bool failed;
    struct status *status;
};

bool tree_open(struct tree *tree, struct status *status);
void tree_close(struct tree *tree);
/* Fails the tree; the first fault stays. Returns TREE_NODE_EMPTY. */
uint32_t tree_fail(struct tree *tree, enum status_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

uint32_t tree_literal(struct tree *tree, const char *bytes, size_t size);
uint32_t tree_text(struct tree *tree, const char *text); /* NUL-terminated */
uint32_t tree_sequence(struct tree *tree, const uint32_t *nodes, uint32_t count);
uint32_t tree_choice(struct tree *tree, const uint32_t *nodes, uint32_t count);
uint32_t tree_repeat(struct tree *tree, uint32_t node, uint32_t least, uint32_t most);
uint32_t tree_separated(struct tree *tree, const struct tree_item *items, uint32_t count, uint32_t separator);
uint32_t tree_graph(struct tree *tree, const struct tree_edge *edges, uint32_t count, uint32_t states);
/* One of the texts, by their common prefixes. Sorts `texts`. */
struct grammar_text;
uint32_t tree_texts(struct tree *tree, struct grammar_text *texts, uint32_t count);
#define TREE_SEQUENCE_OF(tree, ...) \
    tree_sequence((tree), (uint32_t[]){__VA_ARGS__}, (uint32_t)(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))
#define TREE_CHOICE_OF(tree, ...) \
    tree_choice((tree), (uint32_t[]){__VA_ARGS__}, (uint32_t)(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))

/* A rule without content yet. */
uint32_t tree_rule_add(struct tree *tree, const char *name, bool nullable);
uint32_t tree_call(struct tree *tree, uint32_t rule);

/* A set of characters. It is large: `count` = 0 empties it, and copies take the ranges in use. */
struct tree_range {
    uint32_t low, high;
};
struct tree_set {
    uint32_t count;
    struct tree_range ranges[TREE_MOST_RANGES];
};
void tree_set_add(struct tree *tree, struct tree_set *set, uint32_t low, uint32_t high);
void tree_set_copy(struct tree_set *to, const struct tree_set *from);
void tree_set_normalize(struct tree_set *set); /* sorted, without overlap */
void tree_set_complement(struct tree *tree, struct tree_set *set);
void tree_set_remove(struct tree *tree, struct tree_set *set, uint32_t low, uint32_t high);
bool tree_set_has(const struct tree_set *set, uint32_t character); /* Requires: normalized */
/* One character of the set, in UTF-8; surrogates are left out. */
uint32_t tree_class(struct tree *tree, const struct tree_set *set);

/* Growing array of nodes. */
struct tree_nodes {
    uint32_t *items;
    uint32_t count, capacity;
};
void tree_nodes_add(struct tree *tree, struct tree_nodes *nodes, uint32_t node);
/* Doubles an array that is full. False, with the tree failed: out of memory, or it has `most` elements. */
bool tree_grow(struct tree *tree, void **array, uint32_t *capacity, uint64_t needed, size_t element, uint32_t most);

#endif
