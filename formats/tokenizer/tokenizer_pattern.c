/* SPDX-License-Identifier: Apache-2.0 */
/* Translation of regular expressions from Oniguruma (Ruby syntax, UTF-8) to PCRE2 (UTF, UCP, MULTILINE).
 *
 * Only syntax with the same meaning after translation is accepted. Differences, and how they are handled:
 *  - \s is the White_Space property (PCRE2's has U+180E too), \w adds marks, letter numbers and a few Latin-1 signs,
 *    \d is Nd: each becomes an explicit class. \b and \B are spelled out with that \w.
 *  - \p{Han} and other scripts are plain script tests (PCRE2 10.40 and later default to script extensions).
 *  - {,n} means {0,n}; a class may hold nested classes (their union).
 *  - An option without a group, (?i)x, reaches over alternatives in Oniguruma: only accepted at the start.
 *  - Case folding: Oniguruma also folds to several characters (ss for sharp s) and folds property classes, PCRE2 does
 *    not. With (?i), only ASCII letters that cannot begin such a folding are accepted.
 * The version of Unicode can differ: Hugging Face 0.23 has version 16, PCRE2 the one that it was built with (10.42: 14).
 * The engines agree on every character that both know; for PCRE2 an unknown character is neither letter nor number.
 *
 * Groups never capture, which has no effect without back-references.
 *
 * The translation also makes the work of matching countable: callouts (enum pattern_callout) are placed where backtracking
 * can pass again and around scans of text, and the matcher charges its budget there. A lookaround may only inspect a limited
 * piece of text: a repeat without an upper limit inside one is refused. */
#include "formats/tokenizer/tokenizer_pattern.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/tokenizer/tokenizer_text.h"

enum { GROUP_DEPTH_LIMIT = 64, REPEAT_LIMIT = 1000 };

#define SPACE_SET \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
/* All other code points: PCRE2 cannot put a complement inside a class. */
#define NOT_SPACE_SET                                                                                                  \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}" \
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

struct translation {
    const char *regex;
    size_t size, at;
    unsigned depth, lookarounds; /* groups and lookarounds around this place */
    bool fold;                   /* inside (?i: */
    uint32_t fold_previous;      /* the literal just before, if no quantifier or group is between */
    struct text_buffer *out;
    struct status *status;
};

static bool refuse(struct translation *t, const char *what)
{
    return status_fail(t->status, STATUS_BAD_INPUT, "pattern '%.*s': %s at byte %zu is not supported",
                       (int)(t->size < 120 ? t->size : 120), t->regex, what, t->at);
}

static bool emit(struct translation *t, const char *text)
{
    return tokenizer_text_append(t->out, text, strlen(text), t->status);
}

static bool emit_callout(struct translation *t, unsigned number)
{
    char text[16];
    snprintf(text, sizeof text, "(?C%u)", number);
    return emit(t, text);
}

/* Inserts a callout before the output from `at` on. */
static bool insert_callout(struct translation *t, size_t at, unsigned number)
{
    size_t size = t->out->size - at;
    if (!emit_callout(t, number)) return false;
    char callout[16], *place = t->out->text + at;
    size_t length = t->out->size - at - size;
    memcpy(callout, place + size, length);
    memmove(place + length, place, size);
    memcpy(place, callout, length);
    return true;
}

static bool emit_character(struct translation *t, uint32_t character)
{
    char text[16];
    snprintf(text, sizeof text, "\\x{%" PRIX32 "}", character);
    return emit(t, text);
}

static bool at_end(const struct translation *t) { return t->at == t->size; }

/* The byte at `ahead`; 0 after the end (a literal NUL is no metacharacter). */
static char peek(const struct translation *t, size_t ahead)
{
    return t->size - t->at > ahead ? t->regex[t->at + ahead] : '\0';
}

static bool looking_at(const struct translation *t, const char *text)
{
    size_t size = strlen(text);
    return t->size - t->at >= size && memcmp(t->regex + t->at, text, size) == 0;
}

/* General categories are kept; scripts need PCRE2's "sc:". Other names are refused. */
static bool property(struct translation *t, bool complement)
{
    static const char categories[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl "
        "Zp C Cc Cf Cn Co Cs ";
    static const char scripts[] =
        " Arabic Armenian Bengali Bopomofo Cyrillic Devanagari Ethiopic Georgian Greek Gujarati "
        "Gurmukhi Han Hangul Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam "
        "Mongolian Myanmar Oriya Sinhala Tamil Telugu Thai Tibetan ";
    char name[24], needle[28];
    size_t length = 0;
    if (peek(t, 0) != '{') return refuse(t, "a property without braces");
    t->at++;
    if (peek(t, 0) == '^') {
        complement = !complement;
        t->at++;
    }
    while (!at_end(t) && peek(t, 0) != '}') {
        if (length + 1 == sizeof name) return refuse(t, "this property name");
        name[length++] = t->regex[t->at++];
    }
    if (at_end(t) || length == 0) return refuse(t, "an unfinished property");
    t->at++;
    name[length] = '\0';
    if (strchr(name, ' ')) return refuse(t, "this property name");
    snprintf(needle, sizeof needle, " %s ", name);
    bool script = strstr(scripts, needle) != NULL;
    if (!script && !strstr(categories, needle)) return refuse(t, "this property name");
    if (t->fold) return refuse(t, "a property where case is ignored");
    return emit(t, complement ? "\\P{" : "\\p{") && emit(t, script ? "sc:" : "") && emit(t, name) && emit(t, "}");
}

/* After the backslash: an escape for one character. *known is false, with nothing read, for any other. */
static bool character_escape(struct translation *t, uint32_t *character, bool *known)
{
    static const char from[] = "nrtfvae", to[] = "\n\r\t\f\v\a\x1b";
    char c = peek(t, 0);
    const char *found = c ? strchr(from, c) : NULL;
    *known = true;
    if (found) {
        t->at++;
        *character = (uint8_t)to[found - from];
        return true;
    }
    if (c == 'x' || c == 'u') {
        bool braces = c == 'x' && peek(t, 1) == '{';
        size_t limit = braces ? 8 : c == 'x' ? 2 : 4, digits = 0;
        uint64_t value = 0;
        t->at += braces ? 2 : 1;
        for (; digits < limit && text_hex_digit(peek(t, 0)) >= 0; digits++, t->at++)
            value = value * 16 + (uint64_t)text_hex_digit(peek(t, 0));
        if (digits == 0 || (c == 'u' && digits != 4)) return refuse(t, "an unfinished hexadecimal escape");
        if (braces && peek(t, 0) != '}') return refuse(t, "an unfinished hexadecimal escape");
        if (braces) t->at++;
        /* Oniguruma treats \x80 and above without braces as a raw byte */
        if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF) || (c == 'x' && !braces && value >= 0x80))
            return refuse(t, "this hexadecimal escape");
        *character = (uint32_t)value;
        return true;
    }
    if ((uint8_t)c > 0x20 && (uint8_t)c < 0x7F &&
        !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))) {
        *character = (uint8_t)c;
        t->at++;
        return true;
    }
    if (c == ' ') {
        *character = ' ';
        t->at++;
        return true;
    }
    *known = false;
    return true;
}

static bool fold_allows(struct translation *t, uint32_t character)
{
    static const char pairs[][3] = {"ss", "st", "ff", "fi", "fl"};
    if (!t->fold) return true;
    if (character >= 0x80) return refuse(t, "a character beyond ASCII where case is ignored");
    uint32_t lower = character >= 'A' && character <= 'Z' ? character + 32 : character;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (t->fold_previous == (uint8_t)pairs[i][0] && lower == (uint8_t)pairs[i][1])
            return refuse(t, "a pair of letters that a ligature may fold to, where case is ignored,");
    t->fold_previous = lower;
    return true;
}

/* A set inside or outside brackets: \s \S \d \D \w \W \p \P. *known is false for any other escape. */
static bool set_escape(struct translation *t, bool in_class, bool *known)
{
    char c = peek(t, 0);
    *known = true;
    switch (c) {
    case 's': t->at++; return emit(t, in_class ? SPACE_SET : "[" SPACE_SET "]");
    case 'S':
        t->at++;
        if (in_class && t->fold) return refuse(t, "\\S in a class where case is ignored");
        return emit(t, in_class ? NOT_SPACE_SET : "[^" SPACE_SET "]");
    case 'd':
    case 'D': t->at++; return emit(t, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    case 'w':
        if (t->fold) return refuse(t, "\\w where case is ignored");
        t->at++;
        return emit(t, in_class ? WORD_SET : "[" WORD_SET "]");
    case 'W':
        if (in_class || t->fold) return refuse(t, "\\W in a class or where case is ignored");
        t->at++;
        return emit(t, "[^" WORD_SET "]");
    case 'p':
    case 'P': t->at++; return property(t, c == 'P');
    default: *known = false; return true;
    }
}

/* One member of a class that may bound a range: a literal or a character escape; *is_set if a set was emitted. */
static bool class_member(struct translation *t, uint32_t *character, bool *is_set)
{
    bool known;
    *is_set = false;
    if (peek(t, 0) != '\\') {
        t->at += text_read(t->regex + t->at, character);
        return true;
    }
    t->at++;
    if (!set_escape(t, true, &known)) return false;
    if (known) {
        *is_set = true;
        return true;
    }
    if (!character_escape(t, character, &known)) return false;
    return known || refuse(t, "this escape in a class");
}

/* Members up to the closing bracket, which is consumed. Nested classes are part of the union. */
static bool class_members(struct translation *t, unsigned depth)
{
    bool any = false;
    if (depth > GROUP_DEPTH_LIMIT) return refuse(t, "a class nested this deep");
    while (!at_end(t)) {
        uint32_t first, last;
        bool is_set, nothing_before = !any;
        if (peek(t, 0) == ']') {
            if (!any) return refuse(t, "an empty class or ']' as its first member");
            t->at++;
            return true;
        }
        if (looking_at(t, "&&")) return refuse(t, "an intersection of classes");
        if (looking_at(t, "[:")) return refuse(t, "a POSIX bracket");
        any = true;
        if (peek(t, 0) == '[') {
            t->at++;
            if (peek(t, 0) == '^') return refuse(t, "a negated class inside a class");
            if (!class_members(t, depth + 1)) return false;
            if (peek(t, 0) == '-' && peek(t, 1) != ']') return refuse(t, "'-' after a set");
            continue;
        }
        if (peek(t, 0) == '-' && !nothing_before && peek(t, 1) != ']') return refuse(t, "'-' in the middle of a class");
        if (!class_member(t, &first, &is_set)) return false;
        if (is_set) {
            if (peek(t, 0) == '-' && peek(t, 1) != ']') return refuse(t, "'-' after a set");
            continue;
        }
        last = first;
        if (peek(t, 0) == '-' && t->size - t->at > 1 && peek(t, 1) != ']') {
            t->at++;
            if (peek(t, 0) == '[') return refuse(t, "a range that ends in a class");
            if (!class_member(t, &last, &is_set)) return false;
            if (is_set || last < first) return refuse(t, "this range");
        }
        if (t->fold && last >= 0x80) return refuse(t, "a character beyond ASCII where case is ignored");
        if (!emit_character(t, first)) return false;
        if (last != first && !(emit(t, "-") && emit_character(t, last))) return false;
    }
    return refuse(t, "an unfinished class");
}

static bool character_class(struct translation *t)
{
    t->fold_previous = 0;
    t->at++;
    if (peek(t, 0) != '^') return emit(t, "[") && class_members(t, 0) && emit(t, "]");
    if (t->fold) return refuse(t, "a negated class where case is ignored");
    t->at++;
    return emit(t, "[^") && class_members(t, 0) && emit(t, "]");
}

static bool alternatives(struct translation *t);

/* *repeatable: a quantifier may follow; not after a lookaround. */
static bool group(struct translation *t, bool *repeatable)
{
    static const struct {
        const char *open;
        bool repeatable;
    } kinds[] = {{"(?:", true}, {"(?>", true}, {"(?=", false}, {"(?!", false}, {"(?<=", false}, {"(?<!", false}};
    bool fold = t->fold;
    const char *open = NULL;
    *repeatable = true;
    if (looking_at(t, "(?i:") || looking_at(t, "(?-i:")) {
        t->fold = peek(t, 2) == 'i';
        open = t->fold ? "(?i:" : "(?-i:";
        t->at += strlen(open);
    } else if (peek(t, 1) != '?') {
        t->at++;
        if (peek(t, 0) == '*') return refuse(t, "'(*'");
        open = "(?:";
    } else {
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !open; i++) {
            if (!looking_at(t, kinds[i].open)) continue;
            open = kinds[i].open;
            *repeatable = kinds[i].repeatable;
            t->at += strlen(open);
        }
        if (!open) return refuse(t, "this kind of group");
    }
    if (++t->depth > GROUP_DEPTH_LIMIT) return refuse(t, "a group nested this deep");
    t->lookarounds += !*repeatable;
    if (!emit(t, open) || (*repeatable && !emit_callout(t, PATTERN_CALLOUT_GROUP)) || !alternatives(t)) return false;
    if (peek(t, 0) != ')') return refuse(t, "an unfinished group");
    t->at++;
    t->depth--;
    t->lookarounds -= !*repeatable;
    t->fold = fold;
    t->fold_previous = 0;
    return emit(t, ")");
}

static bool escape(struct translation *t, bool *repeatable)
{
    bool known;
    uint32_t character;
    t->at++;
    *repeatable = true;
    if (at_end(t)) return refuse(t, "a backslash");
    if (!set_escape(t, false, &known)) return false;
    if (known) {
        t->fold_previous = 0;
        return true;
    }
    if (!character_escape(t, &character, &known)) return false;
    if (known) return fold_allows(t, character) && emit_character(t, character);
    *repeatable = false;
    t->fold_previous = 0;
    char c = t->regex[t->at];
    switch (c) {
    case 'A':
    case 'z':
    case 'Z': t->at++; return emit(t, c == 'A' ? "\\A" : c == 'z' ? "\\z" : "\\Z");
    case 'b':
        t->at++;
        return emit(t, "(?:(?<=[" WORD_SET "])(?![" WORD_SET "])|(?<![" WORD_SET "])(?=[" WORD_SET "]))");
    case 'B':
        t->at++;
        return emit(t, "(?:(?<=[" WORD_SET "])(?=[" WORD_SET "])|(?<![" WORD_SET "])(?![" WORD_SET "]))");
    default: return refuse(t, "this escape");
    }
}

static bool read_count(struct translation *t, uint32_t *count, bool *present)
{
    *present = false;
    for (*count = 0; peek(t, 0) >= '0' && peek(t, 0) <= '9'; t->at++) {
        *count = *count * 10 + (uint32_t)(peek(t, 0) - '0');
        *present = true;
        if (*count > REPEAT_LIMIT) return refuse(t, "a repeat count above 1000");
    }
    return true;
}

struct repeat {
    uint32_t least;
    bool unlimited;
};

/* At '{': an interval. Ruby treats a '?' or '+' after one specially, so neither is accepted, except '?' after an open
 * or two-sided interval, which means lazy in both. */
static bool interval(struct translation *t, struct repeat *repeat)
{
    uint32_t most;
    bool has_least, has_most = false, comma = false;
    char text[32];
    t->at++;
    if (!read_count(t, &repeat->least, &has_least)) return false;
    if (peek(t, 0) == ',') {
        comma = true;
        t->at++;
        if (!read_count(t, &most, &has_most)) return false;
    }
    if (peek(t, 0) != '}' || (!has_least && !has_most) || (has_most && most < repeat->least))
        return refuse(t, "this '{'");
    t->at++;
    repeat->unlimited = comma && !has_most;
    if (!comma)
        snprintf(text, sizeof text, "{%" PRIu32 "}", repeat->least);
    else if (!has_most)
        snprintf(text, sizeof text, "{%" PRIu32 ",}", repeat->least);
    else
        snprintf(text, sizeof text, "{%" PRIu32 ",%" PRIu32 "}", repeat->least, most);
    if (!emit(t, text)) return false;
    if (peek(t, 0) == '+' || (peek(t, 0) == '?' && !comma)) return refuse(t, "a suffix after '{...}'");
    if (peek(t, 0) != '?') return true;
    t->at++;
    return emit(t, "?");
}

static bool is_quantifier(char c) { return c == '?' || c == '*' || c == '+' || c == '{'; }

/* Quantifiers of the atom that was emitted from `from` on. A repeat of one character or set scans text without
 * backtracking, so a callout precedes it, too. */
static bool quantifier(struct translation *t, size_t from, bool repeatable, bool is_group)
{
    char c = peek(t, 0);
    size_t begin = t->at;
    struct repeat repeat = {.unlimited = c == '*' || c == '+'};
    if (at_end(t) || !is_quantifier(c)) return !is_group || !repeatable || emit_callout(t, PATTERN_CALLOUT_AFTER);
    if (!repeatable) return refuse(t, "a repeat of something without length");
    t->fold_previous = 0;
    if (c == '{') {
        if (!interval(t, &repeat)) return false;
    } else {
        char text[3] = {c, '\0', '\0'};
        t->at++;
        if (peek(t, 0) == '?' || peek(t, 0) == '+') text[1] = t->regex[t->at++];
        if (!emit(t, text)) return false;
    }
    if (!at_end(t) && is_quantifier(peek(t, 0))) return refuse(t, "a repeat of a repeat");
    if (repeat.unlimited && t->lookarounds) {
        t->at = begin;
        return refuse(t, "a repeat without an upper limit inside a lookahead or lookbehind");
    }
    /* a repeat that fails before its least count has scanned at most that much, and does not reach the callout
     * after it */
    return (is_group || c == '?' || insert_callout(t, from, 1 + repeat.least / PATTERN_CALLOUT_UNIT)) &&
           emit_callout(t, PATTERN_CALLOUT_AFTER);
}

static bool atom(struct translation *t, bool *repeatable)
{
    uint32_t character;
    char c = peek(t, 0);
    *repeatable = true;
    switch (c) {
    case '(': return group(t, repeatable);
    case '[': return character_class(t);
    case '\\': return escape(t, repeatable);
    case '.':
        t->at++;
        t->fold_previous = 0;
        return emit(t, ".");
    case '^':
    case '$':
        t->at++;
        *repeatable = false;
        t->fold_previous = 0;
        return emit(t, c == '^' ? "^" : "$");
    case '?':
    case '*':
    case '+':
    case '{': return refuse(t, "a repeat of nothing");
    default:
        t->at += text_read(t->regex + t->at, &character);
        return fold_allows(t, character) && emit_character(t, character);
    }
}

static bool alternatives(struct translation *t)
{
    bool repeatable;
    t->fold_previous = 0;
    while (!at_end(t) && peek(t, 0) != ')') {
        if (peek(t, 0) == '|') {
            t->at++;
            t->fold_previous = 0;
            if (!emit(t, "|")) return false;
        } else {
            bool is_group = peek(t, 0) == '(';
            size_t from = t->out->size;
            if (!atom(t, &repeatable) || !quantifier(t, from, repeatable, is_group)) return false;
        }
    }
    return true;
}

bool tokenizer_pattern_translate(const char *regex, size_t size, struct text_buffer *out, struct status *status)
{
    struct translation t = {.regex = regex, .size = size, .out = out, .status = status};
    out->size = 0;
    if (size == 0 || size > PATTERN_BYTES_LIMIT)
        return status_fail(status, STATUS_BAD_INPUT, "a pattern of %zu bytes (1 to %d are supported)", size,
                           PATTERN_BYTES_LIMIT);
    if (!text_is_valid((const uint8_t *)regex, size))
        return status_fail(status, STATUS_BAD_INPUT, "a pattern that is not valid UTF-8");
    bool fold = looking_at(&t, "(?i)");
    if (fold) {
        t.fold = true;
        t.at = 4;
        if (!emit(&t, "(?i:")) return false;
    }
    if (!alternatives(&t)) return false;
    if (!at_end(&t)) return refuse(&t, "an unmatched ')'");
    return !fold || emit(&t, ")");
}
