/* SPDX-License-Identifier: Apache-2.0 */
/* Strings of a schema. Where several rules hold, or negated ones, they are the product of the rules' determinised automata. Every
 * character of a string is written in one way here, so that what a negated rule excludes cannot come with other escapes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/grammar/grammar_regex.h"
#include "formats/grammar/grammar_schema.h"
#include "formats/grammar/grammar_sets.h"
#include "formats/tokenizer/tokenizer_text.h"

enum {
    MOST_PRODUCT_STATES = 1 << 13,
    LANGUAGE_STEPS = 256, /* that an automaton costs before its states do */
};

/* Formats whose texts need no escape in JSON. */
static const struct {
    const char *name, *regex;
} formats[] = {
/* RFC 3339 has a year 0000, but many readers do not. */
#define YEAR      "(0{3}[1-9]|0{2}[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])" \
    ")"                                                                                                                \
    "|" LEAP_YEAR "-02-29)"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    /* At most 62 bytes before the sign (RFC 5321: 64), and labels of at most 20. */
    {"email", ATOM "(\\." ATOM "){0,2}@([A-Za-z0-9]([A-Za-z0-9-]{0,18}[A-Za-z0-9])?\\.){1,4}[A-Za-z]{2,20}"},
    {"ipv4", BYTE "(\\." BYTE "){3}"},
    {"hostname", LABEL "(\\." LABEL "){0,2}"},
#define GROUP "[0-9a-fA-F]{1,4}"
    {"ipv6", "(" GROUP ":){7}" GROUP "|(" GROUP ":){1,6}:" GROUP "|(" GROUP ":){1,5}(:" GROUP "){2}|(" GROUP
             ":){1,4}(:" GROUP "){3}|(" GROUP ":){1,3}(:" GROUP "){4}|(" GROUP ":){1,2}(:" GROUP "){5}|" GROUP
             ":(:" GROUP "){6}|:(:" GROUP "){1,7}|::"},
    /* A date, a time or both, without weeks; at least one of the parts of each. */
    {"duration", "P([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}D)"
                 "(T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))?"
                 "|PT([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)"
                 "|P[0-9]{1,6}W"},
#define SEGMENT "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})*"
    {"uri", "(https?|ftp)://" LABEL "(\\." LABEL "){0,4}(:[0-9]{1,4})?(/" SEGMENT ")*(\\?" SEGMENT ")?(#" SEGMENT ")?"},
};

static uint32_t format_node(struct schema *schema, struct tree *tree, const json_t *format)
{
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return regex_node(tree, formats[i].regex, strlen(formats[i].regex), REGEX_WHOLE, name);
    return schema_fail(schema,
                       "'format' %.60s is not supported; expected date, time, date-time, duration, uuid, email, "
                       "hostname, ipv4, ipv6 or uri",
                       name ? name : json_type_name(format));
}

/* ---- languages ---- */

struct language {
    struct grammar *grammar;
    struct sets sets;
    uint64_t counted; /* bytes of both, as part of schema.language_bytes */
    uint32_t begin;
    bool is_excluded;
};

/* After each step of a language's sets. One that lost items would allow what it excludes. */
static bool check_language(struct schema *schema, struct language *language, const struct status *status)
{
    const uint64_t bytes = language->sets.bytes + grammar_bytes(language->grammar);
    schema->language_bytes += bytes - language->counted;
    language->counted = bytes;
    if (language->sets.failed && status->code == STATUS_MACHINE) return schema_fail_memory(schema);
    if (language->sets.failed || language->sets.dropped || schema->language_bytes > GRAMMAR_MOST_CACHE_BYTES)
        schema_fail(schema, "the rules for a string are too complex together; expected simpler patterns");
    return schema_charge(schema, language->sets.work) && !schema->tree->failed;
}

static uint32_t next_set(struct schema *schema, struct language *language, uint32_t set, uint8_t byte)
{
    struct status status = {0};
    sets_enter(&language->sets, &status);
    const uint32_t next = sets_next(&language->sets, set, language->grammar->byte_class[byte]);
    return check_language(schema, language, &status) ? next : SETS_DEAD;
}

/* Any character but U+0000. */
static uint32_t character_node(struct tree *tree)
{
    struct tree_set *set = calloc(1, sizeof *set);
    if (!set) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    tree_set_add(tree, set, 1, TREE_LAST_CHARACTER);
    const uint32_t node = regex_json_class(tree, set);
    free(set);
    return node;
}

/* The inside of a JSON string with the text, owned; NULL: out of memory. */
static char *spell(const char *text)
{
    char *out = malloc(strlen(text) * (REGEX_SPELLING_BYTES - 2) + REGEX_SPELLING_BYTES), *at = out;
    for (uint32_t character; out && *text;) {
        text += text_read(text, &character);
        at += regex_json_spelling(character, at);
    }
    if (out) *at = '\0';
    return out;
}

static uint32_t texts_node(struct tree *tree, const json_t *list)
{
    struct tree_nodes choices = {0};
    uint32_t node = TREE_NODE_NEVER;
    for (size_t i = 0; i < json_array_size(list) && !tree->failed; i++) {
        char *text = spell(json_string_value(json_array_get(list, i)));
        if (text)
            tree_nodes_add(tree, &choices, tree_text(tree, text));
        else
            tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
        free(text);
    }
    if (!tree->failed && choices.count) node = tree_choice(tree, choices.items, choices.count);
    free(choices.items);
    return node;
}

static uint32_t rule_node(struct schema *schema, struct tree *tree, const struct string_rule *rule)
{
    char where[STATUS_MESSAGE_BYTES];
    switch (rule->kind) {
    case STRING_TEXTS: return texts_node(tree, rule->value);
    case STRING_LENGTH: return tree_repeat(tree, character_node(tree), rule->least, rule->most);
    case STRING_FORMAT: return format_node(schema, tree, rule->value);
    case STRING_PATTERN: break;
    }
    snprintf(where, sizeof where, "JSON Schema: '%s': pattern", schema->path);
    return regex_node(tree, json_string_value(rule->value), json_string_length(rule->value), REGEX_JSON, where);
}

static bool open_language(struct schema *schema, const struct string_rule *rule, struct language *language)
{
    struct tree tree;
    struct status status = {0};
    *language = (struct language){.is_excluded = rule->is_excluded};
    bool ok = tree_open(&tree, &status) && !schema->tree->failed;
    if (ok) tree_rule_add(&tree, "string", false);
    const uint32_t node = ok ? rule_node(schema, &tree, rule) : TREE_NODE_EMPTY;
    ok = ok && !tree.failed && !schema->tree->failed;
    if (ok) tree.rules[0].node = node;
    if (ok) language->grammar = automaton_compile(&tree, "a rule of strings");
    tree_close(&tree);
    sets_enter(&language->sets, &status);
    if (ok && language->grammar) {
        if (sets_open(&language->sets, language->grammar)) language->begin = sets_begin(&language->sets);
        return check_language(schema, language, &status) &&
               schema_charge(schema, LANGUAGE_STEPS + language->grammar->state_count);
    }
    tree_fail(schema->tree, status.code ? status.code : STATUS_MACHINE, "%s",
              status.code ? status.message : "JSON Schema: out of memory");
    return false;
}

static void close_languages(struct schema *schema, struct language *languages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        schema->language_bytes -= languages[i].counted;
        sets_close(&languages[i].sets);
        grammar_close(languages[i].grammar);
    }
    free(languages);
}

/* The rules, and that of all strings, whose automaton comes first; NULL: failed. */
static struct language *open_languages(struct schema *schema, const struct string_rule *rules, size_t count)
{
    const struct string_rule all = {.kind = STRING_LENGTH, .most = TREE_UNLIMITED};
    struct language *languages = calloc(count + 1, sizeof *languages);
    if (!languages) {
        schema_fail_memory(schema);
        return NULL;
    }
    for (size_t i = 0; i <= count; i++) {
        if (open_language(schema, i ? &rules[i - 1] : &all, &languages[i])) continue;
        close_languages(schema, languages, count + 1);
        return NULL;
    }
    return languages;
}

/* ---- the product ---- */

struct product {
    struct schema *schema;
    struct language *languages;
    size_t count;     /* of languages */
    uint32_t *states; /* [state_count][count] sets */
    uint32_t state_count, state_capacity;
    uint32_t table[2 * MOST_PRODUCT_STATES]; /* open addressed: state + 1 */
    struct tree_edge *edges;
    uint32_t edge_count, edge_capacity;
};

static bool ends(const struct product *product, const uint32_t *sets)
{
    for (size_t i = 0; i < product->count; i++) {
        const struct language *language = &product->languages[i];
        if (language->sets.sets[sets[i]].ends == language->is_excluded) return false;
    }
    return true;
}

/* The sets after one byte more. False: no string goes on so. */
static bool step(struct product *product, const uint32_t *from, unsigned byte, uint32_t *to)
{
    for (size_t i = 0; i < product->count && !product->schema->tree->failed; i++) {
        struct language *language = &product->languages[i];
        to[i] = next_set(product->schema, language, from[i], (uint8_t)byte);
        if (to[i] == SETS_DEAD && !language->is_excluded) return false;
    }
    return !product->schema->tree->failed;
}

static uint32_t state_of(struct product *product, const uint32_t *sets)
{
    const uint32_t mask = 2 * MOST_PRODUCT_STATES - 1, count = (uint32_t)product->count;
    uint32_t at = sets_hash(sets, count, 0) & mask;
    for (; product->table[at]; at = (at + 1) & mask)
        if (memcmp(product->states + (size_t)(product->table[at] - 1) * count, sets, count * sizeof *sets) == 0)
            return product->table[at] - 1;
    if (product->state_count == MOST_PRODUCT_STATES)
        return schema_fail(product->schema,
                           "the rules for a string are too complex together; expected simpler patterns");
    if (!tree_grow(product->schema->tree, (void **)&product->states, &product->state_capacity,
                   ((uint64_t)product->state_count + 1) * count, sizeof *product->states, TREE_MOST_WORDS))
        return 0;
    /* Each state is tried with every byte. */
    if (!schema_charge(product->schema, (uint64_t)64 * count)) return 0;
    memcpy(product->states + (size_t)product->state_count * count, sets, count * sizeof *sets);
    product->table[at] = ++product->state_count;
    return product->state_count - 1;
}

static void add_edge(struct product *product, uint32_t from, uint32_t byte, uint32_t to)
{
    struct tree_edge *last = product->edge_count ? &product->edges[product->edge_count - 1] : NULL;
    if (last && last->from == from && last->to == to && to != TREE_ACCEPT && last->high + 1 == byte) {
        last->high = byte;
        return;
    }
    if (tree_grow(product->schema->tree, (void **)&product->edges, &product->edge_capacity,
                  (uint64_t)product->edge_count + 1, sizeof *product->edges, TREE_MOST_WORDS / 8))
        product->edges[product->edge_count++] = (struct tree_edge){from, byte, byte, to};
}

static uint32_t product_node(struct product *product)
{
    struct tree *tree = product->schema->tree;
    uint32_t *sets = calloc(2 * product->count, sizeof *sets), *next = sets ? sets + product->count : NULL;
    bool any = false;
    if (!sets) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    for (size_t i = 0; i < product->count; i++) sets[i] = product->languages[i].begin;
    state_of(product, sets);
    for (uint32_t state = 0; state < product->state_count && !tree->failed; state++) {
        memcpy(sets, product->states + (size_t)state * product->count, product->count * sizeof *sets);
        if (ends(product, sets)) {
            add_edge(product, state, 0, TREE_ACCEPT);
            any = true;
        }
        for (unsigned byte = 0x20; byte < 0xF5 && !tree->failed; byte++)
            if (step(product, sets, byte, next)) add_edge(product, state, byte, state_of(product, next));
    }
    free(sets);
    if (tree->failed) return TREE_NODE_EMPTY;
    return any ? tree_graph(tree, product->edges, product->edge_count, product->state_count) : TREE_NODE_NEVER;
}

uint32_t schema_strings_node(struct schema *schema, const struct string_rule *rules, size_t count)
{
    struct tree *tree = schema->tree;
    struct product *product = tree->failed ? NULL : calloc(1, sizeof *product);
    uint32_t node = TREE_NODE_EMPTY;
    if (!product) return tree_fail(tree, STATUS_MACHINE, "JSON Schema: out of memory");
    product->schema = schema;
    product->count = count + 1;
    product->languages = open_languages(schema, rules, count);
    if (product->languages) {
        node = product_node(product);
        if (node != TREE_NODE_NEVER) node = TREE_SEQUENCE_OF(tree, tree_text(tree, "\""), node, tree_text(tree, "\""));
        close_languages(schema, product->languages, product->count);
    }
    free(product->states);
    free(product->edges);
    free(product);
    return tree->failed ? TREE_NODE_EMPTY : node;
}

bool schema_strings_have(struct schema *schema, const struct string_rule *rules, size_t count, const char *text)
{
    struct language *languages = open_languages(schema, rules, count);
    char *spelled = spell(text);
    bool has = languages && spelled;
    if (!spelled) schema_fail_memory(schema);
    for (size_t i = 0; has && i <= count; i++) {
        struct language *language = &languages[i];
        uint32_t set = language->begin;
        for (const char *at = spelled; *at && !schema->tree->failed; at++)
            set = next_set(schema, language, set, (uint8_t)*at);
        has = language->sets.sets[set].ends != language->is_excluded;
    }
    if (languages) close_languages(schema, languages, count + 1);
    free(spelled);
    return has && !schema->tree->failed;
}

/* ---- schemas ---- */

static bool add_rule(struct schema *schema, struct string_rule *rules, size_t *count, struct string_rule rule)
{
    if (*count < STRING_MOST_RULES) {
        rules[(*count)++] = rule;
        return true;
    }
    schema_fail(schema, "expected at most %d rules for a string", STRING_MOST_RULES);
    return false;
}

bool schema_string_rules(struct schema *schema, const json_t *value, struct string_rule rules[STRING_MOST_RULES],
                         size_t *count)
{
    const json_t *pattern = json_object_get(value, "pattern"), *format = json_object_get(value, "format"),
                 *other = json_object_get(value, "not"), *list = json_object_get(other, "enum");
    uint32_t least = 0, most = TREE_UNLIMITED;
    if (!schema_count_of(schema, value, "minLength", &least) || !schema_count_of(schema, value, "maxLength", &most))
        return false;
    if (pattern && !json_is_string(pattern)) {
        schema_fail(schema, "'pattern': expected a text, found %s", json_type_name(pattern));
        return false;
    }
    if (least > most) return false;
    bool ok =
        !pattern || add_rule(schema, rules, count, (struct string_rule){.kind = STRING_PATTERN, .value = pattern});
    if (format) ok = ok && add_rule(schema, rules, count, (struct string_rule){.kind = STRING_FORMAT, .value = format});
    if (least > 0 || most != TREE_UNLIMITED)
        ok = ok &&
             add_rule(schema, rules, count, (struct string_rule){.kind = STRING_LENGTH, .least = least, .most = most});
    if (other && !(list && json_array_size(list) == 0))
        ok = ok && add_rule(schema, rules, count,
                            (struct string_rule){.kind = list ? STRING_TEXTS : STRING_PATTERN,
                                                 .value = list ? list : json_object_get(other, "pattern"),
                                                 .is_excluded = true});
    return ok;
}

uint32_t schema_string_node(struct schema *schema, const json_t *value)
{
    struct tree *tree = schema->tree;
    struct string_rule rules[STRING_MOST_RULES];
    size_t count = 0;
    uint32_t inside;
    if (!schema_string_rules(schema, value, rules, &count)) return tree->failed ? TREE_NODE_EMPTY : TREE_NODE_NEVER;
    if (count == 0) return json_string_node(&schema->parts);
    if (count > 1 || rules[0].is_excluded) return schema_strings_node(schema, rules, count);
    if (rules[0].kind == STRING_PATTERN) {
        char where[STATUS_MESSAGE_BYTES];
        snprintf(where, sizeof where, "JSON Schema: '%s/pattern'", schema->path);
        inside =
            regex_node(tree, json_string_value(rules[0].value), json_string_length(rules[0].value), REGEX_JSON, where);
    } else if (rules[0].kind == STRING_FORMAT) {
        inside = format_node(schema, tree, rules[0].value);
    } else {
        inside = tree_repeat(tree, json_character_node(&schema->parts), rules[0].least, rules[0].most);
    }
    return TREE_SEQUENCE_OF(tree, tree_text(tree, "\""), inside, tree_text(tree, "\""));
}
