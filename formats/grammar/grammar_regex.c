/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/grammar/grammar_regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/grammar/grammar_automaton.h"
#include "formats/tokenizer/tokenizer_text.h"

enum { MOST_GROUPS = 100 };

struct regex {
    struct tree *tree;
    const char *text, *where;
    size_t size, at;
    unsigned depth;
    enum regex_use use;
};

static uint32_t refuse(struct regex *r, const char *what)
{
    return tree_fail(r->tree, STATUS_BAD_INPUT, "%s: %s at byte %zu of the expression is not supported", r->where, what,
                     r->at);
}

static bool at_end(const struct regex *r) { return r->at == r->size || r->tree->failed; }

/* The byte at `ahead`; 0 after the end. */
static char peek(const struct regex *r, size_t ahead)
{
    return r->size - r->at > ahead ? r->text[r->at + ahead] : '\0';
}

static bool skip(struct regex *r, char c)
{
    if (at_end(r) || peek(r, 0) != c) return false;
    r->at++;
    return true;
}

/* One character as JSON has it in a string. Readers that end a string at NUL exist: \u0000 is left out. */
size_t regex_json_spelling(uint32_t character, char text[REGEX_SPELLING_BYTES])
{
    static const char letters[] = "\b\t\n\f\r\"\\", names[] = "btnfr\"\\";
    const char *letter = character && character < 0x80 ? strchr(letters, (int)character) : NULL;
    if (letter) return (size_t)snprintf(text, REGEX_SPELLING_BYTES, "\\%c", names[letter - letters]);
    if (character < 0x20) return (size_t)snprintf(text, REGEX_SPELLING_BYTES, "\\u%04x", (unsigned)character);
    return text_write(character, text);
}

static uint32_t json_character(struct tree *tree, uint32_t character)
{
    char text[REGEX_SPELLING_BYTES];
    if (character == 0) return TREE_NODE_NEVER;
    return tree_literal(tree, text, regex_json_spelling(character, text));
}

uint32_t regex_json_class(struct tree *tree, const struct tree_set *set)
{
    struct tree_set sorted, plain;
    struct tree_nodes choices = {0};
    tree_set_copy(&sorted, set);
    tree_set_normalize(&sorted);
    tree_set_copy(&plain, &sorted);
    tree_set_remove(tree, &plain, 0, 0x1F);
    tree_set_remove(tree, &plain, '"', '"');
    tree_set_remove(tree, &plain, '\\', '\\');
    tree_nodes_add(tree, &choices, tree_class(tree, &plain));
    for (uint32_t c = 1; c <= '\\'; c = c == 0x1F ? '"' : c == '"' ? '\\' : c + 1)
        if (tree_set_has(&sorted, c)) tree_nodes_add(tree, &choices, json_character(tree, c));
    const uint32_t node = tree->failed ? TREE_NODE_EMPTY : tree_choice(tree, choices.items, choices.count);
    free(choices.items);
    return node;
}

static uint32_t class_of(struct regex *r, const struct tree_set *set)
{
    return r->use == REGEX_JSON ? regex_json_class(r->tree, set) : tree_class(r->tree, set);
}

static uint32_t character_of(struct regex *r, uint32_t character)
{
    char text[TEXT_CHARACTER_BYTES];
    return r->use == REGEX_JSON ? json_character(r->tree, character)
                                : tree_literal(r->tree, text, text_write(character, text));
}

static void add_digits(struct regex *r, struct tree_set *set) { tree_set_add(r->tree, set, '0', '9'); }

static void add_word(struct regex *r, struct tree_set *set)
{
    add_digits(r, set);
    tree_set_add(r->tree, set, 'A', 'Z');
    tree_set_add(r->tree, set, '_', '_');
    tree_set_add(r->tree, set, 'a', 'z');
}

/* WhiteSpace and LineTerminator of ECMAScript */
static void add_space(struct regex *r, struct tree_set *set)
{
    static const struct tree_range spaces[] = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                                               {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                               {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        tree_set_add(r->tree, set, spaces[i].low, spaces[i].high);
}

/* After a backslash: adds a set, true, or reads one character. */
static bool read_escape(struct regex *r, struct tree_set *set, uint32_t *character)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v\0";
    struct tree_set members;
    const char c = peek(r, 0);
    members.count = 0;
    *character = 0;
    if (at_end(r)) {
        refuse(r, "a backslash at the end");
        return false;
    }
    switch (c) {
    case 'd':
    case 'D': add_digits(r, &members); break;
    case 'w':
    case 'W': add_word(r, &members); break;
    case 's':
    case 'S': add_space(r, &members); break;
    case 'x':
    case 'u': {
        const size_t digits = c == 'x' ? 2 : 4;
        for (size_t i = 1; i <= digits; i++) {
            const int digit = text_hex_digit(peek(r, i));
            if (digit < 0) {
                refuse(r, "this hexadecimal escape");
                return false;
            }
            *character = *character * 16 + (uint32_t)digit;
        }
        if (*character >= 0xD800 && *character <= 0xDFFF) {
            refuse(r, "the escape of half a surrogate pair");
            return false;
        }
        r->at += digits + 1;
        return false;
    }
    default: {
        const char *found = c ? strchr(from, c) : NULL;
        if (found && !(c == '0' && peek(r, 1) >= '0' && peek(r, 1) <= '9')) {
            *character = (uint8_t)to[found - from];
        } else if (c >= '0' && c <= '9') {
            refuse(r, "a back reference");
            return false;
        } else if (c == 'k') {
            refuse(r, "a back reference");
            return false;
        } else if (c == 'b' || c == 'B') {
            refuse(r, "a word boundary");
            return false;
        } else if (c == 'p' || c == 'P') {
            refuse(r, "a Unicode property");
            return false;
        } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (uint8_t)c >= 0x80) {
            refuse(r, "this escape");
            return false;
        } else {
            *character = (uint8_t)c;
        }
        r->at++;
        return false;
    }
    }
    if (c >= 'A' && c <= 'Z') tree_set_complement(r->tree, &members);
    for (uint32_t i = 0; i < members.count; i++)
        tree_set_add(r->tree, set, members.ranges[i].low, members.ranges[i].high);
    r->at++;
    return true;
}

/* One member of a class: true if a set was added, else *character. */
static bool class_member(struct regex *r, struct tree_set *set, uint32_t *character)
{
    if (peek(r, 0) == '\\') {
        r->at++;
        if (peek(r, 0) == 'b') { /* backspace, in a class */
            r->at++;
            *character = '\b';
            return false;
        }
        return read_escape(r, set, character);
    }
    if (peek(r, 0) == '[' && (peek(r, 1) == ':' || peek(r, 1) == '.' || peek(r, 1) == '=')) {
        refuse(r, "a POSIX class");
        return false;
    }
    r->at += text_read(r->text + r->at, character);
    return false;
}

/* After the opening bracket. */
static uint32_t read_class(struct regex *r)
{
    struct tree_set set;
    set.count = 0;
    const bool complement = skip(r, '^');
    while (!at_end(r) && peek(r, 0) != ']') {
        uint32_t low = 0, high = 0;
        const bool is_set = class_member(r, &set, &low);
        if (r->tree->failed) return TREE_NODE_EMPTY;
        if (peek(r, 0) == '-' && peek(r, 1) != ']' && r->size - r->at > 1) {
            r->at++;
            if (is_set || class_member(r, &set, &high)) return refuse(r, "a range that ends with a set");
            if (r->tree->failed) return TREE_NODE_EMPTY;
            if (high < low) return refuse(r, "a range whose end comes before its start");
            tree_set_add(r->tree, &set, low, high);
        } else if (!is_set) {
            tree_set_add(r->tree, &set, low, low);
        }
    }
    if (!skip(r, ']')) return refuse(r, "a class without its closing bracket");
    if (complement)
        tree_set_complement(r->tree, &set);
    else
        tree_set_normalize(&set);
    return class_of(r, &set);
}

static bool read_number(struct regex *r, uint32_t *out)
{
    if (peek(r, 0) < '0' || peek(r, 0) > '9') return false;
    for (*out = 0; peek(r, 0) >= '0' && peek(r, 0) <= '9'; r->at++) {
        *out = *out * 10 + (uint32_t)(peek(r, 0) - '0');
        if (*out > GRAMMAR_MOST_STATES) {
            refuse(r, "a repetition of more than 1048576 times");
            return false;
        }
    }
    return true;
}

static uint32_t read_choice(struct regex *r, bool is_top);

static uint32_t read_group(struct regex *r)
{
    if (skip(r, '?')) {
        if (peek(r, 0) == '=' || peek(r, 0) == '!' || (peek(r, 0) == '<' && (peek(r, 1) == '=' || peek(r, 1) == '!')))
            return refuse(r, "a look-around");
        if (peek(r, 0) == '<' || (peek(r, 0) == 'P' && peek(r, 1) == '<')) { /* a name */
            const char *close = memchr(r->text + r->at, '>', r->size - r->at);
            if (!close) return refuse(r, "a group's name without its end");
            r->at = (size_t)(close - r->text) + 1;
        } else if (!skip(r, ':')) {
            return refuse(r, "this kind of group");
        }
    }
    if (++r->depth > MOST_GROUPS) return refuse(r, "a group nested more than 100 deep");
    const uint32_t node = read_choice(r, false);
    if (!skip(r, ')')) return refuse(r, "a group without its closing parenthesis");
    r->depth--;
    return node;
}

/* Not inlined: sets are large, and groups recurse. */
__attribute__((noinline)) static uint32_t read_character(struct regex *r)
{
    struct tree_set set;
    uint32_t character = 0;
    set.count = 0;
    switch (peek(r, 0)) {
    case '[': r->at++; return read_class(r);
    case '.':
        r->at++;
        tree_set_add(r->tree, &set, '\n', '\n');
        tree_set_add(r->tree, &set, '\r', '\r');
        tree_set_add(r->tree, &set, 0x2028, 0x2029);
        tree_set_complement(r->tree, &set);
        return class_of(r, &set);
    case '\\': r->at++; return read_escape(r, &set, &character) ? class_of(r, &set) : character_of(r, character);
    case '*':
    case '+':
    case '?': return refuse(r, "a repetition of nothing");
    case '{':
    case '}': return refuse(r, "a brace without a count (write \\{ or \\})");
    case '^':
    case '$': return refuse(r, "an anchor inside the expression");
    default: r->at += text_read(r->text + r->at, &character); return character_of(r, character);
    }
}

static uint32_t read_atom(struct regex *r) { return skip(r, '(') ? read_group(r) : read_character(r); }

static uint32_t read_repeats(struct regex *r, uint32_t node)
{
    uint32_t least = 0, most = TREE_UNLIMITED;
    if (skip(r, '*')) {
    } else if (skip(r, '+')) {
        least = 1;
    } else if (skip(r, '?')) {
        most = 1;
    } else if (skip(r, '{')) {
        if (!read_number(r, &least)) return refuse(r, "a brace without a count (write \\{ or \\})");
        most = least;
        if (skip(r, ',') && !read_number(r, &most)) most = TREE_UNLIMITED;
        if (!skip(r, '}')) return refuse(r, "a count without its closing brace");
        if (most < least) return refuse(r, "a count whose end is below its start");
    } else {
        return node;
    }
    skip(r, '?'); /* which texts match does not depend on the order of attempts */
    if (peek(r, 0) == '+') return refuse(r, "a possessive repetition");
    if (peek(r, 0) == '*' || peek(r, 0) == '?' || peek(r, 0) == '{') return refuse(r, "a repetition of a repetition");
    return tree_repeat(r->tree, node, least, most);
}

/* Any text, written in a JSON string */
__attribute__((noinline)) static uint32_t any_text(struct regex *r)
{
    struct tree_set all = {.count = 1, .ranges = {{0, TREE_LAST_CHARACTER}}};
    return tree_repeat(r->tree, class_of(r, &all), 0, TREE_UNLIMITED);
}

static uint32_t read_choice(struct regex *r, bool is_top)
{
    struct tree_nodes choices = {0}, parts = {0};
    do {
        parts.count = 0;
        const bool at_start = is_top && skip(r, '^');
        if (is_top && r->use == REGEX_JSON && !at_start) tree_nodes_add(r->tree, &parts, any_text(r));
        while (!at_end(r) && peek(r, 0) != '|' && peek(r, 0) != ')') {
            if (is_top && peek(r, 0) == '$' && (r->at + 1 == r->size || peek(r, 1) == '|')) break;
            const uint32_t atom = read_atom(r);
            tree_nodes_add(r->tree, &parts, read_repeats(r, atom));
        }
        const bool at_stop = is_top && skip(r, '$');
        if (is_top && r->use == REGEX_JSON && !at_stop) tree_nodes_add(r->tree, &parts, any_text(r));
        if (!r->tree->failed) tree_nodes_add(r->tree, &choices, tree_sequence(r->tree, parts.items, parts.count));
    } while (skip(r, '|'));
    const uint32_t node = r->tree->failed ? TREE_NODE_EMPTY : tree_choice(r->tree, choices.items, choices.count);
    free(choices.items);
    free(parts.items);
    return node;
}

uint32_t regex_node(struct tree *tree, const char *text, size_t size, enum regex_use use, const char *where)
{
    struct regex r = {.tree = tree, .text = text, .where = where, .size = size, .use = use};
    if (size > GRAMMAR_MOST_REGEX_BYTES)
        return tree_fail(tree, STATUS_BAD_INPUT, "%s: expression of %zu bytes; expected at most %d", where, size,
                         GRAMMAR_MOST_REGEX_BYTES);
    if (!text_is_valid((const uint8_t *)text, size))
        return tree_fail(tree, STATUS_BAD_INPUT, "%s: the expression is not valid UTF-8", where);
    const uint32_t node = read_choice(&r, true);
    if (!tree->failed && r.at < size) return refuse(&r, "a closing parenthesis without a group");
    return node;
}

struct grammar *grammar_regex_open(const char *text, size_t size, struct status *status)
{
    struct tree tree;
    struct grammar *grammar = NULL;
    if (!tree_open(&tree, status)) goto done;
    tree_rule_add(&tree, "regular expression", false);
    const uint32_t node = regex_node(&tree, text, size, REGEX_WHOLE, "regular expression");
    if (!tree.failed) {
        tree.rules[0].node = node;
        grammar = automaton_compile(&tree, "regular expression");
    }
done:
    tree_close(&tree);
    return grammar;
}

struct grammar *grammar_choices_open(const struct grammar_text *choices, size_t count, struct status *status)
{
    struct tree tree;
    struct grammar *grammar = NULL;
    struct grammar_text *copy = NULL;
    size_t bytes = 0;
    if (!tree_open(&tree, status)) goto done;
    if (count == 0 || count > GRAMMAR_MOST_CHOICES) {
        tree_fail(&tree, STATUS_BAD_INPUT, "choices: expected 1 to %d, found %zu", GRAMMAR_MOST_CHOICES, count);
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        if (choices[i].size > GRAMMAR_MOST_SOURCE_BYTES - bytes) {
            tree_fail(&tree, STATUS_BAD_INPUT, "choices: more than %d bytes together", GRAMMAR_MOST_SOURCE_BYTES);
            goto done;
        }
        bytes += choices[i].size;
        if (!text_is_valid((const uint8_t *)choices[i].bytes, choices[i].size)) {
            tree_fail(&tree, STATUS_BAD_INPUT, "choices: choice %zu is not valid UTF-8", i);
            goto done;
        }
    }
    copy = malloc(count * sizeof *copy);
    if (!copy) {
        tree_fail(&tree, STATUS_MACHINE, "choices: out of memory");
        goto done;
    }
    memcpy(copy, choices, count * sizeof *copy);
    tree_rule_add(&tree, "choices", false);
    const uint32_t node = tree_texts(&tree, copy, (uint32_t)count);
    if (!tree.failed) {
        tree.rules[0].node = node;
        grammar = automaton_compile(&tree, "choices");
    }
done:
    free(copy);
    tree_close(&tree);
    return grammar;
}
