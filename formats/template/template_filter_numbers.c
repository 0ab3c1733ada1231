/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of numbers, and numbers of texts as int() and float() read them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>

#include "formats/template/template_filters.h"

enum { MOST_DIGITS = 64 };

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    const char letter = (char)(c | 32);
    return letter >= 'a' && letter <= 'z' ? letter - 'a' + 10 : 99;
}

/* Without white space at the ends, and without underscores, each of which must be between digits. */
static bool plain_digits(struct string in, char digits[MOST_DIGITS])
{
    size_t used = 0;
    in = string_strip(in, NULL, 3);
    if (!in.size || in.size >= MOST_DIGITS) return false;
    for (size_t i = 0; i < in.size; i++) {
        if (in.bytes[i] != '_') {
            digits[used++] = in.bytes[i];
        } else if (i == 0 || i + 1 == in.size || digit_of(in.bytes[i - 1]) > 35 || digit_of(in.bytes[i + 1]) > 35) {
            return false;
        }
    }
    digits[used] = 0;
    return memchr(digits, 0, used) == NULL;
}

/* int(text, base); base 0 goes by the prefix. */
static bool integer_of(struct string in, int64_t base, int64_t *integer)
{
    static const char prefixes[] = "xob";
    static const int bases[] = {16, 8, 2};
    char digits[MOST_DIGITS];
    if (!plain_digits(in, digits) || base < 0 || base == 1 || base > 36) return false;
    const char *at = digits + (*digits == '-' || *digits == '+');
    const char *prefix = at[0] == '0' && at[1] ? strchr(prefixes, at[1] | 32) : NULL;
    if (prefix && (base == 0 || base == bases[prefix - prefixes])) {
        base = bases[prefix - prefixes];
        at += 2;
    } else if (base == 0) {
        if (at[0] == '0' && strspn(at, "0") != strlen(at)) return false;
        base = 10;
    }
    if (!*at) return false;
    *integer = 0;
    for (; *at; at++) {
        const int digit = digit_of(*at);
        if (digit >= base || __builtin_mul_overflow(*integer, base, integer) ||
            __builtin_add_overflow(*integer, digit, integer))
            return false;
    }
    if (*digits == '-') *integer = -*integer;
    return true;
}

static bool real_of(struct string in, double *real)
{
    char digits[MOST_DIGITS], *end;
    if (!plain_digits(in, digits)) return false;
    if (strspn(digits, "0123456789+-.eE") != strlen(digits)) { /* a word, where strtod also takes hexadecimal digits */
        const char *word = digits + (*digits == '-' || *digits == '+');
        if (strcasecmp(word, "inf") != 0 && strcasecmp(word, "infinity") != 0 && strcasecmp(word, "nan") != 0)
            return false;
    }
    *real = strtod(digits, &end);
    return end != digits && !*end;
}

static bool fail_undefined(const struct call *call)
{
    if (call->value.kind != VALUE_UNDEFINED) return false;
    render_fail_undefined(call->render, &call->value);
    return true;
}

struct value filter_int(const struct call *call)
{
    const struct value *value = &call->value, *absent = call_argument(call, 0, "default");
    int64_t integer;
    double real = NAN;
    if (fail_undefined(call)) return *value;
    if (value_is_integer(value, &integer)) return value_integer(integer);
    if (value->kind == VALUE_STRING) {
        if (integer_of(value->string, call_integer(call, 1, "base", 10), &integer)) return value_integer(integer);
        if (!real_of(value->string, &real) || isinf(real)) real = NAN;
    } else if (value->kind == VALUE_FLOAT) {
        real = value->real;
    }
    if (isnan(real)) return absent ? *absent : value_integer(0);
    if (fabs(real) < 9e18) return value_integer((int64_t)real);
    render_fail(call->render, isinf(real) ? "OverflowError: cannot convert float infinity to integer"
                                          : "OverflowError: an integer of more than 64 bits");
    return value_integer(0);
}

struct value filter_float(const struct call *call)
{
    const struct value *absent = call_argument(call, 0, "default");
    double real;
    if (fail_undefined(call)) return call->value;
    if (value_is_number(&call->value)) return value_float(value_real(&call->value));
    if (call->value.kind == VALUE_STRING && real_of(call->value.string, &real)) return value_float(real);
    return absent ? *absent : value_float(0);
}

/* To tens, hundreds .., halves to even. */
static int64_t round_integer(int64_t integer, int64_t zeros)
{
    int64_t unit = 1;
    for (; zeros > 0; zeros--)
        if (__builtin_mul_overflow(unit, 10, &unit)) return 0;
    const int64_t rest = integer % unit, down = integer - rest, twice = 2 * (rest < 0 ? -rest : rest);
    const bool away = twice > unit || (twice == unit && (down / unit) % 2 != 0);
    return away ? down + (rest < 0 ? -unit : unit) : down;
}

struct value filter_round(const struct call *call)
{
    const int64_t precision = call_integer(call, 0, "precision", 0);
    const struct string method = call_string(call, 1, "method", "common");
    int64_t integer;
    if (fail_undefined(call)) return call->value;
    if (!string_is(method, "common") && !string_is(method, "ceil") && !string_is(method, "floor"))
        render_fail(call->render, "FilterArgumentError: method must be common, ceil or floor");
    if (!value_is_number(&call->value) || precision < -300 || precision > 300)
        render_fail(call->render, "TypeError: round: expected a number, found %s", value_type(&call->value));
    if (call->render->failed) return call->value;
    const double unit = pow(10, (double)precision), real = value_real(&call->value);
    if (string_is(method, "ceil")) return value_float(ceil(real * unit) / unit + 0.0);
    if (string_is(method, "floor")) return value_float(floor(real * unit) / unit + 0.0);
    if (value_is_integer(&call->value, &integer))
        return value_integer(precision < -17 ? 0 : round_integer(integer, -precision));
    char digits[400]; /* correctly rounded, halves to even in decimal, as round() */
    if (precision < 0) return value_float(nearbyint(real * unit) / unit);
    snprintf(digits, sizeof digits, "%.*f", (int)precision < 40 ? (int)precision : 40, real);
    return value_float(fabs(real) < 1e300 ? strtod(digits, NULL) : real);
}

struct value filter_abs(const struct call *call)
{
    int64_t integer;
    if (value_is_integer(&call->value, &integer)) {
        if (integer == INT64_MIN) render_fail(call->render, "OverflowError: an integer is too large");
        return value_integer(integer < 0 ? -(integer + (integer == INT64_MIN)) : integer);
    }
    if (call->value.kind == VALUE_FLOAT) return value_float(fabs(call->value.real));
    render_fail(call->render, "TypeError: bad operand type for abs(): '%s'", value_type(&call->value));
    return call->value;
}
