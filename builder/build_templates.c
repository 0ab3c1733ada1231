/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_templates.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

/* Messages of the conversations from which the templates' tokens are found. */
#define QUESTION "qqq"
#define ANSWER   "zzz"

/* Replaces the text of a template that does not parse by the reason; warns of each that cannot be used. */
static bool check_template(struct build *build, json_t *item, struct status *status)
{
    struct status fault = {0};
    const json_t *text = json_object_get(item, "text");
    if (text) {
        struct template *template = template_open(json_string_value(text), json_string_length(text), &fault);
        template_close(template);
        if (template) return true;
        if (fault.code == STATUS_MACHINE) return status_fail(status, fault.code, "%s", fault.message);
        json_object_del(item, "text");
        json_t *reason = json_string(fault.message);
        if (!reason) reason = json_string("a fault in text that is not UTF-8");
        if (!json_put(item, "fault", reason)) return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    progress_warn(&build->progress, "the engine does without the chat template '%s': %s",
                  json_string_value(json_object_get(item, "name")), json_string_value(json_object_get(item, "fault")));
    return true;
}

/* The document as text, without templates if it is too large with them. */
static bool format(struct build *build, json_t *document, struct status *status)
{
    char fault[128];
    free(build->chat_document);
    build->chat_document = json_format(document, JSON_COMPACT | JSON_SORT_KEYS);
    if (!build->chat_document) return status_fail(status, STATUS_MACHINE, "out of memory");
    const size_t size = strlen(build->chat_document);
    if (size <= CHAT_TEMPLATES_MOST_BYTES) return true;
    snprintf(fault, sizeof fault, "chat templates and special tokens take %zu bytes, an engine holds at most %d", size,
             CHAT_TEMPLATES_MOST_BYTES);
    progress_warn(&build->progress, "the engine does without chat templates: %s", fault);
    if (!json_put(document, "variables", json_object()) ||
        !json_put(document, "templates", json_pack("[{s:s, s:s}]", "name", "default", "fault", fault)))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    return format(build, document, status);
}

/* ---- tokens of the default template ---- */

/* False if the template does not render it: then nothing is known of its tokens. */
static bool render(const struct build *build, json_t *messages, struct template_result *result)
{
    static const struct tm now = {.tm_year = 126, .tm_mday = 1, .tm_wday = 4};
    struct status ignored = {0};
    json_t *variables = json_pack("{s:o}", "messages", messages);
    const bool done = variables && chat_templates_render(build->chat_templates, variables, &now, result, &ignored);
    json_decref(variables);
    return done;
}

static json_t *message(const char *role, const char *content)
{
    return json_pack("{s:s, s:s}", "role", role, "content", content);
}

/* Whether the token is written with its own text, as <|im_end|> and [/INST] are, and not a piece of ordinary text. */
static bool is_marker(const struct tokenizer *tokenizer, int32_t id)
{
    const char *text;
    size_t size;
    if (!tokenizer_token_text(tokenizer, id, &text, &size) || size < 3) return false;
    return (text[0] == '<' && text[size - 1] == '>') || (text[0] == '[' && text[size - 1] == ']');
}

static bool is_end(const struct build *build, int32_t id)
{
    for (int i = 0; i < build->manifest.eos_count; i++)
        if (build->manifest.eos_tokens[i] == id) return true;
    return false;
}

/* The first token of the text that follows an answer, if it is special or looks like it. */
static bool find_answer_end(const struct build *build, const struct tokenizer *tokenizer, json_t *document,
                            struct status *status)
{
    struct template_result result = {0};
    struct token_buffer tokens = {0};
    struct status ignored = {0};
    json_t *messages = json_pack("[o, o]", message("user", QUESTION), message("assistant", ANSWER));
    bool ok = true;
    if (messages && render(build, messages, &result)) {
        const char *end = NULL;
        for (const char *at = result.text; (at = strstr(at, ANSWER)); at++) end = at + strlen(ANSWER);
        if (end) end += strspn(end, " \n");
        if (end && tokenizer_encode(tokenizer, end, strlen(end), false, &tokens, &ignored) && tokens.count) {
            const int32_t id = tokens.ids[0];
            if (tokenizer_is_special(tokenizer, id) || is_end(build, id) || is_marker(tokenizer, id))
                ok = json_put(document, "answer_end", json_integer(id));
        }
    }
    template_result_free(&result);
    token_buffer_free(&tokens);
    return ok || status_fail(status, STATUS_MACHINE, "out of memory");
}

/* Tokens around a question that mark turns although the tokenizer does not call them special. */
static bool find_turn_tokens(const struct build *build, const struct tokenizer *tokenizer, json_t *document,
                             struct status *status)
{
    struct template_result result = {0};
    struct token_buffer tokens = {0};
    struct status ignored = {0};
    json_t *messages = json_pack("[o]", message("user", QUESTION)), *list = json_array();
    bool ok = list != NULL;
    if (ok && messages && render(build, messages, &result) &&
        tokenizer_encode(tokenizer, result.text, result.size, false, &tokens, &ignored))
        for (size_t i = 0; ok && i < tokens.count; i++) {
            const int32_t id = tokens.ids[i];
            bool known = tokenizer_is_special(tokenizer, id) || !is_marker(tokenizer, id) ||
                         json_array_size(list) == CHAT_TEMPLATES_MOST_TURN_TOKENS;
            for (size_t k = 0; !known && k < json_array_size(list); k++)
                known = json_integer_value(json_array_get(list, k)) == id;
            if (!known) ok = json_add(list, json_integer(id));
        }
    template_result_free(&result);
    token_buffer_free(&tokens);
    ok = json_put(document, "turn_tokens", list) && ok;
    return ok || status_fail(status, STATUS_MACHINE, "out of memory");
}

bool build_import_templates(struct build *build, const struct tokenizer *tokenizer, struct status *status)
{
    json_t *document = build->checkpoint.chat_templates, *templates = json_object_get(document, "templates"), *item;
    size_t index;
    if (!document) return true;
    json_array_foreach (templates, index, item)
        if (!check_template(build, item, status)) return false;
    if (!format(build, document, status)) return false;
    build->chat_templates =
        chat_templates_open(build->chat_document, strlen(build->chat_document), "chat templates", status);
    if (!build->chat_templates || !tokenizer) return build->chat_templates != NULL;
    return find_answer_end(build, tokenizer, document, status) &&
           find_turn_tokens(build, tokenizer, document, status) && format(build, document, status);
}
