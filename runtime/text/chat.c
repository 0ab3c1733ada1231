/* SPDX-License-Identifier: Apache-2.0 */
/* eng_chat and its kin: conversations as the checkpoint's chat templates write them. */
#include <errno.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/template/chat_templates.h"
#include "runtime/load/load.h"

enum { MOST_MARKERS = 1 + 1 + MANIFEST_MAX_EOS + CHAT_TEMPLATES_MOST_TURN_TOKENS };

int32_t chat_end_token(const struct eng_engine *engine)
{
    const struct chat_templates *templates = engine->file.chat_templates;
    return templates && engine->tokenizer ? chat_templates_answer_end(templates) : -1;
}

bool chat_is_possible(const struct eng_engine *engine, struct status *status)
{
    const struct chat_templates *templates = engine->file.chat_templates;
    if (templates) return chat_templates_can_render(templates, status);
    if (engine->file.manifest.chat_format != CHAT_NONE)
        return status_fail(status, STATUS_BAD_INPUT,
                           "the engine has no chat template, since it was made by engbuild %s; build it again from its "
                           "checkpoint to chat (all else works)",
                           engine->file.manifest.builder_version);
    return status_fail(status, STATUS_BAD_INPUT,
                       "the engine has no chat template, since its checkpoint has none; put one into "
                       "chat_template.jinja beside the checkpoint's config.json and build the engine again");
}

/* Tokens that begin and end turns and texts; some checkpoints do not mark them as special. */
static size_t find_markers(const struct eng_engine *engine, int32_t markers[MOST_MARKERS])
{
    const struct manifest *manifest = &engine->file.manifest;
    size_t count = 0, turn_count;
    const int32_t *turns = chat_templates_turn_tokens(engine->file.chat_templates, &turn_count);
    const int32_t end = chat_templates_answer_end(engine->file.chat_templates);
    if (end >= 0) markers[count++] = end;
    if (manifest->bos_token >= 0) markers[count++] = (int32_t)manifest->bos_token;
    for (size_t i = 0; i < (size_t)manifest->eos_count; i++) markers[count++] = (int32_t)manifest->eos_tokens[i];
    for (size_t i = 0; i < turn_count; i++) markers[count++] = turns[i];
    return count;
}

static bool render(const struct eng_engine *engine, const json_t *variables, const char *now,
                   struct template_result *result, struct status *status)
{
    struct tm time;
    if (now && !chat_templates_read_time(now, &time))
        return status_fail(status, STATUS_USAGE, "now: expected a time such as 2026-01-02T03:04:05, found '%.32s'",
                           now);
    return (engine->file.chat_templates || chat_is_possible(engine, status)) &&
           chat_templates_render(engine->file.chat_templates, variables, now ? &time : NULL, result, status);
}

static bool encode(const struct eng_engine *engine, const struct template_result *result, uint32_t flags,
                   struct token_buffer *tokens, struct status *status)
{
    int32_t markers[MOST_MARKERS];
    if (flags & ENG_CHAT_CONTENT_SPECIAL)
        return tokenizer_encode(engine->tokenizer, result->text, result->size, false, tokens, status);
    return tokenizer_encode_mixed(engine->tokenizer, result->text, result->size, result->foreign, markers,
                                  find_markers(engine, markers), tokens, status);
}

static bool check_flags(uint32_t flags, uint32_t known, struct status *status)
{
    return !(flags & ~known) ||
           status_fail(status, STATUS_USAGE, "flags are %#x, expected only bits of %#x", flags, known);
}

static bool give_tokens(const struct eng_engine *engine, const json_t *variables, const char *now, uint32_t flags,
                        int32_t *tokens, size_t capacity, size_t *count, struct status *status)
{
    struct template_result result = {0};
    struct token_buffer buffer = {0};
    if (!engine->tokenizer) return status_fail(status, STATUS_BAD_INPUT, "the engine has no tokenizer");
    bool ok = render(engine, variables, now, &result, status) && encode(engine, &result, flags, &buffer, status);
    if (ok) {
        *count = buffer.count;
        if (buffer.count > capacity)
            ok = status_fail(status, STATUS_TOO_LONG, "%zu tokens, room for %zu", buffer.count, capacity);
        else if (buffer.count)
            memcpy(tokens, buffer.ids, buffer.count * sizeof *tokens);
    }
    template_result_free(&result);
    token_buffer_free(&buffer);
    return ok;
}

/* ---- messages ---- */

static json_t *variables_of_messages(const struct eng_message *messages, size_t count, bool answer,
                                     struct status *status)
{
    json_t *list = json_array();
    errno = 0;
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = json_add(list, json_pack("{s:s, s:s}", "role", messages[i].role, "content", messages[i].content));
    json_t *variables = json_object();
    ok = json_put(variables, "messages", list) && ok;
    ok = ok && json_put(variables, "add_generation_prompt", json_boolean(answer));
    if (ok) return variables;
    json_decref(variables);
    json_fail_build(status, "messages");
    return NULL;
}

static bool check_messages(const struct eng_message *messages, size_t count, struct status *status)
{
    static const char function[] = "eng_chat";
    for (size_t i = 0; i < count; i++)
        if (!report_not_null(messages[i].role, function, "role", status) ||
            !report_not_null(messages[i].content, function, "content", status))
            return false;
    return true;
}

enum eng_status eng_chat(const struct eng_engine *engine, const struct eng_message *messages, size_t message_count,
                         uint32_t flags, int32_t *tokens, size_t capacity, size_t *count, struct eng_error *error)
{
    static const char function[] = "eng_chat";
    struct status status = {0};
    json_t *variables = NULL;
    if (!report_not_null(engine, function, "engine", &status) ||
        !report_not_null(message_count ? (const void *)messages : "", function, "messages", &status) ||
        !report_not_null(count, function, "count", &status) ||
        !report_not_null(capacity ? (const void *)tokens : "", function, "tokens", &status) ||
        !check_messages(messages, message_count, &status))
        return report_result(false, &status, error);
    bool ok = check_flags(flags, ENG_CHAT_ANSWER | ENG_CHAT_CONTENT_SPECIAL, &status) &&
              (variables = variables_of_messages(messages, message_count, (flags & ENG_CHAT_ANSWER) != 0, &status)) &&
              give_tokens(engine, variables, NULL, flags, tokens, capacity, count, &status);
    json_decref(variables);
    if (!ok) status_prefix(&status, "%s", function);
    return report_result(ok, &status, error);
}

/* ---- variables in JSON ---- */

enum eng_status eng_chat_tokens(const struct eng_engine *engine, const char *variables, const char *now, uint32_t flags,
                                int32_t *tokens, size_t capacity, size_t *count, struct eng_error *error)
{
    static const char function[] = "eng_chat_tokens";
    struct status status = {0};
    json_t *parsed = NULL;
    if (!report_not_null(engine, function, "engine", &status) ||
        !report_not_null(variables, function, "variables", &status) ||
        !report_not_null(count, function, "count", &status) ||
        !report_not_null(capacity ? (const void *)tokens : "", function, "tokens", &status))
        return report_result(false, &status, error);
    bool ok = check_flags(flags, ENG_CHAT_CONTENT_SPECIAL, &status) &&
              (parsed = json_parse(variables, strlen(variables), "variables", &status)) &&
              give_tokens(engine, parsed, now, flags, tokens, capacity, count, &status);
    json_decref(parsed);
    if (!ok) status_prefix(&status, "%s", function);
    return report_result(ok, &status, error);
}

const char *eng_chat_template(const struct eng_engine *engine, const char *name)
{
    const struct chat_templates *templates = engine ? engine->file.chat_templates : NULL;
    return templates ? chat_templates_text(templates, name) : NULL;
}

enum eng_status eng_chat_render(const struct eng_engine *engine, const char *variables, const char *now, char *text,
                                size_t capacity, size_t *size, struct eng_error *error)
{
    static const char function[] = "eng_chat_render";
    struct status status = {0};
    struct template_result result = {0};
    if (!report_not_null(engine, function, "engine", &status) ||
        !report_not_null(variables, function, "variables", &status) ||
        !report_not_null(size, function, "size", &status) ||
        !report_not_null(capacity ? text : "", function, "text", &status))
        return report_result(false, &status, error);
    json_t *parsed = json_parse(variables, strlen(variables), "variables", &status);
    bool ok = parsed && render(engine, parsed, now, &result, &status);
    if (ok) {
        *size = result.size;
        if (result.size >= capacity)
            ok = status_fail(&status, STATUS_TOO_LONG, "%zu bytes and a NUL, room for %zu", result.size, capacity);
        else
            memcpy(text, result.text, result.size + 1);
    }
    template_result_free(&result);
    json_decref(parsed);
    if (!ok) status_prefix(&status, "%s", function);
    return report_result(ok, &status, error);
}
