/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_reply.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/json.h"

/* Takes the reference of `value`; NULL: out of memory. */
static bool print(json_t *value, struct server_buffer *out)
{
    char *text = value ? json_format(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    bool ok = text && server_buffer_text(out, text);
    free(text);
    json_decref(value);
    return ok;
}

static json_t *error_object(const struct server_error *error)
{
    return json_pack("{s:{s:s, s:s, s:o, s:o}}", "error", "message", error->message, "type",
                     server_error_type(error->http), "param", error->param[0] ? json_string(error->param) : json_null(),
                     "code", error->code ? json_string(error->code) : json_null());
}

/* As Anthropic's API has it. */
static json_t *messages_error_object(const struct server_error *error)
{
    static const struct {
        unsigned http;
        const char *type;
    } types[] = {{401, "authentication_error"}, {404, "not_found_error"},  {408, "timeout_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"}};
    const char *type = error->http >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].http == error->http) type = types[i].type;
    json_t *details = error->code ? json_pack("{s:s}", "error_code", error->code) : NULL;
    return json_pack("{s:s, s:{s:s, s:s, s:o*}}", "type", "error", "error", "type", type, "message", error->message,
                     "details", details);
}

bool server_reply_error(const struct server_error *error, enum server_shape shape, struct server_buffer *out)
{
    return print(shape == SERVER_MESSAGES ? messages_error_object(error) : error_object(error), out);
}

/* ---- models, slots, tokens ---- */

/* In OpenAI's form and in Anthropic's, which have the same path. */
static json_t *model_object(const struct server_model *model, int64_t created)
{
    const char *name = server_model_name(model);
    const time_t seconds = (time_t)created;
    struct tm parts;
    char date[40] = "";
    if (gmtime_r(&seconds, &parts)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:b}", "id", name, "object", "model", "created",
                     (json_int_t)created, "owned_by", "eng", "type", "model", "display_name", name, "created_at", date,
                     "max_model_len", (json_int_t)server_model_facts(model)->max_context, "has_chat",
                     (int)server_model_facts(model)->has_chat);
}

bool server_reply_model(const struct server_model *model, int64_t created, struct server_buffer *out)
{
    return print(model_object(model, created), out);
}

bool server_reply_models(struct server_model *const *models, size_t count, int64_t created, struct server_buffer *out)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < count; i++) ok = json_add(list, model_object(models[i], created));
    if (ok)
        return print(json_pack("{s:s, s:o, s:b, s:s, s:s}", "object", "list", "data", list, "has_more", 0, "first_id",
                               server_model_name(models[0]), "last_id", server_model_name(models[count - 1])),
                     out);
    json_decref(list);
    return false;
}

static json_t *slot_object(struct server_model *model, size_t index)
{
    static const char *const states[] = {"free", "waiting", "prefill", "decode", "done"};
    struct server_slot_facts facts;
    server_model_slot(model, index, &facts);
    json_t *slot = json_pack("{s:s, s:I, s:s}", "model", server_model_name(model), "slot", (json_int_t)index, "state",
                             states[facts.state]);
    if (facts.state == ENG_STATE_IDLE) return slot;
    bool ok = slot && json_put(slot, "request", json_string(facts.id)) &&
              json_put(slot, "choice", json_integer((json_int_t)facts.choice)) &&
              json_put(slot, "prompt_tokens", json_integer((json_int_t)facts.prompt_tokens)) &&
              json_put(slot, "generated_tokens", json_integer((json_int_t)facts.generated_tokens)) &&
              json_put(slot, "seconds", json_real(facts.seconds));
    if (ok) return slot;
    json_decref(slot);
    return NULL;
}

bool server_reply_slots(struct server_model *const *models, size_t count, struct server_buffer *out)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < count; i++)
        for (size_t slot = 0; ok && slot < server_model_slots(models[i]); slot++)
            ok = json_add(list, slot_object(models[i], slot));
    if (ok) return print(list, out);
    json_decref(list);
    return false;
}

bool server_reply_tokens(const struct server_prompt *prompt, uint32_t max_context, struct server_buffer *out)
{
    bool ok = server_buffer_format(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", prompt->count, max_context);
    for (size_t i = 0; ok && i < prompt->count; i++)
        ok = server_buffer_format(out, i ? ",%d" : "%d", (int)prompt->tokens[i]);
    return ok && server_buffer_text(out, "],\"token_strs\":null}");
}

bool server_reply_text(const char *text, size_t size, struct server_buffer *out)
{
    return print(json_pack("{s:o}", "prompt", json_stringn(text, size)), out);
}

/* ---- answers ---- */

static json_t *usage_object(const struct server_job *job)
{
    uint64_t reasoning;
    const uint64_t tokens = server_job_tokens(job, &reasoning);
    json_t *details = job->request.is_chat ? json_pack("{s:I}", "reasoning_tokens", (json_int_t)reasoning) : NULL;
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:o*}", "prompt_tokens", (json_int_t)job->prompt_tokens,
                     "completion_tokens", (json_int_t)tokens, "total_tokens", (json_int_t)(job->prompt_tokens + tokens),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)server_job_cached_tokens(job),
                     "completion_tokens_details", details);
}

/* Everything before the choices. */
static bool print_head(const char *model, const struct server_job *job, const char *chat_object,
                       struct server_buffer *out)
{
    return server_buffer_format(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", job->id,
                                job->request.is_chat ? chat_object : "text_completion", (long long)job->created) &&
           server_buffer_string(out, model, strlen(model)) && server_buffer_text(out, ",\"choices\":[");
}

/* Why a choice has ended; NULL: it has not. */
static const char *reason_of(enum server_finish finish, size_t calls)
{
    return finish == SERVER_FINISH_STOP && calls ? "tool_calls" : server_finish_name(finish);
}

/* One choice; `key` is "message" or "delta" of a chat. Takes the reference of `content`, the text or object. NULL: out of
 * memory. Log-probabilities are printed one by one, since a tree of them takes many times the memory of their text; NULL:
 * null. */
static bool print_choice(size_t index, const char *key, json_t *content, const struct server_logprobs *logprobs,
                         const struct eng_engine *engine, const char *reason, struct server_buffer *out)
{
    bool ok = server_buffer_format(out, "{\"index\":%zu,\"%s\":", index, key);
    ok = print(content, out) && ok && server_buffer_text(out, ",\"logprobs\":");
    ok = ok && (logprobs ? server_logprobs_print(logprobs, engine, strcmp(key, "text") != 0, out)
                         : server_buffer_text(out, "null"));
    return ok && (reason ? server_buffer_format(out, ",\"finish_reason\":\"%s\"}", reason)
                         : server_buffer_text(out, ",\"finish_reason\":null}"));
}

static json_t *text_of(const struct server_buffer *text)
{
    return json_stringn(text->data ? text->data : "", text->size);
}

/* The text of all parts of a kind. */
static json_t *text_of_kind(const struct server_parts *parts, enum server_part_kind kind)
{
    struct server_buffer all = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < parts->count; i++)
        if (parts->items[i].kind == kind)
            ok = server_buffer_add(&all, parts->items[i].text.data, parts->items[i].text.size);
    json_t *text = ok ? text_of(&all) : NULL;
    server_buffer_free(&all);
    return text;
}

static size_t count_kind(const struct server_parts *parts, enum server_part_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < parts->count; i++) count += parts->items[i].kind == kind;
    return count;
}

static json_t *call_object(const struct server_part *part)
{
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", part->id, "type", "function", "function", "name", part->name,
                     "arguments", text_of(&part->text));
}

/* Only an answer without calls always has content. */
static json_t *message_object(const struct server_parts *parts)
{
    const bool has_calls = count_kind(parts, SERVER_PART_CALL), has_text = count_kind(parts, SERVER_PART_CONTENT);
    json_t *message =
        json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                  has_calls && !has_text ? json_null() : text_of_kind(parts, SERVER_PART_CONTENT), "refusal");
    bool ok = message != NULL;
    if (ok && count_kind(parts, SERVER_PART_REASONING))
        ok = json_put(message, "reasoning_content", text_of_kind(parts, SERVER_PART_REASONING));
    json_t *calls = json_array();
    for (size_t i = 0; ok && i < parts->count; i++)
        if (parts->items[i].kind == SERVER_PART_CALL) ok = json_add(calls, call_object(&parts->items[i]));
    if (ok && has_calls) ok = json_put(message, "tool_calls", json_incref(calls));
    json_decref(calls);
    if (ok) return message;
    json_decref(message);
    return NULL;
}

static bool print_whole_choice(const struct eng_engine *engine, const struct server_job *job, size_t index,
                               struct server_buffer *out)
{
    const struct server_choice *choice = &job->choices[index];
    const struct server_logprobs *logprobs = job->request.wants_logprobs ? &choice->logprobs : NULL;
    struct server_parts parts = {0};
    if (!job->request.is_chat)
        return print_choice(index, "text", text_of(&choice->out), logprobs, engine, reason_of(choice->finish, 0), out);
    size_t calls;
    bool ok = server_job_divide(job, index, &parts, &calls);
    ok = ok && print_choice(index, "message", message_object(&parts), logprobs, engine,
                            reason_of(choice->finish, calls), out);
    server_parts_free(&parts);
    return ok;
}

bool server_reply_job(const char *model, const struct eng_engine *engine, const struct server_job *job,
                      struct server_buffer *out)
{
    bool ok = print_head(model, job, "chat.completion", out);
    for (size_t i = 0; ok && i < job->choice_count; i++)
        ok = server_buffer_text(out, i ? "," : "") && print_whole_choice(engine, job, i, out);
    return ok && server_buffer_text(out, "],\"usage\":") && print(usage_object(job), out) &&
           server_buffer_text(out, "}");
}

/* ---- chunks of streams ---- */

static bool print_chunk_head(const struct server_model *model, const struct server_job *job, struct server_buffer *out)
{
    return server_buffer_text(out, "data: ") && print_head(server_model_name(model), job, "chat.completion.chunk", out);
}

/* `usage`: of all tokens; else, as in OpenAI's API, null in all chunks but the last. */
static bool print_chunk_end(const struct server_job *job, bool usage, struct server_buffer *out)
{
    bool ok = server_buffer_text(out, "]");
    if (job->request.include_usage)
        ok = ok && server_buffer_text(out, ",\"usage\":") &&
             (usage ? print(usage_object(job), out) : server_buffer_text(out, "null"));
    return ok && server_buffer_text(out, "}\n\n");
}

/* A chunk with one choice, whose text or delta is `content`. Takes its reference. */
static bool print_chunk(const struct server_model *model, const struct server_job *job, size_t index, json_t *content,
                        const struct server_logprobs *logprobs, const char *reason, struct server_buffer *out)
{
    if (!print_chunk_head(model, job, out)) {
        json_decref(content);
        return false;
    }
    return print_choice(index, job->request.is_chat ? "delta" : "text", content,
                        job->request.wants_logprobs ? logprobs : NULL, server_model_engine(model), reason, out) &&
           print_chunk_end(job, false, out);
}

bool server_reply_begin(const struct server_model *model, const struct server_job *job, size_t index,
                        struct server_buffer *out)
{
    if (!job->request.is_chat) return true;
    json_t *delta = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    return print_chunk(model, job, index, delta, NULL, NULL, out);
}

/* `call`: index of the call that the part belongs to. */
static json_t *delta_of(const struct server_part *part, size_t call)
{
    const json_int_t index = (json_int_t)call;
    if (part->kind == SERVER_PART_CALL)
        return json_pack("{s:[{s:I, s:s, s:s, s:{s:s, s:o}}]}", "tool_calls", "index", index, "id", part->id, "type",
                         "function", "function", "name", part->name, "arguments", text_of(&part->text));
    if (part->kind == SERVER_PART_ARGUMENTS)
        return json_pack("{s:[{s:I, s:{s:o}}]}", "tool_calls", "index", index, "function", "arguments",
                         text_of(&part->text));
    return json_pack("{s:o}", part->kind == SERVER_PART_CONTENT ? "content" : "reasoning_content",
                     text_of(&part->text));
}

bool server_reply_parts(const struct server_model *model, const struct server_job *job, size_t index, size_t calls,
                        const struct server_parts *parts, const struct server_logprobs *logprobs,
                        struct server_buffer *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < parts->count; i++) {
        const struct server_part *part = &parts->items[i];
        calls += part->kind == SERVER_PART_CALL;
        json_t *content = job->request.is_chat ? delta_of(part, calls ? calls - 1 : 0) : text_of(&part->text);
        ok = print_chunk(model, job, index, content, logprobs, NULL, out);
        logprobs = NULL;
    }
    /* Tokens without text, and those of a text that is not decided yet. */
    if (!ok || parts->count || !logprobs || !logprobs->count) return ok;
    json_t *content = job->request.is_chat ? json_pack("{s:s}", "content", "") : json_string("");
    return print_chunk(model, job, index, content, logprobs, NULL, out);
}

bool server_reply_end(const struct server_model *model, const struct server_job *job, size_t index, size_t calls,
                      enum server_finish finish, struct server_buffer *out)
{
    return print_chunk(model, job, index, job->request.is_chat ? json_object() : json_string(""), NULL,
                       reason_of(finish, calls), out);
}

bool server_reply_usage(const struct server_model *model, const struct server_job *job, struct server_buffer *out)
{
    return !job->request.include_usage || (print_chunk_head(model, job, out) && print_chunk_end(job, true, out));
}
