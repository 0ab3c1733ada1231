/* SPDX-License-Identifier: Apache-2.0 */
/* Templates of our own: what jinja2 makes of them (formats/testdata/template/cases.json), bounds, marks and refusals. */
#include "formats/base/file.h"
#include "formats/base/json.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/template/template.h"

static const struct tm recorded_at =
    {.tm_year = 126, .tm_mday = 2, .tm_hour = 3, .tm_min = 4, .tm_sec = 5, .tm_wday = 5, .tm_yday = 1};

/* False with the message in *status, at either step. */
static bool render(const char *text, const json_t *variables, const json_t *own, struct template_result *result,
                   struct status *status)
{
    *result = (struct template_result){0};
    status_clear(status);
    struct template *template = template_open(text, strlen(text), status);
    const bool done = template && template_render(template, variables, own, &recorded_at, result, status);
    template_close(template);
    return done;
}

TEST(what_jinja2_makes_of_them)
{
    static const char path[] = "formats/testdata/template/cases.json";
    struct status status = {0};
    struct file_map map;
    size_t failures = 0, errors = 0;
    test_expect_success(file_map_open(&map, path, &status), &status);
    json_t *document = json_parse((const char *)map.data, map.size, path, &status), *one;
    test_expect_success(document != NULL, &status);
    const json_t *cases = json_object_get(document, "cases");
    assert_true(json_array_size(cases) > 50);
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)cases, i, one) {
        const char *text = json_string_value(json_object_get(one, "template"));
        const char *rendered = json_string_value(json_object_get(one, "rendered"));
        struct template_result result;
        const bool done = render(text, json_object_get(document, "variables"), NULL, &result, &status);
        if (done != (rendered != NULL) || (done && strcmp(result.text, rendered) != 0)) {
            print_error("%s\nexpected: %s\nfound:    %s\n", text,
                        rendered ? rendered : json_string_value(json_object_get(one, "error")),
                        done ? result.text : status.message);
            failures++;
        }
        errors += !done;
        template_result_free(&result);
    }
    json_decref(document);
    file_map_close(&map);
    assert_true(errors > 10);
    if (failures) fail_msg("%zu cases differ", failures);
}

TEST(bytes_know_where_they_come_from)
{
    static const struct {
        const char *text, *rendered, *foreign;
    } cases[] = {
        {"<s>{{ x }}</s>", "<s>hi</s>", "000110000"},
        {"{{ bos + x ~ '!' }}", "<b>hi!", "000110"},
        {"{{ (x + '<e>') | upper }}", "HI<E>", "11000"},
        {"{{ ('[' ~ x ~ ']')[1:] }}", "hi]", "110"},
        {"{{ {'a': x} | tojson }}", "{\"a\": \"hi\"}", "00000001100"},
        {"{% set y %}-{{ x }}-{% endset %}{{ y.replace('-', '+') }}", "+hi+", "0110"},
        {"{% for k in l %}{{ k }},{% endfor %}", "p,q,", "1010"},
        {"{% macro m(a) %}({{ a }}){% endmacro %}{{ m(x)[::-1] }}", ")ih(", "0110"},
        {"{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", "<|user|>hi<||x|>yo",
         "000000001100110011"},
        {"{{ l | join('-') }} {{ '%s' % x }} {{ '{}'.format(x) }}", "p-q hi hi", "101011011"},
    };
    json_t *variables = json_pack("{s:s, s:s, s:[ss], s:[{s:s, s:s}, {s:s, s:s}]}", "x", "hi", "bos", "no", "l", "p",
                                  "q", "messages", "role", "user", "content", "hi", "role", "|x", "content", "yo");
    json_t *own = json_pack("{s:s}", "bos", "<b>");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct status status;
        struct template_result result;
        test_expect_success(render(cases[c].text, variables, own, &result, &status), &status);
        assert_string_equal(result.text, cases[c].rendered);
        assert_int_equal(result.size, strlen(cases[c].foreign));
        for (size_t i = 0; i < result.size; i++)
            if (result.foreign[i] != cases[c].foreign[i] - '0') fail_msg("%s: byte %zu", cases[c].text, i);
        template_result_free(&result);
    }
    json_decref(variables);
    json_decref(own);
}

TEST(faults_name_line_and_construct)
{
    static const char *const cases[][2] = {
        {"a\nb {% if x %}", "line 2|endif"},
        {"{{ 1 + }}", "line 1|expected an expression"},
        {"{{ 'open }}", "a string does not end"},
        {"{% for x y %}{% endfor %}", "expected in|found 'y'"},
        {"{% endfor %}", "not supported|endfor"},
        {"{% include 'other' %}", "not supported|include"},
        {"{% extends 'base' %}", "not supported|extends"},
        {"{% autoescape true %}{% endautoescape %}", "not supported|autoescape"},
        {"{% block b %}{% endblock c %}", "expected the end of the tag|found 'c'"},
        {"{% for loop in y %}{% endfor %}", "cannot assign|loop"},
        {"{% for a, (b, loop) in y %}{% endfor %}", "cannot assign|loop"},
        {"{% set none = 1 %}", "cannot assign to 'none'"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "without a default"},
        {"{{ a b }}", "expected the end of the tag|found 'b'"},
        {"{{ (1 }}", "expected )|"},
        {"{{ ] }}", "closes nothing"},
        {"{# open", "a comment does not end"},
        {"{% raw %}x", "endraw"},
        {"{{ 99999999999999999999 }}", "too large"},
        {"{{ \"\\ud800\" }}", "no character"},
        {"{{ a $ b }}", "'$'"},
        {"{% set a.b.c = 1 %}", "found '.'"},
        {"{% call x %}{% endcall %}", "expected a call"},
        {"{{", "does not end"},
        {"\xff", "UTF-8"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct status status = {0};
        struct template *template = template_open(cases[c][0], strlen(cases[c][0]), &status);
        test_expect_failure(template != NULL, &status, STATUS_BAD_INPUT, cases[c][1]);
    }
}

TEST(bounds)
{
    static const struct {
        const char *text;
        enum status_code code;
        const char *words;
    } cases[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", STATUS_TOO_LONG,
         "than it may"},
        {"{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor "
         "%}",
         STATUS_TOO_LONG, "than it may"},
        {"{{ 'x' * 1000000000000 }}", STATUS_TOO_LONG, "than it may"},
        {"{{ [1] * 1000000000000 }}", STATUS_TOO_LONG, "than it may"},
        {"{{ 'x' | center(9000000000000) }}", STATUS_TOO_LONG, "than it may"},
        {"{{ 'x' | indent(9000000000000, true) }}", STATUS_TOO_LONG, "than it may"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", STATUS_BAD_INPUT, "RecursionError"},
        {"{{ range(10000000) }}", STATUS_BAD_INPUT, "OverflowError"},
        {"{{ 9223372036854775808 }}", STATUS_BAD_INPUT, "too large"},
        {"{{ 9223372036854775807 + 1 }}", STATUS_BAD_INPUT, "64 bits"},
        {"{{ 999999999999999999 * 999999999999999999 }}", STATUS_BAD_INPUT, "64 bits"},
        {"{{ 10 ** 400 }}", STATUS_BAD_INPUT, "64 bits"},
        {"{{ 1 / 0 }}", STATUS_BAD_INPUT, "ZeroDivisionError"},
        {"{{ 5 % 0 }}", STATUS_BAD_INPUT, "ZeroDivisionError"},
        {"{{ '%400d' % 1 }}", STATUS_BAD_INPUT, "width"},
        {"{{ '%.99f' % 1 }}", STATUS_BAD_INPUT, "precision"},
        {"{{ [1] | batch(0) | list }}", STATUS_BAD_INPUT, "count"},
        {"{{ 'x'[::0] }}", STATUS_BAD_INPUT, "zero"},
    };
    json_t *variables = json_object();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct status status;
        struct template_result result;
        test_expect_failure(render(cases[c].text, variables, NULL, &result, &status), &status, cases[c].code,
                            cases[c].words);
    }
    json_decref(variables);
}

TEST(nesting_has_a_bound)
{
    static const char *const pairs[][2] = {{"(", ")"}, {"[", "]"}, {"-", ""}, {"not ", ""}, {"1 if (", ")"}};
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        char *text = calloc(1, 200000), *at = text + sprintf(text, "{{ ");
        assert_non_null(text);
        for (int i = 0; i < 20000; i++) at += sprintf(at, "%s", pairs[p][0]);
        at += sprintf(at, "1");
        for (int i = 0; i < 20000; i++) at += sprintf(at, "%s", pairs[p][1]);
        sprintf(at, " }}");
        struct status status = {0};
        struct template *template = template_open(text, strlen(text), &status);
        test_expect_failure(template != NULL, &status, STATUS_BAD_INPUT, "nesting");
        free(text);
    }
    char *text = calloc(1, 1 << 20), *at = text;
    assert_non_null(text);
    for (int i = 0; i < 20000; i++) at += sprintf(at, "{%% if x %%}");
    struct status status = {0};
    test_expect_failure(template_open(text, strlen(text), &status) != NULL, &status, STATUS_BAD_INPUT, "nesting");
    free(text);
}

/* Long conversations take time in proportion to their length. */
TEST(many_messages)
{
    enum { MESSAGES = 4000 };
    json_t *messages = json_array(), *variables = json_pack("{s:o}", "messages", messages);
    for (int i = 0; i < MESSAGES; i++)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", i % 2 ? "assistant" : "user", "content", "some text"));
    struct status status;
    struct template_result result;
    test_expect_success(render("{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% if loop.last %}."
                               "{% endif %}{% endfor %}",
                               variables, NULL, &result, &status),
                        &status);
    assert_int_equal(result.size, MESSAGES / 2 * (2 * 9 + 4 + 9 + 4 + 4) + 1);
    template_result_free(&result);
    json_decref(variables);
}

int main(void) { return test_run(); }
