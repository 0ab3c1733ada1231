/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a JSON Schema: what grammar_schema.c, grammar_merge.c and grammar_json.c share. */
#ifndef FORMATS_GRAMMAR_GRAMMAR_SCHEMA_H
#define FORMATS_GRAMMAR_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "formats/grammar/grammar_tree.h"

enum {
    SCHEMA_MOST_DEPTH = 100,      /* schemas within schemas */
    SCHEMA_MOST_READ = 1 << 17,   /* schemas that are read, each as often as it is merged or repeated */
    SCHEMA_MOST_MERGED = 1 << 24, /* keys that are copied, and values that are compared, while schemas are merged */
    SCHEMA_PATH_BYTES = 300,
};

/* The parts that all JSON grammars have. */
struct json_parts {
    struct tree *tree;
    uint32_t space; /* white space, as much as the options allow */
    uint32_t string_rule, value_rule;
    bool has_string, has_value;
};
void json_parts_open(struct json_parts *parts, struct tree *tree, uint32_t most_whitespace);
uint32_t json_string_node(struct json_parts *parts);
uint32_t json_number_node(struct json_parts *parts);
uint32_t json_integer_node(struct json_parts *parts);
uint32_t json_value_node(struct json_parts *parts);
/* One character of a string of bounded length. */
uint32_t json_character_node(struct json_parts *parts);
uint32_t json_colon_node(struct json_parts *parts);
/* Members or elements between brackets. */
uint32_t json_brackets_node(struct json_parts *parts, const char *open, const struct tree_item *items, uint32_t count,
                            const char *close);
/* A member whose name is none of `names` [count], and needs no escape. */
uint32_t json_other_name_node(struct json_parts *parts, const char *const *names, uint32_t count);

struct schema {
    struct tree *tree;
    struct json_parts parts;
    json_t *root; /* borrowed */
    json_t *made; /* array of the merged schemas, which stay until the end */
    struct schema_target {
        const json_t *schema;
        uint32_t rule;
    } * targets; /* of references, each once */
    uint32_t target_count, target_capacity, read_count, flatten_depth;
    uint64_t merged_count;
    char path[SCHEMA_PATH_BYTES]; /* JSON pointer of the schema in hand, for messages */
};

/* The documents of a schema, whose own rules are added to the tree. Deletes "$id" of `root`. */
uint32_t schema_document_node(struct tree *tree, json_t *root, uint32_t most_whitespace);

/* Fails with "PATH: ...". Returns TREE_NODE_EMPTY. */
uint32_t schema_fail(struct schema *schema, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The schema that a reference names; NULL: failed. */
json_t *schema_resolve(struct schema *schema, const json_t *reference);
/* Whether a keyword says nothing about which values are valid. */
bool schema_is_annotation(const char *key);
/* Whether it has a keyword that is neither an annotation nor one of the exceptions. */
bool schema_has_assertion(const json_t *value, const char *const *except, size_t count);
/* Counts steps of work on schemas that apply together; false: there are too many, and the tree has failed. */
bool schema_charge(struct schema *schema, uint64_t steps);
/* A schema that is valid where both are; NULL: failed. Borrowed: it lives as long as `schema`. References at its top are resolved. */
json_t *schema_merge(struct schema *schema, json_t *left, json_t *right);
/* The schema without references, allOf at its top; NULL: failed. Borrowed, likewise. */
json_t *schema_flatten(struct schema *schema, json_t *value);
/* Copy without the keys; NULL: failed. Borrowed, likewise. */
json_t *schema_without(struct schema *schema, json_t *value, const char *const *keys, size_t count);
/* Whether no value is valid for both schemas, as far as can be told from types, constants and names. */
bool schema_disjoint(struct schema *schema, json_t *left, json_t *right);

#endif
