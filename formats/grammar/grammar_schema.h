/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a JSON Schema: what the files that read one share. */
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
    uint32_t target_count, target_capacity, flatten_depth;
    uint64_t language_bytes; /* of the automata of strings that are open */
    /* The values of a schema within the one in hand. */
    uint32_t (*node)(struct schema *schema, json_t *value, unsigned depth);
    char path[SCHEMA_PATH_BYTES]; /* JSON pointer of the schema in hand, for messages */
};

/* The documents of a schema, whose own rules are added to the tree. Deletes "$id" of `root`. */
uint32_t schema_document_node(struct tree *tree, json_t *root, uint32_t most_whitespace);

/* Fails with "PATH: ...". Returns TREE_NODE_EMPTY. */
uint32_t schema_fail(struct schema *schema, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "Out of memory", unless the tree has failed already. Returns false. */
bool schema_fail_memory(struct schema *schema);
/* Takes the reference; the value lives as long as the schema. NULL: failed. */
json_t *schema_keep(struct schema *schema, json_t *value);
/* The schema that a reference names; NULL: failed. */
json_t *schema_resolve(struct schema *schema, const json_t *reference);
/* Whether a text stands in a list of `count`. */
bool schema_is_one_of(const char *key, const char *const *list, size_t count);
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
/* Whether it has a keyword that schema_flatten replaces by alternatives: not, if, dependentRequired and others. */
bool schema_has_rewrite(const json_t *value);
/* A list of schemas that allow nothing of what `value` allows, and most else; NULL: failed, also if there is none. `what`: for the message.
 * Borrowed, likewise. */
json_t *schema_complement(struct schema *schema, json_t *value, const char *what);
/* Copy without the keys; NULL: failed. Borrowed, likewise. */
json_t *schema_without(struct schema *schema, json_t *value, const char *const *keys, size_t count);
/* Whether no value is valid for both schemas, as far as can be told from types, constants and names. */
bool schema_disjoint(struct schema *schema, json_t *left, json_t *right);
/* Appends a segment to the path (truncated to fit) and returns where it began. */
size_t schema_enter(struct schema *schema, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reads a length or number of elements, if it is there. */
bool schema_count_of(struct schema *schema, const json_t *value, const char *key, uint32_t *out);
/* The objects of a flat schema. */
uint32_t schema_object_node(struct schema *schema, const json_t *value, unsigned depth);
/* A literal of a JSON value. */
uint32_t schema_literal_node(struct schema *schema, const json_t *value);
/* The order of two numbers, exactly: < 0, 0 or > 0. */
int schema_compare(const json_t *left, const json_t *right);
/* Whether two values are one: 1 and 1.0 are, within arrays and objects, too. */
bool schema_same(const json_t *left, const json_t *right);
/* Whether a type or list of types has that of the value. */
bool schema_type_allows(const json_t *type, const json_t *value);
/* Whether a type or list of types has the name. */
bool schema_type_has(const json_t *type, const char *name);
/* The values of an enum or a constant. */
uint32_t schema_enum_node(struct schema *schema, const json_t *value);
/* Whether the keywords beside type, enum and const allow a value. Returns one that cannot be judged; NULL: there is none. */
const char *schema_allows_value(const json_t *schema, const json_t *value, bool *allowed);
/* An array of least to most different values of `items`, of which there are few. */
uint32_t schema_unique_node(struct schema *schema, json_t *items, uint32_t least, uint32_t most);
/* What a string must be, or must not be. */
enum string_rule_kind { STRING_PATTERN, STRING_FORMAT, STRING_LENGTH, STRING_TEXTS };
enum { STRING_MOST_RULES = 24 };
struct string_rule {
    enum string_rule_kind kind;
    const json_t *value;  /* the pattern, the name of the format, or a list of strings; borrowed */
    uint32_t least, most; /* characters; TREE_UNLIMITED */
    bool is_excluded;
};
/* Strings, with their quotes, that follow all rules. */
uint32_t schema_strings_node(struct schema *schema, const struct string_rule *rules, size_t count);
/* Whether the text does; false also if the tree has failed. */
bool schema_strings_have(struct schema *schema, const struct string_rule *rules, size_t count, const char *text);
/* The rules of a flat schema for strings, appended to rules[*count]; false: it allows none, or the tree has failed. */
bool schema_string_rules(struct schema *schema, const json_t *value, struct string_rule rules[STRING_MOST_RULES],
                         size_t *count);
/* The strings of a flat schema. */
uint32_t schema_string_node(struct schema *schema, const json_t *value);

#endif
