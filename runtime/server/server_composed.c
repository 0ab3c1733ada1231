/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_composed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar.h"
#include "runtime/server/server_calls.h"
#include "runtime/server/server_pattern.h"

/* Parts of a composed grammar (README) are made until memory runs out, or one is refused. */
struct maker {
    const struct server_dialect *dialect;
    const struct server_tools *tools;
    const char *field; /* of the request, that asks for the other format */
    struct server_error *error;
    size_t bytes; /* that the text of all parts has at least */
    bool failed;
};

/* Something of a function keeps the grammar from what its schema says. */
static void refuse(struct maker *maker, const json_t *function, const char *what)
{
    if (!maker->failed)
        server_fail(maker->error, 400, "invalid_value", maker->field,
                    "%s: not with the tool '%s', since this model writes arguments one by one, and there %s; change "
                    "its parameters, or set tool_choice to \"none\", \"required\" or a function",
                    maker->field, json_string_value(json_object_get(function, "name")), what);
    maker->failed = true;
}

/* Ends the work once the source is larger than a grammar may be. */
static void charge(struct maker *maker, size_t bytes)
{
    maker->bytes += bytes;
    if (maker->bytes <= GRAMMAR_MOST_SOURCE_BYTES || maker->failed) return;
    server_fail(maker->error, 400, "invalid_value", maker->field,
                "%s: the grammar of the calls of all tools takes more than %d bytes; expected fewer or smaller tools",
                maker->field, GRAMMAR_MOST_SOURCE_BYTES);
    maker->failed = true;
}

static void add(struct maker *maker, json_t *list, json_t *part)
{
    enum { LEAST_BYTES = 12 }; /* of a part: {"text":"a"} */
    if (!json_add(list, part)) maker->failed = true;
    charge(maker, LEAST_BYTES);
}

static void add_text(struct maker *maker, json_t *list, const char *kind, const char *text, size_t size)
{
    add(maker, list, json_pack("{s:s%}", kind, text, size));
    charge(maker, size);
}

static void add_space(struct maker *maker, json_t *list)
{
    add(maker, list, json_pack("{s:s}", "regex", "[ \\n]{0,2}"));
}

/* A document of a schema, as models write it: with or without a space after a colon or comma. */
static void add_document(struct maker *maker, json_t *list, json_t *schema)
{
    char none;
    if (schema) charge(maker, json_dumpb(schema, &none, 0, JSON_COMPACT | JSON_ENCODE_ANY));
    add(maker, list, json_pack("{s:o, s:i}", "json_schema", schema, "whitespace", 1));
}

/* ---- one call ---- */

/* What stands in the place of an id. Some ids have the name of the function. */
static void add_id(struct maker *maker, json_t *list, const char *pattern, const json_t *function)
{
    if (strstr(pattern, "$name")) {
        add(maker, list, json_pack("{s:s}", "regex", "[0-9A-Za-z]{9}"));
        return;
    }
    add_text(maker, list, "text", "functions.", strlen("functions."));
    add(maker, list, json_pack("{s:O}", "text", json_object_get(function, "name")));
    add(maker, list, json_pack("{s:s}", "regex", ":[0-9]{1,3}"));
}

/* What stands in a header of gpt-oss before the arguments: the channel, unless it comes before the name, and their type. */
static void add_skipped(struct maker *maker, json_t *list, bool is_after_name)
{
    if (!is_after_name) add(maker, list, json_pack("{s:s}", "text", "commentary"));
    add(maker, list, json_pack("{s:[{s:s}, {s:s}]}", "any_of", "text", "", "marker", " <|constrain|>json"));
}

/* Whether a reader that looks for the literal after the text finds the one that ends it. */
static bool is_ended_by(const char *text, const char *literal, size_t size)
{
    const size_t length = strlen(text);
    char *both = malloc(length + size + 1);
    if (!both) return false;
    memcpy(both, text, length);
    memcpy(both + length, literal, size);
    const bool is_end = memmem(both, length + size, literal, size) == both + length;
    free(both);
    return is_end;
}

/* A text that is written as it is. Readers take a line feed at its ends for one that the model put around it. */
static void add_value(struct maker *maker, json_t *texts, const json_t *function, const char *text, const char *end,
                      size_t size)
{
    const size_t length = strlen(text);
    if (!is_ended_by(text, end, size) || text[0] == '\n' || (length && text[length - 1] == '\n'))
        refuse(maker, function, "a string of an enum has the mark that ends it, or begins or ends with a line feed");
    else
        add_text(maker, texts, "text", text, length);
}

/* A property that is written as it is: one of the strings that it may have, or any text. Followed by the literal that ends it. */
static void add_string(struct maker *maker, json_t *list, const json_t *function, const json_t *schema, const char *end,
                       size_t size)
{
    const json_t *values = json_object_get(schema, "enum"), *only = json_object_get(schema, "const"), *value;
    json_t *texts = json_array();
    size_t i;
    if (!texts) maker->failed = true;
    if (json_is_string(only)) add_value(maker, texts, function, json_string_value(only), end, size);
    json_array_foreach (values, i, value)
        if (json_is_string(value)) add_value(maker, texts, function, json_string_value(value), end, size);
    if (json_array_size(texts)) {
        add(maker, list, json_pack("{s:O}", "any_of", texts));
        add_text(maker, list, "marker", end, size);
    } else if (values || only) {
        refuse(maker, function, "the \"enum\" or \"const\" of a string has no string");
    } else {
        add_text(maker, list, "until", end, size);
    }
    json_decref(texts);
}

/* An argument that is written by itself: pattern[size] has $key and $value, and $type in some dialects. */
static void add_argument(struct maker *maker, json_t *list, const char *pattern, size_t size, const json_t *function,
                         const char *key)
{
    const bool is_string = server_calls_is_string(function, key);
    const json_t *schema = json_object_get(json_object_get(json_object_get(function, "parameters"), "properties"), key);
    for (const char *at = pattern, *end = pattern + size; at < end && !maker->failed;) {
        const size_t literal = server_pattern_literal(at), left = (size_t)(end - at);
        const size_t length = literal < left ? literal : left, word = 1 + strspn(at + 1, "abcdefghijklmnopqrstuvwxyz");
        if (length) {
            add_text(maker, list, "marker", at, length);
            at += length;
        } else if (*at == '~') {
            add_space(maker, list);
            at++;
        } else if (at[1] == 'k') {
            add_text(maker, list, "text", key, strlen(key));
            at += word;
            if (!is_ended_by(key, at, server_pattern_literal(at)))
                refuse(maker, function, "the name of a property has the mark that ends it");
        } else if (at[1] == 't') {
            add(maker, list, json_pack("{s:s}", "text", is_string ? "true" : "false"));
            at += word;
        } else {
            at += word;
            const size_t last = server_pattern_literal(at);
            if (is_string) {
                add_string(maker, list, function, schema, at, last);
            } else {
                add(maker, list, json_pack("{s:s}", "regex", "\\n?"));
                add_document(maker, list, server_tools_property_schema(function, key));
                add(maker, list, json_pack("{s:s}", "regex", "\\n?"));
                add_text(maker, list, "marker", at, last);
            }
            at += last;
        }
    }
}

/* Whether it says nothing about values. */
static bool is_note(const char *key)
{
    static const char *const notes[] = {"title",   "description", "default",     "examples", "example",   "$comment",
                                        "$schema", "$defs",       "definitions", "$id",      "deprecated"};
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strcmp(key, notes[i]) == 0) return true;
    return false;
}

/* Refuses a schema with a keyword that is none of the known ones. */
static void check_keywords(struct maker *maker, const json_t *function, const json_t *schema, const char *const *known,
                           const char *place)
{
    const char *key;
    const json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)schema, key, value) {
        bool is_known = is_note(key);
        for (size_t i = 0; known[i]; i++) is_known = is_known || strcmp(key, known[i]) == 0;
        if (is_known) continue;
        char what[160];
        snprintf(what, sizeof what, "'%.40s' of %.80s cannot be enforced", key, place);
        refuse(maker, function, what);
        return;
    }
}

/* Refuses what the arguments would not be bound by. */
static void check_parameters(struct maker *maker, const json_t *function)
{
    static const char *const of_parameters[] = {"type", "properties", "required", "additionalProperties", NULL},
                             *const of_strings[] = {"type", "enum", "const", NULL};
    const json_t *parameters = json_object_get(function, "parameters"),
                 *properties = json_object_get(parameters, "properties"),
                 *required = json_object_get(parameters, "required"), *type = json_object_get(parameters, "type"),
                 *name, *schema;
    const char *key;
    size_t i;
    check_keywords(maker, function, parameters, of_parameters, "the parameters");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0))
        refuse(maker, function, "'type' of the parameters is expected to be \"object\"");
    if ((properties && !json_is_object(properties)) || (required && !json_is_array(required)))
        refuse(maker, function, "'properties' is expected to be an object, and 'required' an array");
    if (json_object_size(properties) > SERVER_MOST_ARGUMENTS) {
        char what[80];
        snprintf(what, sizeof what, "at most %d are read", SERVER_MOST_ARGUMENTS);
        refuse(maker, function, what);
    }
    json_array_foreach (required, i, name)
        if (!json_is_string(name) || !json_object_get(properties, json_string_value(name)))
            refuse(maker, function, "a name in 'required' is expected to be one of 'properties'");
    json_object_foreach ((json_t *)(uintptr_t)properties, key, schema) {
        if (!server_calls_is_string(function, key)) continue;
        check_keywords(maker, function, schema, of_strings, key);
        if (json_object_get(schema, "enum") && json_object_get(schema, "const"))
            refuse(maker, function, "'const' beside 'enum' of a string cannot be enforced");
    }
}

/* Whether the model writes arguments one by one. */
static bool has_single_arguments(const struct server_dialect *dialect)
{
    for (size_t i = 0; dialect->patterns[i]; i++)
        if (strstr(dialect->patterns[i], "$key")) return true;
    return false;
}

static void check_tools(struct maker *maker)
{
    for (size_t i = 0; i < json_array_size(maker->tools->list) && has_single_arguments(maker->dialect); i++)
        check_parameters(maker, json_object_get(json_array_get(maker->tools->list, i), "function"));
}

/* The arguments in the order of the schema, of which those that it does not require may be absent. */
static void add_arguments(struct maker *maker, json_t *list, const char *pattern, size_t size, const json_t *function)
{
    const json_t *parameters = json_object_get(function, "parameters"),
                 *required = json_object_get(parameters, "required");
    const char *key;
    json_t *property;
    json_object_foreach (json_object_get(parameters, "properties"), key, property) {
        if (maker->failed) return;
        bool needed = false;
        for (size_t i = 0; i < json_array_size(required); i++) {
            const char *name = json_string_value(json_array_get(required, i));
            needed = needed || (name && strcmp(name, key) == 0);
        }
        json_t *sequence = json_array();
        if (!sequence) maker->failed = true;
        add_space(maker, sequence);
        add_argument(maker, sequence, pattern, size, function, key);
        add(maker, list,
            json_pack("{s:{s:o}, s:i, s:i}", "repeat", "sequence", sequence, "least", needed ? 1 : 0, "most", 1));
    }
}

/* Objects or arrays of calls with their names. */
static void add_calls(struct maker *maker, json_t *list)
{
    json_t *choices = json_array();
    for (int is_array = 0; is_array < 2; is_array++)
        add_document(maker, choices, server_tools_calls_schema(maker->tools, maker->dialect->name, is_array));
    add(maker, list, json_pack("{s:o}", "any_of", choices));
}

/* ---- patterns ---- */

static json_t *unit(struct maker *maker, const char *pattern, const char *begin, const char *end);

/* The bracket "$)" that belongs to the "$(" at `at`. */
static const char *closing_bracket(const char *at) { return at + server_pattern_other_bracket(at, 0); }

static bool has(const char *begin, const char *end, const char *word)
{
    return memmem(begin, (size_t)(end - begin), word, strlen(word)) != NULL;
}

/* The elements of a part of `pattern`, with calls of the function; NULL: the part has several calls, each within brackets. */
static void add_elements(struct maker *maker, json_t *list, const char *pattern, const char *begin, const char *end,
                         const json_t *function)
{
    for (const char *at = begin; at < end && !maker->failed;) {
        const size_t literal = server_pattern_literal(at), left = (size_t)(end - at);
        const size_t length = literal < left ? literal : left;
        if (length) {
            add_text(maker, list, "marker", at, length);
            at += length;
            continue;
        }
        if (strncmp(at, "$(", 2) == 0) {
            const char *close = closing_bracket(at);
            if (has(at, close, "$!")) {
                json_t *call = json_pack("{s:[{s:s}, o]}", "sequence", "regex", "[ \\n]{0,2}",
                                         unit(maker, pattern, at + 2, close));
                add(maker, list,
                    maker->tools->one_call ? json_incref(call) : json_pack("{s:O, s:i}", "repeat", call, "least", 1));
                json_decref(call);
            } else {
                add_arguments(maker, list, at + 2, (size_t)(close - at - 2), function);
            }
            add_space(maker, list);
            at = close + 2;
            continue;
        }
        const bool is_after_name = at - begin >= 5 && memcmp(at - 5, "$name", 5) == 0;
        if (*at == '~' && is_after_name) /* which ends there */
            add(maker, list, json_pack("{s:s}", "regex", "[ \\n]"));
        else if (*at == '~')
            add_space(maker, list);
        else if (strncmp(at, "$name", 5) == 0)
            add(maker, list, json_pack("{s:O}", "text", json_object_get(function, "name")));
        else if (strncmp(at, "$id", 3) == 0)
            add_id(maker, list, pattern, function);
        else if (strncmp(at, "$skip", 5) == 0)
            add_skipped(maker, list, is_after_name);
        else if (strncmp(at, "$args", 5) == 0)
            add_document(maker, list, server_tools_schema(function));
        else if (strncmp(at, "$calls", 6) == 0)
            add_calls(maker, list);
        /* "$!" is nothing; a letter after '$' begins a word. */
        const size_t word = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz");
        at += *at == '~' ? 1 : word ? 1 + word : 2;
    }
}

static json_t *sequence_of(struct maker *maker, const char *pattern, const char *begin, const char *end,
                           const json_t *function)
{
    json_t *list = json_array();
    if (!list) maker->failed = true;
    add_elements(maker, list, pattern, begin, end, function);
    return json_pack("{s:o}", "sequence", list);
}

/* A part of a pattern that is one call, of any of the tools. */
static json_t *unit(struct maker *maker, const char *pattern, const char *begin, const char *end)
{
    /* Brackets within it may have the calls, and "$calls" the names. */
    const char *open = memmem(begin, (size_t)(end - begin), "$(", 2);
    if (has(begin, end, "$calls") || (open && has(open, closing_bracket(open), "$!")))
        return sequence_of(maker, pattern, begin, end, NULL);
    json_t *choices = json_array();
    for (size_t i = 0; i < json_array_size(maker->tools->list) && !maker->failed; i++)
        add(maker, choices,
            sequence_of(maker, pattern, begin, end,
                        json_object_get(json_array_get(maker->tools->list, i), "function")));
    return json_pack("{s:o}", "any_of", choices);
}

/* The patterns of the dialect that have calls, as one part; those that match only the beginning of an answer if `starts`. */
static json_t *patterns_part(struct maker *maker, bool starts)
{
    json_t *choices = json_array();
    for (size_t i = 0; maker->dialect->patterns[i]; i++) {
        const char *pattern = maker->dialect->patterns[i];
        const bool is_start = pattern[0] == '^';
        if (!strstr(pattern, "$!") || (is_start && !starts)) continue;
        pattern += is_start;
        add(maker, choices, unit(maker, pattern, pattern, pattern + strlen(pattern)));
    }
    if (json_array_size(choices)) return json_pack("{s:o}", "any_of", choices);
    json_decref(choices);
    return NULL;
}

static json_t *calls_part(struct maker *maker)
{
    json_t *first = patterns_part(maker, true), *more = maker->tools->one_call ? NULL : patterns_part(maker, false);
    if (!more) return first;
    return json_pack("{s:[o, {s:{s:[{s:s}, o]}}]}", "sequence", first, "repeat", "sequence", "regex", "[ \\n]{0,2}",
                     more);
}

/* ---- the other format ---- */

static json_t *choices_part(struct maker *maker, const json_t *list)
{
    json_t *texts = json_array();
    size_t i;
    const json_t *text;
    json_array_foreach (list, i, text) add(maker, texts, json_pack("{s:O}", "text", text));
    return json_pack("{s:o}", "any_of", texts);
}

/* NULL: the text of the format is not JSON, or there is no memory. */
static json_t *format_part(struct maker *maker, const struct server_format *format, struct server_error *error)
{
    struct status status = {0};
    if (format->kind == ENG_GRAMMAR_JSON_OBJECT) return json_pack("{s:{s:s}}", "json_schema", "type", "object");
    if (format->kind == ENG_GRAMMAR_REGEX) return json_pack("{s:s%}", "regex", format->text, format->size);
    json_t *value = json_parse(format->text, format->size, format->field, &status), *part = NULL;
    if (!value)
        server_fail_status(error, format->field, &status);
    else if (format->kind == ENG_GRAMMAR_CHOICES)
        part = choices_part(maker, value);
    else
        part = json_pack("{s:O}", "json_schema", value);
    json_decref(value);
    return part;
}

/* Whether a pattern of the dialect with calls has nothing but what a grammar here can say. */
static bool is_composable(const struct server_dialect *dialect)
{
    bool has_calls = false;
    /* Its calls begin with the token that ends its answers. */
    if (strcmp(dialect->name, "gigachat-3") == 0) return false;
    for (size_t i = 0; dialect->patterns[i]; i++) {
        if (strstr(dialect->patterns[i], "$python") || strstr(dialect->patterns[i], "$gemma")) return false;
        has_calls = has_calls || strstr(dialect->patterns[i], "$!");
    }
    return has_calls;
}

bool server_composed_format(const struct server_dialect *dialect, const struct server_tools *tools,
                            struct server_format *format, struct server_error *error)
{
    struct maker maker = {.dialect = dialect, .tools = tools, .field = format->field, .error = error};
    if (!is_composable(dialect))
        return server_fail(error, 400, "invalid_value", format->field,
                           "%s: not with tools, since no grammar describes how this model writes calls (as %s does); "
                           "leave out tools, or set tool_choice to \"none\", \"required\" or a function",
                           format->field, dialect->name);
    check_tools(&maker);
    if (maker.failed) return false;
    json_t *other = format_part(&maker, format, error);
    if (!other) return error->http ? false : server_fail_memory(error);
    json_t *calls = calls_part(&maker), *whole = json_pack("{s:[o, o]}", "any_of", calls, other);
    char *text = whole && !maker.failed ? json_format(whole, JSON_COMPACT) : NULL;
    json_decref(whole);
    if (!text) return error->http ? false : server_fail_memory(error);
    free(format->text);
    format->kind = ENG_GRAMMAR_COMPOSED;
    format->text = text;
    format->size = strlen(text);
    return true;
}
