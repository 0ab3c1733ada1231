/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_reply.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"

/* Takes the reference of `value`; NULL: out of memory. */
static bool print(json_t *value, struct server_buffer *out)
{
    char *text = value ? json_format(value, JSON_COMPACT) : NULL;
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
    return json_pack("{s:s, s:s, s:I, s:s, s:I}", "id", server_model_name(model), "object", "model", "created",
                     (json_int_t)created, "owned_by", "eng", "max_model_len",
                     (json_int_t)server_model_facts(model)->max_context);
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

/* Takes the reference of `choices`. */
static json_t *answer_object(const char *model, const struct server_job *job, const char *chat_object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", job->id, "object",
                     job->request.is_chat ? chat_object : "text_completion", "created", (json_int_t)job->created,
                     "model", model, "choices", choices);
}

/* One choice; `key` is "message" or "delta" of a chat. Takes the reference of `content`, the text or object. */
static json_t *choice_object(size_t index, const char *key, json_t *content, enum server_finish finish)
{
    const char *reason = server_finish_name(finish);
    return json_pack("{s:I, s:o, s:n, s:o}", "index", (json_int_t)index, key, content, "logprobs", "finish_reason",
                     reason ? json_string(reason) : json_null());
}

static json_t *whole_choice(const struct server_job *job, size_t index)
{
    const struct server_choice *choice = &job->choices[index];
    json_t *text = json_stringn(choice->out.data ? choice->out.data : "", choice->out.size);
    if (!job->request.is_chat) return choice_object(index, "text", text, choice->finish);
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", text, "refusal");
    return choice_object(index, "message", message, choice->finish);
}

bool server_reply_job(const char *model, const struct server_job *job, struct server_buffer *out)
{
    json_t *choices = json_array();
    bool ok = choices != NULL;
    for (size_t i = 0; ok && i < job->choice_count; i++) ok = json_add(choices, whole_choice(job, i));
    if (!ok) {
        json_decref(choices);
        return false;
    }
    json_t *answer = answer_object(model, job, "chat.completion", choices);
    if (answer && json_put(answer, "usage", usage_object(job))) return print(answer, out);
    json_decref(answer);
    return false;
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

/* Takes the reference of `choices`; `usage`: NULL: none, or of all tokens. */
static bool print_chunk(const char *model, const struct server_job *job, json_t *choices, bool usage,
                        struct server_buffer *out)
{
    json_t *chunk = answer_object(model, job, "chat.completion.chunk", choices);
    /* As in OpenAI's API, the member is null in all chunks but the last. */
    if (chunk && job->request.include_usage && !json_put(chunk, "usage", usage ? usage_object(job) : json_null())) {
        json_decref(chunk);
        return false;
    }
    return print_event(chunk, out);
}

static json_t *list_of(json_t *value)
{
    json_t *list = json_array();
    if (list && value && json_array_append(list, value) == 0) {
        json_decref(value);
        return list;
    }
    json_decref(value);
    json_decref(list);
    return NULL;
}

static bool print_text(const char *model, const struct server_job *job, size_t index, const struct server_buffer *text,
                       struct server_buffer *out)
{
    json_t *content = json_stringn(text->data, text->size);
    const bool is_chat = job->request.is_chat;
    if (is_chat) content = json_pack("{s:o}", "content", content);
    json_t *choice = choice_object(index, is_chat ? "delta" : "text", content, SERVER_FINISH_NONE);
    return print_chunk(model, job, list_of(choice), false, out);
}

static bool print_begin(const char *model, const struct server_job *job, size_t index, struct server_buffer *out)
{
    if (!job->request.is_chat) return true;
    json_t *delta = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    return print_chunk(model, job, list_of(choice_object(index, "delta", delta, SERVER_FINISH_NONE)), false, out);
}

static bool print_end(const char *model, const struct server_job *job, size_t index, enum server_finish finish,
                      struct server_buffer *out)
{
    json_t *choice = job->request.is_chat ? choice_object(index, "delta", json_object(), finish)
                                          : choice_object(index, "text", json_string(""), finish);
    return print_chunk(model, job, list_of(choice), false, out);
}

static bool finished_well(enum server_finish finish)
{
    return finish == SERVER_FINISH_STOP || finish == SERVER_FINISH_LENGTH;
}

/* Events of one choice since the last call. */
static bool next_of_choice(struct server_stream *stream, struct server_model *model, struct server_job *job,
                           size_t index, struct server_buffer *out)
{
    const char *name = server_model_name(model);
    struct server_choice *choice = &job->choices[index];
    /* Taken as a whole, so that the lock is not held while events are made. */
    server_model_lock(model);
    struct server_buffer text = choice->out;
    const enum server_finish finish = choice->finish;
    choice->out = (struct server_buffer){0};
    server_model_unlock(model);

    bool ok = true, ends = finished_well(finish) && !stream->ended[index];
    if (!stream->begun[index] && (text.size || ends)) {
        stream->begun[index] = true;
        ok = print_begin(name, job, index, out);
    }
    if (ok && text.size) ok = print_text(name, job, index, &text, out);
    if (ok && ends) {
        stream->ended[index] = true;
        stream->ended_count++;
        ok = print_end(name, job, index, finish, out);
    }
    server_buffer_free(&text);
    return ok;
}

static bool print_last(struct server_stream *stream, struct server_model *model, const struct server_job *job,
                       struct server_buffer *out)
{
    stream->finished = true;
    if (job->failure.http && stream->ended_count < job->choice_count) {
        if (!print_event(error_object(&job->failure), out)) return false;
    } else if (job->request.include_usage && !print_chunk(server_model_name(model), job, json_array(), true, out)) {
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
        news = !stream->ended[i] && (job->choices[i].out.size || finished_well(job->choices[i].finish));
    return news;
}
