/* SPDX-License-Identifier: Apache-2.0 */
/* Templates of a checkpoint: which one is chosen, what transformers adds to the variables, documents that are refused. */
#include "formats/base/json.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "formats/template/chat_templates.h"

static const char document[] =
    "{\"templates\":["
    "{\"name\":\"default\",\"text\":\"{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    "{{ '>' if add_generation_prompt }}{{ tools is none }}{{ documents is defined }}\"},"
    "{\"name\":\"tool_use\",\"text\":\"tools {{ tools | length }}{{ chat_template is defined }}\"},"
    "{\"name\":\"broken\",\"fault\":\"line 3: no such tag\"},"
    "{\"name\":\"later\",\"text\":\"{% no such tag %}\"}],"
    "\"variables\":{\"bos_token\":\"<s>\",\"more\":[\"<a>\",\"<b>\"]},\"answer_end\":7,\"turn_tokens\":[7,9]}";

static struct chat_templates *open_document(const char *text, struct status *status)
{
    status_clear(status);
    return chat_templates_open(text, strlen(text), "section", status);
}

static bool render(const struct chat_templates *templates, const char *json, struct template_result *result,
                   struct status *status)
{
    status_clear(status);
    json_t *variables = json_loads(json, JSON_DECODE_ANY, NULL);
    assert_non_null(variables);
    const bool done = chat_templates_render(templates, variables, NULL, result, status);
    json_decref(variables);
    return done;
}

TEST(choice_and_variables)
{
    static const char *const cases[][2] = {
        {"{\"messages\":[{\"content\":\"a\"}]}", "<s>[a]TrueTrue"},
        {"{\"messages\":[],\"add_generation_prompt\":true,\"chat_template\":\"default\"}", "<s>>TrueTrue"},
        {"{\"messages\":[],\"bos_token\":\"!\",\"chat_template\":null}", "!TrueTrue"},
        {"{\"messages\":[],\"tools\":[1,2]}", "tools 2False"},
        {"{\"messages\":[],\"tools\":[]}", "tools 0False"},
        {"{\"messages\":[],\"tools\":[1],\"chat_template\":\"default\"}", "<s>FalseTrue"},
    };
    struct status status;
    struct template_result result;
    struct chat_templates *templates = open_document(document, &status);
    test_expect_success(templates != NULL, &status);
    test_expect_success(chat_templates_can_render(templates, &status), &status);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_expect_success(render(templates, cases[i][0], &result, &status), &status);
        assert_string_equal(result.text, cases[i][1]);
        template_result_free(&result);
    }
    /* the template's own token, and one that is given */
    test_expect_success(render(templates, cases[0][0], &result, &status), &status);
    assert_memory_equal(result.foreign, "\0\0\0\0\1\0\0\0\0\0\0\0\0\0", result.size);
    template_result_free(&result);
    size_t count;
    assert_int_equal(chat_templates_answer_end(templates), 7);
    assert_int_equal(chat_templates_turn_tokens(templates, &count)[1], 9);
    assert_int_equal(count, 2);
    static const char *const failures[][2] = {
        {"{\"chat_template\":\"broken\"}", "'broken' cannot be used|line 3: no such tag"},
        {"{\"chat_template\":\"later\"}", "'later' cannot be used|line 1"},
        {"{\"chat_template\":\"other\"}", "expected one of 'default', 'tool_use'|found 'other'"},
        {"{\"chat_template\":7}", "expected the name of a template|integer"},
        {"[]", "expected a JSON object|array"},
        {"{\"messages\":3}", "iterable"},
    };
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        test_expect_failure(render(templates, failures[i][0], &result, &status), &status, STATUS_BAD_INPUT,
                            failures[i][1]);
    chat_templates_close(templates);
}

TEST(without_a_default)
{
    struct status status;
    struct chat_templates *templates = open_document("{\"templates\":[],\"variables\":{}}", &status);
    test_expect_success(templates != NULL, &status);
    test_expect_failure(chat_templates_can_render(templates, &status), &status, STATUS_BAD_INPUT, "no chat template|");
    assert_int_equal(chat_templates_answer_end(templates), -1);
    chat_templates_close(templates);
    templates = open_document("{\"templates\":[{\"name\":\"default\",\"fault\":\"odd\"}],\"variables\":{}}", &status);
    test_expect_success(templates != NULL, &status);
    test_expect_failure(chat_templates_can_render(templates, &status), &status, STATUS_BAD_INPUT, "cannot be used|odd");
    chat_templates_close(templates);
}

TEST(documents_that_are_refused)
{
    static const char *const cases[][2] = {
        {"", "section|"},
        {"[]", "expected an object|"},
        {"{\"variables\":{}}", "templates|array"},
        {"{\"templates\":[]}", "variables|object"},
        {"{\"templates\":[{}],\"variables\":{}}", "element 0|name"},
        {"{\"templates\":[{\"name\":\"\",\"text\":\"\"}],\"variables\":{}}", "element 0|name"},
        {"{\"templates\":[{\"name\":\"a\"}],\"variables\":{}}", "element 0|'text'"},
        {"{\"templates\":[{\"name\":\"a\",\"text\":\"\",\"fault\":\"x\"}],\"variables\":{}}", "element 0|'fault'"},
        {"{\"templates\":[{\"name\":\"a\",\"text\":3}],\"variables\":{}}", "element 0|'text'"},
        {"{\"templates\":[{\"name\":\"a\",\"text\":\"\"},{\"name\":\"a\",\"text\":\"\"}],\"variables\":{}}",
         "element 1|two templates"},
        {"{\"templates\":[{\"name\":\"a\\nb\",\"text\":\"\"}],\"variables\":{}}", "element 0|name"},
        {"{\"templates\":[],\"variables\":{\"a\":1}}", "variables|strings"},
        {"{\"templates\":[],\"variables\":{\"a\":[1]}}", "variables|strings"},
        {"{\"templates\":[],\"variables\":{},\"answer_end\":-1}", "answer_end|token id"},
        {"{\"templates\":[],\"variables\":{},\"answer_end\":\"x\"}", "answer_end|token id"},
        {"{\"templates\":[],\"variables\":{},\"turn_tokens\":3}", "turn_tokens|array"},
        {"{\"templates\":[],\"variables\":{},\"turn_tokens\":[4294967296]}", "turn_tokens|token ids"},
        {"{\"templates\":[],\"templates\":[],\"variables\":{}}", "section|templates"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status;
        test_expect_failure(open_document(cases[i][0], &status) != NULL, &status, STATUS_CORRUPT, cases[i][1]);
    }
    struct status status = {0};
    char *large = calloc(1, CHAT_TEMPLATES_MOST_BYTES + 1);
    assert_non_null(large);
    test_expect_failure(chat_templates_open(large, CHAT_TEMPLATES_MOST_BYTES + 1, "section", &status) != NULL, &status,
                        STATUS_CORRUPT, "at most|found");
    free(large);
}

TEST(times)
{
    static const char *const wrong[] = {"",
                                        "2026-01-02",
                                        "2026-01-02 03:04:05",
                                        "2026-02-29T00:00:00",
                                        "2026-13-01T00:00:00",
                                        "2026-01-02T24:00:00",
                                        "2026-01-02T03:04:05Z",
                                        "2026-1-2T03:04:05"};
    struct tm time;
    assert_true(chat_templates_read_time("2026-01-02T03:04:05", &time));
    assert_int_equal(time.tm_wday, 5);
    assert_int_equal(time.tm_yday, 1);
    assert_int_equal(time.tm_sec, 5);
    assert_true(chat_templates_read_time("2024-02-29T23:59:59", &time));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_false(chat_templates_read_time(wrong[i], &time));
}

int main(void) { return test_run(); }
