/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/grammar/grammar_number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

enum { INTEGER_DIGITS = 18, DECIMAL_DIGITS = 15, DECIMAL_FRACTION = 6, MOST_DIGITS = 18 };

/* Values are integers in units of 10^-fraction. */
struct digits {
    struct tree *tree;
    struct tree_edge *edges;
    uint32_t edge_count, edge_capacity, state_count;
    int fraction;
    uint32_t multiple; /* 1: none */
    uint32_t *inside;  /* [MOST_DIGITS + 1][multiple]: the state with so many integer digits left, 0: none yet */
    uint32_t after[MOST_DIGITS + 2]; /* the state after so many digits of the fraction and the point, 0: none yet */
    /* The range of one number of integer digits: */
    int whole, total;
    uint8_t low[MOST_DIGITS + 1], high[MOST_DIGITS + 1];
};

static uint64_t power(int exponent)
{
    uint64_t value = 1;
    while (exponent-- > 0) value *= 10;
    return value;
}

static void add_edge(struct digits *d, uint32_t from, char low, char high, uint32_t to)
{
    if (tree_grow(d->tree, (void **)&d->edges, &d->edge_capacity, (uint64_t)d->edge_count + 1, sizeof *d->edges,
                  TREE_MOST_WORDS / 8))
        d->edges[d->edge_count++] = (struct tree_edge){from, (uint8_t)low, (uint8_t)high, to};
}

/* A place in the digits: `at` are read, and what was read equals the lower or upper bound so far. */
struct place {
    int at;
    bool point, tight_low, tight_high; /* point: the decimal point was read */
    uint32_t residue;
};

static void follow(struct digits *d, uint32_t state, struct place place);

/* The state of a place; those without a bound left are shared. */
static uint32_t state_of(struct digits *d, struct place place)
{
    uint32_t *shared = NULL;
    if (d->tree->failed) return 0;
    if (!place.tight_low && !place.tight_high)
        shared = place.point ? &d->after[place.at - d->whole]
                             : &d->inside[(uint32_t)(d->whole - place.at) * d->multiple + place.residue];
    if (shared && *shared) return *shared;
    const uint32_t state = d->state_count++;
    if (shared) *shared = state;
    follow(d, state, place);
    return state;
}

static void follow(struct digits *d, uint32_t state, struct place place)
{
    const bool in_fraction = place.at > d->whole, at_point = place.at == d->whole && !place.point;
    if (at_point || in_fraction) {
        bool zeros = true; /* digits that are not written are zeros */
        for (int i = place.at; i < d->total && place.tight_low; i++) zeros = zeros && d->low[i] == 0;
        if (zeros && place.residue == 0) add_edge(d, state, 0, 0, TREE_ACCEPT);
    }
    if (at_point) {
        if (d->fraction == 0) return;
        place.point = true;
        add_edge(d, state, '.', '.', state_of(d, place));
        return;
    }
    if (place.at == d->total) return;
    const int first = place.tight_low ? d->low[place.at] : 0, last = place.tight_high ? d->high[place.at] : 9;
    for (int digit = first, end; digit <= last && !d->tree->failed; digit = end + 1) {
        struct place next = place;
        next.at++;
        next.tight_low = place.tight_low && digit == first;
        next.tight_high = place.tight_high && digit == last;
        next.residue = (place.residue * 10 + (uint32_t)digit) % d->multiple;
        end = digit;
        if (d->multiple == 1 && !next.tight_low && !next.tight_high)
            while (end < last - (place.tight_high ? 1 : 0)) end++;
        add_edge(d, state, (char)('0' + digit), (char)('0' + end), state_of(d, next));
    }
}

static void write_digits(uint64_t value, int count, uint8_t *out)
{
    for (int i = count; i-- > 0; value /= 10) out[i] = (uint8_t)(value % 10);
}

/* Magnitudes from low to high, after `from`. */
static void add_magnitudes(struct digits *d, uint32_t from, uint64_t low, uint64_t high)
{
    for (int whole = 1; whole + d->fraction <= MOST_DIGITS && low <= high; whole++) {
        const uint64_t least = whole == 1 ? 0 : power(whole - 1 + d->fraction), most = power(whole + d->fraction) - 1;
        const uint64_t first = low > least ? low : least, last = high < most ? high : most;
        if (first > last) continue;
        d->whole = whole;
        d->total = whole + d->fraction;
        write_digits(first, d->total, d->low);
        write_digits(last, d->total, d->high);
        follow(d, from, (struct place){.tight_low = true, .tight_high = true});
    }
}

/* Values from low to high in units of 10^-fraction, of at most `count` digits. */
static uint32_t values(struct tree *tree, int64_t low, int64_t high, int fraction, uint32_t multiple)
{
    struct digits d = {.tree = tree, .fraction = fraction, .multiple = multiple, .state_count = 2};
    uint32_t node = TREE_NODE_NEVER;
    if (low > high || tree->failed) return TREE_NODE_NEVER;
    d.inside = calloc((size_t)(MOST_DIGITS + 1) * multiple, sizeof *d.inside);
    if (!d.inside) return tree_fail(tree, STATUS_MACHINE, "grammar: out of memory");
    if (high >= 0) add_magnitudes(&d, 0, low > 0 ? (uint64_t)low : 0, (uint64_t)high);
    if (low < 0) {
        const uint32_t negative = 1;
        add_edge(&d, 0, '-', '-', negative);
        add_magnitudes(&d, negative, high < 0 ? (uint64_t)-high : 1, (uint64_t)-low);
    }
    if (!tree->failed) node = tree_graph(tree, d.edges, d.edge_count, d.state_count);
    free(d.edges);
    free(d.inside);
    return node;
}

bool number_text(const json_t *value, char text[NUMBER_TEXT_BYTES])
{
    if (json_is_integer(value)) {
        snprintf(text, NUMBER_TEXT_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return true;
    }
    const double number = json_real_value(value);
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, NUMBER_TEXT_BYTES, "%.*g", precision, number);
        if (strtod(text, NULL) == number) return true;
    }
    return false;
}

/* A bound in decimal: digits * 10^exponent. */
struct bound {
    uint64_t digits;
    int exponent;
    bool negative;
};

static bool read_bound(const json_t *value, struct bound *bound)
{
    char text[NUMBER_TEXT_BYTES];
    *bound = (struct bound){0};
    if (!number_text(value, text)) return false;
    const char *at = text;
    bound->negative = *at == '-';
    at += bound->negative;
    for (bool point = false; *at && *at != 'e'; at++) {
        if (*at == '.') {
            point = true;
            continue;
        }
        bound->digits = bound->digits * 10 + (uint64_t)(*at - '0');
        bound->exponent -= point;
    }
    if (*at == 'e') bound->exponent += atoi(at + 1);
    while (bound->digits && bound->digits % 10 == 0) {
        bound->digits /= 10;
        bound->exponent++;
    }
    return true;
}

/* The bound in units of 10^-fraction, rounded towards zero; INT64_MAX / 2 if larger. */
static int64_t scale(struct bound bound, int fraction, bool *exact)
{
    uint64_t value = bound.digits;
    *exact = true;
    if (value == 0) return 0;
    for (int i = bound.exponent + fraction; i > 0; i--) {
        if (value > INT64_MAX / 20) return bound.negative ? -(INT64_MAX / 2) : INT64_MAX / 2;
        value *= 10;
    }
    for (int i = bound.exponent + fraction; i < 0 && (value || *exact); i++) {
        *exact = *exact && value % 10 == 0;
        value /= 10;
    }
    if (value > INT64_MAX / 2) value = INT64_MAX / 2;
    return bound.negative ? -(int64_t)value : (int64_t)value;
}

static void raise(int64_t *low, const json_t *value, bool exclusive, int fraction)
{
    struct bound bound;
    bool exact;
    if (!value || !read_bound(value, &bound)) return;
    int64_t least = scale(bound, fraction, &exact);
    if (exact ? exclusive : !bound.negative) least++;
    if (least > *low) *low = least;
}

static void lower(int64_t *high, const json_t *value, bool exclusive, int fraction)
{
    struct bound bound;
    bool exact;
    if (!value || !read_bound(value, &bound)) return;
    int64_t most = scale(bound, fraction, &exact);
    if (exact ? exclusive : bound.negative) most--;
    if (most < *high) *high = most;
}

static uint32_t within(struct tree *tree, const struct number_bounds *bounds, int digits, int fraction,
                       const char *where)
{
    const int64_t limit = (int64_t)power(digits) - 1;
    int64_t low = -limit, high = limit;
    const uint32_t multiple = bounds->multiple ? bounds->multiple : 1;
    if (multiple > NUMBER_MOST_MULTIPLE)
        return tree_fail(tree, STATUS_BAD_INPUT, "%.300s: multipleOf %u is not supported; expected at most %d", where,
                         multiple, NUMBER_MOST_MULTIPLE);
    raise(&low, bounds->minimum, false, fraction);
    raise(&low, bounds->exclusive_minimum, true, fraction);
    lower(&high, bounds->maximum, false, fraction);
    lower(&high, bounds->exclusive_maximum, true, fraction);
    return values(tree, low, high, fraction, multiple);
}

uint32_t number_integer(struct tree *tree, const struct number_bounds *bounds, const char *where)
{
    return within(tree, bounds, INTEGER_DIGITS, 0, where);
}

uint32_t number_decimal(struct tree *tree, const struct number_bounds *bounds, const char *where)
{
    const json_t *all[] = {bounds->minimum, bounds->exclusive_minimum, bounds->maximum, bounds->exclusive_maximum};
    int whole = 1, fraction = DECIMAL_FRACTION;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct bound bound;
        if (!all[i] || !read_bound(all[i], &bound) || bound.digits == 0) continue;
        int digits = bound.exponent;
        for (uint64_t rest = bound.digits; rest; rest /= 10) digits++;
        if (digits > whole) whole = digits;
        if (-bound.exponent > fraction) fraction = -bound.exponent;
    }
    if (whole > DECIMAL_DIGITS)
        return tree_fail(tree, STATUS_BAD_INPUT,
                         "%.300s: a bound of 1e%d or more is not supported for numbers; use an integer", where,
                         DECIMAL_DIGITS);
    if (fraction > DECIMAL_DIGITS - whole) fraction = DECIMAL_DIGITS - whole;
    return within(tree, bounds, DECIMAL_DIGITS, fraction, where);
}
