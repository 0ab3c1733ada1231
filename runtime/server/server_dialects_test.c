/* SPDX-License-Identifier: Apache-2.0 */
/* Dialects against real chat templates: a call that a template writes is read back from its text (shared material; without it
 * those tests are skipped). */
#include "runtime/server/server_dialects.h"

#include <dirent.h>

#include "formats/base/file.h"
#include "formats/base/json.h"
#include "formats/base/test_support.h"
#include "formats/template/chat_templates.h"
#include "runtime/server/server_answer.h"
#include "runtime/server/server_input.h"
#include "runtime/server/server_reasoning.h"

static struct chat_templates *open_template(const char *path)
{
    struct status status = {0};
    struct file_map map;
    test_expect_success(file_map_open(&map, path, &status), &status);
    struct chat_templates *templates = chat_templates_of_text((const char *)map.data, map.size, "template", &status);
    test_expect_success(templates != NULL, &status);
    file_map_close(&map);
    return templates;
}

/* Text of the first `count` messages of the case; false: the template refuses them. */
static bool render(const struct chat_templates *templates, const json_t *arguments, size_t count, bool answer,
                   struct template_result *result)
{
    struct status status = {0};
    json_t *variables = json_copy((json_t *)(uintptr_t)arguments), *messages = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append(messages, json_array_get(json_object_get(arguments, "messages"), i));
    json_object_set_new(variables, "messages", messages);
    json_object_set_new(variables, "add_generation_prompt", json_boolean(answer));
    const bool ok = chat_templates_render(templates, variables, NULL, result, &status);
    json_decref(variables);
    return ok;
}

/* The answer in which a template writes the third message of a case, with the call. */
static char *answer_of(const struct chat_templates *templates, const json_t *arguments)
{
    struct template_result before = {0}, after = {0};
    char *answer = NULL;
    if (render(templates, arguments, 2, true, &before) && render(templates, arguments, 3, false, &after)) {
        size_t common = 0;
        while (before.text[common] && before.text[common] == after.text[common]) common++;
        /* The prompt begins reasoning that this message does not have. */
        while (common && common < before.size && after.text[common - 1] != '>') common--;
        /* One writes the functions before the last question alone, so that only the end of the prompt is the same. */
        const char *question = strstr(after.text + common, "K\xc3\xb6ln?"), *end = strchr(before.text, '\0') - 7;
        const char *same = question && before.size > 7 ? strstr(question, end) : NULL;
        if (same) common = (size_t)(same - after.text) + strlen(end);
        answer = strdup(after.text + common);
    }
    template_result_free(&before);
    template_result_free(&after);
    return answer;
}

/* Arguments as a text where the template adds them to one. */
static json_t *with_text_arguments(const json_t *arguments)
{
    json_t *copy = json_deep_copy(arguments);
    json_t *call = json_object_get(json_array_get(json_object_get(json_array_get(json_object_get(copy, "messages"), 2),
                                                                  "tool_calls"),
                                                  0),
                                   "function");
    json_object_set_new(call, "arguments", json_string("{\"place\": \"K\xc3\xb6ln\", \"days\": 3}"));
    return copy;
}

static size_t read_answer(const char *answer, size_t piece, const struct server_dialect *dialect,
                          const struct server_tools *tools, struct server_parts *parts)
{
    struct server_answer divided;
    size_t calls = 0;
    server_answer_begin(&divided, dialect, tools, false);
    for (size_t at = 0, size = strlen(answer); at < size; at += piece)
        assert_true(server_answer_push(&divided, answer + at, piece < size - at ? piece : size - at, parts));
    assert_true(server_answer_finish(&divided, false, parts));
    server_answer_free(&divided);
    for (size_t i = 0; i < parts->count; i++) calls += parts->items[i].kind == SERVER_PART_CALL;
    return calls;
}

static bool check_call(const char *name, const char *answer, const struct server_dialect *dialect,
                       const struct server_tools *tools)
{
    json_t *expected = json_pack("{s:s, s:i}", "place", "K\xc3\xb6ln", "days", 3);
    bool all = true;
    for (size_t piece = 1; piece < 40; piece += 6) {
        struct server_parts parts = {0};
        bool found = read_answer(answer, piece, dialect, tools, &parts) == 1;
        for (size_t i = 0; i < parts.count; i++) {
            const struct server_part *part = &parts.items[i];
            if (part->kind == SERVER_PART_CALL) {
                json_t *arguments = json_loadb(part->text.data, part->text.size, 0, NULL);
                found = found && json_equal(arguments, expected) && strcmp(part->name, "get_weather") == 0;
                json_decref(arguments);
            } else if (memmem(part->text.data, part->text.size, "K\xc3\xb6ln", 5)) {
                found = false;
            }
        }
        if (!found) print_error("%s (%s), pieces of %zu: %s\n", name, dialect->name, piece, answer);
        all = all && found;
        server_parts_free(&parts);
    }
    json_decref(expected);
    return all;
}

static bool check_template(const char *folder, const char *name, int length, bool *has_answer)
{
    char path[1024];
    struct status status = {0};
    struct file_map map;
    struct server_dialect dialect;
    struct server_error error = {0};
    struct server_tools tools = {0};
    snprintf(path, sizeof path, "%s/%.*s.jinja", folder, length, name);
    struct chat_templates *templates = open_template(path);
    server_dialect_find(chat_templates_text(templates, NULL), &dialect);
    snprintf(path, sizeof path, "%s/%.*s.cases.json", folder, length, name);
    test_expect_success(file_map_open(&map, path, &status), &status);
    json_t *cases = json_parse((const char *)map.data, map.size, path, &status);
    test_expect_success(cases != NULL, &status);
    const json_t *arguments = json_object_get(json_array_get(cases, 8), "arguments");
    assert_true(server_tools_read(json_object_get(arguments, "tools"), &tools, &error));
    char *answer = answer_of(templates, arguments);
    if (!answer || !strstr(answer, "K\xc3\xb6ln")) {
        json_t *other = with_text_arguments(arguments);
        free(answer);
        answer = answer_of(templates, other);
        json_decref(other);
    }
    *has_answer = dialect.patterns[0] && answer && strstr(answer, "K\xc3\xb6ln");
    const bool good = !*has_answer || check_call(name, answer, &dialect, &tools);
    free(answer);
    server_tools_free(&tools);
    json_decref(cases);
    file_map_close(&map);
    chat_templates_close(templates);
    return good;
}

TEST(real_templates)
{
    struct dirent **entries;
    char folder[400];
    size_t answers = 0, failures = 0;
    if (!test_shared()) skip();
    snprintf(folder, sizeof folder, "%s/chat_templates", test_shared());
    const int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0) skip();
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name, *end = strstr(name, ".jinja");
        bool has_answer = false;
        if (end && !check_template(folder, name, (int)(end - name), &has_answer)) failures++;
        if (end && !has_answer) print_message("%s: writes no such call\n", name);
        answers += has_answer;
        free(entries[i]);
    }
    free(entries);
    assert_int_equal(failures, 0);
    assert_in_range(answers, 30, 1000);
}

/* Whether a question is rendered in another way with thinking than without. */
static bool is_switched(const struct chat_templates *templates)
{
    struct template_result results[2] = {{0}};
    struct status status = {0};
    bool ok = true;
    for (int thinks = 0; thinks < 2; thinks++) {
        json_t *variables =
            json_pack("{s:[{s:s, s:s}], s:b, s:b, s:b, s:s, s:i}", "messages", "role", "user", "content", "Hello",
                      "add_generation_prompt", 1, "enable_thinking", thinks, "thinking", thinks, "thinking_mode",
                      thinks ? "enabled" : "disabled", "thinking_budget", thinks ? 1024 : 0);
        if (!chat_templates_render(templates, variables, NULL, &results[thinks], &status)) {
            print_error("%s\n", status.message);
            ok = false;
        }
        json_decref(variables);
    }
    const bool differs = ok && strcmp(results[0].text, results[1].text) != 0;
    for (int i = 0; i < 2; i++) template_result_free(&results[i]);
    return differs;
}

/* What the real templates do, counted: `look` adds to them. */
struct real_templates {
    size_t found, failures;
};
typedef void look_at_template(const char *name, const struct chat_templates *templates,
                              const struct server_dialect *dialect, struct real_templates *counts);

static struct real_templates look_at_templates(look_at_template *look)
{
    struct real_templates counts = {0};
    struct dirent **entries;
    char path[1024];
    if (!test_shared()) skip();
    snprintf(path, sizeof path, "%s/chat_templates", test_shared());
    const int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) skip();
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (strstr(name, ".jinja")) {
            struct server_dialect dialect;
            snprintf(path, sizeof path, "%s/chat_templates/%s", test_shared(), name);
            struct chat_templates *templates = open_template(path);
            server_dialect_find(chat_templates_text(templates, NULL), &dialect);
            look(name, templates, &dialect, &counts);
            chat_templates_close(templates);
        }
        free(entries[i]);
    }
    free(entries);
    return counts;
}

static void look_at_switch(const char *name, const struct chat_templates *templates,
                           const struct server_dialect *dialect, struct real_templates *counts)
{
    const bool differs = is_switched(templates);
    if (differs != dialect->has_switch) print_error("%s: switched %d, found %d\n", name, differs, dialect->has_switch);
    counts->failures += differs != dialect->has_switch;
    counts->found += differs;
}

TEST(real_switches)
{
    const struct real_templates counts = look_at_templates(look_at_switch);
    assert_int_equal(counts.failures, 0);
    assert_in_range(counts.found, 15, 1000);
}

/* Whether two efforts of reasoning are rendered in different ways, where the model reasons. */
static bool has_efforts(const struct chat_templates *templates)
{
    static const char *const efforts[] = {"low", "high", "max", "none"};
    char *first = NULL;
    bool differs = false;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) {
        struct template_result result = {0};
        struct status status = {0};
        json_t *variables =
            json_pack("{s:[{s:s, s:s}], s:b, s:b, s:b, s:s}", "messages", "role", "user", "content", "Hello",
                      "add_generation_prompt", 1, "enable_thinking", 1, "thinking", 1, "reasoning_effort", efforts[i]);
        /* A template may raise an exception for what it does not know. */
        if (chat_templates_render(templates, variables, NULL, &result, &status)) {
            differs = differs || (first && strcmp(first, result.text) != 0);
            if (!first) first = strdup(result.text);
        }
        template_result_free(&result);
        json_decref(variables);
    }
    free(first);
    return differs;
}

/* The text of a question with the members, owned; NULL: they are refused. */
static char *text_of(const struct chat_templates *templates, enum server_shape shape, const char *members)
{
    struct server_dialect dialect;
    struct server_request request;
    struct server_error error = {0};
    struct template_result result = {0};
    struct status status = {0};
    char body[512];
    server_dialect_find(chat_templates_text(templates, NULL), &dialect);
    snprintf(body, sizeof body, "{'max_tokens': 2000, 'messages': [{'role': 'user', 'content': 'Hello'}], %s}",
             members);
    const char *json = test_json(body);
    assert_true(server_input_read(shape, SERVER_CHAT, false, json, strlen(json), &request, &error));
    json_t *variables = NULL;
    char *text = NULL;
    if (server_reasoning_apply(&dialect, &request, &error)) {
        variables = json_loads(request.variables, JSON_REJECT_DUPLICATES, NULL);
        test_expect_success(chat_templates_render(templates, variables, NULL, &result, &status), &status);
        text = strdup(result.text);
    }
    template_result_free(&result);
    json_decref(variables);
    server_request_free(&request);
    return text;
}

/* Whether a model that reasons is told to with `on`, and otherwise with `off`, unless its template cannot tell it. */
static bool is_obeyed(const char *name, const struct chat_templates *templates, enum server_shape shape, const char *on,
                      const char *off)
{
    char *with = text_of(templates, shape, on), *without = text_of(templates, shape, off);
    const bool ok = with && (!without || strcmp(with, without) != 0);
    if (!ok) print_error("%s: %s is %s\n", name, on, with ? "the same without reasoning" : "refused");
    if (ok && !without) print_message("%s: %s is refused\n", name, off);
    free(with);
    free(without);
    return ok;
}

static void look_at_efforts(const char *name, const struct chat_templates *templates,
                            const struct server_dialect *dialect, struct real_templates *counts)
{
    const bool differs = has_efforts(templates);
    if (differs != dialect->has_effort) print_error("%s: efforts %d, found %d\n", name, differs, dialect->has_effort);
    if (dialect->has_effort)
        print_message("%s: no reasoning is %s\n", name, dialect->no_effort ? dialect->no_effort : "unknown");
    counts->failures += differs != dialect->has_effort;
    counts->found += differs;
    if (!differs && !is_switched(templates)) return;
    counts->failures +=
        !is_obeyed(name, templates, SERVER_OPENAI, "'reasoning_effort': 'high'", "'reasoning_effort': 'none'");
    counts->failures +=
        !is_obeyed(name, templates, SERVER_MESSAGES, "'thinking': {'type': 'enabled', 'budget_tokens': 1024}",
                   "'thinking': {'type': 'disabled'}");
}

TEST(real_efforts)
{
    const struct real_templates counts = look_at_templates(look_at_efforts);
    assert_int_equal(counts.failures, 0);
    assert_in_range(counts.found, 6, 1000);
}

TEST(switches)
{
    static const struct {
        const char *text;
        bool has_switch;
    } cases[] = {{"{% if enable_thinking %}x{% endif %}", true},
                 {"{%- elif thinking %}", true},
                 {"{% set ns = namespace(enable_thinking=true) %}{% if ns.enable_thinking %}x{% endif %}", false},
                 {"{% if enable_thinking==true %}x{% endif %}", true},
                 {"{% if my_thinking_mode %}x{% endif %}", false},
                 {"{% if not thinking %}x{% endif %}", true},
                 {"{%- if thinking is defined and thinking is false %}", true},
                 {"{% if message.thinking is defined and not skip_thinking %}x{% endif %}", false},
                 {"When thinking is enabled, {{ message.thinking }}", false},
                 {"<think></think>", false}};
    struct server_dialect dialect;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        server_dialect_find(cases[i].text, &dialect);
        assert_int_equal(dialect.has_switch, cases[i].has_switch);
    }
    server_dialect_find(NULL, &dialect);
    assert_false(dialect.has_switch);
}

TEST(efforts)
{
    static const struct {
        const char *text, *none;
        bool has_effort;
    } cases[] = {{"{{ reasoning_effort }}", NULL, true},
                 {"{% if reasoning_effort == 'none' %}x{% endif %}", "none", true},
                 {"{% if reasoning_effort in [\"no_think\", \"low\"] %}x{% endif %}", "no_think", true},
                 {"{% if reasoning_effort is none %}none 'none\"{% endif %}", NULL, true},
                 {"{{ message.reasoning_effort }}{% if x == 'none' %}x{% endif %}", NULL, false}};
    struct server_dialect dialect;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        server_dialect_find(cases[i].text, &dialect);
        assert_int_equal(dialect.has_effort, cases[i].has_effort);
        assert_true(cases[i].none ? dialect.no_effort && strcmp(dialect.no_effort, cases[i].none) == 0
                                  : !dialect.no_effort);
    }
}

int main(void) { return test_run(); }
