/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a template while it runs, as Python has them, and the memory that holds them until it ends. Private to this folder. */
#ifndef FORMATS_TEMPLATE_TEMPLATE_VALUE_H
#define FORMATS_TEMPLATE_TEMPLATE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/template/template.h"

enum value_kind {
    VALUE_UNDEFINED, /* text: the name that is not defined, for messages */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INTEGER,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_GENERATOR, /* a list that has no length and is no JSON; items that are taken are gone */
    VALUE_RANGE,     /* a list that is no JSON; object: how it prints */
    VALUE_VIEW,      /* keys, values or items of a dictionary: a list that is no JSON; object: the name of its type */
    VALUE_DICT,
    VALUE_NAMESPACE, /* a dictionary whose items are attributes that may be set */
    VALUE_LOOP,      /* a dictionary whose items are attributes */
    VALUE_MACRO,
    VALUE_METHOD,   /* of an object: name and object */
    VALUE_FUNCTION, /* global: name; object: its state */
};

/* UTF-8 bytes. `foreign`: for each byte whether it comes from variables; NULL: none does. */
struct string {
    const char *bytes;
    const uint8_t *foreign;
    size_t size;
};

struct value {
    enum value_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct string string; /* also names of methods and functions, and of undefined values */
        struct list *list;
        struct dict *dict;
        struct macro *macro;
    };
    const struct value *object; /* of a method */
    bool is_markup;             /* a string that escapes text added to it (filter safe) */
    bool is_group;              /* a tuple whose items are also called grouper and list */
    bool is_unsafe;             /* an undefined value: an attribute that the sandbox refuses */
};

struct list {
    struct value *items;
    size_t count, capacity;
};

/* In the order in which keys were added. `slots`: open addressing over the entries, for dictionaries that are not small. */
struct dict {
    struct value *keys, *values;
    size_t count, capacity;
    uint32_t *slots;
    size_t slot_count;
};

struct block {
    struct block *next;
    size_t used, size;
};

/* A run of a template. Once something failed, every function returns at once, and its result means nothing. */
struct render {
    const struct template *template;
    struct block *blocks;
    size_t memory;
    uint64_t steps;
    int depth;
    bool failed;
    const struct tm *now;
    struct status *status;
};

/* Memory that lasts as long as the run, aligned for any value. NULL after a failure. */
void *render_take(struct render *render, size_t bytes);
/* Counts steps; false at the bound. */
bool render_step(struct render *render, size_t bytes);
void render_free(struct render *render);
/* Fails; all but the first message are dropped. */
void render_fail(struct render *render, const char *format, ...) __attribute__((format(printf, 2, 3)));
void render_fail_undefined(struct render *render, const struct value *undefined);
void render_fail_bound(struct render *render, const char *what);

/* ---- texts that are being made ---- */

struct builder {
    struct render *render;
    char *bytes;
    uint8_t *foreign;
    size_t size, capacity, most;
};

void builder_open(struct builder *builder, struct render *render);
void builder_add(struct builder *builder, struct string part);
void builder_add_bytes(struct builder *builder, const char *bytes, size_t size, bool foreign);
void builder_add_text(struct builder *builder, const char *text);
struct value builder_value(const struct builder *builder);

/* ---- strings ---- */

struct string string_of(const char *text); /* text that outlives the run */
struct string string_part(struct string whole, size_t first, size_t last);
bool string_is(struct string string, const char *text);
bool string_equal(struct string a, struct string b);
int string_compare(struct string a, struct string b);
/* The first place from `from` on, SIZE_MAX: none. */
size_t string_find(struct string in, struct string what, size_t from);
size_t string_length(struct string string); /* characters */
/* The byte at which character `index` begins, or the size. */
size_t string_offset(struct string string, size_t index);
/* Bytes of the line break at `at`, as str.splitlines has them; 0: none is there. */
size_t string_line_break(struct string in, size_t at);
/* Decodes the character at `at`; returns its bytes. */
size_t string_character(struct string string, size_t at, uint32_t *character);
size_t string_encode(uint32_t character, char bytes[4]);
bool character_is_space(uint32_t character);
bool character_is_printable(uint32_t character);
/* Sides: bit 0 the left end, bit 1 the right. `set`: characters; NULL: white space. */
struct string string_strip(struct string string, const struct string *set, int sides);

/* ---- values ---- */

struct value value_undefined(struct render *render, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct value value_none(void);
struct value value_bool(bool boolean);
struct value value_integer(int64_t integer);
struct value value_float(double real);
struct value value_string(struct string string);
struct value value_text(const char *text); /* that outlives the run */
struct value value_list(struct render *render, enum value_kind kind);
struct value value_dict(struct render *render, enum value_kind kind);
void list_add(struct render *render, struct list *list, struct value item);
/* Removes the first item; there is one. */
struct value list_take(struct list *list);
void dict_set(struct render *render, struct dict *dict, struct value key, struct value item);
const struct value *dict_find(struct render *render, const struct dict *dict, struct value key);
const struct value *dict_find_text(struct render *render, const struct dict *dict, const char *key);

struct value value_of_json(struct render *render, const json_t *json, bool foreign);
/* The roles of messages in variables count as the template's own where they are words: many templates make special tokens of
 * them, such as '<|' + message.role + '|>'. */
void value_own_roles(struct render *render, const struct value *variables);

bool value_is_list(const struct value *value);                      /* any kind of list */
bool value_is_sequence(const struct value *value);                  /* a list, tuple or range */
bool value_is_number(const struct value *value);                    /* also a boolean, as in Python */
bool value_is_integer(const struct value *value, int64_t *integer); /* likewise */
bool value_is_hashable(struct render *render,
                       const struct value *value); /* as the key of a dictionary; fails otherwise */
double value_real(const struct value *value);
bool value_truth(const struct value *value);
bool value_equal(struct render *render, const struct value *a, const struct value *b);
/* Below, equal, above: -1, 0, 1. Fails for kinds that have no order. `operator`: for the message. */
int value_order(struct render *render, const struct value *a, const struct value *b, const char *operator);
bool value_contains(struct render *render, const struct value *in, const struct value *what);
/* Items of anything that can be walked; characters of strings, keys of dictionaries. A generator loses them. */
struct list *value_items(struct render *render, const struct value *value);
const char *value_type(const struct value *value); /* Python's name */

/* ---- template_print.c ---- */

void builder_add_value(struct builder *builder, const struct value *value);          /* str() */
void builder_add_representation(struct builder *builder, const struct value *value); /* repr() */
struct string value_str(struct render *render, const struct value *value);

/* ---- template_json.c: json.dumps with ensure_ascii=False ---- */

struct json_style {
    int64_t indent; /* negative: one line */
    struct string indent_text, item_separator, key_separator;
    bool ensure_ascii, sort_keys;
};
void builder_add_json(struct builder *builder, const struct value *value, const struct json_style *style, int depth);

/* ---- template_functions.c ---- */

struct arguments;

/* A loop with its functions, and without its other attributes. */
struct value loop_new(struct render *render);
/* None: there is none of that name. */
struct value function_find(struct string name);
struct value function_call(struct render *render, const struct value *function, const struct arguments *arguments);

/* ---- calls: template_filters.c, template_tests.c, template_methods.c ---- */

struct arguments {
    struct value *positional;
    size_t count;
    struct string *names;
    struct value *named;
    size_t named_count;
};

/* The argument at `index` or called `name`; NULL: neither. */
const struct value *argument(const struct arguments *arguments, size_t index, const char *name);
/* Fails, naming the first argument that is unknown. `names`: of all arguments, separated by spaces. */
bool arguments_check(struct render *render, const struct arguments *arguments, const char *callee, const char *names);

struct value filter_apply(struct render *render, struct string name, struct value value,
                          const struct arguments *arguments);
bool test_apply(struct render *render, struct string name, const struct value *value,
                const struct arguments *arguments);
/* The method of that name; false: there is none. Methods that would change the object are undefined. */
bool method_find(struct render *render, const struct value *object, struct string name, struct value *method);
struct value method_call(struct render *render, const struct value *method, const struct arguments *arguments);
/* value.name (attributes first) and value[key] (items first), as the environment of jinja2 has them. */
struct value value_attribute(struct render *render, const struct value *value, struct string name);
struct value value_item(struct render *render, const struct value *value, const struct value *key);
/* format % arguments, as Python's. */
struct value string_percent(struct render *render, struct string format, const struct value *arguments);
/* format.format(arguments), likewise. */
struct value string_format(struct render *render, struct string format, const struct arguments *arguments);
struct string string_replace(struct render *render, struct string in, struct string old, struct string new,
                             int64_t count);
struct string string_case(struct render *render, struct string in, const char *method);
/* For HTML, as markupsafe.escape. */
struct string string_escape(struct render *render, struct string in);

#endif
