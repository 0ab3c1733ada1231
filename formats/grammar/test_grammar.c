/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "formats/grammar/test_grammar.h"

#include <arpa/inet.h>
#include <math.h>
#include <pcre2.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

static bool has_type(const json_t *type, const json_t *value)
{
    if (json_is_array(type)) {
        for (size_t i = 0; i < json_array_size(type); i++)
            if (has_type(json_array_get(type, i), value)) return true;
        return false;
    }
    const char *name = json_string_value(type);
    assert_non_null(name);
    if (strcmp(name, "integer") == 0)
        return json_is_number(value) && floor(json_number_value(value)) == json_number_value(value);
    if (strcmp(name, "number") == 0) return json_is_number(value);
    if (strcmp(name, "string") == 0) return json_is_string(value);
    if (strcmp(name, "boolean") == 0) return json_is_boolean(value);
    if (strcmp(name, "null") == 0) return json_is_null(value);
    if (strcmp(name, "array") == 0) return json_is_array(value);
    assert_string_equal(name, "object");
    return json_is_object(value);
}

static size_t characters(const json_t *text)
{
    size_t count = 0;
    for (const char *c = json_string_value(text); *c; c++) count += ((uint8_t)*c & 0xC0) != 0x80;
    return count;
}

/* A number of 64 bits or a double, exactly. */
static long double exact(const json_t *number)
{
    return json_is_integer(number) ? (long double)json_integer_value(number) : (long double)json_real_value(number);
}

static bool same(const json_t *left, const json_t *right)
{
    const char *key;
    json_t *member;
    if (json_is_number(left) && json_is_number(right)) return exact(left) == exact(right);
    if (json_is_array(left) && json_is_array(right) && json_array_size(left) == json_array_size(right)) {
        for (size_t i = 0; i < json_array_size(left); i++)
            if (!same(json_array_get(left, i), json_array_get(right, i))) return false;
        return true;
    }
    if (json_is_object(left) && json_is_object(right) && json_object_size(left) == json_object_size(right)) {
        json_object_foreach ((json_t *)(uintptr_t)left, key, member)
            if (!json_object_get(right, key) || !same(member, json_object_get(right, key))) return false;
        return true;
    }
    return json_equal(left, right) == 1;
}

static bool matches(const char *pattern, const char *text)
{
    int code;
    size_t offset;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY,
                                         &code, &offset, NULL);
    assert_non_null(compiled);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(compiled, NULL);
    const int result = pcre2_match(compiled, (PCRE2_SPTR)text, strlen(text), 0, 0, data, NULL);
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    assert_true(result >= 0 || result == PCRE2_ERROR_NOMATCH);
    return result >= 0;
}

static bool is_date(const char *text, size_t size)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year, month, day, used = 0;
    if (size != 10 || sscanf(text, "%4d-%2d-%2d%n", &year, &month, &day, &used) != 3 || used != 10) return false;
    const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return year >= 1 && month >= 1 && month <= 12 && day >= 1 && day <= days[month - 1] + (leap && month == 2);
}

static bool is_time(const char *text)
{
    int hour, minute, second, used = 0;
    if (sscanf(text, "%2d:%2d:%2d%n", &hour, &minute, &second, &used) != 3 || used != 8) return false;
    if (hour > 23 || minute > 59 || second > 59) return false;
    text += used;
    if (*text == '.') {
        const size_t digits = strspn(text + 1, "0123456789");
        if (digits == 0) return false;
        text += digits + 1;
    }
    if (strcmp(text, "Z") == 0) return true;
    used = 0;
    return (*text == '+' || *text == '-') && sscanf(text + 1, "%2d:%2d%n", &hour, &minute, &used) == 2 && used == 5 &&
           text[6] == '\0' && hour < 24 && minute < 60;
}

static bool has_format(const char *format, const char *text)
{
    if (strcmp(format, "date") == 0) return is_date(text, strlen(text));
    if (strcmp(format, "time") == 0) return is_time(text);
    if (strcmp(format, "date-time") == 0)
        return strlen(text) > 11 && is_date(text, 10) && text[10] == 'T' && is_time(text + 11);
    if (strcmp(format, "uuid") == 0) {
        for (int i = 0; i < 36; i++)
            if (i == 8 || i == 13 || i == 18 || i == 23 ? text[i] != '-'
                                                        : !strchr("0123456789abcdefABCDEF", text[i]) || !text[i])
                return false;
        return text[36] == '\0';
    }
    if (strcmp(format, "ipv4") == 0) {
        unsigned a, b, c, d;
        int used = 0;
        return sscanf(text, "%3u.%3u.%3u.%3u%n", &a, &b, &c, &d, &used) == 4 && text[used] == '\0' && a < 256 &&
               b < 256 && c < 256 && d < 256;
    }
    if (strcmp(format, "hostname") == 0)
        return strlen(text) < 254 &&
               matches("^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$", text);
    if (strcmp(format, "ipv6") == 0)
        return matches("^[0-9a-fA-F:]{2,39}$", text) && inet_pton(AF_INET6, text, &(struct in6_addr){0}) == 1;
    if (strcmp(format, "duration") == 0)
        return matches("^P(?=.)(\\d+W|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)?(T(?=.)(\\d+H(\\d+M(\\d+S)?)?|\\d+M("
                       "\\d+S)?|\\d+S)?)?)$",
                       text);
    if (strcmp(format, "uri") == 0) return matches("^[a-z]+://[^/?#\\s]+[!-~]*$", text);
    assert_string_equal(format, "email");
    const char *at = strchr(text, '@');
    return at && at - text > 0 && at - text <= 64 && !strchr(at + 1, '@') && strchr(at, '.') && !strstr(text, "..") &&
           text[0] != '.' && at[-1] != '.' && strlen(at) < 255;
}

static const json_t *resolve(const json_t *root, const char *reference)
{
    char copy[200], *rest = copy;
    if (strcmp(reference, "#here") == 0) return json_object_get(json_object_get(root, "$defs"), "here");
    assert_true(reference[0] == '#' && strlen(reference) < sizeof copy);
    strcpy(copy, reference);
    strsep(&rest, "/");
    for (char *part; root && (part = strsep(&rest, "/"));) {
        char *escape = strstr(part, "~1");
        if (escape) {
            *escape = '/';
            memmove(escape + 1, escape + 2, strlen(escape + 1));
        }
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(part)) : json_object_get(root, part);
    }
    assert_non_null(root);
    return root;
}

static bool object_is_valid(const json_t *root, const json_t *schema, const json_t *value)
{
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"),
                 *additional = json_object_get(schema, "additionalProperties"),
                 *names = json_object_get(schema, "propertyNames"), *rule;
    json_t *member, *patterns = json_object_get(schema, "patternProperties"), *dependents;
    const char *name;
    if ((rule = json_object_get(schema, "minProperties")) && json_object_size(value) < (size_t)json_integer_value(rule))
        return false;
    if ((rule = json_object_get(schema, "maxProperties")) && json_object_size(value) > (size_t)json_integer_value(rule))
        return false;
    dependents = json_object_get(schema, "dependentRequired");
    json_object_foreach (dependents, name, member)
        for (size_t i = 0; json_object_get(value, name) && i < json_array_size(member); i++)
            if (!json_object_get(value, json_string_value(json_array_get(member, i)))) return false;
    dependents = json_object_get(schema, "dependentSchemas");
    json_object_foreach (dependents, name, member)
        if (json_object_get(value, name) && !test_is_valid(root, member, value)) return false;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i)))) return false;
    json_object_foreach ((json_t *)(uintptr_t)value, name, member) {
        const json_t *property = json_object_get(properties, name);
        json_t *key = json_string(name), *one;
        const bool named = !names || test_is_valid(root, names, key);
        json_decref(key);
        if (!named) return false;
        const char *pattern;
        bool matched = false;
        json_object_foreach (patterns, pattern, one) {
            if (!matches(pattern, name)) continue;
            matched = true;
            if (!test_is_valid(root, one, member)) return false;
        }
        if (matched && !property) continue;
        if (property ? !test_is_valid(root, property, member) : additional && !test_is_valid(root, additional, member))
            return false;
    }
    return true;
}

static bool array_is_valid(const json_t *root, const json_t *schema, const json_t *value)
{
    const json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items"),
                 *least = json_object_get(schema, "minItems"), *most = json_object_get(schema, "maxItems");
    const size_t size = json_array_size(value), fixed = json_array_size(prefix);
    const json_t *contains = json_object_get(schema, "contains");
    bool found = !contains;
    for (size_t i = 0; i < size && !found; i++) found = test_is_valid(root, contains, json_array_get(value, i));
    if (!found) return false;
    for (size_t i = 0; json_is_true(json_object_get(schema, "uniqueItems")) && i < size; i++)
        for (size_t k = 0; k < i; k++)
            if (same(json_array_get(value, i), json_array_get(value, k))) return false;
    if (least && size < (size_t)json_integer_value(least)) return false;
    if (most && size > (size_t)json_integer_value(most)) return false;
    for (size_t i = 0; i < size; i++) {
        const json_t *element = i < fixed ? json_array_get(prefix, i) : items;
        if (element && !test_is_valid(root, element, json_array_get(value, i))) return false;
    }
    return true;
}

static bool scalar_is_valid(const json_t *schema, const json_t *value)
{
    const json_t *rule;
    if (json_is_string(value)) {
        if ((rule = json_object_get(schema, "minLength")) && characters(value) < (size_t)json_integer_value(rule))
            return false;
        if ((rule = json_object_get(schema, "maxLength")) && characters(value) > (size_t)json_integer_value(rule))
            return false;
        if ((rule = json_object_get(schema, "pattern")) && !matches(json_string_value(rule), json_string_value(value)))
            return false;
        if ((rule = json_object_get(schema, "format")) &&
            !has_format(json_string_value(rule), json_string_value(value)))
            return false;
    }
    if (json_is_number(value)) {
        const long double number = exact(value);
        if ((rule = json_object_get(schema, "minimum")) && !(number >= exact(rule))) return false;
        if ((rule = json_object_get(schema, "maximum")) && !(number <= exact(rule))) return false;
        if ((rule = json_object_get(schema, "exclusiveMinimum")) && !(number > exact(rule))) return false;
        if ((rule = json_object_get(schema, "exclusiveMaximum")) && !(number < exact(rule))) return false;
        rule = json_object_get(schema, "multipleOf");
        if (rule && json_is_integer(rule) && json_is_integer(value))
            return json_integer_value(value) % json_integer_value(rule) == 0;
        if (rule && fmod(json_number_value(value), json_number_value(rule)) != 0) return false;
    }
    return true;
}

bool test_is_valid(const json_t *root, const json_t *schema, const json_t *value)
{
    const json_t *rule;
    if (json_is_boolean(schema)) return json_is_true(schema);
    assert_true(json_is_object(schema));
    if ((rule = json_object_get(schema, "$ref")) && !test_is_valid(root, resolve(root, json_string_value(rule)), value))
        return false;
    if ((rule = json_object_get(schema, "type")) && !has_type(rule, value)) return false;
    if ((rule = json_object_get(schema, "const")) && !same(rule, value)) return false;
    if ((rule = json_object_get(schema, "enum"))) {
        bool found = false;
        for (size_t i = 0; i < json_array_size(rule); i++) found = found || same(json_array_get(rule, i), value);
        if (!found) return false;
    }
    rule = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(rule); i++)
        if (!test_is_valid(root, json_array_get(rule, i), value)) return false;
    static const char *const alternatives[] = {"anyOf", "oneOf"};
    for (int k = 0; k < 2; k++) {
        size_t valid = 0;
        rule = json_object_get(schema, alternatives[k]);
        for (size_t i = 0; i < json_array_size(rule); i++) valid += test_is_valid(root, json_array_get(rule, i), value);
        if (rule && (k == 0 ? valid == 0 : valid != 1)) return false;
    }
    if ((rule = json_object_get(schema, "not")) && test_is_valid(root, rule, value)) return false;
    if ((rule = json_object_get(schema, "if"))) {
        rule = json_object_get(schema, test_is_valid(root, rule, value) ? "then" : "else");
        if (rule && !test_is_valid(root, rule, value)) return false;
    }
    if (json_is_object(value)) return object_is_valid(root, schema, value);
    if (json_is_array(value)) return array_is_valid(root, schema, value);
    return scalar_is_valid(schema, value);
}

void test_vocabulary_open(struct test_vocabulary *v)
{
    static const char *const pieces[] = {"{\"",
                                         "\":",
                                         "\",\"",
                                         "\":\"",
                                         "\"}",
                                         "},{",
                                         "[[",
                                         "]]",
                                         "true",
                                         "false",
                                         "null",
                                         "nul",
                                         "name",
                                         "id",
                                         "value",
                                         "type",
                                         "next",
                                         "the",
                                         " the",
                                         "hello",
                                         "world",
                                         "é",
                                         "日本",
                                         "\xF0\x9F",
                                         "\x98\x80",
                                         "\xE6",
                                         "\\\"",
                                         "\\u",
                                         "\\u00",
                                         "\\ud83d",
                                         "00",
                                         "123",
                                         "1234567",
                                         "0.5",
                                         "e+",
                                         "-1",
                                         "\"a\":",
                                         "{\"a\":",
                                         ",\"b\":",
                                         "2024-",
                                         "-01-",
                                         "T12:00:00Z",
                                         "aaaa",
                                         "abab",
                                         "@example",
                                         ".com",
                                         "\n",
                                         "  ",
                                         "\"}]}",
                                         "}}",
                                         "],",
                                         ",[",
                                         "\"name\":\"",
                                         "[1,2,3]",
                                         "[{\"",
                                         "\"]",
                                         "                                                ",
                                         "================================================"};
    const size_t piece_count = sizeof pieces / sizeof *pieces;
    static char bytes[256];
    v->count = 256 + piece_count + 2;
    v->tokens = calloc(v->count, sizeof *v->tokens);
    assert_non_null(v->tokens);
    for (size_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        v->tokens[i] = (struct grammar_token){.bytes = &bytes[i], .size = 1};
    }
    for (size_t i = 0; i < piece_count; i++)
        v->tokens[256 + i] = (struct grammar_token){.bytes = pieces[i], .size = (uint32_t)strlen(pieces[i])};
    v->end = (uint32_t)v->count - 2;
    v->special = (uint32_t)v->count - 1;
    v->tokens[v->end] = (struct grammar_token){.bytes = "<end>", .size = 5, .kind = GRAMMAR_TOKEN_END};
    v->tokens[v->special] = (struct grammar_token){.bytes = "\"", .size = 1, .kind = GRAMMAR_TOKEN_SPECIAL};
    struct status status = {0};
    v->vocabulary = grammar_vocabulary_open(v->tokens, v->count, &status);
    test_expect_success(v->vocabulary != NULL, &status);
}

void test_vocabulary_close(struct test_vocabulary *vocabulary)
{
    grammar_vocabulary_close(vocabulary->vocabulary);
    free(vocabulary->tokens);
}

static bool is_set(const uint32_t *mask, uint32_t id) { return mask[id / 32] >> id % 32 & 1; }

static void compare_mask(struct grammar_matcher *matcher, const struct test_vocabulary *v,
                         const struct grammar_state *state, const uint32_t *mask)
{
    struct status status = {0};
    for (uint32_t id = 0; id < v->count; id++) {
        bool expected = false;
        if (v->tokens[id].kind == GRAMMAR_TOKEN_END) {
            expected = grammar_may_end(matcher, state);
        } else if (v->tokens[id].kind == GRAMMAR_TOKEN_TEXT) {
            struct grammar_state copy = *state;
            expected = grammar_accept_bytes(matcher, &copy, v->tokens[id].bytes, v->tokens[id].size, &status);
            if (!expected) assert_int_equal(status.code, STATUS_BAD_INPUT);
        }
        if (is_set(mask, id) != expected)
            fail_msg("token %u '%.*s': the mask says %d, the matcher %d", id, (int)v->tokens[id].size,
                     v->tokens[id].bytes, is_set(mask, id), expected);
    }
}

static uint32_t choose(const struct test_vocabulary *v, const uint32_t *mask, uint64_t *random, bool finish)
{
    static const char soon[] = "\"}]n0";
    uint32_t allowed[1024], count = 0;
    if (finish && is_set(mask, v->end)) return v->end;
    finish = finish && test_random(random) % 4 > 0;
    for (const char *c = soon; finish && *c; c++)
        if (is_set(mask, (uint8_t)*c)) return (uint8_t)*c;
    for (uint32_t id = 0; id < v->count; id++)
        if (is_set(mask, id)) allowed[count++] = id;
    assert_true(count > 0);
    /* Bytes that no text has often, such as parts of characters, would be most of the choices. */
    for (int attempt = 0; attempt < 4; attempt++) {
        const uint32_t id = allowed[test_random(random) % count];
        if (id >= 256 || (id >= 0x20 && id < 0x7F)) return id;
    }
    return allowed[test_random(random) % count];
}

char *test_walk(struct grammar_matcher *matcher, const struct test_vocabulary *v, uint64_t *random, int most,
                bool compare, size_t *size)
{
    struct status status = {0};
    struct grammar_state state;
    uint32_t mask[64];
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    assert_true(out != NULL && v->count <= sizeof mask * 8);
    test_expect_success(grammar_begin(matcher, &state, &status), &status);
    for (int step = 0;; step++) {
        if (step == most + 5000) fail_msg("no end after %d tokens: %.300s", step, text ? text : "");
        fflush(out);
        test_expect_success(grammar_fill_mask(matcher, &state, mask, &status), &status);
        if (compare) compare_mask(matcher, v, &state, mask);
        if (grammar_must_end(matcher, &state)) assert_true(grammar_may_end(matcher, &state));
        const uint32_t id = choose(v, mask, random, step >= most);
        assert_true(id != v->special);
        if (id == v->end) break;
        assert_false(grammar_must_end(matcher, &state));
        fwrite(v->tokens[id].bytes, 1, v->tokens[id].size, out);
        test_expect_success(grammar_accept_bytes(matcher, &state, v->tokens[id].bytes, v->tokens[id].size, &status),
                            &status);
    }
    fclose(out);
    return text;
}

bool test_accepts(struct grammar_matcher *matcher, const char *text, size_t size)
{
    struct status status = {0};
    struct grammar_state state;
    test_expect_success(grammar_begin(matcher, &state, &status), &status);
    for (size_t i = 0; i < size; i++) {
        if (!grammar_accept_bytes(matcher, &state, text + i, 1, &status)) {
            test_expect_failure(false, &status, STATUS_BAD_INPUT, "not allowed");
            return false;
        }
    }
    return grammar_may_end(matcher, &state);
}

struct grammar *test_schema_open(const char *text, const struct grammar_options *options)
{
    struct status status = {0};
    char *json = strdup(text);
    assert_non_null(json);
    test_quote(json);
    struct grammar *grammar = grammar_schema_open(json, strlen(json), options, &status);
    if (!grammar) fail_msg("%s: %s", json, status.message);
    free(json);
    return grammar;
}

struct grammar_matcher *test_matcher_open(const struct grammar *grammar, const struct test_vocabulary *vocabulary)
{
    struct status status = {0};
    struct grammar_matcher *matcher = grammar_matcher_open(grammar, vocabulary->vocabulary, &status);
    test_expect_success(matcher != NULL, &status);
    return matcher;
}
