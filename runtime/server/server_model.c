/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_model.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "runtime/cli/cli_args.h"
#include "runtime/server/server_context.h"
#include "runtime/server/server_echo.h"
#include "runtime/server/server_embeddings.h"

/* A choice that has a sequence of the session. */
struct slot {
    struct server_job *job; /* NULL: free */
    size_t choice;
    struct eng_sequence *sequence; /* used by the thread of the model alone */
    enum eng_state state;          /* after the last step */
    bool has_begun, has_room;      /* steps have computed it; they do, as it is not set aside */
};

/* Whether a divided answer has a text of a token; found out when it is drawn first. */
enum token_kind { TOKEN_UNKNOWN, TOKEN_TEXT, TOKEN_DROPPED };

struct server_model {
    char *name;
    struct eng_engine *engine;
    struct eng_session *session; /* used by the thread of the model alone */
    struct eng_engine_facts facts;
    struct server_voice voice;
    uint8_t *token_kinds; /* owned [vocab_size], enum token_kind: used by the thread of the model alone */
    struct server_grammars *grammars;
    struct server_target target;
    bool is_short; /* the KV pool has no room for the engine's context */
    double timeout;
    uint64_t max_queue;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock; /* of all that follows, and of the jobs */
    pthread_cond_t changed;
    struct server_job *first, **last; /* jobs with choices that have not started */
    uint64_t queued;
    struct slot *slots; /* owned [slot_count] */
    size_t slot_count, used_slots;
    struct server_metrics metrics;
    bool stopping;
    struct server_error failure; /* of the engine: no job can run any more */
};

/* ---- the end of jobs; all with the lock held ---- */

static void wake(struct server_job *job)
{
    if (job->wake) job->wake(job->context);
}

/* Requires: the lock, unless no other thread knows the job. */
static void drop_reference(struct server_job *job)
{
    if (--job->references == 0) server_job_free(job);
}

static void free_slot(struct server_model *model, struct slot *slot)
{
    eng_sequence_destroy(&slot->sequence);
    *slot = (struct slot){.state = ENG_STATE_IDLE};
    model->used_slots--;
}

static void enter_queue(struct server_model *model, struct server_job *job)
{
    *model->last = job;
    model->last = &job->next;
    model->queued++;
}

static void leave_queue(struct server_model *model, struct server_job *job)
{
    for (struct server_job **at = &model->first; *at; at = &(*at)->next) {
        if (*at != job) continue;
        *at = job->next;
        if (!*at) model->last = at;
        model->queued--;
        job->next = NULL;
        return;
    }
}

static void end_job(struct server_model *model, struct server_job *job)
{
    job->done = true;
    job->end = cli_seconds();
    if (!job->failure.http) server_metrics_observe(&model->metrics, SERVER_TIME_REQUEST, job->end - job->arrival);
    wake(job);
    drop_reference(job);
}

/* Ends all choices of the job. */
static void fail_job(struct server_model *model, struct server_job *job, enum server_finish finish)
{
    leave_queue(model, job);
    for (size_t i = 0; i < model->slot_count; i++)
        if (model->slots[i].job == job) free_slot(model, &model->slots[i]);
    for (size_t i = 0; i < job->choice_count; i++) {
        if (job->choices[i].finish) continue;
        job->choices[i].finish = finish;
        model->metrics.finished[finish]++;
    }
    end_job(model, job);
}

/* Any job that is not done; NULL: there is none. */
static struct server_job *any_job(const struct server_model *model)
{
    for (size_t i = 0; i < model->slot_count; i++)
        if (model->slots[i].job) return model->slots[i].job;
    return model->first;
}

static void fail_model(struct server_model *model, const struct eng_error *error)
{
    server_fail(&model->failure, 503, "engine_failed", NULL, "the engine has failed: %s", error->message);
    fprintf(stderr, "%s: %s: no more requests are taken: %s\n", cli_program(), model->name, error->message);
    for (struct server_job *job; (job = any_job(model));) {
        job->failure = model->failure;
        fail_job(model, job, SERVER_FINISH_ERROR);
    }
}

static const struct server_error *client_left(struct server_error *reason)
{
    server_fail(reason, 499, "client_closed_request", NULL, "the client has closed the connection");
    return reason;
}

static void cancel(struct server_job *job, const struct server_error *reason)
{
    if (job->done || job->cancelled) return;
    job->cancelled = true;
    job->failure = *reason;
}

static void end_if_late(struct server_model *model, struct server_job *job, double now)
{
    struct server_error reason;
    if (atomic_load(&job->abandoned)) cancel(job, client_left(&reason));
    if (now > job->deadline && !job->cancelled) {
        server_fail(&reason, 408, "request_timeout", NULL, "the request took longer than %g s", model->timeout);
        cancel(job, &reason);
    }
    if (job->cancelled) fail_job(model, job, SERVER_FINISH_ABORT);
}

static void end_cancelled(struct server_model *model)
{
    const double now = cli_seconds();
    for (size_t i = 0; i < model->slot_count; i++)
        if (model->slots[i].job) end_if_late(model, model->slots[i].job, now);
    for (struct server_job *job = model->first, *next; job; job = next) {
        next = job->next;
        end_if_late(model, job, now);
    }
}

/* ---- the start of choices ---- */

static bool start_choice(struct server_model *model, struct server_job *job, struct slot *slot, struct eng_error *error)
{
    const struct server_request *request = &job->request;
    const size_t index = job->started;
    const struct server_prompt *prompt = &request->prompts[server_job_prompt_of(job, index)];
    struct eng_sampling sampling = job->sampling;
    struct eng_sequence_options options;
    int32_t stops[ENG_MAX_STOP_TOKENS];
    uint32_t count = request->stop_token_count;
    memcpy(stops, request->stop_tokens, count * sizeof *stops);
    if (request->is_chat && model->facts.chat_end_token >= 0) stops[count++] = model->facts.chat_end_token;
    /* Choices of one request differ, and the same request with a seed gives the same choices. */
    sampling.seed += index;
    eng_sequence_options_init(&options);
    options.sampling = &sampling;
    options.stop_tokens = stops;
    options.stop_count = count;
    options.max_new_tokens = job->max_new_tokens;
    if (model->is_short && !job->max_new_tokens) options.context_tokens = model->facts.max_context;
    if (!request->no_answer) options.grammar = server_grammar_compiled(job->grammar);
    if (request->endpoint == SERVER_EMBEDDING)
        options.flags |= ENG_SEQUENCE_IGNORE_EOS | (request->is_mean ? ENG_SEQUENCE_HIDDEN_MEAN : ENG_SEQUENCE_HIDDEN);
    if (request->echo && request->wants_logprobs)
        options.prompt_logprobs = request->top_logprobs ? (int32_t)request->top_logprobs : -1;
    if (request->wants_logprobs) options.flags |= ENG_SEQUENCE_LOGITS;
    if (request->ignore_eos) options.flags |= ENG_SEQUENCE_IGNORE_EOS;
    if (eng_sequence_create(model->session, &options, &slot->sequence, error)) return false;
    if (eng_sequence_submit(slot->sequence, prompt->tokens, prompt->count, error)) {
        eng_sequence_destroy(&slot->sequence);
        return false;
    }
    slot->job = job;
    slot->choice = index;
    slot->state = eng_sequence_state(slot->sequence);
    model->used_slots++;
    model->metrics.prompt_tokens += index % request->n == 0 ? prompt->count : 0;
    leave_queue(model, job);
    /* Jobs take turns: one of many choices does not hold up those after it until its last choice has started. */
    if (++job->started < job->choice_count) enter_queue(model, job);
    return true;
}

static void start_choices(struct server_model *model)
{
    for (size_t i = 0; i < model->slot_count && model->first; i++) {
        struct server_job *job = model->first;
        struct eng_error error = {0};
        if (model->slots[i].job || start_choice(model, job, &model->slots[i], &error)) continue;
        if (error.status == ENG_FULL && model->used_slots) return;
        server_fail_eng(&job->failure, NULL, &error);
        fail_job(model, job, SERVER_FINISH_ERROR);
    }
}

/* ---- tokens ---- */

static bool push_text(struct server_choice *choice, const char *text, size_t size, bool is_last,
                      struct eng_error *error)
{
    size_t released;
    choice->characters += server_count_characters(text, size);
    bool ok = stop_strings_push(&choice->stop, text, size, &released);
    if (is_last) stop_strings_finish(&choice->stop, &released);
    if (!ok || !server_buffer_add(&choice->out, choice->stop.held, released)) {
        *error = (struct eng_error){.status = ENG_MACHINE, .message = "out of memory"};
        return false;
    }
    choice->released += server_count_characters(choice->stop.held, released);
    stop_strings_drop(&choice->stop, released);
    server_logprobs_text(&choice->logprobs, choice->characters, choice->released);
    return true;
}

/* Requires: the token is the one that the last step drew, as with logits every step draws one at most. */
static bool add_logprobs(const struct slot *slot, int32_t token, struct eng_error *error)
{
    struct server_choice *choice = &slot->job->choices[slot->choice];
    struct eng_logprob drawn, top[ENG_MAX_LOGPROBS];
    if (!slot->job->request.wants_logprobs) return true;
    if (eng_sequence_logprobs(slot->sequence, &drawn, top, choice->logprobs.top_count, error)) return false;
    if (drawn.token != token) {
        *error = (struct eng_error){.status = ENG_INTERNAL, .message = "log-probabilities of another token"};
        return false;
    }
    if (server_logprobs_add(&choice->logprobs, &drawn, top, choice->characters)) return true;
    *error = (struct eng_error){.status = ENG_MACHINE, .message = "out of memory"};
    return false;
}

/* Special tokens that are no markers of a dialect. Those of the request's own choice stay. */
static bool is_dropped(const struct server_model *model, const struct server_job *job, int32_t token)
{
    if (!job->voice || !job->request.skip_special || token < 0 || (uint32_t)token >= model->facts.vocab_size)
        return false;
    uint8_t *kind = &model->token_kinds[token];
    if (*kind == TOKEN_UNKNOWN)
        *kind = server_voice_drops(job->voice, model->engine, token) ? TOKEN_DROPPED : TOKEN_TEXT;
    return *kind == TOKEN_DROPPED;
}

static bool count_reasoning(struct server_choice *choice, const char *text, size_t size, struct eng_error *error)
{
    bool is_thought = false;
    if (choice->reader.state != SERVER_ANSWER_PLAIN &&
        !server_answer_follow(&choice->reader, text, size, &is_thought)) {
        *error = (struct eng_error){.status = ENG_MACHINE, .message = "out of memory"};
        return false;
    }
    choice->reasoning_tokens += is_thought;
    return true;
}

static bool add_token(const struct server_model *model, const struct slot *slot, int32_t token, struct eng_error *error)
{
    struct server_choice *choice = &slot->job->choices[slot->choice];
    const char *text;
    size_t size;
    if (!add_logprobs(slot, token, error)) return false;
    if (is_dropped(model, slot->job, token))
        return count_reasoning(choice, "", 0, error) && push_text(choice, "", 0, false, error);
    return !eng_text_push(choice->text, token, &text, &size, error) && count_reasoning(choice, text, size, error) &&
           push_text(choice, text, size, false, error);
}

static bool finish_text(struct server_choice *choice, struct eng_error *error)
{
    const char *text;
    size_t size;
    if (!choice->stop.found &&
        (eng_text_finish(choice->text, &text, &size, error) || !push_text(choice, text, size, true, error)))
        return false;
    server_logprobs_finish(&choice->logprobs, choice->released);
    return true;
}

static void count_token(struct server_model *model, struct server_job *job, struct server_choice *choice, double now)
{
    if (!choice->tokens++)
        server_metrics_observe(&model->metrics, SERVER_TIME_FIRST_TOKEN, now - job->arrival);
    else
        server_metrics_observe(&model->metrics, SERVER_TIME_PER_TOKEN, now - choice->last_token);
    if (job->first_token == 0) job->first_token = now;
    choice->last_token = now;
    model->metrics.generation_tokens++;
}

/* Requires: the last step drew the only token of the sequence, which nothing needs. */
static bool take_embedding(const struct server_model *model, struct slot *slot, struct eng_error *error)
{
    int32_t token;
    if (!eng_sequence_poll(slot->sequence, &token, 1)) return true;
    const float *hidden = eng_sequence_hidden(slot->sequence);
    if (hidden)
        return server_embeddings_add(slot->job, &slot->job->choices[slot->choice], hidden, model->facts.hidden_size,
                                     error);
    *error = (struct eng_error){.status = ENG_INTERNAL, .message = "the hidden state of another step"};
    return false;
}

/* Takes the first token of the answer as the sign that the prompt is computed. */
static bool take_prompt(const struct server_model *model, struct slot *slot, struct eng_error *error)
{
    const struct server_request *request = &slot->job->request;
    if (!request->echo || !request->wants_logprobs) return true;
    return server_echo_logprobs(model->engine, slot->sequence,
                                &request->prompts[server_job_prompt_of(slot->job, slot->choice)], request->skip_special,
                                &slot->job->choices[slot->choice], error);
}

static bool has_token(const int32_t *tokens, uint32_t count, int32_t token)
{
    bool found = false;
    for (uint32_t i = 0; i < count; i++) found = found || tokens[i] == token;
    return found;
}

/* Whether a token ends an answer because the request says so alone. */
static bool is_own_stop(const struct server_model *model, const struct server_request *request, int32_t token)
{
    const struct eng_engine_facts *facts = &model->facts;
    const bool ends_chat = request->is_chat && token == facts->chat_end_token;
    return has_token(request->stop_tokens, request->stop_token_count, token) && !ends_chat &&
           !has_token(facts->eos_tokens, facts->eos_count, token);
}

/* Takes the tokens that the last step drew for a choice. The token that ends an answer is no part of its text. */
static bool take_tokens(struct server_model *model, struct slot *slot, double now, struct eng_error *error)
{
    struct server_choice *choice = &slot->job->choices[slot->choice];
    int32_t token, before = -1;
    if (slot->job->request.endpoint == SERVER_EMBEDDING) return take_embedding(model, slot, error);
    while (!choice->stop.found && eng_sequence_poll(slot->sequence, &token, 1)) {
        if (!choice->tokens && !take_prompt(model, slot, error)) return false;
        if (slot->job->request.no_answer) return true;
        if (before >= 0 && !add_token(model, slot, before, error)) return false;
        if (choice->stop.found) return true;
        before = token;
        count_token(model, slot->job, choice, now);
    }
    bool is_end = eng_sequence_end(slot->sequence) == ENG_END_EOS;
    choice->at_own_token = is_end && is_own_stop(model, &slot->job->request, before);
    return before < 0 || choice->stop.found || is_end || add_token(model, slot, before, error);
}

static enum server_finish finish_of(const struct slot *slot, enum eng_end end)
{
    const bool is_embedding = slot->job->request.endpoint == SERVER_EMBEDDING && end == ENG_END_LENGTH;
    if (slot->job->request.no_answer && end == ENG_END_EOS) return SERVER_FINISH_LENGTH;
    if (slot->job->choices[slot->choice].stop.found || end == ENG_END_EOS || is_embedding) return SERVER_FINISH_STOP;
    return end == ENG_END_LENGTH || end == ENG_END_CONTEXT ? SERVER_FINISH_LENGTH : SERVER_FINISH_ERROR;
}

static void finish_choice(struct server_model *model, struct slot *slot)
{
    struct server_job *job = slot->job;
    struct server_choice *choice = &job->choices[slot->choice];
    struct eng_error error = {0};
    const enum eng_end end = eng_sequence_end(slot->sequence);
    choice->finish = finish_of(slot, end);
    model->metrics.finished[choice->finish]++;
    if (choice->finish != SERVER_FINISH_ERROR) {
        const struct server_prompt *prompt = &job->request.prompts[server_job_prompt_of(job, slot->choice)];
        server_metrics_observe(&model->metrics, SERVER_PROMPT_TOKENS, (double)prompt->count);
        server_metrics_observe(&model->metrics, SERVER_GENERATED_TOKENS, (double)choice->tokens);
    }
    free_slot(model, slot);
    if (choice->finish == SERVER_FINISH_ERROR && end == ENG_END_NONE_ALLOWED)
        server_fail(&job->failure, 400, "no_token_allowed", NULL,
                    "no token of this model continues the answer in the format that was asked for");
    else if (choice->finish == SERVER_FINISH_ERROR)
        server_fail(&job->failure, 500, "not_finite", NULL,
                    "no token can be drawn: the model's logits are not finite (NaN or infinity)");
    else if (job->request.endpoint != SERVER_EMBEDDING && !job->request.no_answer && !finish_text(choice, &error))
        server_fail_eng(&job->failure, NULL, &error);
    if (job->failure.http)
        fail_job(model, job, SERVER_FINISH_ERROR);
    else if (++job->finished == job->choice_count)
        end_job(model, job);
    else
        wake(job);
}

/* Prompts whose rows are wanted, too, are computed whole. */
static bool uses_cache(const struct server_request *request)
{
    return !(request->echo && request->wants_logprobs) && !request->is_mean;
}

/* The step that began then, and before which the choice had so many tokens, may be the first one that has computed it. */
static void note_room(struct server_model *model, struct slot *slot, uint64_t tokens, double begin)
{
    const struct server_job *job = slot->job;
    const bool had_room = slot->has_room;
    slot->has_room = slot->state != ENG_STATE_WAITING;
    if (had_room || !slot->has_room) return;
    if (!slot->has_begun) server_metrics_observe(&model->metrics, SERVER_TIME_IN_QUEUE, begin - job->arrival);
    slot->has_begun = true;
    if (uses_cache(&job->request))
        model->metrics.queried_tokens += job->request.prompts[server_job_prompt_of(job, slot->choice)].count + tokens;
}

static void collect(struct server_model *model, double begin)
{
    const double now = cli_seconds();
    for (size_t i = 0; i < model->slot_count; i++) {
        struct slot *slot = &model->slots[i];
        struct eng_error error = {0};
        if (!slot->job) continue;
        struct server_choice *choice = &slot->job->choices[slot->choice];
        const uint64_t tokens = choice->tokens;
        if (!tokens) choice->cached_tokens = eng_sequence_cached_tokens(slot->sequence);
        slot->state = eng_sequence_state(slot->sequence);
        note_room(model, slot, tokens, begin);
        if (!take_tokens(model, slot, now, &error)) {
            server_fail_eng(&slot->job->failure, NULL, &error);
            fail_job(model, slot->job, SERVER_FINISH_ERROR);
        } else if (slot->state == ENG_STATE_DONE || choice->stop.found) {
            finish_choice(model, slot);
        } else if (choice->tokens != tokens) {
            wake(slot->job);
        }
    }
}

static void publish(struct server_model *model)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    model->metrics.running = model->metrics.waiting = 0;
    for (size_t i = 0; i < model->slot_count; i++) {
        if (!model->slots[i].job) continue;
        if (model->slots[i].state == ENG_STATE_WAITING)
            model->metrics.waiting++;
        else
            model->metrics.running++;
    }
    if (eng_session_get_facts(model->session, &facts, NULL)) return;
    model->metrics.cached_tokens = facts.cached_tokens;
    model->metrics.set_aside = facts.set_aside;
    model->metrics.drafted = facts.drafted_tokens;
    model->metrics.accepted = facts.accepted_tokens;
    if (facts.pages) model->metrics.kv_usage = (double)(facts.pages - facts.free_pages) / (double)facts.pages;
}

static void *run(void *argument)
{
    struct server_model *model = argument;
    server_model_lock(model);
    for (;;) {
        struct eng_error error = {0};
        end_cancelled(model);
        start_choices(model);
        publish(model);
        if (model->used_slots) {
            const double begin = cli_seconds();
            server_model_unlock(model);
            enum eng_status status = eng_step(model->session, NULL, &error);
            server_model_lock(model);
            if (status)
                fail_model(model, &error);
            else
                collect(model, begin);
        } else if (!model->first) {
            if (model->stopping) break;
            pthread_cond_wait(&model->changed, &model->lock);
        }
    }
    server_model_unlock(model);
    return NULL;
}

/* ---- for other threads ---- */

void server_model_lock(struct server_model *model) { pthread_mutex_lock(&model->lock); }
void server_model_unlock(struct server_model *model) { pthread_mutex_unlock(&model->lock); }

bool server_model_submit(struct server_model *model, struct server_job *job, struct server_error *error)
{
    bool ok = true;
    server_model_lock(model);
    if (model->failure.http) {
        *error = model->failure;
        ok = false;
    } else if (model->stopping) {
        ok = server_fail(error, 503, "shutting_down", NULL, "the server is shutting down");
    } else if (model->queued >= model->max_queue) {
        ok = server_fail(error, 429, "queue_full", NULL, "%" PRIu64 " requests wait, as many as may; try later",
                         model->queued);
    } else {
        job->deadline = job->arrival + model->timeout;
        job->references++;
        enter_queue(model, job);
        pthread_cond_signal(&model->changed);
    }
    server_model_unlock(model);
    return ok;
}

void server_model_cancel_all(struct server_model *model, const struct server_error *reason)
{
    server_model_lock(model);
    for (size_t i = 0; i < model->slot_count; i++)
        if (model->slots[i].job) cancel(model->slots[i].job, reason);
    for (struct server_job *at = model->first; at; at = at->next) cancel(at, reason);
    pthread_cond_signal(&model->changed);
    server_model_unlock(model);
}

void server_model_release(struct server_model *model, struct server_job *job)
{
    struct server_error reason;
    server_model_lock(model);
    cancel(job, client_left(&reason));
    job->wake = NULL;
    drop_reference(job);
    pthread_cond_signal(&model->changed);
    server_model_unlock(model);
}

bool server_model_is_busy(struct server_model *model)
{
    server_model_lock(model);
    bool busy = model->used_slots || model->first;
    server_model_unlock(model);
    return busy;
}

bool server_model_is_healthy(struct server_model *model, struct server_error *error)
{
    server_model_lock(model);
    bool healthy = !model->failure.http;
    if (!healthy) *error = model->failure;
    server_model_unlock(model);
    return healthy;
}

void server_model_metrics(struct server_model *model, struct server_metrics *metrics)
{
    server_model_lock(model);
    *metrics = model->metrics;
    for (const struct server_job *job = model->first; job; job = job->next)
        metrics->waiting += job->choice_count - job->started;
    server_model_unlock(model);
}

size_t server_model_slots(const struct server_model *model) { return model->slot_count; }

void server_model_slot(struct server_model *model, size_t index, struct server_slot_facts *facts)
{
    server_model_lock(model);
    const struct slot *slot = &model->slots[index];
    const struct server_job *job = slot->job;
    *facts = (struct server_slot_facts){.state = slot->state, .choice = slot->choice};
    if (job) {
        memcpy(facts->id, job->id, sizeof facts->id);
        facts->prompt_tokens = job->request.prompts[server_job_prompt_of(job, slot->choice)].count;
        facts->generated_tokens = job->choices[slot->choice].tokens;
        facts->seconds = cli_seconds() - job->arrival;
    }
    server_model_unlock(model);
}

const char *server_model_name(const struct server_model *model) { return model->name; }
const struct eng_engine *server_model_engine(const struct server_model *model) { return model->engine; }
const struct eng_engine_facts *server_model_facts(const struct server_model *model) { return &model->facts; }
const struct server_target *server_model_target(const struct server_model *model) { return &model->target; }

/* ---- opening ---- */

static bool fail_open(struct eng_error *error, enum eng_status status, const char *what, const char *why)
{
    error->status = (int32_t)status;
    snprintf(error->message, sizeof error->message, "%s: %s", what, why);
    return false;
}

uint32_t server_model_prompt_step(const char *info)
{
    enum { LEAST = 16, PARTS = 4 };
    json_t *root = json_loads(info, 0, NULL), *plan;
    json_int_t largest = 0;
    size_t index;
    json_array_foreach (json_object_get(root, "plans"), index, plan) {
        const char *kind = json_string_value(json_object_get(plan, "kind"));
        const json_int_t rows = json_integer_value(json_object_get(plan, "rows"));
        if (kind && strcmp(kind, "prefill") == 0 && rows > largest && rows <= INT32_MAX) largest = rows;
    }
    json_decref(root);
    return largest / PARTS > LEAST ? (uint32_t)(largest / PARTS) : LEAST;
}

/* Requests are refused, and answers end, where the context does that the pool has room for. */
static bool shorten_context(struct server_model *model, const struct server_model_options *options,
                            struct eng_error *error)
{
    uint32_t tokens;
    if (!server_context_find(model->session, model->facts.max_context, &tokens, error)) return false;
    model->is_short = tokens < model->facts.max_context;
    if (model->is_short && !options->quiet)
        fprintf(stderr,
                "%s: %s: the KV cache has room for %" PRIu32 " tokens of a request; the engine's context is %" PRIu32
                "\n",
                cli_program(), model->name, tokens, model->facts.max_context);
    model->facts.max_context = tokens;
    return true;
}

/* A session would round the size up to a page, and serve contexts of that. */
static bool check_pool(const struct server_model *model, const struct server_model_options *options,
                       struct eng_error *error)
{
    const uint64_t tokens = options->session->kv_tokens;
    char why[160];
    if (!tokens || tokens >= model->facts.page_tokens) return true;
    snprintf(why, sizeof why,
             "--kv-tokens: expected at least %" PRIu32 ", a page of the KV cache, found %" PRIu64
             "; give more, or leave it out",
             model->facts.page_tokens, tokens);
    return fail_open(error, ENG_USAGE, options->path, why);
}

static bool open_engine(struct server_model *model, const struct server_model_options *options, struct eng_error *error)
{
    struct eng_session_options session = *options->session;
    eng_engine_facts_init(&model->facts);
    if (eng_open(options->path, options->open, &model->engine, error) ||
        eng_engine_get_facts(model->engine, &model->facts, error))
        return false;
    if (!model->facts.has_tokenizer)
        return fail_open(error, ENG_BAD_INPUT, options->path,
                         "the engine has no tokenizer, which a server needs; build it from a checkpoint with one");
    if (!server_voice_open(model->engine, &model->voice, error)) return false;
    model->token_kinds = calloc(model->facts.vocab_size, sizeof *model->token_kinds);
    if (!model->token_kinds) return fail_open(error, ENG_MACHINE, options->path, "out of memory");
    /* More sequences than slots would only wait: requests wait in the queue of the server instead. */
    session.max_sequences = model->facts.slots;
    if (!session.prompt_step && !session.step_ms)
        session.prompt_step = server_model_prompt_step(eng_info(model->engine));
    if (!check_pool(model, options, error)) return false;
    if (eng_session_create(model->engine, &session, &model->session, error) || !shorten_context(model, options, error))
        return false;
    if (!options->quiet) cli_note_fallback(model->session);
    if (!options->quiet && session.speculate) cli_note_speculation(model->session);
    return true;
}

static bool prepare(struct server_model *model, const struct server_model_options *options, struct eng_error *error)
{
    model->max_queue = options->max_queue;
    model->timeout = options->timeout;
    model->last = &model->first;
    model->name = strdup(options->name);
    model->grammars = server_grammars_open();
    if (!model->name || !model->grammars) return fail_open(error, ENG_MACHINE, options->path, "out of memory");
    if (!open_engine(model, options, error)) return false;
    model->target = (struct server_target){.engine = model->engine,
                                           .facts = &model->facts,
                                           .voice = &model->voice,
                                           .grammars = model->grammars,
                                           .max_prompt = options->max_prompt};
    model->slots = calloc(model->facts.slots, sizeof *model->slots);
    if (!model->slots) return fail_open(error, ENG_MACHINE, options->path, "out of memory");
    model->slot_count = model->facts.slots;
    model->has_thread = pthread_create(&model->thread, NULL, run, model) == 0;
    return model->has_thread || fail_open(error, ENG_MACHINE, options->path, "a thread cannot be created");
}

bool server_model_open(const struct server_model_options *options, struct server_model **model, struct eng_error *error)
{
    struct server_model *made = calloc(1, sizeof *made);
    if (!made) return fail_open(error, ENG_MACHINE, options->path, "out of memory");
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    bool ok = prepare(made, options, error);
    if (!ok) server_model_close(&made);
    *model = made;
    return ok;
}

void server_model_close(struct server_model **model)
{
    struct server_model *closed = *model;
    *model = NULL;
    if (!closed) return;
    if (closed->has_thread) {
        server_model_lock(closed);
        closed->stopping = true;
        pthread_cond_signal(&closed->changed);
        server_model_unlock(closed);
        pthread_join(closed->thread, NULL);
    }
    eng_session_destroy(&closed->session);
    server_grammars_close(&closed->grammars);
    eng_close(&closed->engine);
    pthread_cond_destroy(&closed->changed);
    pthread_mutex_destroy(&closed->lock);
    free(closed->slots);
    free(closed->token_kinds);
    free(closed->name);
    free(closed);
}
