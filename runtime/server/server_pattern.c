/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_pattern.h"

#include <string.h>

enum agreement { DIFFERENT, BEGINNING, EQUAL };

static bool is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

size_t server_pattern_literal(const char *pattern) { return strcspn(pattern, "$~"); }

void server_match_begin(struct server_match *match, const char *pattern)
{
    memset(match, 0, offsetof(struct server_match, found.arguments));
    match->pattern = pattern;
    match->found.argument_count = 0;
}

void server_match_next(struct server_match *match)
{
    const size_t element = match->element;
    server_match_begin(match, match->pattern);
    match->element = element;
}

static bool is_word(const char *element, const char *word) { return strncmp(element, word, strlen(word)) == 0; }

/* Whether the text at match->at begins with the literal at the beginning of a pattern. */
static enum agreement compare(const struct server_match *match, const char *pattern, const char *text, size_t size)
{
    const size_t length = server_pattern_literal(pattern), left = size - match->at;
    const size_t common = length < left ? length : left;
    if (memcmp(text + match->at, pattern, common) != 0) return DIFFERENT;
    return length <= left ? EQUAL : BEGINNING;
}

/* False: the text ends before anything else comes. */
static bool skip_space(struct server_match *match, const char *text, size_t size)
{
    while (match->at < size && is_space(text[match->at])) match->at++;
    return match->at < size;
}

/* ---- repetitions ---- */

size_t server_pattern_other_bracket(const char *pattern, size_t element)
{
    const bool forwards = pattern[element + 1] == '(';
    for (int depth = 0;; element = forwards ? element + 1 : element - 1) {
        if (pattern[element] != '$') continue;
        depth += (pattern[element + 1] == '(') - (pattern[element + 1] == ')');
        if (depth == 0) return element;
    }
}

/* Whether the repeated part begins at match->at. */
static enum agreement compare_part(const struct server_match *match, const char *part, const char *text, size_t size)
{
    if (is_word(part, "$calls")) return text[match->at] == '{' || text[match->at] == '[' ? EQUAL : DIFFERENT;
    return compare(match, part, text, size);
}

static enum server_matched repeat(struct server_match *match, const char *text, size_t size)
{
    const size_t end = server_pattern_other_bracket(match->pattern, match->element) + 2;
    const char *part = match->pattern + match->element + 2, *after = match->pattern + end;
    if (!skip_space(match, text, size)) return SERVER_MATCH_MORE;
    after += strspn(after, "~");
    /* A literal that begins as the repeated part does, and is longer, comes first. */
    const enum agreement ends = server_pattern_literal(after) ? compare(match, after, text, size) : DIFFERENT,
                         begins = compare_part(match, part, text, size);
    if (ends == BEGINNING || (ends == DIFFERENT && begins == BEGINNING)) return SERVER_MATCH_MORE;
    if (ends == DIFFERENT && begins == DIFFERENT && server_pattern_literal(after)) return SERVER_MATCH_NONE;
    match->element = ends == DIFFERENT && begins == EQUAL ? match->element + 2 : end;
    return SERVER_MATCH_DONE;
}

/* ---- parts of the text ---- */

/* Bytes up to the literal that follows the element of `length` bytes. */
static enum server_matched take_until(struct server_match *match, size_t length, const char *text, size_t size,
                                      struct server_span *span)
{
    const char *literal = match->pattern + match->element + length;
    literal += strspn(literal, "~");
    const size_t literal_size = server_pattern_literal(literal);
    if (match->scanned < match->at) match->scanned = match->at;
    const char *found = memmem(text + match->scanned, size - match->scanned, literal, literal_size);
    if (!found) {
        if (size - match->scanned >= literal_size) match->scanned = size - literal_size + 1;
        return SERVER_MATCH_MORE;
    }
    *span = (struct server_span){match->at, (size_t)(found - text) - match->at};
    match->at = (size_t)(found - text);
    match->element += length;
    return SERVER_MATCH_DONE;
}

static enum server_matched take_name(struct server_match *match, size_t length, const char *text, size_t size)
{
    enum { MOST_BYTES = 256 };
    size_t end = match->at;
    while (end < size && !is_space(text[end]) && !strchr("<>[](){}\":", text[end])) end++;
    if (end == match->at && end < size) return SERVER_MATCH_NONE;
    if (end - match->at > MOST_BYTES) return SERVER_MATCH_NONE;
    if (end == size) return SERVER_MATCH_MORE;
    match->found.name = (struct server_span){match->at, end - match->at};
    match->at = end;
    match->element += length;
    return SERVER_MATCH_DONE;
}

/* Whether the string with quotes, in which match->quote is the mark at its ends, ends or begins at a byte. */
static void pass_quote(struct server_match *match, char byte, const char *marks)
{
    if (match->is_escaped)
        match->is_escaped = false;
    else if (match->quote && byte == '\\')
        match->is_escaped = true;
    else if (match->quote == byte)
        match->quote = 0;
    else if (!match->quote && strchr(marks, byte))
        match->quote = byte;
}

/* An object or array. Its bytes are counted as brackets alone: a reader of JSON judges them once they are complete. */
static enum server_matched take_brackets(struct server_match *match, size_t length, const char *first,
                                         const char *marks, const char *text, size_t size, struct server_span *span)
{
    if (match->at == size) return SERVER_MATCH_MORE;
    if (!text[match->at] || !strchr(first, text[match->at])) return SERVER_MATCH_NONE;
    if (match->scanned < match->at) match->scanned = match->at;
    while (match->scanned < size) {
        const char byte = text[match->scanned++];
        if (!byte) return SERVER_MATCH_NONE;
        pass_quote(match, byte, marks);
        if (match->quote) continue;
        if (byte == '{' || byte == '[' || byte == '(') match->depth++;
        if (byte != '}' && byte != ']' && byte != ')') continue;
        if (--match->depth == 1 && text[match->at] == '[' && byte != ']') match->whole = match->scanned;
        if (match->depth) continue;
        *span = (struct server_span){match->at, match->scanned - match->at};
        match->at = match->scanned;
        match->element += length;
        return SERVER_MATCH_DONE;
    }
    return SERVER_MATCH_MORE;
}

struct server_span *server_match_list(struct server_match *match)
{
    const char *element = match->pattern + match->element;
    if (is_word(element, "$calls")) return &match->found.calls;
    return is_word(element, "$python") ? &match->found.python : NULL;
}

/* Gemma's strings stand between <|"|>, and have no escapes. */
static enum server_matched take_gemma(struct server_match *match, size_t length, const char *text, size_t size)
{
    static const char mark[] = "<|\"|>";
    const size_t mark_size = sizeof mark - 1;
    if (match->at == size) return SERVER_MATCH_MORE;
    if (text[match->at] != '{') return SERVER_MATCH_NONE;
    if (match->scanned < match->at) match->scanned = match->at;
    while (match->scanned < size) {
        const size_t left = size - match->scanned;
        const char *at = text + match->scanned;
        if (*at == '<' && left < mark_size && memcmp(at, mark, left) == 0) return SERVER_MATCH_MORE;
        const bool is_mark = left >= mark_size && memcmp(at, mark, mark_size) == 0;
        match->scanned += is_mark ? mark_size : 1;
        if (is_mark) match->quote = !match->quote;
        if (match->quote || is_mark) continue;
        if (*at == '{' || *at == '[') match->depth++;
        if ((*at != '}' && *at != ']') || --match->depth) continue;
        match->found.gemma = (struct server_span){match->at, match->scanned - match->at};
        match->at = match->scanned;
        match->element += length;
        return SERVER_MATCH_DONE;
    }
    return SERVER_MATCH_MORE;
}

/* A text of an argument that is written by itself: its name begins the argument. */
static enum server_matched take_argument(struct server_match *match, size_t length, const char *text, size_t size)
{
    struct server_found *found = &match->found;
    const char kind = match->pattern[match->element + 1];
    struct server_span span;
    if (kind == 'k' && found->argument_count == SERVER_MOST_ARGUMENTS) return SERVER_MATCH_NONE;
    const enum server_matched matched = take_until(match, length, text, size, &span);
    if (matched != SERVER_MATCH_DONE) return matched;
    if (kind == 'k') found->arguments[found->argument_count++] = (struct server_argument){.key = span};
    struct server_argument *last = &found->arguments[found->argument_count - 1];
    if (kind == 't') last->type = span;
    if (kind == 'v') last->value = span;
    return SERVER_MATCH_DONE;
}

/* Whole steps; DONE: the next element can be looked at. */
static enum server_matched take_element(struct server_match *match, const char *text, size_t size)
{
    const char *element = match->pattern + match->element;
    struct server_found *found = &match->found;
    struct server_span skipped;
    const size_t length = 1 + strspn(element + 1, "abcdefghijklmnopqrstuvwxyz");
    if (is_word(element, "$(")) return repeat(match, text, size);
    if (is_word(element, "$)")) {
        match->element = server_pattern_other_bracket(match->pattern, match->element);
        return SERVER_MATCH_DONE;
    }
    if (is_word(element, "$name")) return take_name(match, length, text, size);
    if (is_word(element, "$args")) return take_brackets(match, length, "{", "\"", text, size, &found->args);
    if (is_word(element, "$calls")) return take_brackets(match, length, "{[", "\"", text, size, &found->calls);
    if (is_word(element, "$python")) return take_brackets(match, length, "[", "\"'", text, size, &found->python);
    if (is_word(element, "$gemma")) return take_gemma(match, length, text, size);
    if (is_word(element, "$id")) return take_until(match, length, text, size, &found->id);
    if (is_word(element, "$skip")) return take_until(match, length, text, size, &skipped);
    return take_argument(match, length, text, size);
}

static enum server_matched take_literal(struct server_match *match, const char *text, size_t size)
{
    const char *element = match->pattern + match->element;
    const enum agreement agreement = compare(match, element, text, size);
    if (agreement == DIFFERENT) return SERVER_MATCH_NONE;
    if (agreement == BEGINNING) return SERVER_MATCH_MORE;
    match->at += server_pattern_literal(element);
    match->element += server_pattern_literal(element);
    return SERVER_MATCH_DONE;
}

enum server_matched server_match_step(struct server_match *match, const char *text, size_t size)
{
    enum server_matched matched = SERVER_MATCH_DONE;
    while (matched == SERVER_MATCH_DONE) {
        const char *element = match->pattern + match->element;
        if (!*element) return SERVER_MATCH_DONE;
        if (is_word(element, "$!")) {
            match->element += 2;
            return SERVER_MATCH_CALL;
        }
        if (*element == '~') {
            if (!skip_space(match, text, size)) return SERVER_MATCH_MORE;
            match->element++;
        } else {
            matched = *element == '$' ? take_element(match, text, size) : take_literal(match, text, size);
        }
    }
    return matched;
}
