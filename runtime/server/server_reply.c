/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_reply.h"

#include <stdlib.h>
#include <string.h>

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

bool server_reply_error(const struct server_error *error, struct server_buffer *out)
{
    return print(error_object(error), out);
}

/* ---- models, slots, tokens ---- */

static json_t *model_object(const struct server_model *model, int64_t created)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:b}", "id", server_model_name(model), "object", "model", "created",
                     (json_int_t)created, "owned_by", "eng", "max_model_len",
                     (json_int_t)server_model_facts(model)->max_context, "has_chat",
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
    if (ok) return print(json_pack("{s:s, s:o}", "object", "list", "data", list), out);
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
    uint64_t tokens = 0;
    for (size_t i = 0; i < job->choice_count; i++) tokens += job->choices[i].tokens;
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)job->prompt_tokens, "completion_tokens",
                     (json_int_t)tokens, "total_tokens", (json_int_t)(job->prompt_tokens + tokens));
}

/* Everything before the choices. */
static bool print_head(const char *model, const struct server_job *job, const char *chat_object,
                       struct server_buffer *out)
{
    return server_buffer_format(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", job->id,
                                job->request.is_chat ? chat_object : "text_completion", (long long)job->created) &&
           server_buffer_string(out, model, strlen(model)) && server_buffer_text(out, ",\"choices\":[");
}

/* One choice; `key` is "message" or "delta" of a chat. Takes the reference of `content`, the text or object. NULL: out of
 * memory. Log-probabilities are printed one by one, since a tree of them takes many times the memory of their text; NULL:
 * null. */
static bool print_choice(size_t index, const char *key, json_t *content, const struct server_logprobs *logprobs,
                         const struct eng_engine *engine, enum server_finish finish, struct server_buffer *out)
{
    const char *reason = server_finish_name(finish);
    bool ok = server_buffer_format(out, "{\"index\":%zu,\"%s\":", index, key);
    ok = print(content, out) && ok && server_buffer_text(out, ",\"logprobs\":");
    ok = ok && (logprobs ? server_logprobs_print(logprobs, engine, strcmp(key, "text") != 0, out)
                         : server_buffer_text(out, "null"));
    return ok && (reason ? server_buffer_format(out, ",\"finish_reason\":\"%s\"}", reason)
                         : server_buffer_text(out, ",\"finish_reason\":null}"));
}

static bool print_whole_choice(const struct eng_engine *engine, const struct server_job *job, size_t index,
                               struct server_buffer *out)
{
    const struct server_choice *choice = &job->choices[index];
    const struct server_logprobs *logprobs = job->request.wants_logprobs ? &choice->logprobs : NULL;
    json_t *text = json_stringn(choice->out.data ? choice->out.data : "", choice->out.size);
    if (!job->request.is_chat) return print_choice(index, "text", text, logprobs, engine, choice->finish, out);
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", text, "refusal");
    return print_choice(index, "message", message, logprobs, engine, choice->finish, out);
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

/* ---- streams ---- */

bool server_stream_open(struct server_stream *stream, const struct server_job *job)
{
    *stream = (struct server_stream){.begun = calloc(job->choice_count, sizeof *stream->begun),
                                     .ended = calloc(job->choice_count, sizeof *stream->ended)};
    return stream->begun && stream->ended;
}

void server_stream_close(struct server_stream *stream)
{
    free(stream->begun);
    free(stream->ended);
    *stream = (struct server_stream){0};
}

/* Takes the reference of `value`. */
static bool print_event(json_t *value, struct server_buffer *out)
{
    return server_buffer_text(out, "data: ") && print(value, out) && server_buffer_text(out, "\n\n");
}

static bool print_chunk_head(const char *model, const struct server_job *job, struct server_buffer *out)
{
    return server_buffer_text(out, "data: ") && print_head(model, job, "chat.completion.chunk", out);
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
static bool print_chunk(struct server_model *model, const struct server_job *job, size_t index, json_t *content,
                        const struct server_logprobs *logprobs, enum server_finish finish, struct server_buffer *out)
{
    if (!print_chunk_head(server_model_name(model), job, out)) {
        json_decref(content);
        return false;
    }
    return print_choice(index, job->request.is_chat ? "delta" : "text", content, logprobs, server_model_engine(model),
                        finish, out) &&
           print_chunk_end(job, false, out);
}

static bool print_text(struct server_model *model, const struct server_job *job, size_t index,
                       const struct server_buffer *text, const struct server_logprobs *logprobs,
                       struct server_buffer *out)
{
    json_t *content = json_stringn(text->data ? text->data : "", text->size);
    if (job->request.is_chat) content = json_pack("{s:o}", "content", content);
    return print_chunk(model, job, index, content, job->request.wants_logprobs ? logprobs : NULL, SERVER_FINISH_NONE,
                       out);
}

static bool print_begin(struct server_model *model, const struct server_job *job, size_t index,
                        struct server_buffer *out)
{
    if (!job->request.is_chat) return true;
    json_t *delta = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    return print_chunk(model, job, index, delta, NULL, SERVER_FINISH_NONE, out);
}

static bool print_end(struct server_model *model, const struct server_job *job, size_t index, enum server_finish finish,
                      struct server_buffer *out)
{
    return print_chunk(model, job, index, job->request.is_chat ? json_object() : json_string(""), NULL, finish, out);
}

static bool finished_well(enum server_finish finish)
{
    return finish == SERVER_FINISH_STOP || finish == SERVER_FINISH_LENGTH;
}

/* Events of one choice since the last call. */
static bool next_of_choice(struct server_stream *stream, struct server_model *model, struct server_job *job,
                           size_t index, struct server_buffer *out)
{
    struct server_choice *choice = &job->choices[index];
    struct server_logprobs logprobs = {0};
    /* Taken as a whole, so that the lock is not held while events are made. */
    server_model_lock(model);
    struct server_buffer text = choice->out;
    const enum server_finish finish = choice->finish;
    bool ok = server_logprobs_take(&choice->logprobs, &logprobs);
    choice->out = (struct server_buffer){0};
    server_model_unlock(model);

    const bool has_text = text.size || logprobs.count, ends = finished_well(finish) && !stream->ended[index];
    if (ok && !stream->begun[index] && (has_text || ends)) {
        stream->begun[index] = true;
        ok = print_begin(model, job, index, out);
    }
    if (ok && has_text) ok = print_text(model, job, index, &text, &logprobs, out);
    if (ok && ends) {
        stream->ended[index] = true;
        stream->ended_count++;
        ok = print_end(model, job, index, finish, out);
    }
    server_buffer_free(&text);
    server_logprobs_free(&logprobs);
    return ok;
}

static bool print_last(struct server_stream *stream, struct server_model *model, const struct server_job *job,
                       struct server_buffer *out)
{
    stream->finished = true;
    if (job->failure.http && stream->ended_count < job->choice_count) {
        if (!print_event(error_object(&job->failure), out)) return false;
    } else if (job->request.include_usage &&
               !(print_chunk_head(server_model_name(model), job, out) && print_chunk_end(job, true, out))) {
        return false;
    }
    return server_buffer_text(out, "data: [DONE]\n\n");
}

bool server_stream_next(struct server_stream *stream, struct server_model *model, struct server_job *job,
                        struct server_buffer *out)
{
    if (stream->finished) return true;
    server_model_lock(model);
    const bool done = job->done;
    server_model_unlock(model);
    for (size_t i = 0; i < job->choice_count; i++)
        if (!stream->ended[i] && !next_of_choice(stream, model, job, i, out)) return false;
    return !done || print_last(stream, model, job, out);
}

bool server_stream_has_news(const struct server_stream *stream, const struct server_job *job)
{
    bool news = job->done && !stream->finished;
    for (size_t i = 0; !news && i < job->choice_count; i++)
        news = !stream->ended[i] &&
               (job->choices[i].out.size || job->choices[i].logprobs.ready || finished_well(job->choices[i].finish));
    return news;
}
